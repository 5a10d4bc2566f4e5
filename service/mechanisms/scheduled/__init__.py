"""Models fitted on a public schedule (papers A and C)."""
