"""The dashboard: static pages, whose scripts read everything from the HTTP interface."""
