"""Schedules: which records to fit when, near which earlier model, for which share of the budget. Pure functions."""
