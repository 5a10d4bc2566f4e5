"""add the place of a stream's log: the number of the primary that holds it"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("streams", sa.Column("place", sa.Integer()))


def downgrade() -> None:
    """Refused where a stream is on another primary than the first: an older version would look for it there."""
    connection = op.get_bind()
    if connection.execute(sa.text("SELECT 1 FROM streams WHERE place <> 1 LIMIT 1")).first():
        raise RuntimeError("an older version can't go on with streams on several primaries")
    op.drop_column("streams", "place")
