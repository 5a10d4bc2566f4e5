"""A model of all tasks so far, from private sufficient statistics (paper D)."""
