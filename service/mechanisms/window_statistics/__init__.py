"""Models of a sliding window, solved from private sufficient statistics."""
