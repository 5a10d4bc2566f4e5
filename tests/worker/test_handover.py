"""Several sealers, and parts that stall, go silent or fail: nothing committed is touched, and numbering goes on."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from urllib.parse import unquote

import psycopg
import pytest
from sqlalchemy import func, update
from sqlalchemy.engine import make_url

from service.log import LogUnavailable, Reader
from service.store import changes, leases, numbering, segments, streams, tables
from service.store.database import DatabaseUnavailable
from service.worker.leases import LeaseKeeper
from service.worker.sealer import Sealer
from service.worker.sweeper import Sweeper
from tests.conftest import HANG_SECONDS, join, wait_until
from tests.worker.conftest import Bench, new_stream


@contextmanager
def renewing(bench: Bench, url: str | None = None, *, seconds: float = 1.0) -> Iterator[tuple[Sealer, LeaseKeeper]]:
    """A sealer whose leases are renewed, as in a worker: `seconds` long, which a busy machine may be too late for."""
    keeper = LeaseKeeper(bench.database, seconds=seconds)
    keeper.start()
    yield bench.sealer(keeper, url), keeper
    keeper.stop()


@contextmanager
def running(sealer: Sealer) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=sealer.run, args=(stop,))
    thread.start()
    yield
    stop.set()
    join(thread)


def test_a_mark_that_can_not_be_read_holds_up_its_own_stream_alone(bench: Bench):
    other = replace(bench, stream=new_stream(bench.world, bench.database, "t"))
    mark = bench.files.root / f"{bench.stream.log}.witness"
    mark.mkdir(parents=True)
    bench.append(1)
    other.append(2)
    sealer = bench.sealer()
    sealer.step(wait_milliseconds=10)
    assert (other.values(), bench.now().records, bench.now().halted) == ([2], 0, None)
    assert list(sealer._not_before) == [bench.stream.id], "its lease is not taken and given back again and again"
    mark.rmdir()
    sealer._not_before.clear()
    wait_until(lambda: (sealer.step(wait_milliseconds=10), bench.now().records == 1)[1])


def test_a_commit_that_stalls_past_its_lease_loses_nothing_to_the_next_sealers_sweep(bench: Bench, monkeypatch):
    real, inside = numbering.seal, threading.Event()

    def slow(connection, *rest):
        real(connection, *rest)
        inside.set()
        time.sleep(2.0)

    def stall(sealer):
        with suppress(DatabaseUnavailable):  # PostgreSQL ends a transaction that is idle for too long
            wait_until(lambda: (sealer.step(wait_milliseconds=10), inside.is_set())[1])

    with renewing(bench) as (first, _), renewing(bench) as (second, _):
        first.step(wait_milliseconds=10)
        bench.append(1, 2, 3)
        monkeypatch.setattr(numbering, "seal", slow)
        stalled = threading.Thread(target=stall, args=(first,))
        stalled.start()
        assert inside.wait(HANG_SECONDS)
        monkeypatch.setattr(numbering, "seal", real)
        bench.append(4)
        with running(second):
            stalled.join()
            del first
            wait_until(lambda: bench.now().records == 4)
    assert bench.values() == [1, 2, 3, 4]


def test_who_was_overtaken_between_its_file_and_its_commit_numbers_nothing(bench: Bench, monkeypatch):
    """The next sealer has swept the file, which no row named."""
    asleep, real = bench.sealer(), numbering.seal
    asleep.step(wait_milliseconds=10)
    bench.append(1)

    def overtaken(*args):
        monkeypatch.setattr(numbering, "seal", real)
        monkeypatch.setattr(Reader, "read", lambda *_, **__: [])  # it has not come to read anything yet
        bench.successor().step(wait_milliseconds=10)
        monkeypatch.undo()
        real(*args)

    monkeypatch.setattr(numbering, "seal", overtaken)
    asleep.step(wait_milliseconds=10)
    assert list((bench.world.settings.segment_store / bench.stream.log).iterdir()) == []
    assert bench.now().records == 0
    successor = bench.successor()
    wait_until(lambda: (successor.step(wait_milliseconds=10), bench.now().records == 1)[1])
    assert bench.values() == [1]


def test_a_lease_handed_over_while_streams_are_counted_halts_nothing(bench: Bench, monkeypatch):
    with renewing(bench, seconds=600.0) as (first, _), renewing(bench, seconds=600.0) as (second, _):
        first.step(wait_milliseconds=10)
        real, here = changes.for_sealers, threading.current_thread()

        def for_sealers(connection, **options):
            look = real(connection, **options)
            if threading.current_thread() is not here:
                return look  # the worker of another test's service looks, too
            monkeypatch.setattr(changes, "for_sealers", real)
            bench.append(1, 2)
            first.step(wait_milliseconds=10)
            first._let_go(bench.stream.log)
            return look._replace(unsealed=look.unsealed._replace(free=1))

        monkeypatch.setattr(changes, "for_sealers", for_sealers)
        second.step(wait_milliseconds=10)
        assert list(second._held) == [bench.stream.log]
        assert bench.now().halted is None
        bench.append(3)
        second.step(wait_milliseconds=10)
    assert bench.values() == [1, 2, 3]


def test_after_a_blip_of_the_log_numbering_goes_on(bench: Bench, monkeypatch):
    with renewing(bench) as (sealer, _):
        real = Reader.wait

        def away(*_args, **_options):
            monkeypatch.setattr(Reader, "wait", real)
            raise LogUnavailable("away")

        sealer.step(wait_milliseconds=10)
        monkeypatch.setattr(Reader, "wait", away)
        with running(sealer):
            bench.append(1)
            wait_until(lambda: bench.now().records == 1)


def test_a_record_that_is_away_just_after_a_lease_was_taken_costs_no_stream(bench: Bench, monkeypatch):
    real = streams.of_each

    def away(*_args):
        monkeypatch.setattr(streams, "of_each", real)
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(streams, "of_each", away)
    bench.append(1)
    with renewing(bench) as (sealer, _), running(sealer):
        wait_until(lambda: bench.now().records == 1)


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_the_records_clock_may_be_set_back_or_forward(bench: Bench, seconds):
    """A dead worker's lease is taken over all the same, and one that is alive keeps its own or takes it again.

    No other clock decides anything: the service's own waits are on clocks that are never set, and the log's is next.
    """
    bench.sealer().step(wait_milliseconds=10)  # takes the lease, and is never seen again
    bench.append(1)
    with renewing(bench) as (sealer, _), running(sealer):
        with bench.database.transaction() as connection:
            connection.execute(update(tables.leases).values(expires_at=func.now() + timedelta(seconds=seconds)))
        wait_until(lambda: bench.now().records == 1)
        with bench.database.transaction() as connection:
            connection.execute(update(tables.leases).values(expires_at=func.now() + timedelta(seconds=seconds)))
        bench.append(2)
        wait_until(lambda: bench.now().records == 2)
    assert bench.values() == [1, 2]


def test_the_logs_clock_may_be_set_back(bench: Bench):
    with renewing(bench) as (sealer, _), running(sealer):
        bench.append(1)
        wait_until(lambda: bench.now().records == 1)
        tomorrow = int((time.time() + 86400) * 1000)
        bench.redis().execute_command("XSETID", bench.key("entries"), f"{tomorrow}-0")  # as its clock ran yesterday
        entries = [bench.append(2), bench.append(3)]
        assert entries == [f"{tomorrow}-1", f"{tomorrow}-2"]
        wait_until(lambda: bench.now().records == 3)
    assert bench.values() == [1, 2, 3]


class Silence:
    """Between a client and the log: forwards, until it swallows everything on the connections that it has."""

    def __init__(self, url: str) -> None:
        self._path = unquote(url.removeprefix("unix://"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self._links: list[list[bool]] = []
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        for link in self._links:
            link[0] = True

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._path)
            self._sockets += [client, server]
            link = [False]
            self._links.append(link)
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(*pair, link), daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket, silent: list[bool]) -> None:
        try:
            while data := source.recv(65536):
                if not silent[0]:
                    target.sendall(data)
        except OSError:
            return


def test_a_log_connection_on_which_nothing_comes_any_more_is_given_up(bench: Bench, monkeypatch):
    monkeypatch.setattr("service.log.reader.LONGEST_WAIT_SECONDS", 1.0)  # a sealer waits half of it
    monkeypatch.setattr("service.log.reader.SECONDS_TO_ANSWER", 1.0)
    between = Silence(bench.world.settings.redis_url)
    with renewing(bench, between.url) as (sealer, _), running(sealer):
        bench.append(1)
        wait_until(lambda: bench.now().records == 1)
        between.swallow()
        bench.append(2)
        wait_until(lambda: bench.now().records == 2)
    between.close()


def test_a_bad_file_of_one_stream_does_not_stop_the_sealer(bench: Bench):
    with renewing(bench, seconds=600.0) as (sealer, _):
        bench.append(1)
        sealer.step(wait_milliseconds=10)
        (file,) = (bench.world.settings.segment_store / bench.stream.log).iterdir()
        file.rename(file.with_suffix(".away"))
        with bench.database.transaction() as connection:
            segments.erase(connection, bench.stream.id, 0, 1)
        sealer.step(wait_milliseconds=10)  # logs it, and lets go of the stream
        assert sealer._held == {}


def test_a_lease_that_another_took_counts_as_held_no_more(bench: Bench):
    keeper = LeaseKeeper(bench.database, seconds=0.3)
    lease = keeper.take(leases.stream(bench.stream.id))
    assert keeper.holds(lease)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.leases).values(owner="another"))
    keeper.start()
    wait_until(lambda: not keeper.holds(lease))
    keeper.stop()


def test_leases_are_renewed_again_after_the_database_refused_writes(bench: Bench):
    url = make_url(bench.world.settings.migration_url).set(username="postgres")  # may end others' sessions
    plain = url.set(drivername="postgresql").render_as_string(False)
    kick = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND usename <> current_user"
    with renewing(bench) as (sealer, keeper):
        sealer.step(wait_milliseconds=10)
        with psycopg.connect(plain, autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE {url.database} SET default_transaction_read_only = on")
            connection.execute(kick, [url.database])
            time.sleep(1.5)
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE {url.database} RESET default_transaction_read_only")
            connection.execute(kick, [url.database])
        assert keeper._thread.is_alive()


def test_a_slow_commit_costs_no_other_lease(bench: Bench):
    with bench.database.transaction() as connection:
        leases.create(connection, "publication:1")
        slow = leases.take(connection, leases.stream(bench.stream.id), owner="a", seconds=60)
        other = leases.take(connection, "publication:1", owner="a", seconds=60)
    with bench.database.transaction() as committing:
        leases.check(committing, slow)
        with bench.database.transaction() as connection:  # which waits for no lock, or it would wait for ever
            assert leases.renew(connection, [slow, other], seconds=60) == []


def test_who_lost_the_lease_deletes_nothing_that_its_successor_wrote(bench: Bench, monkeypatch):
    """The successor takes over and numbers a batch between two steps of a takeover: reading the rows, and sweeping."""
    bench.append(1.0)
    slow, real = bench.sealer(), Sweeper.sweep

    def sweep(self: Sweeper, lease: leases.Lease, stream: streams.Stream, known: set[str]) -> None:
        if self is slow._sweeper:
            bench.successor().step(wait_milliseconds=10)
        real(self, lease, stream, known)

    monkeypatch.setattr(Sweeper, "sweep", sweep)
    slow.step(wait_milliseconds=10)
    assert bench.values() == [1.0]
