"""Lists and metrics of many streams show each one's own numbers, with no more queries than for a few."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, func, insert, select, update

from service.ledger import open_entry, reservations, summaries
from service.ledger.overview import overview
from service.mechanisms.building import declassified
from service.store import numbering, publications, segments, streams, tables
from service.store.database import Database
from tests.conftest import ADMIN_KEY, Service, World, ok, serving
from tests.monitoring.expositions import look

RECORDS = 1000
MILLIONTH = Decimal("1e-6")
WINDOW = {"kind": "sliding_window", "block": 10, "blocks": 2}
EXPIRING = {
    "kind": "online_leader",
    "batch": 2,
    "noise": "window_tree",
    "window": 2,
    "expiry": "leaf",
    "acknowledge_declassification": True,
}


@pytest.fixture
def service(world: World) -> Iterator[Service]:
    """Without a worker, so that nothing changes."""
    with serving(world.settings) as url:
        running = Service(url, ADMIN_KEY, world.settings)
        yield running
        for client in running.clients.values():
            client.close()


@pytest.fixture
def database(world: World) -> Iterator[Database]:
    opened = Database(str(world.settings.database_url))
    yield opened
    opened.close()


def make(service: Service, database: Database, number: int) -> dict[str, Any]:
    """A stream with everything, some of it so often as its number says; what is to be told of it."""
    retention = "needed" if number % 2 else "keep"
    name = service.stream(epsilon=20, delta=1e-5, retention=retention)
    running = [service.publish(name, WINDOW) for _ in range(1 + number % 3)]
    ended = service.publish(name, WINDOW)
    ok(service.client().delete(f"/v1/publications/{ended}"))
    expiring = []
    if number % 2:
        learner = {"kind": "noisy_gradient_descent"}
        expiring = [service.publish(name, EXPIRING, delta=1e-6, learner=learner)]
    with database.transaction() as connection:
        row = streams.find(connection, name)
        assert row is not None
        _fill(connection, row.id, number)
    needed = [*expiring, *reversed(running)] if retention == "needed" else []
    return {
        "name": name,
        "records": RECORDS + number,
        "publications": [*expiring, ended, *reversed(running)],
        "erased": {
            "records": 3 * number,
            "waiting": max(0, number - 1),
            "ranges": [{"start": 10 * each, "end": 10 * each + 3} for each in range(number)],
        },
        "kept_from": 7 * number,
        "needed": needed,
        "dead_letters": number,
        "resumptions": [f"halt {each}" for each in reversed(range(number))],
        "reserved": {
            "epsilon": len(running) + len(expiring) + number / 8,
            "delta": float(MILLIONTH * (len(expiring) + number)),
        },
        "spent": {"epsilon": number / 4, "delta": 0.0},
        "expires": bool(expiring),
    }


def _fill(connection: Connection, stream: int, number: int) -> None:
    tallies = {"records": RECORDS + number, "visible_epsilon": number / 4}
    connection.execute(update(tables.streams).where(tables.streams.c.id == stream).values(**tallies))
    of_it = select(tables.publications.c.id).where(tables.publications.c.stream_id == stream)
    connection.execute(update(tables.shown).where(tables.shown.c.publication_id.in_(of_it)).values(position=100))
    row = {"stream_id": stream, "start": 0, "epsilon": number / 8, "delta": MILLIONTH * number}
    connection.execute(tables.kept_reservations.delete().where(tables.kept_reservations.c.stream_id == stream))
    connection.execute(insert(tables.kept_reservations).values(row))
    for start in (7 * number, 900):
        row = {"stream_id": stream, "start": start, "stop": start + 1, "file": "", "sha256": b"", "digest": ""}
        connection.execute(insert(tables.segments).values(row))
    for each in range(number):
        segments.erase(connection, stream, 10 * each, 10 * each + 3)
        why = {"stream_id": stream, "reason": f"halt {each}", "records": each, "entry": "0-0"}
        connection.execute(insert(tables.resumptions).values(why))
    oldest = [each for each, *_ in segments.undeleted_erasures(connection, stream)][:1]
    deleted = {"deleted_at": func.now()}
    connection.execute(update(tables.erasures).where(tables.erasures.c.id.in_(oldest)).values(deleted))
    for each in range(number + 1):
        letter = {"stream_id": stream, "entry": f"{each}-1", "reason": "why", "size": 1}
        connection.execute(insert(tables.dead_letters).values(letter))
    numbering.drop_dead_letter(connection, stream, "0-1")


def summary_of(info: dict[str, Any]) -> dict[str, Any]:
    """Return those figures of a listed stream that `make` can state beforehand."""
    alike = ("name", "records", "publications", "erased", "dead_letters", "reserved", "spent")
    return {name: info[name] for name in alike} | {
        "kept_from": info["kept"]["start"],
        "needed": [each["publication"] for each in info["kept"]["needed"]],
        "resumptions": [each["reason"] for each in info["resumptions"]],
        "expires": info["declassified"] > 0,
    }


def test_each_stream_is_told_its_own_alone_in_a_list_and_in_metrics(service: Service, database: Database):
    expected = [make(service, database, number) for number in range(5)]
    listed = ok(service.client().get("/v1/streams?limit=1000"))["items"]
    assert [summary_of(each) for each in reversed(listed)] == expected
    samples = look(service.url, ADMIN_KEY)
    for each in listed:
        assert ok(service.client().get(f"/v1/streams/{each['name']}")) == each
        for metric in ("dead_letters", "declassified_records"):
            value = samples.of(f"perennial_{metric}", stream=each["name"])
            assert value == each[metric.removesuffix("_records")]
        for metric in ("budget", "reserved", "spent"):
            for part, value in each[metric].items():
                assert samples.of(f"perennial_{metric}_{part}", stream=each["name"]) == value


@pytest.mark.more
@pytest.mark.parametrize("page", ["the list", "the stream", "metrics"])
def test_what_a_publication_keeps_that_ends_meanwhile_is_not_added_to_all_it_reserved(
    service: Service, database: Database, monkeypatch: pytest.MonkeyPatch, page: str
):
    name = service.stream(epsilon=1)
    published = service.publish(name, WINDOW)
    real, step = reservations.kept_stairs_of_each, {"start": 0, "epsilon": 1, "delta": 0}

    def ended_meanwhile(*args: Any) -> Any:
        with database.transaction() as connection:
            publication = publications.find(connection, published)
            assert publication is not None
            if open_entry(connection, publication).end("stopped").state != publication.state:
                row = step | {"stream_id": publication.stream_id}
                connection.execute(tables.kept_reservations.delete())
                connection.execute(insert(tables.kept_reservations).values(row))
        return real(*args)

    monkeypatch.setattr(reservations, "kept_stairs_of_each", ended_meanwhile)
    if page == "the list":
        (info,) = ok(service.client().get("/v1/streams"))["items"]
        reserved = info["reserved"]["epsilon"]
    elif page == "the stream":
        reserved = ok(service.client().get(f"/v1/streams/{name}"))["reserved"]["epsilon"]
    else:
        reserved = look(service.url, ADMIN_KEY).of("perennial_reserved_epsilon", stream=name)
    assert reserved == 1


@pytest.mark.more
def test_of_many_ranges_and_resumptions_the_last_are_told(service: Service, database: Database, monkeypatch):
    monkeypatch.setattr(summaries, "MAX_RANGES", 2)
    monkeypatch.setattr(summaries, "MAX_RESUMPTIONS", 3)
    expected = [make(service, database, number) for number in (4, 5)]
    for info, whole in zip(reversed(ok(service.client().get("/v1/streams"))["items"]), expected, strict=True):
        assert info["erased"] == whole["erased"] | {"ranges": whole["erased"]["ranges"][-2:]}
        assert [each["reason"] for each in info["resumptions"]] == whole["resumptions"][:3]


@contextmanager
def statements() -> Iterator[list[str]]:
    """Those of this thread."""
    executed: list[str] = []
    real, here = psycopg.Cursor.execute, threading.get_ident()

    def execute(cursor: psycopg.Cursor, statement: str, *rest: Any, **more: Any) -> psycopg.Cursor:
        if threading.get_ident() == here:
            executed.append(statement)
        return real(cursor, statement, *rest, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", execute)
        yield executed


def list_all(connection: Connection) -> None:
    page = streams.page(connection, limit=1000, before=None, only=None)
    assert len(summaries.summaries(connection, page, declassified=declassified)) == len(page)


def look_at_all(connection: Connection) -> None:
    overview(connection, declassified=declassified)


@pytest.mark.more
@pytest.mark.parametrize("ask", [list_all, look_at_all])
def test_more_streams_take_no_more_queries(service: Service, database: Database, ask: Callable[[Connection], None]):
    body = []
    for so_far, streams_wanted in ((0, 2), (2, 8)):
        for number in range(so_far, streams_wanted):
            make(service, database, number % 5)
        with statements() as executed, database.transaction() as connection:
            ask(connection)
        body.append(executed)
    assert body[0] == body[1] != []


def test_of_a_publication_that_has_ended_metrics_tell_only_whether_it_halted(service: Service, database: Database):
    expected = make(service, database, 1)
    ended = expected["publications"][1]
    samples = look(service.url, ADMIN_KEY)
    told_of = {
        name: {
            sample.name.removeprefix("perennial_publication_"): sample.value
            for family in samples.families
            for sample in family.samples
            if sample.labels.get("publication") == name
        }
        for name in expected["publications"]
    }
    assert told_of[ended] == {"running": 0, "halted": 0}
    running = told_of[expected["publications"][-1]]
    assert running.keys() == {
        *("running", "halted", "overdue_records", "versions"),
        "perennial_fit_waiting_seconds",  # it is due since it was made, as far as anybody remembers
    }
    assert running["running"] == 1
