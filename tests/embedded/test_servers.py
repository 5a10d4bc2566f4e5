"""The two servers on their own: durable, private, where the folder allows it and where it does not."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
import redis
from sqlalchemy.engine import make_url

from service.embedded import EmbeddedError, child, embedded_database, embedded_servers, processes
from service.embedded import postgres as embedded_postgres
from service.embedded.directory import open_data_directory
from service.embedded.postgres import Postgres, possible_identities
from service.embedded.processes import stop_together
from service.embedded.servers import await_ready
from service.embedded.valkey import Valkey
from service.embedded.waiting import StopRequest
from tests.conftest import wait_until

ROOT = Path(__file__).resolve().parents[2]
RUN_AND_WAIT = """
import sys
from service.process import loading
with loading():
    from service.embedded import embedded_servers
with embedded_servers(sys.argv[1]) as servers:
    print(servers.redis_url, servers.database_url, flush=True)
    sys.stdin.read()
"""
START_AS_NOBODY = """
import os, subprocess, sys
command = [sys.executable, "-I", "-S", sys.argv[1], "--parent", str(os.getpid()), "--signal", "9"]
command += ["--identity", "user", "--uid", "65534", "--gid", "65534", "--", "/bin/sleep", "1000"]
print(subprocess.Popen(command).pid, flush=True)
sys.stdin.read()
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be someone else")


@pytest.mark.more
def test_what_was_answered_survives_kill_9_of_both_servers(data_dir, contents):
    with embedded_servers(data_dir) as servers:
        contents(servers).write("kept")
        os.kill(servers.valkey.pid, signal.SIGKILL)
        os.kill(servers.postgres.pid, signal.SIGKILL)
        wait_until(lambda: not servers.valkey.running and not servers.postgres.running)
    with embedded_servers(data_dir) as servers:
        assert contents(servers).read() == (["kept"], ["kept"])


@pytest.mark.more
@pytest.mark.parametrize("name", ["with space, comma and 'quotes'", "long-" + 3 * "name-of-forty-characters-" * 2])
def test_any_folder_will_do(name, tmp_path, new_data_dir, contents):
    data_dir = new_data_dir(tmp_path / name)
    with embedded_servers(data_dir) as servers:
        contents(servers).write("here")
        assert contents(servers).read() == (["here"], ["here"])
        sockets = Path(make_url(servers.database_url).query["host"])
        assert sockets.stat().st_mode & 0o777 == 0o700
    assert sockets == data_dir / "run" or not sockets.exists()


