"""What PostgreSQL holds. Migrations make these tables; a test keeps the two equal.

Ranges of records are half-open, [start, stop); numbers are absolute (a stream's first record is 0).
`stop` is what the API calls `end`, a reserved word in SQL.
"""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.postgresql import JSON

metadata = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "pk": "%(table_name)s_pkey",
    }
)


def _identity() -> Column[int]:
    return Column("id", BigInteger, Identity(always=True), primary_key=True)


def _now(name: str) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.now())


keys = Table(
    "keys",
    metadata,
    _identity(),
    Column("name", Text, nullable=False, unique=True),
    Column("hash", LargeBinary, nullable=False, unique=True),  # SHA-256; the key itself is stored nowhere
    Column("scopes", ARRAY(Text), nullable=False),
    Column("streams", ARRAY(Text)),  # names; null: every stream
    Column("origin", Text, nullable=False),  # "environment" for PERENNIAL_ADMIN_KEY, else "api"
    _now("created_at"),
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

streams = Table(
    "streams",
    metadata,
    _identity(),
    Column("name", Text, nullable=False, unique=True),
    Column("log", Text, nullable=False, unique=True),  # names the stream's keys in the log and its folder of segments
    Column("schema", JSON, nullable=False),
    Column("retention", Text, nullable=False),
    Column("epsilon", Numeric, nullable=False),
    Column("delta", Numeric, nullable=False),
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
    _now("created_at"),
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
    _identity(),
    Column("stream_id", ForeignKey("streams.id"), nullable=False, index=True),
    Column("start", BigInteger, nullable=False),
    Column("stop", BigInteger, nullable=False),
    _now("asked_at"),
    Column("deleted_at", DateTime(timezone=True)),  # when the bytes were gone from the segments
    CheckConstraint("start < stop", name="range"),
)

# What came in the log and could not be numbered. What it holds stays beside the log until it is dropped.
dead_letters = Table(
    "dead_letters",
    metadata,
    _identity(),
    Column("stream_id", ForeignKey("streams.id"), nullable=False),
    Column("entry", Text, nullable=False),
    Column("sequence", BigInteger),  # null: it is none of ours
    Column("reason", Text, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes
    _now("found_at"),
    Column("dropped_at", DateTime(timezone=True)),
    UniqueConstraint("stream_id", "entry"),
)

# Each time that numbering went on, by an operator's word, with a log that is not the one that was numbered before.
resumptions = Table(
    "resumptions",
    metadata,
    _identity(),
    Column("stream_id", ForeignKey("streams.id"), nullable=False, index=True),
    Column("reason", Text, nullable=False),  # why it had halted
    Column("records", BigInteger, nullable=False),  # how many were numbered before
    Column("entry", Text, nullable=False),  # the last batch that was
    Column("lost_batches", BigInteger),  # how many were accepted after it and are gone; null: nobody can know
    _now("resumed_at"),
)

publications = Table(
    "publications",
    metadata,
    _identity(),
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
    _now("created_at"),
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
    _now("published_at"),
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
    _now("noted_at"),
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

charges = Table(
    "charges",
    metadata,
    Column("stream_id", ForeignKey("streams.id"), primary_key=True),
    Column("id", BigInteger, primary_key=True, autoincrement=False),  # 1, 2, … per stream
    Column("publication_id", ForeignKey("publications.id"), nullable=False, index=True),
    Column("version", Integer),
    Column("start", BigInteger, nullable=False),
    Column("stop", BigInteger, nullable=False),
    # A charge is a binary double, so it is stored, served, hashed and added without rounding.
    Column("epsilon", Float(53)),
    Column("delta", Float(53)),
    Column("rho", Float(53)),
    Column("charged_at", DateTime(timezone=True), nullable=False),
    Column("hash", Text, nullable=False),
    Column("previous_hash", Text),
    CheckConstraint("(rho IS NULL) = (epsilon IS NOT NULL AND delta IS NOT NULL)", name="kind"),
    CheckConstraint("start < stop", name="range"),
)

# What each range of records has been charged by one publication, in its currency: the charges, added up exactly.
# It saves walking the charges at every publish; `perennial ledger verify` walks them and compares.
spent = Table(
    "spent",
    metadata,
    Column("publication_id", ForeignKey("publications.id"), primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("stop", BigInteger, nullable=False),
    Column("amount", Numeric, nullable=False),
    CheckConstraint("start < stop", name="range"),
)

# The most that any one record of a stretch has spent over all publications of the stream, in stretches of which there
# are at most so many, however long the stream is. Records of none have spent nothing.
outlines = Table(
    "outlines",
    metadata,
    Column("stream_id", ForeignKey("streams.id"), primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("stop", BigInteger, nullable=False),
    Column("epsilon", Numeric, nullable=False),
    Column("delta", Numeric, nullable=False),
    CheckConstraint("start < stop", name="range"),
)

# What publications that have ended keep reserved on some record from `start` on, at most: a falling staircase.
kept = Table(
    "kept",
    metadata,
    Column("stream_id", ForeignKey("streams.id"), primary_key=True),
    Column("start", BigInteger, primary_key=True),
    Column("epsilon", Numeric, nullable=False),
    Column("delta", Numeric, nullable=False),
)

# The explorer's: data sets that somebody uploaded to try things out on, and what was tried. No stream is behind them.
datasets = Table(
    "datasets",
    metadata,
    _identity(),
    Column("key_id", ForeignKey("keys.id"), nullable=False),  # whose it is
    Column("name", Text, nullable=False),
    Column("records", Integer, nullable=False),
    Column("features", Integer, nullable=False),
    Column("classes", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
    _now("created_at"),
)

explorations = Table(
    "explorations",
    metadata,
    _identity(),
    Column("key_id", ForeignKey("keys.id"), nullable=False),
    Column("comparison", JSON, nullable=False),
    Column("cells", Integer, nullable=False),
    Column("state", Text, nullable=False, server_default="waiting"),  # running, done, failed, cancelled
    Column("reason", Text),
    Column("progress", Float(53), nullable=False, server_default="0"),  # of the cell that runs
    _now("created_at"),
    Column("ended_at", DateTime(timezone=True)),
)

findings = Table(
    "findings",
    metadata,
    Column("exploration_id", ForeignKey("explorations.id", ondelete="CASCADE"), primary_key=True),
    Column("cell", Integer, primary_key=True, autoincrement=False),
    Column("found", JSON, nullable=False),
)

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

APPEND_ONLY = (charges, releases)
"""Rows of these are written once: triggers refuse anybody else's change, and the service's role has no right to any."""
