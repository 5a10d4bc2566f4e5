"""The record: PostgreSQL, and the files of the numbered records. Every query lives here.

Functions take a connection inside a transaction; whoever opens the transaction decides what commits together.
"""
