"""Publications: what was released, what waits for its tick, and what the next step needs."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.postgresql import JSON

from service.store.tables.base import identity, metadata, now

publications = Table(
    "publications",
    metadata,
    identity(),
    Column("name", Text, nullable=False),  # the oldest of a name, of what a key may see, is meant by it
    Column("stream_id", ForeignKey("streams.id"), nullable=False, index=True),
    Column("start", BigInteger, nullable=False),
    Column("configuration", JSON, nullable=False),
    Column("plan", JSON, nullable=False),
    Column("obligations", JSON, nullable=False),  # what it owes whatever it releases; it never changes
    Column("obligations_digest", Text, nullable=False),  # of these and of the promise
    Column("kind", Text, nullable=False),  # the currency of its charges: "pure" (ε) or "zcdp" (ρ)
    Column("epsilon", Numeric, nullable=False),
    Column("delta", Numeric, nullable=False),
    Column("state", Text, nullable=False, server_default="running"),
    Column("reason", Text),
    # The schedule's clock counts records since `start`. `position`: the last time that was published.
    # `due`: the absolute record number at which the next fit can run.
    Column("position", BigInteger, nullable=False, server_default="0"),
    Column("due", BigInteger, nullable=False),
    Column("version", Integer, nullable=False, server_default="0"),  # the newest
    Column("latest", Integer),  # the newest with role "model"
    Column("chain", ARRAY(Integer), nullable=False, server_default="{}"),  # versions that later fits may start from
    Column("promise", Text, nullable=False),  # the digest of what never changes of a publication, and of its stream
    Column("digest", Text, nullable=False),  # of the newest version; before the first, the promise
    Column("seal", Text, nullable=False),  # the digest of what does change, as it was left
    # Releases appear at multiples of so many seconds of Unix time; 0: at once. It never changes.
    Column("publish_delay", Numeric, nullable=False, server_default="1"),
    # The record that it has charged most, and how much in all, in its currency.
    Column("worst_record", BigInteger),
    Column("worst_amount", Numeric, nullable=False, server_default="0"),
    # Another publication of the stream, whose release makes the features of its records.
    Column("features_from", BigInteger, ForeignKey("publications.id")),
    now("created_at"),
    CheckConstraint("state IN ('running', 'stopped', 'halted')", name="state"),
    UniqueConstraint("stream_id", "name"),
)
Index("publications_name_id_idx", publications.c.name, publications.c.id)
Index("publications_due_idx", publications.c.stream_id, publications.c.due)

# What of the above is shown to anybody: as it was when the stream was confirmed last. A table of its own, since who
# confirms must not wait for who publishes.
shown = Table(
    "shown",
    metadata,
    Column("publication_id", ForeignKey("publications.id"), primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("due", BigInteger, nullable=False),
    Column("worst_record", BigInteger),
    Column("worst_amount", Numeric, nullable=False),
    Column("state", Text, nullable=False, server_default="running"),
    Column("reason", Text),
)

releases = Table(
    "releases",
    metadata,
    Column("publication_id", ForeignKey("publications.id"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("stream_id", BigInteger, nullable=False),
    Column("number", BigInteger, nullable=False),  # 1, 2, … per stream, in the order in which they were committed
    Column("charge", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),
    Column("role", Text, nullable=False),
    Column("window_start", BigInteger, nullable=False),
    Column("window_stop", BigInteger, nullable=False),
    Column("fit_start", BigInteger, nullable=False),
    Column("fit_stop", BigInteger, nullable=False),
    Column("parent", Integer),
    Column("shape", ARRAY(Integer), nullable=False),
    Column("parameters", LargeBinary, nullable=False),  # float64, little-endian, row by row
    Column("model", JSON, nullable=False),
    Column("noise", JSON, nullable=False),
    # Of all the above and of the digest of the version before; of the first one, of the publication's promise.
    Column("digest", Text, nullable=False),
    now("published_at"),
    # No release without its charge.
    ForeignKeyConstraint(["stream_id", "charge"], ["charges.stream_id", "charges.id"]),
    UniqueConstraint("stream_id", "number"),
)

# Finished steps that wait for their tick: see parked.py. As secret as the records.
parked = Table(
    "parked",
    metadata,
    Column("publication_id", ForeignKey("publications.id"), primary_key=True),
    # The position and version that the step starts from.
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("stream_id", ForeignKey("streams.id"), nullable=False),
    Column("tick", DateTime(timezone=True), nullable=False),
    Column("due_at", DateTime(timezone=True)),  # when the last record that it needed was numbered; null: nobody knows
    Column("following_due", BigInteger),  # as publications.due once it is published; null: there is no further step
    Column("lineage", Text, nullable=False),  # the digest of the state that it leaves: see lineage.py
    Column("content", LargeBinary, nullable=False),
)
Index("parked_tick_idx", parked.c.stream_id, parked.c.tick)

# The step of a publication whose last attempt ended without a public reason; a second one halts it.
attempts = Table(
    "attempts",
    metadata,
    Column("publication_id", ForeignKey("publications.id"), primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("version", Integer, nullable=False),
    now("noted_at"),
)

# Why the next step of a publication waits that has all its records: see waits.py.
waits = Table(
    "waits",
    metadata,
    Column("publication_id", ForeignKey("publications.id"), primary_key=True),
    Column("due", BigInteger, nullable=False),  # the record number at which the step that waits had all its records
    Column("reason", Text, nullable=False),
    Column("shown_at", DateTime(timezone=True)),  # the tick from which on it is shown; null: at once
)

# What a publication's next step needs and no call reads: see parts.py. Numbers are never used again.
parts = Table(
    "parts",
    metadata,
    Column("publication_id", ForeignKey("publications.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("shape", ARRAY(Integer), nullable=False),
    Column("content", LargeBinary, nullable=False),  # float64, little-endian, row by row
)

memories = Table(
    "memories",
    metadata,
    Column("publication_id", ForeignKey("publications.id"), primary_key=True),
    Column("digest", Text, nullable=False),  # of all its parts, and of the terms on which the next step goes on
)

# Of the batch that a publication is gathering: see labels.py.
label_requests = Table(
    "label_requests",
    metadata,
    Column("publication_id", ForeignKey("publications.id"), primary_key=True),
    Column("record", BigInteger, primary_key=True, autoincrement=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("leased_until", DateTime(timezone=True)),  # null: not leased yet; infinity: set aside, see labels.py
    Column("answered_at", DateTime(timezone=True)),
    Column("label", Integer),
    Column("charge", BigInteger),  # the newest of the stream when it was made; visible once that is confirmed
    CheckConstraint("(label IS NULL) = (answered_at IS NULL)", name="answered"),
)
