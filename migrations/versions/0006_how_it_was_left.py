"""the digest of what a mechanism remembers; databases made while 0005 had this table too have it already"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memories",
        sa.Column("publication_id", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["publication_id"], ["publications.id"], name=op.f("memories_publication_id_fkey")),
        sa.PrimaryKeyConstraint("publication_id", name=op.f("memories_pkey")),
        if_not_exists=True,
    )


def downgrade() -> None:
    op.drop_table("memories")
