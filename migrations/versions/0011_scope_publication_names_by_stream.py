"""make names of publications unique per stream, not over all streams"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_constraint(op.f("publications_name_key"), "publications", type_="unique")
    op.create_unique_constraint(op.f("publications_stream_id_name_key"), "publications", ["stream_id", "name"])
    op.create_index(op.f("publications_name_id_idx"), "publications", ["name", "id"])


def downgrade() -> None:
    """Refused by the database where two streams have a publication of one name: an older version can't tell them."""
    op.drop_index(op.f("publications_name_id_idx"), table_name="publications")
    op.drop_constraint(op.f("publications_stream_id_name_key"), "publications", type_="unique")
    op.create_unique_constraint(op.f("publications_name_key"), "publications", ["name"])
