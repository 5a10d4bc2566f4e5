"""Why PostgreSQL gives no connection, in a sentence that names the setting to change and repeats nothing of its URL.

The server says why in words alone: libpq passes no SQLSTATE on before a session has begun. Poolers have their own
words. Where the words are not known here, the sentence is one that is true of every refusal.
"""

from __future__ import annotations

import re

# What the driver says, as a pattern, and what is wrong. The first that matches counts; names are cut out before.
_LASTING = (  # until somebody mends it
    (
        r"no password supplied|authentication failed|not authorized",
        "PostgreSQL refuses the role or the password of {url}: correct them (the password may be in PGPASSWORD)",
    ),
    (
        r'role "" does not exist|no such user',
        "{url} names a role that PostgreSQL does not have: create it, or correct the URL",
    ),
    (
        r'database "" does not exist|no such database',
        "{url} names a database that PostgreSQL does not have: create it, or correct the URL",
    ),
    (
        r"no pg_hba.conf entry|pg_hba.conf rejects",
        (
            "PostgreSQL's pg_hba.conf lets nobody in from this machine as {url} says: add a line there, or, if it wants"
            " TLS, write sslmode=require behind the ? of the URL"
        ),
    ),
    (
        r"does not support SSL|(SSL|TLS)( was|) required",
        "{url} and PostgreSQL do not agree about TLS: change sslmode behind the ? of the URL, or ssl at the server",
    ),
    (
        r"certificate|SSL error|SSL SYSCALL error|private key",
        (
            "the certificates of PostgreSQL and {url} do not match: correct sslmode, sslrootcert, sslcert or sslkey"
            " behind the ? of the URL"
        ),
    ),
    (r"is not permitted to log in", "the role that {url} names may not log in: ALTER ROLE … LOGIN"),
    (
        r"permission denied for database|not currently accepting connections",
        "the role that {url} names may not connect to its database: GRANT CONNECT ON DATABASE … TO …",
    ),
    (
        r"startup parameter|unrecognized configuration parameter|invalid value for parameter",
        "PostgreSQL, or a pooler before it, does not take an option of {url}: leave it out behind the ? of the URL",
    ),
)
_PASSING = (
    (
        r"too many (clients|connections)|connection slots|no more connections allowed|query_wait_timeout",
        "PostgreSQL has no free connection: raise its max_connections, or run fewer parts",
    ),
    (r"database system is|not yet accepting connections", "PostgreSQL starts, stops or recovers: wait for it"),
    (r"session is (not )?read-only|hot standby", "no server that {url} names takes writes: promote a standby"),
    (
        r"could not translate host name|failed to resolve host",
        "the host that {url} names has no address: correct it, or mend the name server",
    ),
    (
        r"running (locally|on that host)|timeout|timed out|closed the connection|unreachable|No route|reset by peer",
        "PostgreSQL does not answer at the address that {url} names: start it, or correct the URL",
    ),
)
_OTHER = "PostgreSQL refuses a connection as {url} says: its log says why"


def refusal(text: str, variable: str) -> tuple[str, bool]:
    """Return the reason of a refused connection, and whether it lasts until an operator mends it.

    Args:
        text: what the driver says.
        variable: the setting that holds the URL.
    """
    unnamed = re.sub(r"\"[^\"]*\"|'[^']*'", '""', text)
    for reasons in (_LASTING, _PASSING):
        for words, reason in reasons:
            if re.search(words, unnamed):
                return reason.format(url=variable), reasons is _LASTING
    return _OTHER.format(url=variable), False
