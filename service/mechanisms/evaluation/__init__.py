"""Private counts of how well published models predict, and what follows from them."""
