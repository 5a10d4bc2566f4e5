"""Tables of the explorer: uploaded data sets, and comparisons of mechanisms on them. No stream is behind them."""

from sqlalchemy import Column, DateTime, Float, ForeignKey, Integer, LargeBinary, Table, Text
from sqlalchemy.dialects.postgresql import JSON

from service.store.tables.base import identity, metadata, now

datasets = Table(
    "datasets",
    metadata,
    identity(),
    Column("key_id", ForeignKey("keys.id"), nullable=False),  # whose it is
    Column("name", Text, nullable=False),
    Column("records", Integer, nullable=False),
    Column("features", Integer, nullable=False),
    Column("classes", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
    now("created_at"),
)

explorations = Table(
    "explorations",
    metadata,
    identity(),
    Column("key_id", ForeignKey("keys.id"), nullable=False),
    Column("comparison", JSON, nullable=False),
    Column("cells", Integer, nullable=False),
    Column("state", Text, nullable=False, server_default="waiting"),  # running, done, failed, cancelled
    Column("reason", Text),
    Column("progress", Float(53), nullable=False, server_default="0"),  # of the cell that runs
    now("created_at"),
    Column("ended_at", DateTime(timezone=True)),
)

findings = Table(
    "findings",
    metadata,
    Column("exploration_id", ForeignKey("explorations.id", ondelete="CASCADE"), primary_key=True),
    Column("cell", Integer, primary_key=True, autoincrement=False),
    Column("found", JSON, nullable=False),
)
