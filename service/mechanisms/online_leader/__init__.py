"""A model after every batch, from noisy running sums of gradients (paper B)."""
