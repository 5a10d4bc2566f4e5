"""promises that are held: digests of what streams and publications promise, of what they are left as, of segments"""

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import rfc8785
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MODULUS = 2**256


def upgrade() -> None:
    op.add_column("streams", sa.Column("promise", sa.Text(), nullable=True))
    op.add_column("streams", sa.Column("segments_sum", sa.Numeric(), server_default="0", nullable=False))
    op.add_column("segments", sa.Column("digest", sa.Text(), nullable=True))
    op.add_column("publications", sa.Column("promise", sa.Text(), nullable=True))
    op.add_column("publications", sa.Column("seal", sa.Text(), nullable=True))
    connection = op.get_bind()
    _promise(connection)
    _digest_segments(connection)
    _rechain(connection, promised=True)
    _seal(connection)
    for table, columns in (("streams", ["promise"]), ("segments", ["digest"]), ("publications", _SEALED)):
        for column in columns:
            op.alter_column(table, column, nullable=False)
    # Code from before there were seals would leave publications as nobody could tell from tampering: it is refused.
    op.execute(
        """
        CREATE FUNCTION refuse_unsealed() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'a publication changes only with its seal' USING ERRCODE = 'restrict_violation';
        END $$
        """
    )
    changed = ", ".join(f"{{0}}.{name}" for name in _CHANGING)
    op.execute(
        "CREATE TRIGGER sealed BEFORE UPDATE ON publications FOR EACH ROW "
        f"WHEN (OLD.seal = NEW.seal AND ({changed.format('OLD')}) IS DISTINCT FROM ({changed.format('NEW')})) "
        "EXECUTE FUNCTION refuse_unsealed()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER sealed ON publications")
    op.execute("DROP FUNCTION refuse_unsealed()")
    op.alter_column("publications", "digest", nullable=True)
    _rechain(op.get_bind(), promised=False)
    op.drop_column("publications", "seal")
    op.drop_column("publications", "promise")
    op.drop_column("segments", "digest")
    op.drop_column("streams", "segments_sum")
    op.drop_column("streams", "promise")


_SEALED = ("promise", "digest", "seal")
_CHANGING = (
    "state",
    "reason",
    "position",
    "due",
    "version",
    "latest",
    "chain",
    "digest",
    "worst_record",
    "worst_amount",
)


def _promise(connection: sa.Connection) -> None:
    """As `promised` in service/store/streams.py and publications.py."""
    promises: dict[int, str] = {}
    for row in connection.execute(sa.text("SELECT * FROM streams")).all():
        fixed = {name: getattr(row, name) for name in ("name", "log", "schema", "retention")}
        promises[row.id] = _digest(fixed | _amounts(row))
        connection.execute(
            sa.text("UPDATE streams SET promise = :promise WHERE id = :id"), {"promise": promises[row.id], "id": row.id}
        )
    for row in connection.execute(sa.text("SELECT * FROM publications")).all():
        fixed = {name: getattr(row, name) for name in ("id", "name", "start", "configuration", "plan", "kind")}
        promise = _digest(fixed | _amounts(row) | {"stream_promise": promises[row.stream_id]})
        connection.execute(
            sa.text("UPDATE publications SET promise = :promise WHERE id = :id"), {"promise": promise, "id": row.id}
        )


def _digest_segments(connection: sa.Connection) -> None:
    """As `segment_digest` in service/store/streams.py."""
    sums: dict[int, int] = {}
    rows = connection.execute(sa.text("SELECT g.*, s.log FROM segments g JOIN streams s ON s.id = g.stream_id")).all()
    for row in rows:
        content = {name: getattr(row, name) for name in ("log", "start", "stop", "file")}
        digest = _digest(content | {"sha256": bytes(row.sha256).hex()})
        sums[row.stream_id] = (sums.get(row.stream_id, 0) + int(digest, 16)) % MODULUS
        connection.execute(
            sa.text("UPDATE segments SET digest = :digest WHERE stream_id = :stream AND start = :start"),
            {"digest": digest, "stream": row.stream_id, "start": row.start},
        )
    for stream, total in sums.items():
        connection.execute(
            sa.text("UPDATE streams SET segments_sum = :total WHERE id = :stream"),
            {"total": Decimal(total), "stream": stream},
        )


