"""add budgets that are held in ρ: how a stream's publications add up, and what its records have spent in ρ"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0014"
branch_labels = None
depends_on = None

IN_RHO = (
    *(("streams", "visible_rho"), ("outlines", "rho"), ("kept", "rho")),
    *(("streams", "visible_evaluation_rho"), ("evaluation_outlines", "rho"), ("evaluation_kept", "rho")),
)


def upgrade() -> None:
    op.add_column("streams", sa.Column("accounting", sa.Text(), nullable=False, server_default="basic"))
    for table, column in IN_RHO:
        op.add_column(table, sa.Column(column, sa.Numeric(), nullable=False, server_default="0"))


def downgrade() -> None:
    for table, column in IN_RHO:
        op.drop_column(table, column)
    op.drop_column("streams", "accounting")
