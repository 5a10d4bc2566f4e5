"""the labels that people are asked for"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "label_requests",
        sa.Column("publication_id", sa.BigInteger(), nullable=False),
        sa.Column("record", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("leased_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("label", sa.Integer(), nullable=True),
        sa.CheckConstraint("(label IS NULL) = (answered_at IS NULL)", name=op.f("label_requests_answered_check")),
        sa.ForeignKeyConstraint(
            ["publication_id"], ["publications.id"], name=op.f("label_requests_publication_id_fkey")
        ),
        sa.PrimaryKeyConstraint("publication_id", "record", name=op.f("label_requests_pkey")),
    )


def downgrade() -> None:
    op.drop_table("label_requests")
