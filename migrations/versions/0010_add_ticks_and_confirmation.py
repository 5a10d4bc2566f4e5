"""Add what publishing at public ticks, confirmation by the high-water mark and counted attempts store.

Everything that was charged and published before counts as confirmed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _number_releases()
    op.add_column("streams", sa.Column("releases", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("streams", sa.Column("newest_release", sa.Text(), nullable=True))
    op.add_column("streams", sa.Column("confirmed_charges", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("streams", sa.Column("confirmed_releases", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("streams", sa.Column("marked", sa.Boolean(), server_default="false", nullable=False))
    op.add_column("streams", sa.Column("visible_epsilon", sa.Numeric(), server_default="0", nullable=False))
    op.add_column("streams", sa.Column("visible_delta", sa.Numeric(), server_default="0", nullable=False))
    op.execute("UPDATE streams SET confirmed_charges = charges")
    op.execute(
        "UPDATE streams SET visible_epsilon = epsilon_spent, visible_delta = delta_spent FROM "
        "(SELECT stream_id, max(epsilon) AS epsilon_spent, max(delta) AS delta_spent FROM outlines GROUP BY stream_id) "
        "AS outlined WHERE outlined.stream_id = streams.id"
    )
    op.create_table(
        "shown",
        sa.Column("publication_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=False),
        sa.Column("worst_record", sa.BigInteger(), nullable=True),
        sa.Column("worst_amount", sa.Numeric(), nullable=False),
        sa.ForeignKeyConstraint(["publication_id"], ["publications.id"], name=op.f("shown_publication_id_fkey")),
        sa.PrimaryKeyConstraint("publication_id", name=op.f("shown_pkey")),
    )
    op.execute("INSERT INTO shown SELECT id, position, due, worst_record, worst_amount FROM publications")
    op.execute(
        "UPDATE streams SET releases = number, confirmed_releases = number, newest_release = digest FROM "
        "(SELECT DISTINCT ON (stream_id) stream_id, number, digest FROM releases ORDER BY stream_id, number DESC) "
        "AS newest WHERE newest.stream_id = streams.id"
    )
    op.add_column("entries", sa.Column("numbered_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index("entries_start_idx", "entries", ["stream_id", "start"])
    op.add_column("publications", sa.Column("publish_delay", sa.Numeric(), server_default="1", nullable=False))
    # Their steps are due by queries and by labels, not by records: they have no public time to wait for.
    op.execute(
        "UPDATE publications SET publish_delay = 0 "
        "WHERE configuration -> 'mechanism' ->> 'kind' IN ('linear_queries', 'active_learning')"
    )
    op.execute(
        "UPDATE publications SET publish_delay = (configuration ->> 'publish_delay')::numeric "
        "WHERE configuration ->> 'publish_delay' IS NOT NULL"
    )
    op.add_column("label_requests", sa.Column("charge", sa.BigInteger(), nullable=True))
    op.create_table(
        "parked",
        sa.Column("publication_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("tick", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("following_due", sa.BigInteger(), nullable=True),
        sa.Column("lineage", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["publication_id"], ["publications.id"], name=op.f("parked_publication_id_fkey")),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("parked_stream_id_fkey")),
        sa.PrimaryKeyConstraint("publication_id", "position", "version", name=op.f("parked_pkey")),
    )
    op.create_index("parked_tick_idx", "parked", ["stream_id", "tick"])
    op.create_table(
        "attempts",
        sa.Column("publication_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("noted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["publication_id"], ["publications.id"], name=op.f("attempts_publication_id_fkey")),
        sa.PrimaryKeyConstraint("publication_id", name=op.f("attempts_pkey")),
    )
    op.add_column("leases", sa.Column("timeline", sa.Integer(), nullable=True))
    # Several processes may have compared with a threshold, and lost a yes: its first owner closes it.
    op.execute(
        "INSERT INTO leases (resource, owner) SELECT 'queries:' || id, 'before 0010' FROM publications "
        "WHERE configuration -> 'mechanism' ->> 'kind' = 'linear_queries'"
    )


def downgrade() -> None:
    op.execute("DELETE FROM leases WHERE resource LIKE 'queries:%'")
    op.drop_table("attempts")
    op.drop_table("parked")
    op.drop_column("label_requests", "charge")
    op.drop_column("publications", "publish_delay")
    op.drop_index("entries_start_idx", "entries")
    op.drop_column("entries", "numbered_at")
    op.drop_column("leases", "timeline")
    op.drop_table("shown")
    for name in ("visible_delta", "visible_epsilon"):
        op.drop_column("streams", name)
    for name in ("marked", "confirmed_releases", "confirmed_charges", "newest_release", "releases"):
        op.drop_column("streams", name)
    op.drop_column("releases", "number")


def _number_releases() -> None:
    """In the order in which they were committed; the number is in no digest, so none changes."""
    op.add_column("releases", sa.Column("number", sa.BigInteger(), nullable=True))
    op.execute("ALTER TABLE releases DISABLE TRIGGER append_only")
    op.execute(
        "UPDATE releases SET number = ordered.number FROM (SELECT publication_id, version, row_number() OVER "
        "(PARTITION BY stream_id ORDER BY published_at, charge, publication_id, version) AS number FROM releases) "
        "AS ordered WHERE (ordered.publication_id, ordered.version) = (releases.publication_id, releases.version)"
    )
    op.execute("ALTER TABLE releases ENABLE ALWAYS TRIGGER append_only")
    op.alter_column("releases", "number", nullable=False)
    op.create_unique_constraint(op.f("releases_stream_id_number_key"), "releases", ["stream_id", "number"])
