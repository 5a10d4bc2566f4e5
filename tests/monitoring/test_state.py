"""Metrics of a state that is made up here: each figure stands under its own name, and with its own labels."""

from types import SimpleNamespace
from typing import Any

import pytest

from service.figures.drift_alarms import EvaluatedPublication
from service.ledger.high_water_mark import PROMOTED, REPLACED
from service.ledger.overview import Overview, PublicationState
from service.log import LogState, Memory
from service.log.appender import Backlog
from service.metrics import ServiceState

PARTS = ("_epsilon", "_delta", "_rho")


def stream(name: str, **more: Any) -> SimpleNamespace:
    """Return the totals of a stream, as far as metrics read them."""
    own = {"records": 7, "log": f"log of {name}", "halted": None, "distrusted": None} | more
    return SimpleNamespace(
        stream=SimpleNamespace(name=name, **own),
        sums={"budget": {"epsilon": 3.0, "delta": 1e-6}, "reserved": {"epsilon": 2.0}, "spent": {"rho": 0.5}},
        dead_letters=2,
        declassified=5,
    )


def publication(name: str, **more: Any) -> PublicationState:
    """Return a publication that runs and waits for nothing, but for `more`."""
    own = {"running": True, "halted": False, "overdue_records": 4, "versions": 9, "latest": 8, "age_seconds": 60.0}
    return PublicationState(name=name, stream="s", **{"fitting_seconds": None, "waiting_seconds": None} | own | more)


def figures(overview: Overview | None, log: LogState | None = None, **more: Any) -> dict[tuple[str, ...], float]:
    """Return the value of each metric, by its name and the values of its labels."""
    more = {"worker": None, "database": overview is not None} | more
    state = ServiceState(overview, log or LogState(up={1: True}), **more)
    return {
        (sample.name.removeprefix("perennial_"), *sample.labels.values()): sample.value
        for family in state.collect()
        for sample in family.samples
    }


@pytest.mark.parametrize(("up", "all_up"), [({1: True, 2: True}, 1), ({1: True, 2: False}, 0), ({}, 0)])
def test_the_log_is_up_while_every_primary_answers(up, all_up):
    shown = figures(None, LogState(up=up), worker=False)
    assert shown == {
        ("database_up",): 0,
        ("log_up",): all_up,
        ("worker_up",): 0,
        **{("log_primary_up", str(number)): answers for number, answers in up.items()},
    }


def test_the_memory_of_each_primary_is_shown_with_its_limit_where_it_has_one():
    memory = {1: Memory(used_bytes=10, max_bytes=100), 2: Memory(used_bytes=20, max_bytes=0)}
    shown = figures(None, LogState(up={1: True, 2: True, 3: False}, memory=memory))
    assert {key: value for key, value in shown.items() if "memory" in key[0]} == {
        ("log_memory_bytes", "1"): 10,
        ("log_memory_bytes", "2"): 20,
        ("log_memory_limit_bytes", "1"): 100,
    }


def test_each_stream_has_its_own_figures():
    backlog = Backlog(backlog_batches=11, backlog_bytes=12, lag_seconds=13.0)
    log = LogState(up={3: True}, primaries={"log of a": 3}, backlogs={"log of a": backlog})
    fine, halted = stream("a"), stream("b", records=0, halted="a reason")
    distrusted = stream("c", distrusted="a reason")
    lost = [stream(name, distrusted=f"a reason{why}") for name, why in (("d", PROMOTED), ("e", REPLACED))]
    shown = figures(Overview(streams=[fine, halted, distrusted, *lost], publications=[]), log)
    assert {
        name: [shown[name, each] for each in "abcde"]
        for name in (
            "numbered_records_total",
            "stream_halted",
            "ledger_distrusted",
            "commits_lost",
            "dead_letters",
            "declassified_records",
        )
    } == {
        "numbered_records_total": [7, 0, 7, 7, 7],
        "stream_halted": [0, 1, 0, 0, 0],
        "ledger_distrusted": [0, 0, 1, 1, 1],
        "commits_lost": [0, 0, 0, 1, 1],
        "dead_letters": [2] * 5,
        "declassified_records": [5] * 5,
    }
    of_its_log = {"stream_primary": 3, "backlog_batches": 11, "backlog_bytes": 12, "lag_seconds": 13}
    assert {key: value for key, value in shown.items() if key[0] in of_its_log} == {
        (name, "a"): value for name, value in of_its_log.items()
    }
    parts = {key[0]: value for key, value in shown.items() if key[1:] == ("a",) and key[0].endswith(PARTS)}
    assert parts == {"budget_epsilon": 3, "budget_delta": 1e-6, "reserved_epsilon": 2, "spent_rho": 0.5}


def test_each_publication_has_its_own_figures_and_one_that_ended_only_whether_it_halted():
    every = [
        publication("at work", fitting_seconds=20.0),
        publication("waiting", waiting_seconds=30.0),
        publication("new", latest=None, age_seconds=None, versions=0, overdue_records=0),
        publication("distrusted", halted=True),
        publication("halted", running=False, halted=True),
        publication("stopped", running=False),
    ]
    shown = figures(Overview(streams=[], publications=every))
    del shown["database_up",], shown["log_up",], shown["log_primary_up", "1"]
    names = [each.name for each in every]
    expected = {
        "publication_running": dict(zip(names, (1, 1, 1, 1, 0, 0), strict=True)),
        "publication_halted": dict(zip(names, (0, 0, 0, 1, 1, 0), strict=True)),
        "publication_overdue_records": {"at work": 4, "waiting": 4, "new": 0, "distrusted": 4},
        "fit_running_seconds": {"at work": 20},
        "fit_waiting_seconds": {"waiting": 30},
        "publication_versions": {"at work": 9, "waiting": 9, "new": 0, "distrusted": 9},
        "release_version": {"at work": 8, "waiting": 8, "distrusted": 8},
        "release_age_seconds": {"at work": 60, "waiting": 60, "distrusted": 60},
    }
    assert shown == {
        (metric, name, "s"): value for metric, by_name in expected.items() for name, value in by_name.items()
    }


def test_figures_of_an_evaluation_are_shown_when_they_are_0_too():
    good = EvaluatedPublication(
        publication="p", evaluation="e", stream="s", low=0.1, high=0.3, accuracy=0.0, drift=False, worse=True
    )
    shown = figures(Overview(streams=[], publications=[]), judged=[good])
    assert {key: value for key, value in shown.items() if "evaluation" in key[0]} == {
        (f"evaluation_{name}", "p", "e", "s"): value
        for name, value in {"accuracy": 0, "low": 0.1, "high": 0.3, "drift": 0, "worse": 1}.items()
    }
