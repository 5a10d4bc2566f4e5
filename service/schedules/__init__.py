"""When to fit what, near which earlier model, and for which share of the budget. Pure functions of the count."""
