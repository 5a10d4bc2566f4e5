"""Leases: which process works on what."""

from sqlalchemy import BigInteger, Column, DateTime, Integer, Table, Text, func

from service.store.tables.base import metadata

leases = Table(
    "leases",
    metadata,
    Column(
        "resource", Text, primary_key=True
    ),  # "stream:<id>", "publication:<id>", "queries:<id>" or "exploration:<id>"
    Column("owner", Text),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("timeline", Integer),  # PostgreSQL's when it was last given back; null: it never was
    Column("expires_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Column("taken_at", DateTime(timezone=True)),  # by its newest owner; null: before this was written down
)
