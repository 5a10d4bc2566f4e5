"""Calls pass on all that they are given, and batches are known again in whatever types they come."""

import asyncio
import inspect
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import perennial
from perennial import InvalidData, appending, operations, standardize
from perennial.appending import Appended, append
from perennial.async_client import AsyncPublication, AsyncStream
from perennial.batches import Batch, encode
from perennial.client import Publication, Stream
from perennial.data import Block, blocks
from perennial.journal import opened
from perennial.names import Names
from perennial.schema import Schema
from perennial.settings import stream as stream_settings

FIRST = Batch(first=0, block=Block(x=np.zeros((3, 2)), y=np.array([0, 1, 1])))


class Transport:
    """Returns what it is given to run."""

    sender = "sender"

    def run(self, exchange):
        return exchange


class AsyncTransport(Transport):
    async def run(self, exchange):
        return exchange


@pytest.mark.parametrize(("of", "transport"), [(Stream, Transport), (AsyncStream, AsyncTransport)])
def test_an_append_is_given_all_that_was_said(monkeypatch, tmp_path, of, transport):
    monkeypatch.setattr(appending, "append", lambda *given, **settings: (given, settings))
    settings = {"label": "y", "unit": "who", "features": ["a"], "key": "days", "batch": 7, "patience": 3.0}
    settings |= {"progress": lambda _: None, "ahead": True}
    stream = of(transport(), "days")
    stream._known = Schema(has_units=True)
    appended = stream.append("data", **settings, journal=tmp_path / "days.sqlite", uncertain="skip")
    given, passed = asyncio.run(appended) if inspect.iscoroutine(appended) else appended
    journal = passed.pop("journal")
    assert (given, passed) == (("days", "data"), settings | {"schema": stream._known})
    assert (journal.path, journal._sender, journal._uncertain) == (tmp_path / "days.sqlite", "sender", "skip")


@pytest.mark.parametrize(("of", "transport"), [(Publication, Transport), (AsyncPublication, AsyncTransport)])
def test_who_follows_gets_the_newest_model_first(monkeypatch, of, transport):
    monkeypatch.setattr(operations, "newest_version", lambda _: 4)
    monkeypatch.setattr(operations, "following", lambda _, after, __: [SimpleNamespace(version=after + 1)])
    following = of(transport(), "models").follow()

    async def first_two() -> list[int]:
        return [(await anext(following)).version for _ in range(2)]

    asynchronous = hasattr(following, "__anext__")
    versions = asyncio.run(first_two()) if asynchronous else [next(following).version for _ in range(2)]
    assert versions == [4, 5]


def test_a_batch_is_known_again_whatever_types_its_numbers_have():
    """A file of another format, or another library, may read whole numbers as floats, and ids as texts."""

    def digest(y, unit) -> str:
        block = Block(x=np.zeros((2, 1)), y=np.array(y), unit=np.array(unit, dtype=object))
        return Batch(first=0, block=block).digest

    assert digest([0, 1], [7, "anna"]) == digest([0.0, 1.0], ["7", "anna"])


def test_labels_of_any_byte_order_are_sent_as_they_are():
    _, body = encode(Block(x=None, y=np.array([1, 2], dtype=">i8")))
    assert pa.ipc.open_stream(body).read_all()["y"].to_pylist() == [1, 2]


def test_other_records_in_the_place_of_a_batch_without_an_answer_are_refused(tmp_path):
    """Else they are stored, the notes are of the first ones, and these count as accepted: they are lost."""
    for batch, refused in ((FIRST, False), (Batch(first=0, block=Block(x=np.ones((3, 2)), y=FIRST.block.y)), True)):
        with opened(tmp_path / "days.sqlite", "days", "key", "sender", "refuse") as journal:
            (announced,) = journal.announce([batch])
            if refused:
                with pytest.raises(InvalidData, match="was sent before with other records"):
                    journal.begin(announced)
            else:
                assert journal.begin(announced) is not None


def test_a_journal_has_a_write_ahead_log(tmp_path):
    """After a kill SQLite reads whole changes from its write-ahead log; a rollback journal in memory is lost."""
    with opened(tmp_path / "days.sqlite", "days", "key", "sender", "refuse") as journal:
        assert journal._database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_what_was_skipped_has_no_entry_in_the_receipt(tmp_path):
    with opened(tmp_path / "days.sqlite", "days", "key", "sender", "refuse") as journal:
        journal.announce([FIRST])
        journal.begin(FIRST)
        journal.end(FIRST, "")
        with pytest.raises(StopIteration) as done:
            next(append("days", FIRST.block.x, label=FIRST.block.y, key="key", journal=journal))
        assert done.value.value == Appended(records=3, entries=())


def test_ranges_become_minus_one_to_one():
    assert standardize({"wind": (0, 120), "temp": (-30, 50)}) == {
        "kind": "standardize",
        "mean": [60.0, 10.0],
        "scale": [60.0, 40.0],
    }
    assert perennial.standardize is standardize


def test_a_number_of_features_that_was_given_is_sent():
    """The service says that there are other columns."""
    assert stream_settings("days", epsilon=1, classes=2, columns=["a", "b"], features=3)["features"] == 3


def test_of_a_map_that_is_new_units_are_known():
    assert Schema.of(
        {"features": 3, "feature_map": {"kind": "new", "version": 1}, "unit": {"max_records": 2}}
    ).has_units


def test_a_single_column_of_another_name_is_refused():
    with pytest.raises(InvalidData, match='no column "temp"'):
        list(blocks(pd.DataFrame({"wind": [1.0, 2.0]}), names=Names(columns=("temp",))))
