"""Alembic's entry: runs in the transaction that `perennial migrate` opened."""

from alembic import context

from service.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `perennial migrate`")
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
