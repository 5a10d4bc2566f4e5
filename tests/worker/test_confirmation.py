"""Nothing is visible before the high-water mark holds it, and what the mark holds is never published anew."""
# ruff: noqa: F811 - a fixture is another file's

import threading
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx
import pytest
from sqlalchemy import text, update
from sqlalchemy.engine import make_url

from service.ledger import charged_rows, high_water_mark, open_entry, open_free_ledgers, open_ledger, spending
from service.ledger.admission import check
from service.ledger.errors import BudgetExceeded
from service.ledger.verify import verify
from service.privacy.accounting.composition import PrivacyLoss
from service.publishing import confirmation
from service.store import charges, erasing, leases, newest, publications, releases, streams, tables, visible_positions
from service.store.database import Database, DatabaseUnsuitable
from service.worker import fits
from tests.conftest import ADMIN_KEY, join, serving, wait_until
from tests.worker.published import Bench
from tests.worker.test_publishing import bench  # noqa: F401


def visible(bench: Bench) -> tuple[Any, ...]:
    """Return what anybody may see: the newest model's version, all versions, all charges."""
    with bench.database.transaction() as connection:
        latest = newest.find(connection, "p", None).latest
        publication = publications.get(connection, bench.identity)
        page = releases.page(connection, bench.identity, limit=100, before=None)
        versions = [each.version for each in page]
        assert [each.version for each in reversed(page) if each.role == "model"] == [
            each.version for each in releases.models_after(connection, bench.identity, 0, limit=100)
        ]
        stretches = releases.outlined(connection, bench.identity, most=100, record=0)
        assert [each.last for each in stretches] == versions[::-1]
        assert [version for version in range(1, 20) if releases.find(connection, bench.identity, version)] == versions[
            ::-1
        ]
        assert latest == publication.visible_latest
        assert publication.visible_version == max(versions, default=None)
        charged = [each["id"] for each in charges.page(connection, 1, limit=100, before=None)]
    return latest, versions, charged


def sums(bench: Bench) -> tuple[Any, ...]:
    """Return what anybody may see of its clock and of what records have spent: by the worst one, by each."""
    with bench.database.transaction() as connection:
        publication, stream = publications.get(connection, bench.identity), streams.get(connection, 1)
        stretches = spending.exact(connection, 1, 0, 10)
    each = [float(loss.epsilon) for start, stop, loss in stretches for _ in range(start, stop)]
    worst = publication.visible_worst_record, float(publication.visible_worst_amount), float(stream.visible_epsilon)
    return publication.visible_position, publication.visible_due, worst, each


def assert_verifies(bench: Bench) -> None:
    with bench.database.transaction() as connection:
        assert verify(connection, isolated=False).findings == []


