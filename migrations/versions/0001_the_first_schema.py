"""the first schema"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_table(
        "keys",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("streams", sa.ARRAY(sa.Text()), nullable=True),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("keys_pkey")),
        sa.UniqueConstraint("hash", name=op.f("keys_hash_key")),
        sa.UniqueConstraint("name", name=op.f("keys_name_key")),
    )
    op.create_table(
        "leases",
        sa.Column("resource", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("resource", name=op.f("leases_pkey")),
    )
    op.create_table(
        "streams",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("schema", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("retention", sa.Text(), nullable=False),
        sa.Column("epsilon", sa.Numeric(), nullable=False),
        sa.Column("delta", sa.Numeric(), nullable=False),
        sa.Column("records", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("sealed_entry", sa.Text(), server_default="0-0", nullable=False),
        sa.Column("sealed_sequence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("halted", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("streams_pkey")),
        sa.UniqueConstraint("log", name=op.f("streams_log_key")),
        sa.UniqueConstraint("name", name=op.f("streams_name_key")),
    )
    op.create_table(
        "entries",
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("start < stop", name=op.f("entries_range_check")),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("entries_stream_id_fkey")),
        sa.PrimaryKeyConstraint("stream_id", "entry", name=op.f("entries_pkey")),
    )
    op.create_table(
        "erasures",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.BigInteger(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("start < stop", name=op.f("erasures_range_check")),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("erasures_stream_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("erasures_pkey")),
    )
    op.create_index(op.f("erasures_stream_id_idx"), "erasures", ["stream_id"], unique=False)
    op.create_table(
        "publications",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("configuration", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("plan", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("epsilon", sa.Numeric(), nullable=False),
        sa.Column("delta", sa.Numeric(), nullable=False),
        sa.Column("state", sa.Text(), server_default="running", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("position", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), server_default="0", nullable=False),
        sa.Column("latest", sa.Integer(), nullable=True),
        sa.Column("chain", sa.ARRAY(sa.Integer()), server_default="{}", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("state IN ('running', 'stopped', 'halted')", name=op.f("publications_state_check")),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("publications_stream_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("publications_pkey")),
        sa.UniqueConstraint("name", name=op.f("publications_name_key")),
    )
    op.create_index("publications_due_idx", "publications", ["stream_id", "due"], unique=False)
    op.create_index(op.f("publications_stream_id_idx"), "publications", ["stream_id"], unique=False)
    op.create_table(
        "segments",
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.BigInteger(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("start < stop", name=op.f("segments_range_check")),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("segments_stream_id_fkey")),
        sa.PrimaryKeyConstraint("stream_id", "start", name=op.f("segments_pkey")),
    )
    op.create_table(
        "charges",
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("publication_id", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.BigInteger(), nullable=False),
        sa.Column("epsilon", sa.Float(precision=53), nullable=True),
        sa.Column("delta", sa.Float(precision=53), nullable=True),
        sa.Column("rho", sa.Float(precision=53), nullable=True),
        sa.Column("charged_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.Column("previous_hash", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(rho IS NULL) = (epsilon IS NOT NULL AND delta IS NOT NULL)", name=op.f("charges_kind_check")
        ),
        sa.CheckConstraint("start < stop", name=op.f("charges_range_check")),
        sa.ForeignKeyConstraint(["publication_id"], ["publications.id"], name=op.f("charges_publication_id_fkey")),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("charges_stream_id_fkey")),
        sa.PrimaryKeyConstraint("stream_id", "id", name=op.f("charges_pkey")),
    )
    op.create_table(
        "spent",
        sa.Column("publication_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.BigInteger(), nullable=False),
        sa.Column("amount", sa.Numeric(), nullable=False),
        sa.CheckConstraint("start < stop", name=op.f("spent_range_check")),
        sa.ForeignKeyConstraint(["publication_id"], ["publications.id"], name=op.f("spent_publication_id_fkey")),
        sa.PrimaryKeyConstraint("publication_id", "start", name=op.f("spent_pkey")),
    )
    op.create_table(
        "releases",
        sa.Column("publication_id", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("charge", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.Column("window_stop", sa.BigInteger(), nullable=False),
        sa.Column("fit_start", sa.BigInteger(), nullable=False),
        sa.Column("fit_stop", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("shape", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("parameters", sa.LargeBinary(), nullable=False),
        sa.Column("model", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("noise", postgresql.JSON(astext_type=sa.Text()), nullable=False),
        sa.Column("published_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["publication_id"], ["publications.id"], name=op.f("releases_publication_id_fkey")),
        sa.ForeignKeyConstraint(
            ["stream_id", "charge"], ["charges.stream_id", "charges.id"], name=op.f("releases_stream_id_charge_fkey")
        ),
        sa.PrimaryKeyConstraint("publication_id", "version", name=op.f("releases_pkey")),
    )


def downgrade() -> None:

    op.drop_table("releases")
    op.drop_table("spent")
    op.drop_table("charges")
    op.drop_table("segments")
    op.drop_index(op.f("publications_stream_id_idx"), table_name="publications")
    op.drop_index("publications_due_idx", table_name="publications")
    op.drop_table("publications")
    op.drop_index(op.f("erasures_stream_id_idx"), table_name="erasures")
    op.drop_table("erasures")
    op.drop_table("entries")
    op.drop_table("streams")
    op.drop_table("leases")
    op.drop_table("keys")
