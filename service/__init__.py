"""Perennial: continually published private models of a stream."""
