"""The ledger: charges, and the sums that are kept beside them."""

from sqlalchemy import BigInteger, CheckConstraint, Column, DateTime, Float, ForeignKey, Integer, Numeric, Table, Text

from service.store.tables.base import metadata

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
def _outlines(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("stream_id", ForeignKey("streams.id"), primary_key=True),
        Column("start", BigInteger, primary_key=True),
        Column("stop", BigInteger, nullable=False),
        Column("epsilon", Numeric, nullable=False),
        Column("delta", Numeric, nullable=False),
        Column("rho", Numeric, nullable=False, server_default="0"),  # of a stream whose budget is held in it
        CheckConstraint("start < stop", name="range"),
    )


outlines = _outlines("outlines")
evaluation_outlines = _outlines("evaluation_outlines")  # of evaluation slots, where a stream sets some aside


# What publications that have ended keep reserved on some record from `start` on, at most: a falling staircase.
def _staircase(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("stream_id", ForeignKey("streams.id"), primary_key=True),
        Column("start", BigInteger, primary_key=True),
        Column("epsilon", Numeric, nullable=False),
        Column("delta", Numeric, nullable=False),
        Column("rho", Numeric, nullable=False, server_default="0"),
    )


kept_reservations = _staircase("kept")
evaluation_kept = _staircase("evaluation_kept")  # on evaluation slots
