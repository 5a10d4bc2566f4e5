"""What it takes to publish, by whoever does: a worker when records have come, an API when a query is hard."""
