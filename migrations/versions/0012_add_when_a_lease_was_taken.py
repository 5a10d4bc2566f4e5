"""add when each lease was taken, so that people see since when a fit runs"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("leases", sa.Column("taken_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.drop_column("leases", "taken_at")
