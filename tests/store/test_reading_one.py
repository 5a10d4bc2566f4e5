"""A query about one stream, publication or comparison reads nothing of others, and of releases what is confirmed."""
# ruff: noqa: F811 - a fixture is another file's

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, func, insert, select, update

from service.privacy.accounting.composition import Slots
from service.privacy.accounting.events import NoisyCounts
from service.store import (
    changes,
    charges,
    evaluations,
    explorations,
    keys,
    labels,
    numbering,
    parked,
    publications,
    releases,
    segments,
    streams,
    tables,
    visible_positions,
)
from service.store.publications import Publication
from tests.store.test_spending import connection, described  # noqa: F401

EVERY = {"limit": 100, "before": None}


@pytest.fixture
def each(connection: Connection) -> list[Publication]:
    """Two publications of the stream `s`, and one of `t`: the second is an evaluation of the first."""
    for name in ("s", "t"):
        streams.create(
            connection, name=name, log=name, schema={}, retention="keep", epsilon=Decimal(9), delta=Decimal(0)
        )
    made = [
        publications.create(connection, 1, described("fits")),
        publications.create(connection, 1, described("counts", slots=Slots.EVALUATION)),
        publications.create(connection, 2, described("others")),
    ]
    counts = {"noise": NoisyCounts.added_to, "model": {"of": {"fits": 1}}}
    release(connection, made[0], "bucket", "model", "model")
    release(connection, made[1], "model", "model", **counts)
    release(connection, made[0], "model", first=4)
    release(connection, made[1], "model", first=3, **counts)
    release(connection, made[2], *["model"] * 7, scale=2.0, epsilon=0.25)
    confirm(connection, 1, 5)  # all but the newest of each
    confirm(connection, 2, 7)
    return made


def confirm(connection: Connection, stream: int, number: int) -> None:
    seen = {"confirmed_releases": number, "confirmed_charges": number}
    connection.execute(update(tables.streams).where(tables.streams.c.id == stream).values(seen))


def release(
    connection: Connection,
    publication: Publication,
    *roles: str,
    first: int = 1,
    noise: str = "sums",
    model: dict[str, Any] | None = None,
    scale: float = 1.0,
    epsilon: float = 0.5,
) -> None:
    """Release a version of each role; each charges five records more."""
    mine = tables.charges.c.stream_id == publication.stream_id
    before = connection.execute(select(func.count()).where(mine)).scalar_one()
    for number, (version, role) in enumerate(enumerate(roles, start=first), start=before + 1):
        start = 5 * (version - 1)
        ours = {"publication_id": publication.id, "stream_id": publication.stream_id, "version": version}
        amount = {"epsilon": epsilon, "delta": 0.0, "charged_at": func.now(), "hash": "of the charge"}
        connection.execute(
            insert(tables.charges).values(ours | amount | {"id": number, "start": start, "stop": start + 5})
        )
        ranges = {"window_start": start, "window_stop": start + 9, "fit_start": start, "fit_stop": start + 9}
        content = {"shape": [1], "parameters": np.float64(scale).tobytes(), "model": model or {"units": version}}
        stated = {
            "role": role,
            "time": start + 5,
            "noise": {"added_to": noise, "scale": scale, "version": version},
            "digest": "of it",
        }
        connection.execute(
            insert(tables.releases).values(ours | ranges | content | stated | {"number": number, "charge": number})
        )


def stop(connection: Connection, publication: Publication) -> None:
    stopped = replace(publication, state="stopped", reason="somebody did")
    publications.mark_ended(connection, replace(stopped, seal=publications.state_digest(stopped)))
    pending = visible_positions.unseen(connection, [stopped.stream_id])
    visible_positions.show(connection, [change for change in pending if change.has_ended])


def versions(page: list[releases.ReleaseInfo]) -> list[int]:
    return [each.version for each in page]


def test_pages_and_newer_models_are_of_one_publication_and_confirmed(connection: Connection, each: list[Publication]):
    fits, *_ = each
    assert versions(releases.page(connection, fits.id, **EVERY)) == [3, 2, 1]
    assert versions(releases.page(connection, fits.id, limit=1, before=3)) == [2]
    assert versions(releases.models_after(connection, fits.id, 0, limit=9)) == [2, 3]
    assert versions(releases.models_after(connection, fits.id, 2, limit=9)) == [3]
    now = publications.get(connection, fits.id)
    assert (now.visible_version, now.visible_latest) == (3, 3)
    assert releases.of_units(connection, fits.id) == [(1, 0, 9, 1), (2, 5, 14, 2), (3, 10, 19, 3), (4, 15, 24, 4)]