def crash_before_the_mark(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker publishes everything, and dies each time before it has written the mark."""
    with monkeypatch.context() as patched:
        patched.setattr(confirmation.Confirmer, "confirm", lambda *_: None)
        bench.publish_all()


def test_what_the_mark_does_not_hold_nobody_sees(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    assert bench.counts() == (5, 5)
    assert visible(bench) == (None, [], [])
    assert sums(bench) == (0, 6, (None, 0, 0), [0] * 10)
    bench.context().audit.confirm()
    assert visible(bench) == (5, [5, 4, 3, 2, 1], [5, 4, 3, 2, 1])
    assert sums(bench) == (10, 12, (4, 1, 1), [pytest.approx(i / 3) for i in (2, 2, 1, 1, 3, 3, 3, 3, 1, 1)])
    assert bench.stream().distrusted is None
    assert_verifies(bench)


def test_a_halt_is_seen_only_once_what_it_charged_is_confirmed(bench: Bench, monkeypatch):
    """Fresh noise may have decided it: its state, its reason and what it gives back may be lost with its charge."""
    real = fits.draw
    monkeypatch.setattr(fits, "draw", lambda *args: replace(real(*args), halts="its noise said so"))

    def seen() -> tuple[Any, ...]:
        headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
        with serving(bench.world.settings) as url, httpx.Client(base_url=url, headers=headers, timeout=60) as http:
            publication, ledger, stream, card, metrics = (
                http.get(path).raise_for_status()
                for path in (
                    "/v1/publications/p",
                    "/v1/streams/s/ledger",
                    "/v1/streams/s",
                    "/v1/publications/p/card",
                    "/metrics",
                )
            )
        (share,) = ledger.json()["publications"]
        halted = next(line for line in metrics.text.splitlines() if line.startswith("perennial_publication_halted{"))
        return (
            *(publication.json()[name] for name in ("state", "reason", "due")),
            *(ledger.json()["reserved"]["epsilon"], stream.json()["reserved"]["epsilon"]),
            *(share["running"], share["reserved"]["epsilon"], card.json()["state"], float(halted.split()[-1])),
        )

    before = seen()
    crash_before_the_mark(bench, monkeypatch)
    assert (bench.now().state, bench.counts()) == ("halted", (2, 2))
    assert seen() == before == ("running", None, 6, 1, 1, True, 1, "running", 0)
    with bench.database.transaction() as connection, pytest.raises(BudgetExceeded):
        check(connection, bench.stream(), PrivacyLoss.of(Decimal("1.1"), Decimal(0)), 0)
    bench.context().audit.confirm()
    charged = pytest.approx(2 / 3)
    assert seen() == ("halted", "its noise said so", None, charged, charged, False, charged, "halted", 1)
    with bench.database.transaction() as connection:
        check(connection, bench.stream(), PrivacyLoss.of(Decimal("1.1"), Decimal(0)), 0)
    assert_verifies(bench)


def test_a_stop_is_seen_at_once_where_all_is_confirmed_else_with_what_was_charged(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    with bench.database.transaction() as connection:
        open_entry(connection, bench.now()).end("stopped")
    assert (bench.now().state, bench.now().visible_state) == ("stopped", "running")
    bench.context().audit.confirm()
    assert bench.now().visible_state == "stopped"
    assert_verifies(bench)


def seen_while_a_worker_publishes(bench: Bench, monkeypatch: pytest.MonkeyPatch, path: str) -> dict[str, Any]:
    """Return what the API answers if charges are committed, and not confirmed, after it has read the rows of others."""
    real, headers = charged_rows.rows, {"Authorization": f"Bearer {ADMIN_KEY}"}

    def rows(*args: Any, **options: Any) -> Any:
        read = real(*args, **options)
        crash_before_the_mark(bench, monkeypatch)
        return read

    monkeypatch.setattr(charged_rows, "rows", rows)
    with serving(bench.world.settings) as url:
        answer = httpx.get(url + path, headers=headers, timeout=60).raise_for_status().json()
    assert bench.counts()[1] > 0
    return answer


def test_what_is_committed_while_the_ledger_is_read_takes_nothing_off(bench: Bench, monkeypatch):
    ranges = seen_while_a_worker_publishes(bench, monkeypatch, "/v1/streams/s/ledger")["ranges"]
    assert ranges == [{"start": 0, "end": 10, "epsilon": 0, "delta": 0, "declassified": False}]


def test_one_mark_confirms_all_that_is_committed_on_a_stream(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    written, write, mine = [], high_water_mark.write, threading.get_ident()

    def note(files, log, mark):
        if threading.get_ident() == mine:  # a service that runs for other tests writes marks of its own
            written.append(mark.charges)
        write(files, log, mark)

    monkeypatch.setattr(high_water_mark, "write", note)
    bench.context().audit.confirm()
    assert (visible(bench)[0], written) == (5, [5])


@pytest.mark.parametrize(("name", "times"), [("read_together", 2), ("_make_visible", 1)])
def test_who_hangs_while_it_confirms_keeps_no_view_and_no_lock_for_ever(bench: Bench, monkeypatch, name, times):
    """Hanging in the middle of a pipeline it is not idle, so that only the bound of the transaction ends it."""
    crash_before_the_mark(bench, monkeypatch)
    real, bounds, mine = getattr(confirmation, name), [], threading.get_ident()

    def bounded(connection, *more):
        made = real(connection, *more)
        if threading.get_ident() == mine:
            bounds.append(connection.execute(text("SHOW transaction_timeout")).scalar_one())
        return made

    monkeypatch.setattr(confirmation, name, bounded)
    bench.context().confirmer.confirm(1)
    assert (visible(bench)[0], bounds) == (5, ["20s"] * times)


@pytest.mark.parametrize("lock", ["a stream", "a publication", "an erasure"])
def test_who_hangs_with_the_lock_of_a_stream_keeps_it_for_ten_minutes_at_most(bench: Bench, lock: str):
    with bench.database.transaction() as connection:
        match lock:
            case "a stream":
                open_ledger(connection, 1)
            case "a publication":
                open_entry(connection, publications.get(connection, bench.identity))
            case "an erasure":
                erasing.erase(connection, 1, 0, 1)
        assert connection.execute(text("SHOW transaction_timeout")).scalar_one() == "10min"


def test_a_release_is_seen_only_once_its_mark_is_written(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    real, marks = confirmation._make_visible, []

    def make_visible(*args: Any) -> None:
        marks.append(bench.files.high_water_mark("log"))
        real(*args)

    monkeypatch.setattr(confirmation, "_make_visible", make_visible)
    bench.context().confirmer.confirm(1)
    assert [(each["charges"], each["releases"]) for each in marks] == [(5, 5)]
    assert visible(bench)[0] == 5


def test_nothing_is_seen_on_a_server_that_may_lose_it(bench: Bench, monkeypatch):
    """Its settings were changed beneath open connections."""
    crash_before_the_mark(bench, monkeypatch)

    def unsafe(_: Any) -> None:
        raise DatabaseUnsuitable("PostgreSQL runs with fsync = off")

    with monkeypatch.context() as patched, pytest.raises(DatabaseUnsuitable):
        patched.setattr(confirmation, "require_durability", unsafe)
        bench.context().confirmer.confirm(1)
    assert (visible(bench), bench.files.high_water_mark("log")) == ((None, [], []), None)


def test_what_is_confirmed_late_with_an_older_state_takes_nothing_back(bench: Bench, monkeypatch):
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    crash_before_the_mark(bench, monkeypatch)
    real, now = confirmation._make_visible, []
    with monkeypatch.context() as patched:
        patched.setattr(confirmation, "_make_visible", lambda _, *seen: now.append(seen))
        bench.context().confirmer.confirm(1)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=10))
    bench.publish_all()
    before = visible(bench), sums(bench)
    assert before[0][0] == 5
    with bench.database.transaction() as connection:
        real(connection, *now[0])
    assert (visible(bench), sums(bench)) == before


def test_what_is_committed_while_a_stream_is_confirmed_is_not_seen_with_it(bench: Bench, monkeypatch):
    """The mark, which is written next, holds less."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    crash_before_the_mark(bench, monkeypatch)
    real = visible_positions.needed

    def meanwhile(*args: Any) -> tuple[Any, ...]:
        monkeypatch.setattr(visible_positions, "needed", real)
        with bench.database.transaction() as connection:
            connection.execute(update(tables.streams).values(records=10))
        crash_before_the_mark(bench, monkeypatch)
        return real(*args)

    monkeypatch.setattr(visible_positions, "needed", meanwhile)
    bench.context().confirmer.confirm(1)
    assert (sums(bench)[0], bench.now().position) == (6, 10)


def test_a_stream_that_somebody_has_locked_holds_up_no_other(bench: Bench):
    with bench.database.transaction() as holder, bench.database.transaction() as connection:
        open_ledger(holder, 1)
        assert open_free_ledgers(connection, [1]) == []
    with bench.database.transaction() as connection:
        assert [each.stream.id for each in open_free_ledgers(connection, [1])] == [1]


def test_a_step_that_charges_and_releases_nothing_is_confirmed_after_a_crash_too(bench: Bench):
    """As of a batch that is only added to what is remembered: the mark says the same before and after it."""
    bench.publish_all()
    with bench.database.transaction() as connection:
        connection.execute(update(tables.shown).values(position=8, due=10))
    bench.context().audit.confirm()
    assert sums(bench)[:2] == (10, 12)


def test_a_worker_confirms_what_it_publishes_at_once(bench: Bench):
    bench.publish_all()
    assert visible(bench) == (5, [5, 4, 3, 2, 1], [5, 4, 3, 2, 1])
    mark = bench.files.high_water_mark("log")
    assert (mark["charges"], mark["releases"], mark["head"]) == (5, 5, bench.stream().head)


def test_where_the_mark_can_not_be_written_nothing_is_seen_until_it_can(bench: Bench):
    obstacle = bench.world.settings.segment_store / "log.lock"
    obstacle.unlink(missing_ok=True)
    obstacle.mkdir()
    publisher = bench.publisher()
    for _ in range(3):
        publisher.step(threading.Event())
    assert bench.counts() == (2, 2)  # the first step alone: what is committed unseen does not grow
    assert visible(bench) == (None, [], [])
    obstacle.rmdir()
    wait_until(lambda: (publisher.step(threading.Event()), visible(bench)[0] == 5)[1])


@pytest.mark.parametrize("lost", ["erasures", "charges", "releases"])
def test_a_database_that_lacks_what_the_mark_holds_is_distrusted_before_anything_is_drawn(
    bench: Bench, monkeypatch, lost
):
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    bench.publish_all()
    mark = bench.files.high_water_mark("log")
    bench.files.put_high_water_mark("log", mark | {lost: mark[lost] + 1})
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=10))
    before = visible(bench)
    publisher = bench.publisher()
    monkeypatch.setattr(publisher._audit, "look", lambda *_: True)  # which walks the whole ledger only every hour
    monkeypatch.setattr("service.worker.fits.prepare", None)
    publisher.step(threading.Event())
    reason = bench.stream().distrusted
    assert f"{lost} {mark[lost] + 1} (there are {mark[lost]})" in reason
    assert "an older copy of the database" in reason
    assert high_water_mark.lost_commits(reason)
    assert (visible(bench), bench.counts()) == (before, (2, 2))


