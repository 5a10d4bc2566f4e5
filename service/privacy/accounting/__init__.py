"""The cost of each release, and how costs compose on every record."""
