"""Connections to a PostgreSQL that somebody else set up: what is set for each, and why one is refused."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import insert, text
from sqlalchemy.engine import make_url

from service.embedded import Servers, postgres
from service.store import streams, tables
from service.store.database import Database, DatabaseReadOnly, DatabaseUnavailable, DatabaseUnsuitable, notifications
from service.store.refusals import refusal
from tests.conftest import World, unique, wait_until
from tests.databases import _superuser
from tests.faults.clusters import Cluster
from tests.faults.proxy import Proxy
from tests.ports import free_port
from tests.test_cli import SECRET, invoked

URL = "PERENNIAL_DATABASE_URL"
ELSEWHERE = {
    "client_encoding": "LATIN1",
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kolkata",
    "extra_float_digits": "0",
    "default_transaction_isolation": "serializable",
}


def test_a_session_is_set_as_the_driver_and_the_queries_need_it_whatever_the_database_sets(world: World, servers):
    with _superuser(servers, str(make_url(world.settings.database_url).database)) as administrator:
        for name, value in ELSEWHERE.items():
            administrator.execute(f"ALTER DATABASE {administrator.info.dbname} SET {name} = '{value}'")
    database = Database(world.settings.database_url)
    query = text("SELECT now(), interval '1 day', 0.1::float8 + 0.2::float8, current_setting('transaction_isolation')")
    with database.transaction() as connection:
        now, day, almost, isolation = connection.execute(query).one()
    assert (now.utcoffset().total_seconds(), day.days, almost, isolation) == (0, 1, 0.1 + 0.2, "read committed")
    with database.listen("one") as listening:
        assert listening.execute("SELECT 'ł'").fetchone() == ("ł",)
    database.close()


PLAIN = "CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'"
ALLOWED = "with_password, nobody_may, alone, perennial_service"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server of its own, with a role for each way to be refused."""
    running = Cluster(tmp_path_factory.mktemp("cluster")).start()
    with running.connect() as administrator:
        administrator.execute(f"CREATE ROLE with_password LOGIN PASSWORD '{SECRET}'")
        administrator.execute("CREATE ROLE outsider LOGIN")
        administrator.execute("CREATE ROLE nobody_may NOLOGIN")
        administrator.execute("CREATE ROLE alone LOGIN CONNECTION LIMIT 1")
        administrator.execute("CREATE ROLE stranger LOGIN")
        administrator.execute("REVOKE CONNECT ON DATABASE perennial FROM PUBLIC")
        administrator.execute(
            "GRANT CONNECT ON DATABASE perennial TO with_password, nobody_may, alone, perennial_service"
        )
        administrator.execute(
            "CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'"
        )
    rules = running.folder / "postgres" / "pg_hba.conf"
    rules.write_text("local all with_password scram-sha-256\nlocal all outsider reject\nlocal all all trust\n")
    with running.connect() as administrator:
        administrator.execute("SELECT pg_reload_conf()")
    yield running
    running.close()


def address(cluster: Cluster, role: str, database: str = "perennial", password: str = "") -> str:
    owner = make_url(cluster.urls[0])
    return owner.set(username=role, database=database, password=password or None).render_as_string(False)


def accepted(cluster: Cluster, role: str) -> bool:
    try:
        with psycopg.connect(address(cluster, role).replace("+psycopg", "")):
            return True
    except psycopg.OperationalError:
        return False


@contextmanager
def without_tls(cluster: Cluster) -> Iterator[str]:
    with Proxy(cluster.socket) as proxy:
        yield f"postgresql://perennial@127.0.0.1:{proxy.port}/perennial?sslmode=require"


@contextmanager
def taken(cluster: Cluster) -> Iterator[str]:
    url = address(cluster, "alone")
    with psycopg.connect(url.replace("+psycopg", "")):
        yield url


