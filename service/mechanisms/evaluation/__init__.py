"""Private counts of how well published models predict."""
