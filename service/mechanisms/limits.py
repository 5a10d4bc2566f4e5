"""Limits that several mechanisms share."""

MAX_BLOCKS = 4096
MAX_REMEMBERED = 2**25  # numbers, of a window's statistics
