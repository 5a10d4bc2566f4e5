"""Mechanisms: how records become releases. Pure but for the noise: no I/O, no clock, no settings."""