DENIED = "refuses the role or the password"
REFUSED: dict[str, tuple[str | Callable[[Cluster], object], str, bool]] = {
    "password": (
        lambda cluster: address(cluster, "with_password", password=f"not-{SECRET}"),
        "refuses the role or the",
        True,
    ),
    "no password": (lambda cluster: address(cluster, "with_password"), DENIED, True),
    "role": (lambda cluster: address(cluster, "nobody"), "names a role that PostgreSQL does not have", True),
    "database": (lambda cluster: address(cluster, "perennial", "nothing"), "names a database that", True),
    "pg_hba.conf": (lambda cluster: address(cluster, "outsider"), "pg_hba.conf lets nobody in", True),
    "NOLOGIN": (lambda cluster: address(cluster, "nobody_may"), "may not log in", True),
    "CONNECT": (lambda cluster: address(cluster, "stranger"), "may not connect to its database", True),
    "TLS": (without_tls, "do not agree about TLS", True),
    "none free": (taken, "no free connection", False),
    "host": (f"postgresql://u:{SECRET}@host.invalid/d", "has no address", False),
    "nobody there": (f"postgresql://u:{SECRET}@127.0.0.1:1/d", "does not answer at the address", False),
    "option": (
        lambda cluster: address(cluster, "perennial") + "&options=-c%20nothing%3D1",
        "does not take an option",
        True,
    ),
}


