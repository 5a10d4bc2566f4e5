"""Callers: keys, and the sessions of people who signed in with one."""

from sqlalchemy import ARRAY, Column, DateTime, ForeignKey, LargeBinary, Table, Text

from service.store.tables.base import identity, metadata, now

keys = Table(
    "keys",
    metadata,
    identity(),
    Column("name", Text, nullable=False, unique=True),
    Column("hash", LargeBinary, nullable=False, unique=True),  # SHA-256; the key itself is stored nowhere
    Column("scopes", ARRAY(Text), nullable=False),
    Column("streams", ARRAY(Text)),  # names; null: every stream
    Column("origin", Text, nullable=False),  # "environment" for PERENNIAL_ADMIN_KEY, else "api"
    now("created_at"),
    Column("revoked_at", DateTime(timezone=True)),
)

# Of people who signed in with a key in a browser.
sessions = Table(
    "sessions",
    metadata,
    Column("hash", LargeBinary, primary_key=True),  # SHA-256; the secret itself is stored nowhere
    Column("key_id", ForeignKey("keys.id"), nullable=False, index=True),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)
