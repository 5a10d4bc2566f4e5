"""The laws of noise, their exact samplers, and the cost of each draw."""
