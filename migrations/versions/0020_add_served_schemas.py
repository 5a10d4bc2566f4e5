"""add which older schemas the service may still be written for, so that two versions can run side by side"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0017"
branch_labels = None
depends_on = None
widens = True


def upgrade() -> None:
    op.create_table(
        "served_schemas",
        sa.Column("revision", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("revision", name="served_schemas_pkey"),
    )


def downgrade() -> None:
    op.drop_table("served_schemas")
