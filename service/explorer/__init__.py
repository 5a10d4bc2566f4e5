"""The price of privacy, tried out on public or evaluation data: never on a stream's records, which it can't reach.

Its numbers are not private. On data that is, they would themselves be a leak.
"""
