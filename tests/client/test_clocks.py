"""Clocks that are put forward or back between a batch and its repetition, or that differ."""

import time

import numpy as np
import pytest

from perennial import Uncertain, exchange
from perennial.appending import post_records
from perennial.batches import Batch
from perennial.data import Block
from perennial.exchange import NoAnswer, Pause, Request
from perennial.journal import opened


@pytest.fixture
def later(monkeypatch):
    """Let so many hours pass by the clock."""

    def later(hours: float) -> None:
        now = time.time
        monkeypatch.setattr(exchange.time, "time", lambda: now() + hours * 3600)

    return later


@pytest.mark.parametrize(
    ("certain", "hours"), [(False, -24.5), (False, -1.1), (True, -0.9), (True, -0.001), (True, 22.9), (False, 23.1)]
)
def test_a_clock_may_be_an_hour_wrong(tmp_path, later, certain, hours):
    """The service remembers a key for 24 hours; a batch without an answer is sent again only where it surely does."""

    def begin() -> float | None:
        with opened(tmp_path / "days.sqlite", "days", "key", "sender", "refuse") as journal:
            (batch,) = journal.announce([Batch(first=0, block=Block(x=None, y=np.zeros(1)))])
            return journal.begin(batch)

    sent = begin()
    later(hours)
    if certain:
        assert begin() == sent
    else:
        with pytest.raises(Uncertain, match="begins with record 0"):
            begin()


def test_a_batch_is_repeated_where_the_clock_is_put_back_a_little(later):
    call = post_records("days", "application/json", b"{}", "key")
    request = next(call)
    assert isinstance(request, Request)
    assert isinstance(call.send(NoAnswer(reason="ReadTimeout", sent=True)), Pause)
    later(-0.1)
    assert call.send(None) == request
