"""sessions of people who look at the dashboard"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("sessions_key_id_fkey")),
        sa.PrimaryKeyConstraint("hash", name=op.f("sessions_pkey")),
    )
    op.create_index(op.f("sessions_key_id_idx"), "sessions", ["key_id"])


def downgrade() -> None:
    op.drop_table("sessions")
