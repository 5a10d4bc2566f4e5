"""Keys of those who ask: how often each may ask, and the audit log."""
