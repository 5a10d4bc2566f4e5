"""Answers to linear queries of a categorical stream (paper C)."""