def test_an_outline_is_of_one_publication_and_confirmed(connection: Connection, each: list[Publication]):
    outlined = releases.outlined(connection, each[0].id, most=4, record=5)
    assert [(one.first, one.last, one.models) for one in outlined] == [(1, 1, 0), (2, 2, 1), (3, 3, 1)]
    assert [one.on_record for one in outlined] == [0.0, 0.5, 0.0]
    assert {(one.least_noise, one.most_noise, one.least_charge, one.most_charge) for one in outlined} == {
        (1, 1, 0.5, 0.5)
    }
    (all_together,) = releases.outlined(connection, each[0].id, most=1, record=4)
    assert (all_together.first, all_together.last, all_together.on_record) == (1, 3, 0.5)


def test_charges_are_those_of_one_stream(connection: Connection, each: list[Publication]):
    assert [charges.newest(connection, one)["id"] for one in each] == [6, 7, 7]  # type: ignore[index]
    pages = [[one["id"] for one in charges.page(connection, 1, limit=9, before=before)] for before in (None, 3)]
    assert pages == [[5, 4, 3, 2, 1], [2, 1]]
    named = charges.of_ids(connection, 1, [1, 7])
    assert {identity: one["publication"] for identity, one in named.items()} == {1: "fits", 7: "counts"}


def test_figures_are_of_evaluations_that_run_and_confirmed(connection: Connection, each: list[Publication]):
    fits, counts, elsewhere = each
    (name, stream, blocks), *others = evaluations.of_running(connection, limit=1)
    assert (name, stream, others) == ("counts", "s", [])
    (newest,) = releases.page(connection, counts.id, limit=1, before=None)
    assert (newest.version, [noise for _, noise, _ in blocks]) == (2, [newest.noise])
    assert newest.counts is not None
    assert newest.counts.tolist() == [1.0]
    counted = evaluations.newest_of(connection, fits.stream_id, "fits", limit=9)
    assert counted is not None
    assert (counted[0], versions(counted[1])) == ("counts", [2, 1])
    assert evaluations.newest_of(connection, elsewhere.stream_id, "fits", limit=9) is None
    stop(connection, counts)
    assert evaluations.of_running(connection, limit=1) == []


def test_figures_are_of_no_evaluation_whose_counts_are_not_confirmed(connection: Connection, each: list[Publication]):
    late = publications.create(connection, 1, described("late", slots=Slots.EVALUATION))
    release(connection, late, "model", first=9, noise=NoisyCounts.added_to, model={"of": {"fits": 1}})
    for confirmed, name in ((5, "counts"), (99, "late")):
        confirm(connection, 1, confirmed)
        counted = evaluations.newest_of(connection, 1, "fits", limit=9)
        assert counted is not None
        assert counted[0] == name


def test_sizes_of_fits_are_those_of_publications_that_run_on_visible_streams(connection: Connection, each: list):
    sizes = [publications.running_fit_sizes(connection, only) for only in (None, frozenset("s"), frozenset("x"))]
    assert [len(each) for each in sizes] == [3, 2, 0]
    stop(connection, each[0])
    assert len(publications.running_fit_sizes(connection, None)) == 2


def test_ledgers_are_walked_together_that_are_short_together(connection: Connection, each: list[Publication]):
    for stream, number in ((1, 6), (2, 7)):
        connection.execute(update(tables.streams).where(tables.streams.c.id == stream).values(charges=number))

    def short(*, charges: int = 13, most: int = 9, but: tuple[str, ...] = ()) -> list[int]:
        return list(changes.short_ledgers(connection, [2, 1], but=but, charges=charges, most=most))

    assert (short(), short(charges=12), short(charges=6)) == ([2, 1], [2], [1])
    assert (short(most=1), short(but=("t",))) == ([2], [1])


def test_what_a_log_held_is_of_one_stream(connection: Connection, each: list[Publication]):
    letter = {"reason": "its content can't be read", "size": 1}
    for stream, entry, sequence in ((1, "1-1", 1), (1, "2-1", None), (2, "3-1", 1)):
        connection.execute(
            insert(tables.dead_letters).values(letter | {"stream_id": stream, "entry": entry, "sequence": sequence})
        )
    letters = numbering.page_of_dead_letters(connection, 1, **EVERY)
    assert [(one.entry, one.ours) for one in letters] == [("2-1", False), ("1-1", True)]
    assert numbering.page_of_dead_letters(connection, 1, limit=9, before=letters[0].id) == letters[1:]
    for stream, stop in ((1, 5), (2, 6)):
        numbered = {"stream_id": stream, "entry": "7-1", "start": 0, "stop": stop}
        connection.execute(insert(tables.entries).values(numbered))
    assert [numbering.find_entry(connection, stream, "7-1") for stream in (1, 2)] == [(0, 5), (0, 6)]
    assert numbering.find_entry(connection, 1, "1-1") is None