@pytest.mark.parametrize(("name", "says"), [("head", "another charge 5"), ("newest_release", "another release 5")])
def test_another_history_of_the_same_length_is_told_apart_by_its_hashes(bench: Bench, monkeypatch, name, says):
    crash_before_the_mark(bench, monkeypatch)
    context = bench.context()
    with bench.database.transaction() as connection:
        mark = vars(confirmation.high_water_mark.marks(connection, [bench.stream()])["log"])
    bench.files.put_high_water_mark("log", mark | {name: "0" * 64, "timeline": mark["timeline"] - 1})
    context.confirmer.confirm(1)
    assert says in bench.stream().distrusted
    assert "a standby without the newest commits was promoted" in bench.stream().distrusted
    assert high_water_mark.lost_commits(bench.stream().distrusted)
    assert not high_water_mark.lost_commits("charge 3 is not what was written")
    assert visible(bench) == (None, [], [])


def test_a_server_that_holds_another_history_than_the_one_read_makes_nothing_visible(bench: Bench, monkeypatch):
    """As if a standby had taken over between reading what is committed and making it visible."""
    crash_before_the_mark(bench, monkeypatch)
    real, superuser = (
        confirmation.high_water_mark.write,
        make_url(bench.world.settings.migration_url).set(username="postgres"),
    )
    elsewhere = Database(superuser.render_as_string(False))

    def switched(*args: Any) -> None:
        real(*args)
        with elsewhere.transaction() as connection:
            connection.execute(text("ALTER TABLE charges DISABLE TRIGGER append_only"))
            connection.execute(text("UPDATE charges SET hash = repeat('0', 64) WHERE id = 5"))
            connection.execute(text("ALTER TABLE charges ENABLE ALWAYS TRIGGER append_only"))

    monkeypatch.setattr(confirmation.high_water_mark, "write", switched)
    bench.context().confirmer.confirm(1)
    elsewhere.close()
    assert visible(bench) == (None, [], [])


