"""Streams: their numbered records, where those lie, and what could not be numbered."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
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

streams = Table(
    "streams",
    metadata,
    identity(),
    Column("name", Text, nullable=False, unique=True),
    Column("log", Text, nullable=False, unique=True),  # names the stream's keys in the log and its folder of segments
    Column("schema", JSON, nullable=False),
    # The slot of the log's keys in a cluster.
    Column("place", Integer, nullable=False),
    Column("retention", Text, nullable=False),
    Column("epsilon", Numeric, nullable=False),
    Column("delta", Numeric, nullable=False),
    # "basic": publications add up in (epsilon, delta); "zcdp": in rho, within what implies (epsilon, delta).
    Column("accounting", Text, nullable=False, server_default="basic"),
    # How far the log is numbered. Moved only together with the segment that holds the records.
    Column("records", BigInteger, nullable=False, server_default="0"),
    Column("sealed_entry", Text, nullable=False, server_default="0-0"),
    Column("sealed_sequence", BigInteger, nullable=False, server_default="0"),
    Column("halted", Text),  # why nothing more is numbered; null: all is well
    # The end of its chain of charges: how many there are, and the newest one's hash.
    Column("charges", BigInteger, nullable=False, server_default="0"),
    Column("head", Text),
    Column("distrusted", Text),  # why nothing is published: what of its ledger does not verify; null: all is well
    Column("grain", BigInteger, nullable=False, server_default="1"),  # edges of its outline are multiples of this
    Column("promise", Text, nullable=False),  # the digest of what never changes of a stream
    Column("segments_sum", Numeric, nullable=False, server_default="0"),  # of its segments' digests, modulo 2^256
    # Releases on it are numbered too, over all publications: how many there are, and the newest one's digest.
    Column("releases", BigInteger, nullable=False, server_default="0"),
    Column("newest_release", Text),
    # Up to which charge and which release the high-water mark beside its segments holds them: the rest is invisible.
    Column("confirmed_charges", BigInteger, nullable=False, server_default="0"),
    Column("confirmed_releases", BigInteger, nullable=False, server_default="0"),
    Column("marked", Boolean, nullable=False, server_default="false"),  # whether there was ever such a mark
    # The worst record's, of what is confirmed; each at least that of any record.
    Column("visible_epsilon", Numeric, nullable=False, server_default="0"),
    Column("visible_delta", Numeric, nullable=False, server_default="0"),
    Column("visible_rho", Numeric, nullable=False, server_default="0"),
    # The same of its evaluation slots alone.
    Column("evaluation_grain", BigInteger, nullable=False, server_default="1"),
    Column("visible_evaluation_epsilon", Numeric, nullable=False, server_default="0"),
    Column("visible_evaluation_delta", Numeric, nullable=False, server_default="0"),
    Column("visible_evaluation_rho", Numeric, nullable=False, server_default="0"),
    # Of a stream with units: the digest of the secret of their pseudonyms, and how many units were erased.
    Column("unit_secret_digest", Text),
    Column("units_erased", BigInteger, nullable=False, server_default="0"),
    Column(
        "entries_from", BigInteger, nullable=False, server_default="0"
    ),  # the first record whose batch is remembered
    now("created_at"),
)

# Never shown to anybody. Without it a stream's units are strangers: a new secret would begin all their counts anew.
unit_secrets = Table(
    "unit_secrets",
    metadata,
    Column("stream_id", ForeignKey("streams.id"), primary_key=True),
    Column("secret", LargeBinary, nullable=False),
)

# How many slots of each unit count, and the last of them. Moved only together with the records that are numbered.
units = Table(
    "units",
    metadata,
    Column("stream_id", ForeignKey("streams.id"), primary_key=True),
    Column("pseudonym", LargeBinary, primary_key=True),
    Column("counted", Integer, nullable=False),
    Column("last", BigInteger, nullable=False),
    Column("erased", Boolean, nullable=False, server_default="false"),  # none of its later slots counts
)

entries = Table(
    "entries",
    metadata,
    Column("stream_id", ForeignKey("streams.id"), primary_key=True),
    Column("entry", Text, primary_key=True),  # the log's own id of the batch
    Column("start", BigInteger, nullable=False),
    Column("stop", BigInteger, nullable=False),
    Column("numbered_at", DateTime(timezone=True)),  # null: before this was written down
    CheckConstraint("start < stop", name="range"),
)
Index("entries_start_idx", entries.c.stream_id, entries.c.start)

segments = Table(
    "segments",
    metadata,
    Column("stream_id", ForeignKey("streams.id"), primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("stop", BigInteger, nullable=False),
    Column("file", Text, nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("digest", Text, nullable=False),  # of all the above
    CheckConstraint("start < stop", name="range"),
)

erasures = Table(
    "erasures",
    metadata,
    identity(),
    Column("stream_id", ForeignKey("streams.id"), nullable=False, index=True),
    Column("start", BigInteger, nullable=False),
    Column("stop", BigInteger, nullable=False),
    now("asked_at"),
    Column("deleted_at", DateTime(timezone=True)),  # when the bytes were gone from the segments
    CheckConstraint("start < stop", name="range"),
)

# What came in the log and could not be numbered. What it holds stays beside the log until it is dropped.
dead_letters = Table(
    "dead_letters",
    metadata,
    identity(),
    Column("stream_id", ForeignKey("streams.id"), nullable=False),
    Column("entry", Text, nullable=False),
    Column("sequence", BigInteger),  # null: it is none of ours
    Column("reason", Text, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes
    now("found_at"),
    Column("dropped_at", DateTime(timezone=True)),
    UniqueConstraint("stream_id", "entry"),
)

# Each time that numbering went on, by an operator's word, with a log that is not the one that was numbered before.
resumptions = Table(
    "resumptions",
    metadata,
    identity(),
    Column("stream_id", ForeignKey("streams.id"), nullable=False, index=True),
    Column("reason", Text, nullable=False),  # why it had halted
    Column("records", BigInteger, nullable=False),  # how many were numbered before
    Column("entry", Text, nullable=False),  # the last batch that was
    Column("lost_batches", BigInteger),  # how many were accepted after it and are gone; null: nobody can know
    now("resumed_at"),
)
