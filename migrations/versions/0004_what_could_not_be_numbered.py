"""what could not be numbered: dead letters, and streams that went on with another log"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dead_letters",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("found_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("dropped_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("dead_letters_stream_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("dead_letters_pkey")),
        sa.UniqueConstraint("stream_id", "entry", name=op.f("dead_letters_stream_id_entry_key")),
    )
    op.create_table(
        "resumptions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("lost_batches", sa.BigInteger(), nullable=True),
        sa.Column("resumed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("resumptions_stream_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("resumptions_pkey")),
    )
    op.create_index(op.f("resumptions_stream_id_idx"), "resumptions", ["stream_id"], unique=False)


def downgrade() -> None:
    op.drop_table("resumptions")
    op.drop_table("dead_letters")