def test_a_folder_of_someone_else_is_not_used_for_sockets(tmp_path, new_data_dir, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data_dir = new_data_dir(tmp_path / ("a" * 100))
    with open_data_directory(data_dir, StopRequest()) as directory:
        taken = directory.sockets
    taken.symlink_to(tmp_path)
    with pytest.raises(EmbeddedError, match="only this user can enter"), embedded_servers(data_dir):
        pass
    taken.unlink()


@pytest.mark.more
def test_two_folders_are_served_side_by_side(tmp_path, new_data_dir, contents):
    first, second = new_data_dir(tmp_path / "first"), new_data_dir(tmp_path / "second")
    with embedded_servers(first) as one, embedded_servers(second) as other:
        contents(one).write("one")
        contents(other).write("other")
        assert contents(one).read() == (["one"], ["one"])
        assert contents(other).read() == (["other"], ["other"])


def test_settings_that_keep_data(data_dir):
    with embedded_servers(data_dir) as servers:
        with redis.from_url(servers.redis_url, decode_responses=True) as client:
            settings = client.config_get(
                "append*", "maxmemory-policy", "port", "commandlog-*-than", "save", "unixsocketperm"
            )
        with psycopg.connect(host=str(data_dir / "run"), user="perennial", dbname="perennial") as connection:
            names = ("fsync", "synchronous_commit", "full_page_writes", "data_checksums", "server_encoding")
            shown = {name: connection.execute(f"show {name}").fetchone()[0] for name in names}
            reached = [
                connection.execute(f"show {name}").fetchone()[0]
                for name in ("listen_addresses", "unix_socket_permissions")
            ]
            superusers = connection.execute("select usename from pg_user where usesuper").fetchall()
    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["maxmemory-policy"] == "noeviction"
    assert (settings["port"], settings["unixsocketperm"]) == ("0", "700")
    assert settings["save"] == "", "a snapshot would hold what the file has forgotten"
    assert {settings[f"commandlog-{each}-than"] for each in ("execution-slower", "request-larger", "reply-larger")} == {
        "-1"
    }
    assert shown == dict(zip(names, ("on", "on", "on", "on", "UTF8"), strict=True))
    assert reached == ["", "0700"]
    assert superusers == [("postgres",)]


def test_servers_are_given_neither_secrets_nor_settings_of_others(data_dir, monkeypatch):
    monkeypatch.setenv("PERENNIAL_ADMIN_KEY", "secret")
    monkeypatch.setenv("PGDATA", "/elsewhere")
    with open_data_directory(data_dir, StopRequest()) as directory:
        for server in (Postgres(directory), Valkey(directory)):
            assert {"PERENNIAL_ADMIN_KEY", "PGDATA"}.isdisjoint(server.child.program.environment)


def test_only_the_owner_can_enter(tmp_path):
    with open_data_directory(tmp_path / "fresh", StopRequest()) as directory:
        assert directory.path.stat().st_mode & 0o777 == 0o700
        assert directory.sockets.stat().st_mode & 0o777 == 0o700


def test_logs_hold_neither_statements_nor_records(data_dir, table):
    with embedded_servers(data_dir) as servers:
        sockets = str(data_dir / "run")
        with psycopg.connect(host=sockets, user="perennial", dbname="perennial", autocommit=True) as connection:
            connection.execute(f"create table {table} (text text primary key)")
            for _ in range(2):
                with pytest.raises(psycopg.Error):
                    connection.execute(f"insert into {table} values (%s), ('topsecret')", ["topsecret"])
            with pytest.raises(psycopg.Error):
                connection.execute("select 'topsecret'::int")
            backend = connection.info.backend_pid
        with psycopg.connect(host=sockets, user="perennial", dbname="perennial", autocommit=True) as connection:
            backend = connection.info.backend_pid
            killer = threading.Timer(0.3, os.kill, (backend, signal.SIGKILL))
            killer.start()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("select 'topsecret', pg_sleep(200)")
            killer.join()
        with redis.from_url(servers.redis_url) as client:
            client.xadd("topsecret", {"x": "topsecret"})
            with pytest.raises(redis.ResponseError):
                client.get("topsecret")
        os.kill(servers.valkey.pid, signal.SIGSEGV)
        wait_until(lambda: not servers.valkey.running)
    logs = "".join(log.read_text() for log in (data_dir / "log").iterdir())
    assert "terminated by signal 9" in logs
    assert "crashed by signal" in logs
    assert "topsecret" not in logs


def test_a_running_folder_is_refused(data_dir):
    with embedded_servers(data_dir):
        opening = open_data_directory(data_dir, StopRequest(), wait_seconds=0.1)
        with pytest.raises(EmbeddedError, match=rf"another perennial up .* pid {os.getpid()}"), opening:
            pass


def test_a_start_waits_for_what_is_left_of_a_killed_predecessor(data_dir):
    with open_data_directory(data_dir, StopRequest()) as directory:
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], pass_fds=(directory.lock,))
    killer = threading.Timer(0.5, left.kill)
    killer.start()
    with embedded_servers(data_dir):
        assert left.wait(timeout=200) == -signal.SIGKILL
    killer.join()


@pytest.fixture
def busy_backend():
    """A PostgreSQL process that computes and so notices nothing, until it is killed."""

    @contextlib.contextmanager
    def run(data_dir):
        def compute():
            with pytest.raises(psycopg.OperationalError):
                busy.execute("do $$ begin loop end loop; end $$")

        def computes():
            with psycopg.connect(host=str(data_dir / "run"), user="perennial", dbname="perennial") as other:
                states = other.execute("select state from pg_stat_activity where pid = %s", [busy.info.backend_pid])
                return states.fetchone() == ("active",)

        with psycopg.connect(host=str(data_dir / "run"), user="perennial", dbname="perennial") as busy:
            backend = busy.info.backend_pid  # 0 once the connection is broken
            query = threading.Thread(target=compute)
            query.start()
            wait_until(computes)
            try:
                yield backend
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(backend, signal.SIGKILL)
                query.join()

    return run


