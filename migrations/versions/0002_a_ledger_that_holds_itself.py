"""a ledger that holds itself: where its chain ends, digests of releases, sums kept up, no change to what is written"""

import hashlib
from datetime import UTC
from fractions import Fraction
from typing import Any

import rfc8785
import sqlalchemy as sa
from alembic import op

from service.ledger.spending import decimal
from service.privacy.accounting import composition
from service.privacy.accounting.composition import Component, PrivacyLoss
from service.privacy.currency import Currency

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

MOST_STRETCHES = 512
APPEND_ONLY = ("charges", "releases")


def upgrade() -> None:
    op.add_column("streams", sa.Column("charges", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("streams", sa.Column("head", sa.Text(), nullable=True))
    op.add_column("streams", sa.Column("distrusted", sa.Text(), nullable=True))
    op.add_column("streams", sa.Column("grain", sa.BigInteger(), server_default="1", nullable=False))
    op.add_column("publications", sa.Column("digest", sa.Text(), nullable=True))
    op.add_column("publications", sa.Column("worst_record", sa.BigInteger(), nullable=True))
    op.add_column("publications", sa.Column("worst_amount", sa.Numeric(), server_default="0", nullable=False))
    op.add_column("releases", sa.Column("digest", sa.Text(), nullable=True))
    op.create_table(
        "outlines",
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.BigInteger(), nullable=False),
        sa.Column("epsilon", sa.Numeric(), nullable=False),
        sa.Column("delta", sa.Numeric(), nullable=False),
        sa.CheckConstraint("start < stop", name=op.f("outlines_range_check")),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("outlines_stream_id_fkey")),
        sa.PrimaryKeyConstraint("stream_id", "start", name=op.f("outlines_pkey")),
    )
    op.create_table(
        "kept",
        sa.Column("stream_id", sa.BigInteger(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("epsilon", sa.Numeric(), nullable=False),
        sa.Column("delta", sa.Numeric(), nullable=False),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name=op.f("kept_stream_id_fkey")),
        sa.PrimaryKeyConstraint("stream_id", "start", name=op.f("kept_pkey")),
    )
    op.create_index(op.f("charges_publication_id_idx"), "charges", ["publication_id"], unique=False)
    connection = op.get_bind()
    _close_chains(connection)
    _digest_releases(connection)
    _sum_up(connection)
    op.alter_column("releases", "digest", nullable=False)
    # A second line behind the rights of the service's role: not even the owner changes these by mistake.
    op.execute(
        """
        CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
        END $$
        """
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        op.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER append_only")


def downgrade() -> None:
    for table in APPEND_ONLY:
        op.execute(f"DROP TRIGGER append_only ON {table}")
    op.execute("DROP FUNCTION refuse_change()")
    op.drop_index(op.f("charges_publication_id_idx"), table_name="charges")
    op.drop_table("kept")
    op.drop_table("outlines")
    op.drop_column("releases", "digest")
    for column in ("worst_amount", "worst_record", "digest"):
        op.drop_column("publications", column)
    for column in ("grain", "distrusted", "head", "charges"):
        op.drop_column("streams", column)


def _close_chains(connection: sa.Connection) -> None:
    connection.execute(
        sa.text(
            "UPDATE streams SET charges = last.id, head = last.hash FROM "
            "(SELECT DISTINCT ON (stream_id) stream_id, id, hash FROM charges ORDER BY stream_id, id DESC) AS last "
            "WHERE streams.id = last.stream_id"
        )
    )


def _digest_releases(connection: sa.Connection) -> None:
    """As service/store/releases.py does it, for those that were published before there were digests."""
    for publication, name in connection.execute(sa.text("SELECT id, name FROM publications")).all():
        previous = None
        version = 0
        while row := connection.execute(
            sa.text(
                "SELECT r.*, encode(sha256(r.parameters), 'hex') AS sha256, c.hash AS charged_hash FROM releases r "
                "JOIN charges c ON (c.stream_id, c.id) = (r.stream_id, r.charge) "
                "WHERE r.publication_id = :publication AND r.version > :version ORDER BY r.version LIMIT 1"
            ),
            {"publication": publication, "version": version},
        ).one_or_none():
            version = row.version
            moment = row.published_at.astimezone(UTC)
            content: dict[str, Any] = {
                "publication": name,
                "version": version,
                "charge": row.charged_hash,
                "time": row.time,
                "role": row.role,
                "window": [row.window_start, row.window_stop],
                "fit": [row.fit_start, row.fit_stop],
                "parent": row.parent,
                "shape": row.shape,
                "parameters": row.sha256,
                "model": row.model,
                "noise": row.noise,
                "published_at": moment.isoformat(timespec="microseconds").replace("+00:00", "Z"),
                "previous_digest": previous,
            }
            previous = hashlib.sha256(rfc8785.dumps(content)).hexdigest()
            connection.execute(
                sa.text(
                    "UPDATE releases SET digest = :digest WHERE publication_id = :publication AND version = :version"
                ),
                {"digest": previous, "publication": publication, "version": version},
            )
        connection.execute(
            sa.text("UPDATE publications SET digest = :digest WHERE id = :publication"),
            {"digest": previous, "publication": publication},
        )


def _sum_up(connection: sa.Connection) -> None:
    """As service/ledger/spending.py keeps it up."""
    connection.execute(
        sa.text(
            "UPDATE publications SET worst_record = worst.start, worst_amount = worst.amount FROM "
            "(SELECT DISTINCT ON (publication_id) * FROM spent ORDER BY publication_id, amount DESC, start) AS worst "
            "WHERE publications.id = worst.publication_id"
        )
    )
    for (stream,) in connection.execute(sa.text("SELECT id FROM streams")).all():
        components = [
            Component(
                id=row.id,
                currency=Currency(row.kind),
                cap=PrivacyLoss.of(row.epsilon, row.delta),
                start=row.start,
                running=row.state == "running",
            )
            for row in connection.execute(
                sa.text("SELECT id, kind, epsilon, delta, start, state FROM publications WHERE stream_id = :stream"),
                {"stream": stream},
            )
        ]
        changes = [
            (row.record, row.publication_id, Fraction(row.amount))
            for row in connection.execute(
                sa.text(
                    "SELECT record, publication_id, sum(amount) AS amount FROM ("
                    "SELECT start AS record, publication_id, amount FROM spent UNION ALL "
                    "SELECT stop, publication_id, -amount FROM spent) AS changes "
                    "JOIN publications ON publications.id = publication_id WHERE stream_id = :stream "
                    "GROUP BY record, publication_id ORDER BY record"
                ),
                {"stream": stream},
            )
        ]
        ranges = list(composition.add_up(components, changes))
        spent = [(each.start, each.end, each.spent) for each in ranges if each.end is not None]
        grain = 1
        while spent and spent[-1][1] > grain * MOST_STRETCHES:
            grain *= 2
        connection.execute(
            sa.text("UPDATE streams SET grain = :grain WHERE id = :stream"), {"grain": grain, "stream": stream}
        )
        for start, stop, loss in composition.outline(spent, grain):
            connection.execute(
                sa.text("INSERT INTO outlines VALUES (:stream, :start, :stop, :epsilon, :delta)"),
                {"stream": stream, "start": start, "stop": stop} | _amounts(loss),
            )
        ended = {each.id for each in components if not each.running}
        if ended:
            of_ended = composition.add_up(
                [each for each in components if each.id in ended], [each for each in changes if each[1] in ended]
            )
            for start, loss in composition.worst_from(of_ended):
                connection.execute(
                    sa.text("INSERT INTO kept VALUES (:stream, :start, :epsilon, :delta)"),
                    {"stream": stream, "start": start} | _amounts(loss),
                )


def _amounts(loss: PrivacyLoss) -> dict[str, Any]:
    return {"epsilon": decimal(loss.epsilon), "delta": decimal(loss.delta)}
