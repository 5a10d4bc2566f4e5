"""what a mechanism's next step needs of those before: parts, each written once"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "parts",
        sa.Column("publication_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("shape", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["publication_id"], ["publications.id"], name=op.f("parts_publication_id_fkey")),
        sa.PrimaryKeyConstraint("publication_id", "number", name=op.f("parts_pkey")),
    )


def downgrade() -> None:
    op.drop_table("parts")