def test_steps_at_a_tick_come_in_the_order_in_which_they_became_due(connection: Connection, each: list, monkeypatch):
    fits, counts, elsewhere = each
    tick = datetime(2026, 1, 1, tzinfo=UTC)
    for one, hours in ((fits, 1), (counts, 2), (elsewhere, 3)):
        whose = {"publication_id": one.id, "stream_id": one.stream_id, "position": 0, "version": 0}
        when = {"tick": tick, "due_at": tick - timedelta(hours=hours), "following_due": None}
        parked.put(connection, parked.Parked(**whose, **when, lineage="", content=b"step"))

    def due(*, limit: int = 9) -> list[int]:
        return [one.publication_id for one in parked.due(connection, [1], limit=limit)]

    assert (due(), due(limit=1)) == ([counts.id, fits.id], [counts.id])
    for most in (7, 3):
        monkeypatch.setattr(parked, "MAX_BYTES", most)
        assert due() == [counts.id], "no more than fits into one transaction, but one in any case"


def test_what_was_erased_is_of_the_records_that_a_reader_has_seen(connection: Connection, each: list[Publication]):
    """More were numbered and erased since it has read how many there are."""
    for stream, start, stop in ((1, 2, 6), (1, 8, 9), (2, 0, 3)):
        connection.execute(insert(tables.erasures).values(stream_id=stream, start=start, stop=stop))
    erased = segments.erased_of_each(connection, {1: 4, 2: 7}, most=9)
    assert erased == {1: segments.Erased(2, ((2, 4),), 1), 2: segments.Erased(3, ((0, 3),), 1)}


def test_a_request_is_free_that_is_open_confirmed_and_leased_to_nobody(connection: Connection, each: list[Publication]):
    fits, _, elsewhere = each

    def free(**wanted: Any) -> bool:
        labels.forget(connection, fits.id)
        labels.ask(connection, fits, [3], [], **{"seconds": 60, "charge": 5} | wanted)
        return labels.any_free(connection, fits.id, seconds=60)

    assert [free(), free(seconds=-1), free(charge=6)] == [True, False, False]
    assert free()
    assert labels.lease(connection, fits.id, seconds=60) is not None
    assert (labels.any_free(connection, fits.id, seconds=60), labels.lease(connection, fits.id, seconds=60)) == (
        False,
        None,
    )
    labels.give_back(connection, fits.id, 3)
    assert [labels.any_free(connection, one.id, seconds=60) for one in (fits, elsewhere)] == [True, False]
    assert labels.lease(connection, fits.id, seconds=-1) is not None
    assert labels.any_free(connection, fits.id, seconds=60), "the lease has run out"


def test_what_was_found_is_of_one_comparison(connection: Connection):
    key, _ = keys.make(connection, name="k", scopes=[], streams=None)
    one, other = (explorations.add(connection, key.id, {}, 3, most_waiting=9).id for _ in range(2))
    for identity, cell in ((one, 1), (one, 0), (other, 2)):
        explorations.keep(connection, identity, cell, {"cell": cell})
    assert list(explorations.findings_by_cell(connection, one).items()) == [(0, {"cell": 0}), (1, {"cell": 1})]
    assert [made.done for made in explorations.page(connection, key.id, **EVERY)] == [1, 2]


def test_old_comparisons_go_with_a_new_one_of_the_same_key_alone(connection: Connection, monkeypatch):
    monkeypatch.setattr(explorations, "MAX_KEPT", 2)
    one, other = (keys.make(connection, name=name, scopes=[], streams=None)[0].id for name in ("one", "other"))

    def ended(key: int) -> int:
        identity = explorations.add(connection, key, {}, 1, most_waiting=9).id
        explorations.end(connection, identity, "done")
        return identity

    first, _, last = ended(one), ended(other), ended(other)
    new = explorations.add(connection, other, {}, 1, most_waiting=9).id
    pages = [[each.id for each in explorations.page(connection, key, **EVERY)] for key in (one, other)]
    assert pages == [[first], [new, last]]


def test_a_dead_letter_was_dropped_when_it_first_was(connection: Connection, each: list[Publication]):
    letter = {"stream_id": 1, "entry": "1-1", "sequence": 1, "reason": "it can't be read", "size": 1}
    connection.execute(insert(tables.dead_letters).values(letter))
    assert numbering.drop_dead_letter(connection, 1, "1-1")
    connection.execute(update(tables.dead_letters).values(dropped_at=func.now() - timedelta(days=1)))
    (before,) = numbering.page_of_dead_letters(connection, 1, **EVERY)
    assert numbering.drop_dead_letter(connection, 1, "1-1")
    assert numbering.page_of_dead_letters(connection, 1, **EVERY) == [before]
