"""Fits in processes of their own: what they may know, how they end, and what is noted of that."""
# ruff: noqa: F811 - a fixture is another file's

import os
import signal
import sys
import threading
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from resource import RLIMIT_AS, prlimit
from subprocess import Popen, check_output
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, update

from service import metrics
from service.ledger import open_entry
from service.ledger.verify import verify
from service.segments.locating import locate
from service.store import publications, tables
from service.worker import fits, memory_limit
from tests.conftest import World, wait_until
from tests.worker.published import Bench, SteppingPublisher, published
from tests.worker.test_attempts import attempts
from tests.worker.test_publishing import CONFIGURATION, bench  # noqa: F401

LEADER = {
    "mechanism": {"kind": "online_leader", "batch": 2},
    "learner": {"kind": "noisy_gradient_descent"},
    "privacy": {"epsilon": 1, "delta": 1e-6},
}


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[Popen[bytes]]:
    """Every fit has a process of its own; the list grows with each."""
    started: list[Popen[bytes]] = []

    def popen(*arguments: Any, **options: Any) -> Popen[bytes]:
        started.append(Popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(fits, "SHORT_SECONDS", 0.0)
    monkeypatch.setattr(fits.subprocess, "Popen", popen)
    return started


def when_it_reads(monkeypatch: pytest.MonkeyPatch, happens: Any) -> None:
    """Do something each time when a process has asked for records, and before it gets them."""

    def located(*arguments: Any, **options: Any) -> Any:
        happens()
        return locate(*arguments, **options)

    monkeypatch.setattr(fits, "locate", located)


def step(bench: Bench) -> None:
    bench.publisher().step(threading.Event())


def first_records(bench: Bench, number: int) -> None:
    """Only so many records have their number yet."""
    with bench.database.transaction() as connection:
        connection.execute(update(tables.streams).values(records=number))


@pytest.mark.more
@pytest.mark.parametrize(
    ("bench", "records"), [(CONFIGURATION, 6), (LEADER, 4)], indirect=["bench"], ids=["models", "memory"]
)
def test_a_step_is_published_like_any_other(bench: Bench, apart, records):
    first_records(bench, records)
    bench.publish_all()
    publication = bench.now()
    assert apart
    assert bench.counts() == (publication.version, publication.version)
    assert (publication.position, publication.state) == (records, "running")
    first_records(bench, 10)
    with bench.database.transaction() as connection:
        assert verify(connection).findings == []


def test_it_knows_no_server_and_no_key(bench: Bench, apart, monkeypatch):
    monkeypatch.setenv("PERENNIAL_DATABASE_URL", "postgresql://a-secret")
    seen: list[bytes] = []
    when_it_reads(monkeypatch, lambda: seen.append(Path(f"/proc/{apart[-1].pid}/environ").read_bytes()))
    first_records(bench, 6)
    step(bench)
    assert seen
    assert not any(b"PERENNIAL" in each or b"a-secret" in each for each in seen)


@pytest.mark.more
@pytest.mark.parametrize("program", ["service.worker.fit_process", "service.api.http.large_process"])
def test_a_process_apart_loads_no_library_of_servers_or_logs(program):
    """To load one takes as long as all the rest, at each start."""
    look = f"import sys, {program}; print(*sorted({{each.partition('.')[0] for each in sys.modules}}))"
    loaded = set(check_output([sys.executable, "-c", look], text=True).split())
    assert "numpy" in loaded
    assert loaded.isdisjoint({"sqlalchemy", "psycopg", "redis", "structlog", "rich", "fastapi", "starlette", "asyncio"})


@pytest.mark.more
def test_it_is_behind_all_others_and_the_first_to_be_killed_for_memory(bench: Bench, apart, monkeypatch):
    seen: list[tuple[int, str]] = []

    def look() -> None:
        pid = apart[-1].pid
        seen.append((os.getpriority(os.PRIO_PROCESS, pid), Path(f"/proc/{pid}/oom_score_adj").read_text().strip()))

    when_it_reads(monkeypatch, look)
    first_records(bench, 6)
    step(bench)
    assert seen[0] == (min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10), "1000")


