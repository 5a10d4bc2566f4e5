"""Set the place of every stream's log to the slot that a cluster gives its keys, whatever the log is."""

from binascii import crc_hqx

import sqlalchemy as sa
from alembic import op

from service.store.migrate import CannotMigrate

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
widens = False


def upgrade() -> None:
    """Refused where a stream is on a later primary of a list: 0.1.0 can move it, and this version can't read it."""
    streams = sa.table("streams", *map(sa.column, ("id", "name", "log", "place")))
    connection = op.get_bind()
    rows = connection.execute(sa.select(streams).order_by(streams.c.name)).all()
    slots = {row.id: crc_hqx(row.log.encode(), 0) % 2**14 for row in rows}
    if elsewhere := [row.name for row in rows if row.place not in (None, 1, slots[row.id])]:
        raise CannotMigrate(
            "streams lie on other servers of the list in PERENNIAL_REDIS_URL than its first "
            f"({', '.join(elsewhere[:9])}): move them to the first with `perennial move-stream` of 0.1.0, then migrate"
        )
    for identity, slot in slots.items():
        connection.execute(sa.update(streams).where(streams.c.id == identity).values(place=slot))
    op.alter_column("streams", "place", nullable=False)


def downgrade() -> None:
    op.alter_column("streams", "place", nullable=True)
    op.execute("UPDATE streams SET place = NULL")
