"""When a part that died is started again, and when its deaths end everything."""

from types import SimpleNamespace
from typing import Any

import pytest

from service.embedded import supervisor
from service.embedded.errors import EmbeddedError
from service.embedded.supervisor import DEATHS_TOO_MANY, EXIT_CONFIGURATION, LONGEST_PAUSE_SECONDS, _Watched


class Part:
    """A child that dies when a test says so."""

    name, pid, program = "part", 7, SimpleNamespace(log=None)

    def __init__(self) -> None:
        self.status: int | None = None
        self.starts = 0

    @property
    def running(self) -> bool:
        return self.status is None

    def poll(self) -> int | None:
        return self.status

    def how_it_died(self) -> str:
        return f"exited with status {self.status}"

    def start(self) -> None:
        self.status, self.starts = None, self.starts + 1


class Scene:
    """A part that is watched, on a clock that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        self.now, self.part, self.can_run = 1000.0, Part(), True
        monkeypatch.setattr(supervisor.time, "monotonic", lambda: self.now)
        self.watched = _Watched(self.part, lambda: self.can_run, **more)  # type: ignore[arg-type]

    def after(self, seconds: float) -> int:
        """Return how often the part was started by then."""
        self.now += seconds
        self.watched.look()
        return self.part.starts

    def die(self, status: int = 1) -> None:
        self.part.status = status
        self.watched.look()


def test_deaths_count_that_come_within_a_minute(monkeypatch: pytest.MonkeyPatch):
    scene = Scene(monkeypatch)
    for death in range(1, 3 * DEATHS_TOO_MANY):
        scene.die()
        assert scene.after(100.0) == death
    for _ in range(DEATHS_TOO_MANY - 1):
        scene.die()
        scene.after(LONGEST_PAUSE_SECONDS)
    with pytest.raises(EmbeddedError, match="death 5 within 60 s"):
        scene.die()


def test_each_death_within_a_minute_makes_the_pause_longer_up_to_a_bound(monkeypatch: pytest.MonkeyPatch):
    scene = Scene(monkeypatch, needed=False)
    scene.die()
    assert (scene.after(0.05), scene.after(0.06)) == (0, 1)
    scene.die()
    assert (scene.after(0.15), scene.after(0.06)) == (1, 2)
    for death in range(3, 30):
        scene.die()
        assert scene.after(LONGEST_PAUSE_SECONDS) == death, "deaths of a part that is not needed end nothing"


def test_a_part_is_not_started_before_it_can_run(monkeypatch: pytest.MonkeyPatch):
    scene = Scene(monkeypatch)
    scene.can_run = False
    scene.die()
    assert scene.after(100.0) == 0
    scene.can_run = True
    assert scene.after(0.0) == 1


def test_a_part_that_can_not_run_as_configured_is_not_started_again(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(EmbeddedError, match="can't run as configured") as raised:
        Scene(monkeypatch, needed=False).die(EXIT_CONFIGURATION)
    assert raised.value.exit_status == EXIT_CONFIGURATION