def _rechain(connection: sa.Connection, *, promised: bool) -> None:
    """Chains of releases begin with their publication's promise, or with nothing as before.

    A release that is not what its digest says keeps that digest, so it is found as it was before.
    """
    connection.execute(sa.text("ALTER TABLE releases DISABLE TRIGGER append_only"))
    publications = connection.execute(sa.text("SELECT id, name, digest, promise FROM publications")).all()
    for publication in publications:
        old, new = (None, publication.promise) if promised else (publication.promise, None)
        for row in _releases(connection, publication.id):
            content = _content(row, publication.name)
            whole = row.digest == _digest(content | {"previous_digest": old})
            old, new = row.digest, _digest(content | {"previous_digest": new}) if whole else row.digest
            connection.execute(
                sa.text("UPDATE releases SET digest = :new WHERE publication_id = :id AND version = :version"),
                {"new": new, "id": publication.id, "version": row.version},
            )
        if publication.digest == old:
            connection.execute(
                sa.text("UPDATE publications SET digest = :new WHERE id = :id"), {"new": new, "id": publication.id}
            )
    connection.execute(sa.text("ALTER TABLE releases ENABLE ALWAYS TRIGGER append_only"))


def _releases(connection: sa.Connection, publication: int) -> Iterator[Any]:
    """One after the other: their parameters stay where they are."""
    version = 0
    while row := connection.execute(
        sa.text(
            "SELECT r.version, r.time, r.role, r.window_start, r.window_stop, r.fit_start, r.fit_stop, r.parent, "
            "r.shape, r.model, r.noise, r.published_at, r.digest, encode(sha256(r.parameters), 'hex') AS sha256, "
            "c.hash AS charged_hash FROM releases r JOIN charges c ON (c.stream_id, c.id) = (r.stream_id, r.charge) "
            "WHERE r.publication_id = :publication AND r.version > :version ORDER BY r.version LIMIT 1"
        ),
        {"publication": publication, "version": version},
    ).one_or_none():
        version = row.version
        yield row


def _content(row: Any, publication: str) -> dict[str, Any]:
    """As `digest` in service/store/releases.py."""
    content = {name: getattr(row, name) for name in ("version", "time", "role", "parent", "shape", "model", "noise")}
    return content | {
        "publication": publication,
        "charge": row.charged_hash,
        "window": [row.window_start, row.window_stop],
        "fit": [row.fit_start, row.fit_stop],
        "parameters": row.sha256,
        "published_at": _timestamp(row.published_at),
    }


def _seal(connection: sa.Connection) -> None:
    """As `sealed` in service/store/publications.py."""
    for row in connection.execute(sa.text("SELECT * FROM publications")).all():
        content = {name: getattr(row, name) for name in (*_CHANGING, "promise")}
        content["digest"] = row.digest or row.promise
        content["worst_amount"] = str(Fraction(row.worst_amount))
        connection.execute(
            sa.text("UPDATE publications SET digest = :digest, seal = :seal WHERE id = :id"),
            {"digest": content["digest"], "seal": _digest(content), "id": row.id},
        )


def _amounts(row: Any) -> dict[str, str]:
    amounts = {name: str(Fraction(getattr(row, name))) for name in ("epsilon", "delta")}
    return amounts | {"created_at": _timestamp(row.created_at)}


def _timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _digest(content: dict[str, Any]) -> str:
    """As service/store/digests.py."""
    try:
        packed = rfc8785.dumps(content)
    except rfc8785.IntegerDomainError:
        packed = rfc8785.dumps(_readable(content))
    return hashlib.sha256(packed).hexdigest()


def _readable(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _readable(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_readable(value) for value in content]
    return str(content) if type(content) is int and abs(content) >= 2**53 else content
