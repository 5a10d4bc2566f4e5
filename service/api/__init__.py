"""The HTTP service. It knows the record, the log and the mechanisms' configuration and plans, not how they run."""
