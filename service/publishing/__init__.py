"""Publishes, whoever does it: a worker when records have come, an API when a query is hard."""
