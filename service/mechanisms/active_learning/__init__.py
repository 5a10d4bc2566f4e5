"""Models of records that they select themselves (paper E)."""
