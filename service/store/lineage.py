"""The start of a step, as a digest: which released models, and which memory with its noise.

Position and version alone do not tell: after a failover that lost a parked step another worker may have drawn it anew.
A step drawn on top of the lost one may not follow the new one, whose noise it does not know.
"""

from collections.abc import Mapping

from sqlalchemy import ARRAY, BigInteger, Connection, Integer, bindparam, func, select

from service.store import digests
from service.store.database import read_together
from service.store.publications import Publication
from service.store.tables import memories, parked, releases


def of(publication: Publication, memory: str | None, models: Mapping[int, str]) -> str:
    """Return the digest of a state.

    Args:
        publication: as the next step finds it.
        memory: the digest of what it remembers.
        models: the SHA-256 of the parameters of each version in its chain, in hexadecimal.
    """
    content = {
        "promise": publication.promise,
        "position": publication.position,
        "version": publication.version,
        "memory": memory,
        "models": [[version, models[version]] for version in publication.chain],
    }
    return digests.of(content)


def stored(connection: Connection, publication: Publication) -> str:
    """Return the digest of the state that a publication has here once all its parked steps are published."""
    mine = {"publication": publication.id}
    models = ((_MODELS, mine | {"chain": publication.chain}),) if publication.chain else ()
    waiting, memory, *hashed = read_together(connection, (_WAITING, mine), (_MEMORY, mine), *models)
    if waiting:
        return str(waiting[0].lineage)
    sha256_of = {row.version: row.sha256 for rows in hashed for row in rows}
    return of(publication, memory[0].digest if memory else None, sha256_of)


_MINE = bindparam("publication", type_=BigInteger)
_WAITING = (
    select(parked.c.lineage)
    .where(parked.c.publication_id == _MINE)
    .order_by(parked.c.position.desc(), parked.c.version.desc())
    .limit(1)
)
_MEMORY = select(memories.c.digest).where(memories.c.publication_id == _MINE)
_MODELS = select(releases.c.version, func.encode(func.sha256(releases.c.parameters), "hex").label("sha256")).where(
    releases.c.publication_id == _MINE,
    releases.c.version == func.any(bindparam("chain", type_=ARRAY(Integer))),
)
