"""Learners: how the records of a fit become a private model, a file for each way; `optimization` has what fits it."""
