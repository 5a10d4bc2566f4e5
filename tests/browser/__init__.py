"""A package, so that its tests can share a browser: fixtures of a `package` end with it."""
