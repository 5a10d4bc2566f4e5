"""add from which publication another one has its features, so that a fit waits for that one's confirmed release"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("publications", sa.Column("features_from", sa.BigInteger))
    op.create_foreign_key(
        op.f("publications_features_from_fkey"), "publications", "publications", ["features_from"], ["id"]
    )


def downgrade() -> None:
    """Refused where a publication has features of another one: an older version would fit it without them."""
    connection = op.get_bind()
    if connection.execute(sa.text("SELECT 1 FROM publications WHERE features_from IS NOT NULL LIMIT 1")).first():
        raise RuntimeError("an older version can't go on with publications that have features of another one")
    op.drop_constraint(op.f("publications_features_from_fkey"), "publications", type_="foreignkey")
    op.drop_column("publications", "features_from")
