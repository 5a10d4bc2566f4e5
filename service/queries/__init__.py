"""Answers linear queries: from a public histogram, or from the records where an instance is open."""
