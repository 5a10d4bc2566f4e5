"""A look at the newest model holds from the moment at which it began, and for a second at most."""

import asyncio
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from service.api import newest_models
from service.api.newest_models import MOST_SECONDS, NewestModels
from service.store.newest import Look, Newest

SEEN = Newest(1, "promise", 3, Decimal(1))


class _Database(SimpleNamespace):
    """A look takes a quarter of a second, and holds for so many `seconds`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(now=1000.0, seconds=0.0, seen=SEEN, questions=[])
        monkeypatch.setattr(newest_models, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(newest_models.newest, "find", lambda *_: self.questions.append("find") or self.seen)
        monkeypatch.setattr(newest_models.newest, "look", self._look)

    def _look(self, _: Any, before: Newest) -> Look:
        assert before == self.seen
        self.questions.append("look")
        self.now += 0.25
        return Look(self.seen, self.seconds)

    async def run_once(self, _: Any, function: Any, *arguments: Any, **__: Any) -> Any:
        return function(None, *arguments)

    def looked(self, seconds: float) -> NewestModels:
        """Return what there is after a look that holds for so long."""
        models, self.seconds = NewestModels(self.run_once), seconds

        async def find() -> None:
            for _ in range(2):
                assert await models.find("rain", None) == self.seen

        asyncio.run(find())
        return models


def test_its_time_begins_before_the_look(monkeypatch):
    database = _Database(monkeypatch)
    models = database.looked(0.5)
    assert database.questions == ["find", "look"]
    assert models.remembered("rain", None) == SEEN
    database.now += 0.3
    assert models.remembered("rain", None) is None


def test_it_holds_for_a_second_at_most(monkeypatch):
    database = _Database(monkeypatch)
    models = database.looked(3600.0)
    database.now += MOST_SECONDS - 0.3
    assert models.remembered("rain", None) == SEEN
    database.now += 0.1
    assert models.remembered("rain", None) is None


def test_without_ticks_nothing_holds(monkeypatch):
    database = _Database(monkeypatch)
    database.seen = SEEN._replace(publish_delay=Decimal(0))
    models = database.looked(0.5)
    assert database.questions == ["find", "find"]
    assert models.remembered("rain", None) is None
