"""`perennial up` with real servers and stand-ins for the API and the worker."""

import os
import signal
import socket
import time
import urllib.request

import pytest

from service.embedded import embedded_servers
from tests.conftest import HANG_SECONDS, wait_until


def test_it_says_where_it_is_and_where_the_key_lies_but_not_the_key(start_up):
    up = start_up()
    wait_until(up.ready)
    key_file = up.data_dir / "admin.key"
    key = key_file.read_text().strip()
    assert up.said(f"http://127.0.0.1:{up.port}")
    assert up.said(str(key_file))
    assert not up.said(key)


def test_children_get_their_settings(start_up):
    up = start_up()
    wait_until(up.ready)
    with urllib.request.urlopen(f"http://127.0.0.1:{up.port}/readyz") as answer:
        key, segments, redis_url, database_url = answer.read().decode().split("\n")
    assert key == (up.data_dir / "admin.key").read_text().strip()
    assert segments == str(up.data_dir / "segments")
    assert redis_url == f"unix://{up.data_dir}/run/valkey.sock"
    assert database_url.startswith("postgresql+psycopg://perennial_service@/perennial?host=")


def test_the_admin_key_is_private_and_made_once(start_up):
    keys = []
    for _ in range(2):
        up = start_up()
        wait_until(up.ready)
        assert up.end() == 0
        keys.append((up.data_dir / "admin.key").read_text())
        assert (up.data_dir / "admin.key").stat().st_mode & 0o777 == 0o600
    assert keys[0] == keys[1]
    assert len(keys[0].strip()) >= 43


def test_a_given_admin_key_is_not_written(start_up):
    up = start_up(admin_key="given")
    wait_until(up.ready)
    assert not (up.data_dir / "admin.key").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_everything(number, start_up, processes_on):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup make test` ignores it, and so would what it starts
    try:
        up = start_up()
    finally:
        signal.signal(signal.SIGHUP, before)
    wait_until(up.ready)
    assert up.end(number) == 0
    assert not processes_on(up.data_dir)


def test_parts_that_do_not_listen_are_killed(start_up, processes_on):
    up = start_up(API="stubborn", WORKER="stubborn")
    wait_until(up.ready)
    up.process.send_signal(signal.SIGINT)
    up.process.send_signal(signal.SIGTERM)
    wait_until(lambda: up.process.poll() is not None or up.process.send_signal(signal.SIGINT))
    assert up.process.returncode == 0
    assert not processes_on(up.data_dir)


def test_a_stop_while_starting(start_up, processes_on):
    up = start_up()
    wait_until((up.data_dir / "run" / "valkey.sock").exists)
    assert up.end() == 0
    assert not processes_on(up.data_dir)


@pytest.mark.parametrize("name", ["valkey", "postgres", "api", "worker"])
def test_a_killed_child_is_started_again(name, start_up):
    up = start_up()
    wait_until(lambda: up.ready() and up.serves())
    before = up.pid_of(name)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: up.pid_of(name) not in (None, before) and up.serves())
    assert up.said(f"{name} (pid {before}) killed by SIGKILL")
    assert up.end() == 0


def test_a_part_is_not_started_again_before_the_database_answers(start_up):
    up = start_up()
    wait_until(lambda: up.ready() and up.serves())
    database, worker = up.pid_of("postgres"), up.pid_of("worker")
    os.kill(database, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    time.sleep(1.0)
    assert up.pid_of("worker") == worker
    os.kill(database, signal.SIGCONT)
    wait_until(lambda: up.pid_of("worker") not in (None, worker) and up.serves())


def test_nothing_outlives_a_killed_supervisor_and_the_next_goes_on(start_up, processes_on):
    up = start_up(API="stubborn", WORKER="stubborn")
    wait_until(lambda: up.ready() and up.serves())
    up.process.kill()
    wait_until(lambda: not processes_on(up.data_dir))
    again = start_up()
    wait_until(again.ready)


def test_a_second_supervisor_waits_then_names_the_first(start_up):
    up = start_up()
    wait_until(up.ready)
    second = start_up(lock_wait_seconds=0.5)
    assert second.process.wait(timeout=HANG_SECONDS) == 1
    assert second.said(f"another perennial up is running on {up.data_dir}, pid {up.process.pid}")
    assert up.process.poll() is None


def test_a_taken_port_ends_it_at_once(start_up, free_port, processes_on):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        up = start_up()
        assert up.process.wait(timeout=HANG_SECONDS) == 78
    assert up.said("can't listen on")
    assert not processes_on(up.data_dir)


def test_a_child_that_keeps_dying_ends_it(start_up):
    up = start_up(WORKER="exits 3")
    assert up.process.wait(timeout=HANG_SECONDS) == 1
    assert up.said("exited with status 3, death 5 within 60 s: stopping")


def test_failed_migrations_end_it(start_up):
    up = start_up(MIGRATE="exits 4")
    assert up.process.wait(timeout=HANG_SECONDS) == 1
    assert up.said("the migrations failed: migrate exited with status 4")


def test_servers_that_are_given_are_used(start_up, tmp_path, new_data_dir):
    with embedded_servers(new_data_dir(tmp_path / "elsewhere")) as servers:
        up = start_up(redis_url=servers.redis_url, database_url=servers.database_url)
        wait_until(up.ready)
        assert not list((up.data_dir / "run").glob("*.sock"))
        with urllib.request.urlopen(f"http://127.0.0.1:{up.port}/readyz") as answer:
            assert answer.read().decode().split("\n")[2:] == [servers.redis_url, servers.database_url]
