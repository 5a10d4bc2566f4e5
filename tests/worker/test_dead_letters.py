"""A batch in the log that can't be numbered is set aside, listed and dropped; no number moves by any of it."""

from collections.abc import Iterator

import numpy as np
import pytest

from service.ledger.verify import verify
from service.log import LogUnavailable, Reader
from service.store import numbering
from service.streams.codec import pack
from tests.api.test_records import refused
from tests.conftest import ADMIN_KEY, Service, ok, serving, wait_until
from tests.worker.conftest import Bench
from tests.worker.published import dies_in

Y = np.zeros(2, dtype=np.int32)
DAMAGED = {
    "no format": b"\xff" * 64,
    "nothing": b"",
    "another shape": pack({"x": np.zeros((2, 3), dtype=np.float32), "y": Y}),
    "another type": pack({"x": np.zeros((2, 1), dtype=np.int32), "y": Y}),
    "a column too few": pack({"y": Y}),
    "a column too many": pack({"x": np.zeros((2, 1), dtype=np.float32), "y": Y, "z": Y}),
    "columns that do not match": pack({"x": np.zeros((3, 1), dtype=np.float32), "y": Y}),
    "no record": pack({"x": np.zeros((0, 1), dtype=np.float32), "y": Y[:0]}),
}


@pytest.fixture
def api(bench: Bench) -> Iterator[Service]:
    with serving(bench.world.settings) as url:
        service = Service(url, ADMIN_KEY, bench.world.settings)
        yield service
        for client in service.clients.values():
            client.close()


def damage(bench: Bench, entry: str, batch: bytes) -> None:
    """As if a batch had changed in the log: the same ids and numbers, another content."""
    redis = bench.redis()
    entries = redis.xrange(bench.key("entries"))
    redis.delete(bench.key("entries"))
    for each, fields in entries:
        redis.xadd(bench.key("entries"), fields | ({b"batch": batch} if each.decode() == entry else {}), id=each)


def dead(bench: Bench) -> list[tuple[str, bool]]:
    with bench.database.transaction() as connection:
        letters = numbering.page_of_dead_letters(connection, bench.stream.id, limit=100, before=None)
    return [(each.entry, each.ours) for each in letters]


@pytest.mark.parametrize("batch", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_batch_is_set_aside_and_the_next_one_gets_its_numbers(bench: Bench, batch):
    bench.append(1)
    bad = bench.append(2, 3)
    bench.append(4)
    damage(bench, bad, batch)
    bench.sealer().step(wait_milliseconds=10)
    assert bench.values() == [1, 4]
    assert dead(bench) == [(bad, True)]
    assert [each.decode() for each, _ in bench.redis().xrange(bench.key("dead"))] == [bad]
    assert bench.now().sealed_sequence == 3
    with bench.database.transaction() as connection:
        assert verify(connection).findings == []


def test_they_are_listed_and_dropped_and_no_number_moves(bench: Bench, api: Service):
    redis, url = bench.redis(), "/v1/streams/s/dead-letters"
    strange = redis.xadd(bench.key("entries"), {"a": "secret"}).decode()
    bench.append(1)
    alike = redis.xadd(bench.key("entries"), {"sequence": "2x", "offset": "y", "batch": "z"}).decode()
    bad = bench.append(2)
    damage(bench, bad, b"secret")
    sealer = bench.sealer()
    sealer.step(wait_milliseconds=10)
    assert (bench.values(), bench.now().sealed_entry) == ([1], bad)
    listed = ok(api.client().get(url))["items"]
    assert [(each["entry"], each["ours"], each["dropped_at"]) for each in listed] == [
        (bad, True, None),
        (alike, False, None),
        (strange, False, None),
    ]
    assert "secret" not in str(listed)
    assert ok(api.client().get(f"{url}?limit=1&before={listed[0]['id']}"))["items"] == listed[1:2]
    assert ok(api.client().get("/v1/streams/s"))["dead_letters"] == 3
    assert 'perennial_dead_letters{stream="s"} 3.0' in api.client().get("/metrics").text
    for entry in (bad, bad, strange):
        assert api.client().delete(f"{url}/{entry}").status_code == 204
    for entry in ("1-1", "%00"):
        refused(api.client().delete(f"{url}/{entry}"), 404, "not-found")
    assert [each.decode() for each, _ in redis.xrange(bench.key("dead"))] == [alike]
    assert [each["dropped_at"] is None for each in ok(api.client().get(url))["items"]] == [False, True, False]
    assert ok(api.client().get("/v1/streams/s"))["dead_letters"] == 1
    bench.append(5)
    sealer.step(wait_milliseconds=10)
    assert bench.values() == [1, 5]
    with bench.database.transaction() as connection:
        assert verify(connection).findings == []


@pytest.mark.parametrize(
    "step", [(Reader, "bury"), (numbering, "seal"), (Reader, "trim")], ids=["bury", "seal", "trim"]
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_sets_each_aside_once(bench: Bench, monkeypatch, step, after):
    bad = bench.append(1)
    bench.append(2)
    damage(bench, bad, b"")
    with dies_in(monkeypatch, *step, after=after):
        bench.sealer().step(wait_milliseconds=10)
    successor = bench.successor()
    wait_until(lambda: (successor.step(wait_milliseconds=10), bench.redis().xlen(bench.key("entries")) == 0)[1])
    assert (bench.values(), dead(bench)) == ([2], [(bad, True)])
    assert [each.decode() for each, _ in bench.redis().xrange(bench.key("dead"))] == [bad]


def test_nothing_is_numbered_past_a_letter_that_the_log_refuses_to_keep(bench: Bench):
    """Else trimming would delete the only copy of it."""
    bad = bench.append(1)
    bench.append(2)
    damage(bench, bad, b"")
    redis, sealer = bench.redis(), bench.sealer()
    redis.set(bench.key("dead"), "of another type")
    with pytest.raises(LogUnavailable):
        sealer.step(wait_milliseconds=10)
    assert (bench.now().records, redis.xlen(bench.key("entries"))) == (0, 2)
    redis.delete(bench.key("dead"))
    sealer.step(wait_milliseconds=10)
    assert (bench.values(), dead(bench)) == ([2], [(bad, True)])
    assert [each.decode() for each, _ in redis.xrange(bench.key("dead"))] == [bad]
