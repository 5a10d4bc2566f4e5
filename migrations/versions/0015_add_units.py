"""add units: the secret of their pseudonyms, how many slots of each count, and how many units were erased"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("streams", sa.Column("unit_secret_digest", sa.Text()))
    op.add_column("streams", sa.Column("units_erased", sa.BigInteger(), nullable=False, server_default="0"))
    stream = sa.ForeignKey("streams.id", name="unit_secrets_stream_id_fkey")
    op.create_table(
        "unit_secrets",
        sa.Column("stream_id", sa.BigInteger(), stream, nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("stream_id", name="unit_secrets_pkey"),
    )
    op.create_table(
        "units",
        sa.Column(
            "stream_id", sa.BigInteger(), sa.ForeignKey("streams.id", name="units_stream_id_fkey"), nullable=False
        ),
        sa.Column("pseudonym", sa.LargeBinary(), nullable=False),
        sa.Column("counted", sa.Integer(), nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.Column("erased", sa.Boolean(), nullable=False, server_default="false"),
        sa.PrimaryKeyConstraint("stream_id", "pseudonym", name="units_pkey"),
    )


def downgrade() -> None:
    op.drop_table("units")
    op.drop_table("unit_secrets")
    op.drop_column("streams", "units_erased")
    op.drop_column("streams", "unit_secret_digest")