@pytest.mark.more
def test_nothing_outlives_a_parent_killed_with_9(data_dir, processes_on, busy_backend):
    parent = subprocess.Popen(
        [sys.executable, "-c", RUN_AND_WAIT, str(data_dir)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout.readline()
        with busy_backend(data_dir) as backend:
            assert backend in processes_on(data_dir)
            parent.kill()
            wait_until(lambda: not processes_on(data_dir))
    with embedded_servers(data_dir):
        pass


@as_root
def test_nor_does_what_runs_as_another_user():
    """Linux forgets to tell a process of its parent's death when the process becomes another user."""
    command = [sys.executable, "-c", START_AS_NOBODY, processes.wrapper.__file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
        parent.kill()
    try:
        wait_until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.more
def test_a_busy_leftover_of_a_killed_postgres_delays_the_next_start(data_dir, processes_on, busy_backend):
    """Two servers on one data folder would destroy it: the new one waits until the old one's last process has ended."""
    with embedded_servers(data_dir) as servers:
        with busy_backend(data_dir) as backend:
            os.kill(servers.postgres.pid, signal.SIGKILL)
            wait_until(lambda: not servers.postgres.running)
            servers.postgres.start()
            assert not embedded_postgres.answers(data_dir / "run")
            assert backend in processes_on(data_dir)
        wait_until(lambda: embedded_postgres.answers(data_dir / "run"))


def test_a_process_id_in_use_again_does_not_stop_a_start(data_dir):
    for stale in (data_dir / "postgres" / "postmaster.pid", data_dir / "run" / ".s.PGSQL.5432.lock"):
        stale.write_text(f"{os.getppid()}\n{data_dir}\n0\n5432\n{data_dir}/run\n\n0 0\nready\n")
    with embedded_servers(data_dir):
        pass


def test_an_initdb_killed_in_the_middle_is_done_again(tmp_path, contents, processes_on):
    for again in itertools.count():
        data_dir = tmp_path / f"data-{again}"
        parent = subprocess.Popen([sys.executable, "-c", RUN_AND_WAIT, str(data_dir)], cwd=ROOT, stdin=subprocess.PIPE)
        with parent:
            begun, done = data_dir / "postgres.new" / "base", data_dir / "postgres"
            wait_until(lambda begun=begun, done=done: begun.exists() or done.exists())
            parent.kill()
        wait_until(lambda data_dir=data_dir: not processes_on(data_dir))
        if not done.exists():  # else it was done before it was killed
            break
    with embedded_servers(data_dir) as servers:
        contents(servers).write("new")
    assert not (data_dir / "postgres.new").exists()


@pytest.mark.more
@as_root
def test_a_plain_user_can_run_it(nobodys_folder):
    as_nobody = [sys.executable, "-I", "-S", child.__file__, "--parent", str(os.getpid()), "--signal", "9"]
    # This way the environment may lie where only root can read it.
    as_nobody += ["--identity", "user", "--uid", "65534", "--gid", "65534", "--", sys.executable, "-c", RUN_AND_WAIT]
    done = subprocess.run(
        [*as_nobody, str(nobodys_folder / "data")], cwd=ROOT, capture_output=True, text=True, input="", check=False
    )
    assert done.returncode == 0, done.stderr
    assert "postgresql+psycopg://" in done.stdout
    with pytest.raises(EmbeddedError, match="belongs to user id 65534"), embedded_servers(nobodys_folder / "data"):
        pass


@pytest.mark.more
@as_root
def test_root_may_change_how_postgres_runs(data_dir, table):
    """Where there are no user namespaces it runs as 'nobody', in the same private folder, on the same data."""
    data_dir.parent.chmod(0o700)
    namespace, nobody = possible_identities()
    for count, (identity, owner) in enumerate([(nobody, nobody.uid), (namespace, 0), (nobody, nobody.uid)]):
        stop = StopRequest()
        with open_data_directory(data_dir, stop) as directory:
            postgres = Postgres(directory, (identity,))
            try:
                postgres.start(stop)
                await_ready(postgres.child, postgres.ready, stop)
                with psycopg.connect(host=str(data_dir / "run"), user="perennial", dbname="perennial") as connection:
                    connection.execute(f"create table if not exists {table} (text text)")
                    connection.execute(f"insert into {table} values ('again')")
                    assert connection.execute(f"select from {table}").rowcount == count + 1
            finally:
                stop_together([postgres.child])
        assert {path.stat().st_uid for path in (data_dir / "postgres").rglob("*")} == {owner}
        assert data_dir.stat().st_mode & 0o777 == 0o700


def test_servers_are_started_by_the_main_thread_alone(data_dir):
    """Linux would send them the parent-death signal when the thread that made them ends."""
    problems = []

    def start() -> None:
        try:
            with embedded_servers(data_dir):
                pass
        except RuntimeError as error:
            problems.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert problems == ["children must be started from the main thread"]


def test_the_database_alone_with_and_without_a_running_server(data_dir):
    with embedded_servers(data_dir) as servers, embedded_database(data_dir) as url:
        assert url == servers.database_url
    with embedded_database(data_dir) as url:
        assert make_url(url).query["host"] == str(data_dir / "run")
        assert embedded_postgres.answers(data_dir / "run")
    assert not embedded_postgres.answers(data_dir / "run")


def test_a_folder_without_a_database_is_named(tmp_path):
    with pytest.raises(EmbeddedError, match="holds no database"), embedded_database(tmp_path / "nothing"):
        pass


def test_each_signal_has_its_time_however_late_the_one_before_was_sent(monkeypatch):
    """Between two looks more time passes than a child is given, as on a machine that stands still."""
    clock = itertools.count(step=1000)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    sent = []

    class Deaf:
        name, pid, send = "deaf", 1, staticmethod(sent.append)
        program = SimpleNamespace(stop_signals=((signal.SIGINT, 2.0), (signal.SIGTERM, 1.0)))

        @property
        def running(self) -> bool:
            return signal.SIGKILL not in sent

    stop_together([Deaf()])
    assert sent == [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
