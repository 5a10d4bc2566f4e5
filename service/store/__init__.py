"""The record: PostgreSQL. Every query lives here.

Functions take a connection inside a transaction; whoever opens the transaction decides what commits together.
"""
