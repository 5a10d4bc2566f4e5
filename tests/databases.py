"""Databases as migrations leave them, for tests: copies of one, which are emptied after a test and used again.

To empty one takes milliseconds; to copy one takes a tenth of a second and writes ten megabytes to the disk.
"""

import atexit
import itertools
from typing import Any

import psycopg
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import make_url
from sqlalchemy.util import LRUCache

from service.embedded import Servers
from service.embedded.postgres import SUPERUSER
from service.store.database import Database
from service.store.migrate import migrate

_numbers = itertools.count(1)
_definitions: dict[Servers, Any] = {}  # of every database, as migrations left it
_ended: dict[Servers, list[str]] = {}  # names of databases that tests have left
_connections: dict[Servers, psycopg.Connection] = {}  # to rename databases: each new one costs the server 7 ms

_TABLES = ("class", "attribute", "attrdef", "proc", "constraint", "index", "namespace", "type", "policy")
# Changes when somebody changes a table, a function, a right or a setting of the database: those write to catalogues.
# Triggers that were disabled and are enabled again are what they were.
_DEFINITIONS = "SELECT count(*), max(writer), sum(writer) FROM ({} UNION ALL {} UNION ALL {} UNION ALL {})".format(
    " UNION ALL ".join(f"SELECT xmin::text::bigint AS writer FROM pg_{name}" for name in _TABLES),
    "SELECT hashtext(trigger::text) FROM pg_trigger AS trigger",
    "SELECT xmin::text::bigint FROM alembic_version",
    "SELECT 0 FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase WHERE d.datname = current_database()",
)
# A trigger that always fires refuses to delete from append-only tables. For a replica no other one fires.
_EMPTY = """
DO $$ DECLARE
    tab regclass;  -- as text it is quoted where it must be
    used bool;
    always bool;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR tab, always IN
        SELECT oid, EXISTS (SELECT FROM pg_trigger WHERE tgrelid = pg_class.oid AND tgenabled = 'A') FROM pg_class
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
        AND relname NOT IN ('alembic_version', 'served_schemas')
    LOOP
        CONTINUE WHEN pg_relation_size(tab) = 0;
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', tab) INTO used;
        CONTINUE WHEN NOT used;
        IF always THEN EXECUTE format('ALTER TABLE %s DISABLE TRIGGER append_only', tab); END IF;
        EXECUTE format('DELETE FROM %s', tab);
        IF always THEN EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER append_only', tab); END IF;
    END LOOP;
    PERFORM setval(seqrelid, seqstart, false) FROM pg_sequence;
END $$
"""


def compile_once() -> None:
    """Let the engines of all databases share their statements: to compile these took a fifth of such a test."""
    compiled, init = LRUCache(5000), Database.__init__

    def sharing(self: Database, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        self.engine.update_execution_options(compiled_cache=compiled)

    Database.__init__ = sharing  # type: ignore[method-assign]
    PGDialect_psycopg.__eq__ = lambda self, other: isinstance(other, PGDialect_psycopg)  # type: ignore[method-assign]
    PGDialect_psycopg.__hash__ = lambda self: 0  # type: ignore[method-assign]


def new_database(servers: Servers) -> tuple[str, str]:
    """Return the addresses of an empty migrated database, for the owner of its tables and for the service."""
    if servers not in _ended:
        _plan_once(servers)
        _copy(servers, "template1", "migrated")
        owner, service = _addresses(servers, "migrated")
        migrate(owner, service=service)
        with _superuser(servers, "migrated") as connection:
            _definitions[servers] = connection.execute(_DEFINITIONS).fetchone()
        _ended[servers] = []
    name = _emptied(servers)
    if name is None:
        name = f"world_{next(_numbers)}"
        _copy(servers, "migrated", name)
    return _addresses(servers, name)


def _plan_once(servers: Servers) -> None:
    """Let the server plan a prepared statement once, not for each of its first five values: a seventh of its time."""
    with _superuser(servers, SUPERUSER) as connection:
        connection.execute("ALTER SYSTEM SET plan_cache_mode = force_generic_plan")
        connection.execute("SELECT pg_reload_conf()")


def unmigrated_database(servers: Servers) -> tuple[str, str]:
    """Return the addresses of a new database without tables, for their owner and for the service."""
    name = f"world_{next(_numbers)}"
    _copy(servers, "template1", name)
    return _addresses(servers, name)


def used_up(servers: Servers, address: str) -> None:
    """Take back a database whose test has ended."""
    _ended[servers].append(str(make_url(address).database))


def _emptied(servers: Servers) -> str | None:
    """The name of a database that was emptied, if there was one: a new name, by which nothing of its test finds it."""
    if not _ended[servers]:
        return None
    if servers not in _connections:
        _connections[servers] = _superuser(servers, SUPERUSER)
        atexit.register(_connections[servers].close)
    connection = _connections[servers]
    query = "SELECT datname FROM pg_database d WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE datid = d.oid)"
    unused = {row[0] for row in connection.execute(query)}
    former = next((each for each in _ended[servers] if each in unused), None)
    if former is None:
        return None
    _ended[servers].remove(former)
    name = f"world_{next(_numbers)}"
    try:
        connection.execute(f"ALTER DATABASE {former} RENAME TO {name}")
    except psycopg.errors.ObjectInUse:
        return None
    with _superuser(servers, name) as connection:
        if connection.execute(_DEFINITIONS).fetchone() != _definitions[servers]:
            return None
        connection.execute(_EMPTY)
    return name


def _copy(servers: Servers, template: str, name: str) -> None:
    url = make_url(servers.database_url).set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")


def _superuser(servers: Servers, name: str) -> psycopg.Connection:
    url = make_url(servers.database_url).set(drivername="postgresql", username=SUPERUSER, database=name)
    return psycopg.connect(url.render_as_string(False), autocommit=True)


def _addresses(servers: Servers, name: str) -> tuple[str, str]:
    owner, service = (make_url(each).set(database=name) for each in (servers.database_url, servers.service_url))
    return owner.render_as_string(False), service.render_as_string(False)
