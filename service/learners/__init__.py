"""One file for each way in which the records of a fit become a private model."""