def deaths() -> float:
    """Return how many deaths of fits of the publication a worker has counted."""
    samples = (sample for family in metrics.DEATHS.collect() for sample in family.samples)
    return sum(each.value for each in samples if each.labels == {"publication": "p", "stream": "s"})


def test_after_its_second_death_the_publication_halts_and_says_how(bench: Bench, apart, monkeypatch):
    when_it_reads(monkeypatch, lambda: apart[-1].kill())  # noqa: PLW0108 - there is none yet
    before = deaths()
    step(bench)
    assert (bench.now().state, attempts(bench)) == ("running", [(0, 0)])
    step(bench)
    assert deaths() - before == 2
    assert bench.now().state == "halted"
    assert "killed by SIGKILL; by its plan it may need 0 MiB" in bench.now().reason
    assert (len(apart), bench.counts()) == (2, (0, 0))


@pytest.mark.more
def test_a_limit_of_memory_ends_the_fit_and_not_the_worker(bench: Bench, apart, monkeypatch):
    def located(*arguments: Any, **options: Any) -> Any:
        """As if there were more records than the memory that the process may have from now on can hold."""
        pid, where = apart[-1].pid, locate(*arguments, **options)
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        prlimit(pid, RLIMIT_AS, (used + 2**20, used + 2**20))
        return replace(where, stop=where.start + 2**24, files=where.files * 2)

    monkeypatch.setattr(fits, "locate", located)
    for _ in range(2):
        step(bench)
    assert bench.now().state == "halted"
    assert "failed with" in bench.now().reason
    assert "MemoryError" in bench.now().reason


@pytest.mark.more
def test_a_fit_that_memory_can_not_hold_does_not_begin(bench: Bench, apart, monkeypatch, capsys):
    """It waits for a worker with more memory; nothing is drawn, and no attempt is noted."""
    monkeypatch.setattr(fits, "memory_limit", lambda: fits.BYTES_OF_A_PROCESS)
    first_records(bench, 6)
    step(bench)
    assert "may need 0 MiB by its plan" in capsys.readouterr().out
    assert (bench.now().state, bench.counts(), attempts(bench), apart) == ("running", (0, 0), [], [])
    monkeypatch.setattr(fits, "memory_limit", lambda: fits.BYTES_OF_A_PROCESS + 2**20)
    step(bench)
    assert bench.counts() != (0, 0)


def test_a_fit_whose_process_can_not_be_started_waits(bench: Bench, monkeypatch):
    """Nothing is drawn, so that nothing is noted: there are too many processes, or the program is being replaced."""
    monkeypatch.setattr(fits, "SHORT_SECONDS", 0.0)
    first_records(bench, 6)
    with monkeypatch.context() as patched:
        patched.setattr(fits, "command", lambda _: ["/nowhere/python"])
        for _ in range(2):
            step(bench)
    assert (bench.now().state, bench.counts(), attempts(bench)) == ("running", (0, 0), [])
    with bench.database.transaction() as connection:
        assert "can't be started here" in connection.execute(select(tables.waits.c.reason)).scalar_one()
    step(bench)
    assert bench.counts() != (0, 0)


def test_the_limit_of_memory_is_the_least_of_all(monkeypatch, tmp_path):
    whole = memory_limit.memory_limit()
    assert whole > 2**20
    monkeypatch.setattr(memory_limit, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory_limit, "OWN_CGROUP", tmp_path / "cgroup")
    for text, expected in (("max\n", whole), (f"{2**20}\n", 2**20)):
        (tmp_path / "memory.max").write_text(text)
        assert memory_limit.memory_limit() == expected


