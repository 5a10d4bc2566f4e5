"""One file for each resource of the HTTP interface."""