def test_the_mark_never_goes_back_however_many_confirm_at_once(bench: Bench, monkeypatch):
    crash_before_the_mark(bench, monkeypatch)
    shops = [bench.context() for _ in range(4)]
    charges_marked = []
    real = bench.files.__class__.put_high_water_mark

    def put(self: Any, log: str, mark: dict[str, Any]) -> None:
        charges_marked.append(mark["charges"])
        real(self, log, mark)

    monkeypatch.setattr(bench.files.__class__, "put_high_water_mark", put)
    threads = [threading.Thread(target=context.confirmer.confirm, args=(1,)) for context in shops]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert set(charges_marked) == {5}
    assert visible(bench)[0] == 5


def test_an_old_mark_without_releases_is_read(bench: Bench):
    """As the version before wrote it."""
    bench.publish_all()
    mark = bench.files.high_water_mark("log")
    bench.files.put_high_water_mark("log", {name: mark[name] for name in ("records", "erasures", "charges", "head")})
    bench.context().confirmer.confirm(1)
    assert bench.stream().distrusted is None
    assert bench.files.high_water_mark("log") == mark


def test_who_waits_is_woken_when_it_is_visible_not_when_it_is_committed(bench: Bench, monkeypatch):
    with bench.database.listen("perennial_release") as listening:
        crash_before_the_mark(bench, monkeypatch)
        assert list(listening.notifies(timeout=0.2)) == []
        bench.context().confirmer.confirm(1)
        assert [notice.payload for notice in listening.notifies(timeout=200.0, stop_after=1)] == ["p"]


