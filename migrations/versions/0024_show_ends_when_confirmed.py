"""Add the state of publications that is shown, the tick from which on a wait is shown, and the first batch remembered.

The version before gives back what a publication reserved before its end is confirmed, so it can't run beside this one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
widens = False


def upgrade() -> None:
    op.add_column("shown", sa.Column("state", sa.Text(), server_default="running", nullable=False))
    op.add_column("shown", sa.Column("reason", sa.Text(), nullable=True))
    op.execute(
        "UPDATE shown SET state = publications.state, reason = publications.reason "
        "FROM publications WHERE id = publication_id"
    )
    op.add_column("streams", sa.Column("entries_from", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("waits", sa.Column("shown_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("waits", "shown_at")
    op.drop_column("streams", "entries_from")
    op.drop_column("shown", "reason")
    op.drop_column("shown", "state")
