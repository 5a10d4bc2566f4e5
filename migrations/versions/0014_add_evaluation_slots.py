"""add what is spent and kept on the slots that a stream sets aside for evaluations: none of any older stream"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0018"
branch_labels = None
depends_on = None

_SHOWN = ("visible_evaluation_epsilon", "visible_evaluation_delta")


def upgrade() -> None:
    op.add_column("streams", sa.Column("evaluation_grain", sa.BigInteger(), nullable=False, server_default="1"))
    for name in _SHOWN:
        op.add_column("streams", sa.Column(name, sa.Numeric(), nullable=False, server_default="0"))
    op.create_table(
        "evaluation_outlines",
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.BigInteger(), nullable=False),
        sa.Column("epsilon", sa.Numeric(), nullable=False),
        sa.Column("delta", sa.Numeric(), nullable=False),
        sa.CheckConstraint("start < stop", name=op.f("evaluation_outlines_range_check")),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("evaluation_outlines_stream_id_fkey")),
        sa.PrimaryKeyConstraint("stream_id", "start", name=op.f("evaluation_outlines_pkey")),
    )
    op.create_table(
        "evaluation_kept",
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("epsilon", sa.Numeric(), nullable=False),
        sa.Column("delta", sa.Numeric(), nullable=False),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("evaluation_kept_stream_id_fkey")),
        sa.PrimaryKeyConstraint("stream_id", "start", name=op.f("evaluation_kept_pkey")),
    )


def downgrade() -> None:
    op.drop_table("evaluation_kept")
    op.drop_table("evaluation_outlines")
    for name in (*_SHOWN, "evaluation_grain"):
        op.drop_column("streams", name)
