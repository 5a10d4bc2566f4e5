"""Figures for people, computed from what evaluations released: estimates, intervals, alarms. It costs no privacy."""
