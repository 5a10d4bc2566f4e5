"""Publishes a finished step: parks it, commits it with its charges, and confirms it by the high-water mark."""
