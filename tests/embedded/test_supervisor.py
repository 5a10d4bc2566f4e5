"""`perennial up` with real servers and stand-ins for the API and the worker."""

import os
import signal
import socket
import time
import urllib.request

import pytest

from service.embedded import embedded_servers
from tests.conftest import HANG_SECONDS, wait_until


@pytest.mark.more
def test_it_says_where_it_is_and_where_the_key_lies_but_not_the_key(running):
    key_file = running.data_dir / "admin.key"
    key = key_file.read_text().strip()
    assert len(key) >= 43
    assert key_file.stat().st_mode & 0o777 == 0o600
    assert running.printed(f"http://127.0.0.1:{running.port}")
    assert running.printed(str(key_file))
    assert not running.printed(key)


def test_children_get_their_settings(running):
    key, segments, redis_url, database_url = settings_of_the_api(running)
    assert key == (running.data_dir / "admin.key").read_text().strip()
    assert segments == str(running.data_dir / "segments")
    assert redis_url == f"unix://{running.data_dir}/run/valkey.sock"
    assert database_url.startswith("postgresql+psycopg://perennial_service@/perennial?host=")


def settings_of_the_api(up) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{up.port}/readyz") as answer:
        return answer.read().decode().split("\n")


@pytest.mark.more
def test_a_second_supervisor_waits_then_names_the_first(running, start_beside):
    second = start_beside(lock_wait_seconds=0.5)
    assert second.process.wait(timeout=HANG_SECONDS) == 1
    assert second.printed(f"another perennial up is running on {running.data_dir}, pid {running.process.pid}")
    assert running.process.poll() is None


@pytest.mark.parametrize("name", ["valkey", "postgres", "api", "worker"])
def test_a_killed_child_is_started_again(name, running):
    before = running.pid_of(name)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: running.pid_of(name) not in (None, before) and running.serves())
    (death,) = (each for each in running.deaths() if each["pid"] == before)
    assert (death["part"], death["how"], death["level"]) == (name, "killed by SIGKILL", "error")
    assert death["timestamp"]


def test_a_part_is_not_started_again_before_the_database_answers(running):
    database, worker = running.pid_of("postgres"), running.pid_of("worker")
    os.kill(database, signal.SIGSTOP)
    try:
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: worker in {each["pid"] for each in running.deaths()})
        time.sleep(1.0)
        assert running.pid_of("worker") == worker
    finally:
        os.kill(database, signal.SIGCONT)
    wait_until(lambda: running.pid_of("worker") not in (None, worker) and running.serves())


@pytest.mark.more
def test_a_signal_stops_everything_and_the_key_stays(start_up, processes_on):
    keys = set()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` ignores it: so would what it starts
        try:
            up = start_up()
        finally:
            signal.signal(signal.SIGHUP, before)
        wait_until(up.ready)
        assert up.end(number) == 0
        assert not processes_on(up.data_dir)
        keys.add((up.data_dir / "admin.key").read_text())
        left = {part: (up.data_dir / f"{part}.stopped").read_text() for part in ("api", "worker")}
        assert left == {"api": "with", "worker": "with"}  # its servers
    assert len(keys) == 1


@pytest.mark.more
def test_parts_that_do_not_listen_outlive_neither_a_killed_supervisor_nor_one_that_is_stopped(start_up, processes_on):
    up = start_up(API="stubborn", WORKER="stubborn")
    wait_until(lambda: up.ready() and up.serves())
    up.process.kill()
    wait_until(lambda: not processes_on(up.data_dir))
    again = start_up(API="stubborn", WORKER="stubborn")
    wait_until(again.ready)
    again.process.send_signal(signal.SIGINT)
    again.process.send_signal(signal.SIGTERM)
    wait_until(lambda: again.process.poll() is not None or again.process.send_signal(signal.SIGINT))
    assert again.process.returncode == 0
    assert not processes_on(again.data_dir)


@pytest.mark.more
def test_a_stop_while_starting(start_up, processes_on):
    up = start_up()
    wait_until((up.data_dir / "run" / "valkey.sock").exists)
    assert up.end() == 0
    assert not processes_on(up.data_dir)


@pytest.mark.more
def test_a_taken_port_ends_it_at_once(start_up, free_port, processes_on):
    with socket.create_server(("127.0.0.1", free_port)):
        up = start_up()
        assert up.process.wait(timeout=HANG_SECONDS) == 78
    assert up.printed("can't listen on")
    assert not processes_on(up.data_dir)


@pytest.mark.more
def test_a_child_that_keeps_dying_ends_it(start_up):
    up = start_up(API="exits 3")
    assert up.process.wait(timeout=HANG_SECONDS) == 1
    assert up.printed("exited with status 3, death 5 within 60 s: stopping")
    assert len(up.deaths()) == 5


@pytest.mark.more
def test_a_worker_that_keeps_dying_ends_nothing_else(start_up):
    up = start_up(WORKER="exits 3")
    wait_until(lambda: 0.32 in {each.get("again_in_seconds") for each in up.deaths()})
    wait_until(up.ready)
    assert {(each["part"], each["how"]) for each in up.deaths()} == {("worker", "exited with status 3")}


@pytest.mark.more
def test_a_child_that_cannot_run_as_configured_ends_it(start_up):
    up = start_up(API="exits 78")
    assert up.process.wait(timeout=HANG_SECONDS) == 78
    assert up.printed("exited with status 78: it can't run as configured")


@pytest.mark.more
def test_failed_migrations_end_it(start_up):
    up = start_up(MIGRATE="exits 4")
    assert up.process.wait(timeout=HANG_SECONDS) == 1
    assert up.printed("the migrations failed: migrate exited with status 4")


@pytest.mark.more
def test_a_key_and_servers_that_are_given_are_used(start_up, tmp_path, new_data_dir):
    with embedded_servers(new_data_dir(tmp_path / "elsewhere")) as servers:
        up = start_up(redis_url=servers.redis_url, database_url=servers.database_url, admin_key="given")
        wait_until(up.ready)
        key, _segments, *urls = settings_of_the_api(up)
        assert (key, *urls) == ("given", servers.redis_url, servers.database_url)
        assert not (up.data_dir / "admin.key").exists()
        assert not list((up.data_dir / "run").glob("*.sock"))
