"""Connections, transactions and notifications."""

import math
import select as polling
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.errors import ReadOnlySqlTransaction
from psycopg.rows import namedtuple_row
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Select,
    TextClause,
    UpdateBase,
    and_,
    bindparam,
    case,
    create_engine,
    event,
    func,
    literal,
    literal_column,
    select,
    text,
)
from sqlalchemy.engine import Compiled, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError, InvalidRequestError
from sqlalchemy.exc import TimeoutError as NoneIsFree
from sqlalchemy.sql.compiler import SQLCompiler

from service.store.driver import Session, keep_their_servers
from service.store.refusals import refusal
from service.store.step_records import to_json

NEW_RECORDS = "perennial_records"  # payload: name of the stream
NEW_RELEASE = "perennial_release"  # payload: name of the publication
NEW_PUBLICATION = "perennial_publication"
NEW_LABELS = "perennial_labels"
FREE_STREAM = "perennial_free_stream"  # one that nobody numbers, new or given back
CONFIRM = "perennial_confirm"  # payload: id of a stream that has something to confirm
KEYS_CHANGED = "perennial_keys"

LOOK_WHETHER_TO_STOP_SECONDS = 1.0


ONE_VIEW = text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
"""First in a transaction: all that it reads is of one moment, however much is written meanwhile."""

TIMELINE: ColumnElement[int] = literal_column(
    "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int"
)
"""PostgreSQL's timeline, which is another one after a standby was promoted or a recovery ended early; in a query."""

Written = UpdateBase | TextClause | Select[*tuple[Any, ...]]
"""A statement that writes; a query may call a function that does."""

# A process that hangs in the middle of a transaction must not hold its locks for ever.
LIMITS = {"idle_in_transaction_session_timeout": "5s", "lock_timeout": "15s"}

# What the driver and the queries rely on, whatever the server, the database or the role has been given.
_SESSION = {
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "default_transaction_isolation": "read committed",
}


class DatabaseUnavailable(Exception):
    """PostgreSQL does not answer. A transaction under way did not happen, or a second look shows it done."""


class DatabaseUnsuitable(DatabaseUnavailable):
    """PostgreSQL can't be used as it is set up, or as its URL says. Nothing is asked of it until that is mended."""


class DatabaseReadOnly(DatabaseUnavailable):
    """PostgreSQL takes no writes, as a standby that is not promoted yet."""

    def __init__(self) -> None:
        super().__init__("PostgreSQL takes no writes: it is a standby, or default_transaction_read_only is on")


