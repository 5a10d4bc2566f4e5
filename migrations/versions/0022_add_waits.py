"""add why a step waits that has all its records, as a worker that could not take it said; leave leases room

Every lease that is held is written again every few seconds. Where its page has room, that writes no index.
"""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0020"
branch_labels = None
depends_on = None
widens = True


def upgrade() -> None:
    op.create_table(
        "waits",
        sa.Column("publication_id", sa.BigInteger(), nullable=False),
        sa.Column("due", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["publication_id"], ["publications.id"], name="waits_publication_id_fkey"),
        sa.PrimaryKeyConstraint("publication_id", name="waits_pkey"),
    )
    op.execute("ALTER TABLE leases SET (fillfactor = 40)")


def downgrade() -> None:
    op.execute("ALTER TABLE leases RESET (fillfactor)")
    op.drop_table("waits")