def test_more_confirmed_than_there_is_is_a_finding(bench: Bench):
    bench.publish_all()
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(confirmed_releases=6))
    with bench.database.transaction() as connection:
        assert "more is confirmed than was charged and released" in verify(connection).findings[0]


def test_where_there_was_a_mark_and_is_none_nothing_is_published(bench: Bench):
    """As on a folder whose volume is not there: a mark in the wrong place would not tell what is lost."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    bench.publish_all()
    (bench.world.settings.segment_store / "log.witness").unlink()
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=10))
    bench.publisher().step(threading.Event())
    assert "is missing" in bench.stream().distrusted
    assert bench.counts() == (2, 2)


def test_a_first_mark_that_is_written_between_two_looks_is_not_taken_for_a_lost_one(bench: Bench, monkeypatch):
    """The publisher looked for it before it was there, and read the stream after it was said to be there."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=6))
    bench.publish_all()
    monkeypatch.setattr(confirmation.Confirmer, "high_water_mark", lambda *_: None)
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=10))
    bench.publish_all()
    assert bench.stream().distrusted is None
    assert bench.counts() == (5, 5)


def test_a_lease_that_a_failover_gave_to_two_is_one_owners(bench: Bench):
    """Both took it with the same epoch, each on a primary of its own; the row is that of the second."""
    resource = leases.publication(bench.identity)
    with bench.database.transaction() as connection:
        lost = leases.take(connection, resource, owner="first", seconds=60)
        connection.execute(update(tables.leases).values(owner="second"))
        with pytest.raises(leases.LeaseLost):
            leases.check(connection, lost)
        assert leases.renew(connection, [lost], seconds=60) == [lost]
        assert not leases.keep(connection, lost, seconds=60)
        leases.release(connection, lost)
        assert leases.take(connection, resource, owner="third", seconds=60) is None


def test_a_lease_that_was_given_back_before_a_failover_is_not_handed_over_in_order(bench: Bench):
    resource = leases.publication(bench.identity)
    with bench.database.transaction() as connection:
        for owner, abandoned in (("first", False), ("second", False), ("third", True)):
            lease = leases.take(connection, resource, owner=owner, seconds=60)
            assert (lease.abandoned is not None) == abandoned
            leases.release(connection, lease)
            if owner == "second":
                connection.execute(update(tables.leases).values(timeline=tables.leases.c.timeline - 1))