CONNECTING: dict[str, Any] = {
    "application_name": "perennial",
    "client_encoding": "UTF8",
    "connect_timeout": 5,
    # Of a server that is gone without a word. One that only says nothing is given up by `driver.Session`.
    "tcp_user_timeout": 20_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


class Database:
    """One process's way to PostgreSQL."""

    def __init__(
        self,
        url: str,
        *,
        connections: int = 10,
        seconds: float = 300.0,
        limits: Mapping[str, str] | None = None,
        variable: str = "PERENNIAL_DATABASE_URL",
    ) -> None:
        """Connects when it is used.

        Args:
            url: with or without a driver.
            connections: at most so many; who wants one more waits five seconds for it.
            seconds: to wait for the answer to a statement; then the database counts as away.
            limits: settings of PostgreSQL that end what hangs; None: `LIMITS`.
            variable: the setting that holds the URL, for errors.
        """
        self._seconds, self._variable, self._connections = seconds, variable, connections
        self._away_at = -math.inf  # when it last did not answer, by this process's clock
        self._read_only_at = -math.inf  # when it last took no writes
        self._sessions_last = False  # whether a pooler, if there is one, was seen to give each client a server
        settings = _SESSION | dict(LIMITS if limits is None else limits)
        self._begin = f"{_DURABILITY}, pg_backend_pid()" + "".join(
            f", set_config('{name}', '{to}', false)" for name, to in settings.items()
        )
        self.engine: Engine = create_engine(
            driver_url(url),
            pool_size=connections,
            max_overflow=0,
            pool_use_lifo=True,  # the newest: few of them know all statements, the others cost nothing
            pool_timeout=5,
            connect_args=CONNECTING,
            json_serializer=to_json,
            hide_parameters=True,  # no error may quote what somebody sent
        )
        event.listen(self.engine, "do_connect", lambda _dialect, _record, _arguments, named: self._connect(**named))
        event.listen(self.engine, "checkout", _still_good)
        event.listen(self.engine, "begin", _begun)
        event.listen(self.engine, "before_cursor_execute", _written_durably)

    def _connect(self, **named: Any) -> Session:
        """Return a session that is set as it must be.

        Of several hosts the first that takes writes is chosen, unless the URL says otherwise.

        Raises:
            DatabaseUnavailable: there is none.
        """
        if "," in str(named.get("host", "")):
            named = {"target_session_attrs": "read-write"} | named
        try:
            session = Session.connect(**named)
            try:
                self._set_up(session, named)
            except BaseException:
                session.close()
                raise
        except psycopg.OperationalError as error:
            self._away_at = time.monotonic()
            reason, lasting = refusal(str(error), self._variable)
            raise (DatabaseUnsuitable if lasting else DatabaseUnavailable)(reason) from error
        return session

    def _set_up(self, session: Session, named: dict[str, Any]) -> None:
        session.seconds, session.good_since = self._seconds, lambda: self._read_only_at
        session.autocommit = True
        *durable, process = session.execute(self._begin).fetchall()[0][: len(_DURABLE) + 1]
        require_durability(durable)
        if process != session.info.backend_pid and not self._sessions_last:  # a pooler does not tell the number
            with Session.connect(**named | {"autocommit": True}) as another:
                another.seconds = self._seconds
                if not keep_their_servers(session, another):
                    raise DatabaseUnsuitable(
                        f"{self._variable} leads to a pooler that lends a server for one transaction: have it pool "
                        "sessions (pool_mode = session), or name PostgreSQL itself"
                    )
            self._sessions_last = True
        session.autocommit = bool(named.get("autocommit"))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction: everything inside commits together, or nothing does."""
        with self._answering(), self._connected() as connection, connection.begin():
            yield connection

    @contextmanager
    def rolled_back(self) -> Iterator[Connection]:
        """Open a transaction that is rolled back at its end: a commit would wait for the disk if rows were locked."""
        with self._answering(), self._connected() as connection:
            yield connection

    def _connected(self) -> Connection:
        try:
            return self.engine.connect()
        except InvalidRequestError as error:  # SQLAlchemy's word for a new connection that `_still_good` found ended
            self._away_at = time.monotonic()
            raise DatabaseUnavailable("PostgreSQL ends connections as soon as they are made") from error

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raise DatabaseUnavailable where PostgreSQL does not do what it would do at another time."""
        try:
            yield
        except DatabaseReadOnly:
            self._away_at = self._read_only_at = time.monotonic()
            raise
        except NoneIsFree as error:
            self._away_at = time.monotonic()
            raise DatabaseUnavailable(
                f"all {self._connections} connections of this process to PostgreSQL are in use"
            ) from error
        except (psycopg.Error, DBAPIError) as error:
            reason = error.orig if isinstance(error, DBAPIError) else error
            lost = isinstance(error, DBAPIError) and error.connection_invalidated
            if not lost and not isinstance(reason, psycopg.OperationalError | ReadOnlySqlTransaction):
                raise
            self._away_at = time.monotonic()
            if isinstance(reason, ReadOnlySqlTransaction):
                self._read_only_at = self._away_at
                raise DatabaseReadOnly from error
            what = "the connection to PostgreSQL was lost" if lost else "PostgreSQL does not answer"
            raise DatabaseUnavailable(f"{what} ({type(reason).__name__})") from error

    def was_away(self, seconds: float) -> bool:
        """Return whether it did not answer some time within so many seconds."""
        return time.monotonic() - self._away_at <= seconds

    @contextmanager
    def listen(self, *channels: str) -> Iterator[Session]:
        """A connection of its own on which `notifies()` yields what other processes committed."""
        options = dict(self.engine.dialect.create_connect_args(self.engine.url)[1])
        options |= CONNECTING | {"autocommit": True, "application_name": "perennial listen"}
        options.pop("context", None)
        with self._answering(), self._connect(**options) as connection:
            for channel in channels:
                connection.execute(f"LISTEN {channel}")
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def notifications(listening: Session, stop: threading.Event) -> Iterator[psycopg.Notify]:
    """Yield the notifications of a connection of `listen`, until `stop` is set.

    Raises DatabaseReadOnly where the database has taken no writes since: a server that is a standby now would say
    nothing more.

    Between two looks at `stop` it waits for the kernel alone: 0.02 ms of processor time, where psycopg's `notifies`
    takes 0.13 ms and more.
    """
    readable = polling.poll()
    readable.register(listening.fileno(), polling.POLLIN)
    yield from listening.notifies(timeout=0)  # what came while the channels were named
    while not stop.is_set():
        if readable.poll(1000 * LOOK_WHETHER_TO_STOP_SECONDS):
            yield from listening.notifies(timeout=0)
        if not listening.is_good():
            raise DatabaseReadOnly


_DURABLE = ("fsync", "full_page_writes")
_DURABILITY = "SELECT " + ", ".join(f"current_setting('{name}') AS {name}" for name in _DURABLE)
DURABILITY = text(_DURABILITY)
"""Its row is for `require_durability`: settings may change at any time."""


def require_durability(row: Sequence[str] | None) -> None:
    """Check that a crash of the server or its machine loses nothing that was committed. row: that of `DURABILITY`.

    Raises:
        DatabaseUnsuitable: it could; a version that was lost after somebody saw it would be published again with new
            noise.
    """
    off = [name for name, value in zip(_DURABLE, row or (), strict=True) if value != "on"]
    if off:
        wrong = " and ".join(f"{name} = off" for name in off)
        raise DatabaseUnsuitable(
            f"PostgreSQL runs with {wrong}: a crash could lose what was published. Set {' and '.join(off)} to on, and "
            "reload its configuration"
        )


def _begun(connection: Connection) -> None:
    connection.info["durable"] = False


def _written_durably(
    connection: Connection, cursor: psycopg.Cursor[Any], _statement: str, _parameters: Any, context: Any, _many: bool
) -> None:
    """Before a transaction first writes: its commit waits until the server has it on disk, whatever is configured.

    It is set for the transaction alone, since poolers drop what is set for a session. `remote_apply` is left: it waits
    for more.
    """
    if context is not None and (context.isinsert or context.isupdate or context.isdelete):
        _make_durable(connection, cursor)


def _make_durable(connection: Connection, cursor: psycopg.Cursor[Any]) -> None:
    if not connection.info["durable"]:
        connection.info["durable"] = True
        cursor.execute(
            "SELECT set_config('synchronous_commit', 'on', true) "
            "WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')"
        )


def _still_good(session: Session, *_: Any) -> None:
    """Check that its server has not ended it, and has taken writes since. Asking would cost a round trip."""
    poll = polling.poll()
    poll.register(session.fileno(), polling.POLLIN)
    if poll.poll(0) or not session.is_good():
        raise DisconnectionError


def require_writes(connection: Connection) -> None:
    """Check that this transaction could write. Raises DatabaseReadOnly."""
    if connection.execute(_READ_ONLY).scalar_one() == "on":
        raise DatabaseReadOnly


_READ_ONLY = select(func.current_setting("transaction_read_only"))


@contextmanager
def pipelined(connection: Connection) -> Iterator[None]:
    """Send statements inside without waiting for answers, which come together at the end: nothing is read."""
    with _pipeline(connection):
        yield


def read_together(
    connection: Connection, *queries: tuple[Select[*tuple[Any, ...]] | TextClause, dict[str, Any]]
) -> list[list[Any]]:
    """The rows of several queries, each with what it binds, sent without waiting for each other's answers.

    Nor for that of BEGIN, if they are a transaction's first. Rows are named tuples of what psycopg makes of
    PostgreSQL's types; `ONE_VIEW` has none.
    """
    cursors = []
    with _pipeline(connection) as session:
        for query, bound in queries:
            compiled = _compiled(query, connection.dialect)
            cursor = session.cursor(row_factory=namedtuple_row)
            cursors.append(cursor.execute(str(compiled), compiled.construct_params(bound)))
    return [[] if cursor.rownumber is None else cursor.fetchall() for cursor in cursors]


def read(connection: Connection, query: Select[*tuple[Any, ...]], bound: dict[str, Any]) -> list[Any]:
    """Return the rows of one query, as `read_together` does, at once: for one that was built before."""
    session: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    compiled = _compiled(query, connection.dialect)
    cursor = session.cursor(row_factory=namedtuple_row)
    return cursor.execute(str(compiled), compiled.construct_params(bound)).fetchall()


def write(connection: Connection, statement: Written, *rows: dict[str, Any]) -> psycopg.Cursor[Any]:
    """Run a statement that writes, for each row of values, as SQLAlchemy would but with a fraction of its work.

    All rows have the same names. Return the cursor: of a statement that returns rows, those are named tuples of what
    psycopg makes of PostgreSQL's types.
    """
    session: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    _make_durable(connection, session.cursor())
    cursor = session.cursor(row_factory=namedtuple_row)
    compiled, processors = _compiled_write(statement, tuple(rows[0]), connection.dialect)
    bound = [dict(compiled.construct_params(row) or {}) for row in rows]
    for values in bound:
        for name in processors.keys() & values.keys():
            values[name] = processors[name](values[name])
    if len(bound) == 1:
        return cursor.execute(str(compiled), bound[0])
    cursor.executemany(str(compiled), bound)
    return cursor


@lru_cache(maxsize=64)
def _compiled_write(
    statement: Written, names: tuple[str, ...], dialect: Dialect
) -> tuple[Compiled, dict[str, Callable[[Any], Any]]]:
    """Return the statement with values of these names, and what makes what the driver takes of some of them."""
    compiled = statement.compile(dialect=dialect, column_keys=list(names))
    assert isinstance(compiled, SQLCompiler)  # noqa: S101 - a statement's is
    processors = {
        name: each.type.dialect_impl(dialect).bind_processor(dialect) for name, each in compiled.binds.items()
    }
    return compiled, {name: process for name, process in processors.items() if process is not None}


def within(connection: Connection, seconds: float) -> tuple[tuple[Select[Any], dict[str, Any]], ...]:
    """Return what `read_together` needs so that a transaction that writes ends within so many seconds, and is durable.

    PostgreSQL ends it if whoever began it hangs. In the middle of a pipeline he is not idle, so that `LIMITS` would
    leave him his locks for ever.
    """
    if not _bounds(connection):
        return ()
    connection.info["durable"] = True
    return ((_WITHIN, {"limit": f"{math.ceil(1000 * seconds)}ms"}),)


_configured = func.current_setting("synchronous_commit")
_DURABLY = case(
    (and_(_configured != "on", _configured != "remote_apply"), func.set_config("synchronous_commit", "on", True)),
)
"""As `_written_durably` says, without a statement of its own."""
_WITHIN = select(func.set_config("transaction_timeout", bindparam("limit"), True), _DURABLY)


def _bounds(connection: Connection) -> bool:
    """Whether this server can bound a transaction. One before 17 can't, and so gets its statements one by one."""
    return (connection.dialect.server_version_info or (0,)) >= (17,)


@contextmanager
def _pipeline(connection: Connection) -> Iterator[psycopg.Connection[Any]]:
    session: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    if not _bounds(connection):
        yield session
        return
    with session.pipeline():
        yield session


@lru_cache(maxsize=64)
def _compiled(query: Select[*tuple[Any, ...]] | TextClause, dialect: Dialect) -> Compiled:
    return query.compile(dialect=dialect)


def any_of(identities: Sequence[int]) -> ColumnElement[Any]:
    """To compare a number with: it equals one of these. However many they are, the statement is the same."""
    return func.any(literal(list(identities), ARRAY(BigInteger)))


ANY_OF_STREAMS: ColumnElement[Any] = func.any(bindparam("streams", type_=ARRAY(BigInteger)))
"""The same for a query that is built before: the numbers are what it binds as `streams`."""


def all_of(identities: Collection[int]) -> ColumnElement[Any]:
    """To compare a number with: it equals all of these, or, with !=, none."""
    return func.all(literal(list(identities), ARRAY(BigInteger)))


def notify(connection: Connection, channel: str, payload: str = "") -> None:
    """Told to every listener when, and only if, the transaction commits."""
    connection.execute(text("SELECT pg_notify(:channel, :payload)"), {"channel": channel, "payload": payload})


def driver_url(url: str) -> str:
    """`postgres://` and `postgresql://` both mean the one driver there is."""
    return (
        make_url(url.replace("postgres://", "postgresql://", 1))
        .set(drivername="postgresql+psycopg")
        .render_as_string(hide_password=False)
    )
