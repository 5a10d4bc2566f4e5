"""Real Valkey and PostgreSQL for one machine, and the supervisor behind `perennial up`.

Everything a server needs lies in one data directory:

    lock           held by the supervisor and every process it starts, for as long as any of them lives
    admin.key      the first admin key, unless the operator set one
    valkey/        the log of accepted batches (append-only file, synced before each answer)
    postgres/      the record
    segments/      sealed segments, unless they are stored elsewhere
    run/           unix sockets and one lock per server
    log/           the servers' own logs; they never hold a statement or a record
"""

from service.embedded.errors import EmbeddedError
from service.embedded.servers import Servers, embedded_database, embedded_servers
from service.embedded.supervisor import up

__all__ = ["EmbeddedError", "Servers", "embedded_database", "embedded_servers", "up"]
