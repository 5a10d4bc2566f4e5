"""data sets to try things out on, and what was tried"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("key_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("records", sa.Integer(), nullable=False),
        sa.Column("features", sa.Integer(), nullable=False),
        sa.Column("classes", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("datasets_key_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("datasets_pkey")),
    )
    op.create_table(
        "explorations",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("key_id", sa.BigInteger(), nullable=False),
        sa.Column("comparison", postgresql.JSON(), nullable=False),
        sa.Column("cells", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), server_default="waiting", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("progress", sa.Float(53), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("explorations_key_id_fkey")),
        sa.PrimaryKeyConstraint("id", name=op.f("explorations_pkey")),
    )
    op.create_table(
        "findings",
        sa.Column("exploration_id", sa.BigInteger(), nullable=False),
        sa.Column("cell", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("found", postgresql.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["exploration_id"],
            ["explorations.id"],
            name=op.f("findings_exploration_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("exploration_id", "cell", name=op.f("findings_pkey")),
    )


def downgrade() -> None:
    op.drop_table("findings")
    op.drop_table("explorations")
    op.drop_table("datasets")
