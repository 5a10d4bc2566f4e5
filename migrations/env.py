"""Alembic's entry: runs in the transaction that `perennial migrate` opened."""

from alembic import context

from service.store import schema_version
from service.store.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `perennial migrate`")
context.configure(connection=connection, target_metadata=metadata)
with context.begin_transaction():
    schema_version.stop_leases(connection)
    before = schema_version.revisions(connection)
    context.run_migrations()
    schema_version.note_served(connection, before)