@pytest.mark.parametrize(("where", "reason", "lasting"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_has_its_true_reason_and_the_name_of_the_variable_in_one_sentence(cluster, where, reason, lasting):
    wait_until(lambda: not accepted(cluster, "outsider"))  # the rules were read
    with ExitStack() as stack:
        found = where(cluster) if callable(where) else where
        url = found if isinstance(found, str) else stack.enter_context(found)
        database = Database(url)
        with pytest.raises(DatabaseUnavailable, match=reason) as refused, database.transaction():
            pytest.fail("there is no connection")
        database.close()
        assert isinstance(refused.value, DatabaseUnsuitable) is lasting
        for command, variables in (
            ("migrate", {URL: cluster.urls[1], "PERENNIAL_MIGRATION_URL": url}),
            ("api", {URL: url, "PERENNIAL_REDIS_URL": "redis://127.0.0.1:1"}),
        ):
            done = invoked(command, **variables)
            assert done.exit_code == (78 if lasting else 1)
            assert reason in done.stderr
            assert (URL in done.stderr) == (command == "api" and reason != REFUSED["none free"][1])
            assert done.stderr.count("\n") == 1
            assert SECRET not in done.output


REFUSED_TCP = """connection to server at "certificate.example", port 5432 failed: Connection refused
	Is the server running on that host and accepting TCP/IP connections?"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (REFUSED_TCP, "does not answer at"),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "u", database "d", no encryption', "sslmode=require"),
        ('root certificate file "/root/.postgresql/root.crt" does not exist', "certificates"),
        ("FATAL:  sorry, too many clients already", "no free connection"),
        ("FATAL:  the database system is not yet accepting connections", "wait for it"),
        ("VERHÄNGNISVOLL:  etwas anderes", "its log says why"),
    ],
)
def test_words_that_no_server_here_says_are_known_too(said, reason):
    assert reason in refusal(said, URL)[0]


def test_a_role_that_may_make_no_tables_is_told_so(cluster: Cluster):
    done = invoked("migrate", **{URL: address(cluster, "with_password", password=SECRET)})
    assert done.exit_code == 78
    assert f"the role that {URL} names lacks a right" in done.stderr


def test_a_database_of_bytes_without_an_encoding_is_as_good_as_any(cluster: Cluster):
    url = address(cluster, "postgres", "plain")
    assert invoked("migrate", **{URL: url}).exit_code == 0
    database = Database(url)
    row = {"name": "Łódź", "hash": b"", "scopes": ["admin"], "origin": "api", "streams": ["\N{GRINNING FACE}"]}
    with database.transaction() as connection:
        connection.execute(insert(tables.keys).values(row))
    with database.transaction() as connection:
        assert connection.execute(text("SELECT name, streams FROM keys")).one() == (row["name"], row["streams"])
        streams.ready(connection)
    database.close()


# Takes no writes.


@contextmanager
def read_only(servers: Servers, url: str, *, cut: bool = False) -> Iterator[None]:
    """New connections to the database can't write, as after a failover to a standby that is not promoted yet.

    cut: there are none but new ones.
    """
    name = make_url(url).database
    with _superuser(servers, postgres.SUPERUSER) as administrator:
        administrator.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        if cut:
            administrator.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        try:
            yield
        finally:
            administrator.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


def ready(database: Database) -> None:
    with database.transaction() as connection:
        streams.ready(connection)


def rename(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(text("UPDATE streams SET name = name"))


@pytest.mark.parametrize("finds_out", [rename, ready], ids=["a write", "a look"])
def test_no_connection_from_when_the_database_took_no_writes_is_used_once_it_takes_them(world, servers, finds_out):
    database = Database(world.settings.database_url, connections=3)
    with read_only(servers, world.settings.database_url), ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(database.transaction())
    with pytest.raises(DatabaseReadOnly, match="takes no writes"):
        finds_out(database)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(database.transaction()).execute(text("CREATE TEMPORARY TABLE here (n int)"))
    database.close()


def test_whoever_listens_listens_anew_once_the_database_took_no_writes(world):
    database, stop = Database(world.settings.database_url), threading.Event()
    with database.listen("one") as listening:
        with pytest.raises(DatabaseReadOnly), database.transaction() as connection:
            connection.execute(text("SET TRANSACTION READ ONLY"))
            connection.execute(text("UPDATE streams SET name = name"))
        with pytest.raises(DatabaseReadOnly):
            next(notifications(listening, stop))
    database.close()


def test_of_several_servers_one_that_takes_writes_is_chosen(cluster: Cluster, servers: Servers):
    with cluster.connect() as administrator:
        administrator.execute("ALTER DATABASE perennial SET default_transaction_read_only = on")
    with (
        Proxy(cluster.socket) as first,
        Proxy(Path(str(make_url(servers.database_url).query["host"]), ".s.PGSQL.5432")) as second,
    ):
        for ports in (f"{first.port},{second.port}", f"{second.port},{first.port}"):
            database = Database(f"postgresql://perennial_service@/perennial?host=127.0.0.1,127.0.0.1&port={ports}")
            with database.transaction() as connection:
                connection.execute(text("CREATE TEMPORARY TABLE here (n int)"))
            database.close()
    with cluster.connect(postgres.SUPERUSER) as administrator:
        administrator.execute("ALTER DATABASE perennial RESET default_transaction_read_only")


# A pooler.


@contextmanager
def pooler(cluster: Cluster, mode: str, **more: str) -> Iterator[str]:
    """PgBouncer in front of a server; the URL of a database behind it."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed: on Debian `apt install pgbouncer`")
    port, folder = free_port(), cluster.folder / unique("pooler")
    folder.mkdir()
    settings = {"listen_addr": "127.0.0.1", "listen_port": str(port), "unix_socket_dir": "", "auth_type": "any"}
    settings |= {"pool_mode": mode, "logfile": str(folder / "log")} | more
    lines = "\n".join(f"{name} = {value}" for name, value in settings.items())
    (folder / "ini").write_text(
        f"[databases]\nperennial = host={cluster.socket.parent} user=perennial_service\n[pgbouncer]\n{lines}\n"
    )
    command = [program, str(folder / "ini")]
    if os.geteuid() == 0:  # which it refuses to be
        command = ["unshare", "--user", "--map-user=65534", "--map-group=65534", *command]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"postgresql://perennial_service@127.0.0.1:{port}/perennial"
            wait_until(lambda: process.poll() is not None or answers(url))
            assert process.poll() is None, (folder / "log").read_text()
            yield url
        finally:
            process.terminate()


def answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize("more", [{}, {"server_round_robin": "1", "min_pool_size": "3"}], ids=["newest", "in turn"])
def test_a_pooler_that_lends_a_server_for_a_transaction_is_refused(cluster: Cluster, more):
    with pooler(cluster, "transaction", **more) as url:
        for command in ("api", "worker"):
            done = invoked(command, **{URL: url, "PERENNIAL_REDIS_URL": "redis://127.0.0.1:1"})
            assert done.exit_code == 78
            assert f"{URL} leads to a pooler that lends a server for one transaction" in done.stderr


def test_a_pooler_of_sessions_is_as_good_as_the_server(cluster: Cluster):
    with pooler(cluster, "session") as url:
        database, stop = Database(url), threading.Event()
        with database.listen("one") as listening:
            for _ in range(9):  # from the sixth on the driver sends the name of a prepared statement
                with database.transaction() as connection:
                    connection.execute(text("SELECT pg_notify('one', :payload)"), {"payload": "here"})
            for notice in notifications(listening, stop):
                assert notice.payload == "here"
                stop.set()
        with database.transaction() as connection:
            assert connection.execute(text("SHOW lock_timeout")).scalar_one() == "15s"
        database.close()