@pytest.mark.parametrize("limited", ["perennial.slice", "perennial.slice/worker.service"])
def test_the_limit_of_memory_that_systemd_sets_counts(monkeypatch, tmp_path, limited):
    """`MemoryMax=` of a unit, or of the slice that it is in."""
    own = tmp_path / "perennial.slice/worker.service"
    own.mkdir(parents=True)
    monkeypatch.setattr(memory_limit, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory_limit, "OWN_CGROUP", tmp_path / "cgroup")
    (tmp_path / "cgroup").write_text("1:name=systemd:/\n0::/perennial.slice/worker.service\n")
    for group in (own, own.parent):
        (group / "memory.max").write_text("max\n")
    (tmp_path / limited / "memory.max").write_text(f"{2**20}\n")
    assert memory_limit.memory_limit() == 2**20


def test_a_damaged_segment_is_a_foreseen_end(bench: Bench, apart):
    (file,) = bench.files.root.rglob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    step(bench)
    assert len(apart) == 1
    assert (bench.now().state, attempts(bench), bench.counts()) == ("running", [], (0, 0))


@pytest.mark.more
@pytest.mark.parametrize("why", ["stopped", "worker stops", "lease lost"])
def test_a_step_that_nobody_wants_is_given_up(bench: Bench, apart, monkeypatch, why):
    publisher, stop = bench.publisher(), threading.Event()

    def happens() -> None:
        os.kill(apart[-1].pid, signal.SIGSTOP)  # it would run for ever
        if why == "stopped":
            with bench.database.transaction() as connection:
                open_entry(connection, publications.get(connection, bench.identity)).end("stopped")
        elif why == "worker stops":
            stop.set()
        else:
            publisher._keeper._held.clear()

    when_it_reads(monkeypatch, happens)
    publisher.step(stop)
    assert apart[-1].returncode == -signal.SIGKILL
    assert (attempts(bench), bench.counts()) == ([], (0, 0))


@pytest.mark.more
def test_it_ends_when_its_parent_does(bench: Bench):
    ours, theirs = Pipe()
    process = Popen(fits.command(theirs.fileno()), pass_fds=(theirs.fileno(),))
    theirs.close()
    ours.close()
    wait_until(lambda: process.poll() is not None)
    assert process.returncode == 1


@pytest.mark.more
@pytest.mark.parametrize(("features", "own"), [(3, False), (1100, True)])
def test_few_records_of_many_features_are_solved_for_in_a_process_of_its_own(world: World, monkeypatch, features, own):
    apart: list[int] = []
    real = fits.draw_in_subprocess
    monkeypatch.setattr(fits, "draw_in_subprocess", lambda *arguments: (apart.append(1), real(*arguments))[1])
    schema = {"features": features, "task": {"kind": "classification", "classes": 2}}
    columns = {"x": np.full((4, features), 0.01, dtype=np.float32), "y": np.array([0, 1, 0, 1], dtype=np.int32)}
    window = {
        "mechanism": {"kind": "window_statistics", "block": 4, "blocks": 1},
        "learner": {"kind": "output_perturbation"},
    }
    with published(world, schema, window | {"privacy": LEADER["privacy"]}, columns, epsilon=1) as bench:
        bench.publish_all()
        assert bench.now().version == 1
    assert bool(apart) is own


def test_short_steps_never_wait_for_long_ones(bench: Bench, monkeypatch):
    """By the plan's estimate a step is short; once its records are known, it is long."""
    short, real = SteppingPublisher(bench.context(), short=True), fits.next_cost
    monkeypatch.setattr(fits, "next_cost", lambda turn: replace(real(turn), seconds=fits.SHORT_SECONDS + 1))
    assert short.step(threading.Event())
    assert bench.counts() == (0, 0)
    assert not short.step(threading.Event()), "it looks at it again only after the next step"
    assert bench.publisher().step(threading.Event()), "a publisher of long steps takes it"
    assert bench.counts() != (0, 0)


def test_records_are_the_same_wherever_they_are_read(bench: Bench):
    located = locate(bench.database, bench.stream(), 0, 2, 7)
    again = type(located).from_json(located.to_json())
    assert again == located
    assert np.array_equal(
        fits.read_records(bench.database, bench.files, bench.stream(), 0, 2, 7).slots, np.arange(2, 7)
    )
