"""A standby that lacks the newest commits becomes the primary: no version is ever shown with two contents.

By default one failover; `pytest tests/faults/test_failover.py --failovers 30` does more, `--seed` repeats a run.
"""

from contextlib import ExitStack

import httpx
import pytest

from tests.conftest import choose_seed, ok, wait_until
from tests.faults.clusters import Cluster, Progress
from tests.faults.failover import Round, Scene, check, cut_off, pause, report
from tests.faults.proxy import Proxy

pytestmark = pytest.mark.slow

ROUNDS_OF_A_SCENE = 10
LONGEST_LAG_SECONDS = 2.0
MEASURED_BOUND = 0.1  # answers from the histogram have a larger error_bound, or none


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let the tests share the first scene."""
    wanted = metafunc.config.getoption("--failovers")
    rounds = [min(ROUNDS_OF_A_SCENE, wanted - done) for done in range(0, wanted, ROUNDS_OF_A_SCENE)]
    if "failovers" in metafunc.fixturenames:
        metafunc.parametrize(("scene", "failovers"), list(enumerate(rounds)), indirect=["scene"], scope="module")
    else:
        metafunc.parametrize("scene", [0], indirect=True, scope="module")


@pytest.fixture(scope="module")
def scene(request, servers, tmp_path_factory):
    made = Scene(servers, tmp_path_factory.mktemp("scene"), choose_seed(request.config), request.param)
    yield made
    made.close()


@pytest.mark.more
@pytest.mark.timeout(1800)
def test_no_version_has_two_contents_after_failovers_that_lose_commits(scene, failovers, record_property):
    print(f"--seed {scene.seed}")
    with Proxy(scene.primary.socket) as replication:
        for _ in range(failovers):
            _fail_over(scene, replication)
    record_property("faults", f"{failovers} failovers (seed {scene.seed}): {report(scene)}")
    check(scene)


def _fail_over(scene: Scene, replication: Proxy) -> None:
    """The primary is lost or left alone, and a standby that lags behind it is promoted."""
    old = scene.primary
    replication.switch(old.socket)
    standby = old.standby(scene.folder(), replication.port)
    running = Round(scene)
    running.await_versions(2)
    replication.switch(None)
    pause(scene, LONGEST_LAG_SECONDS)
    if survives := scene.choose.random() < 0.5:
        cut_off(scene)
        last = scene.progress(running.stream, old)
    else:
        last = _kill(scene, running, old)
    standby.promote()
    left = scene.progress(running.stream, standby)
    scene.primary = standby
    if scene.choose.random() < 0.3:
        scene.restart_worker()
    scene.first.switch(standby.socket)
    if not survives:
        scene.second.switch(standby.socket)
    running.settle(last, left)
    scene.second.switch(standby.socket)
    old.close()


def _kill(scene: Scene, running: Round, old: Cluster) -> Progress:
    """The old primary dies at once, with all connections; how far it had come by then."""
    cut_off(scene)
    scene.second.switch(None)
    last = scene.progress(running.stream, old)
    old.kill()
    return last


@pytest.mark.more
def test_a_hard_query_is_not_answered_by_two_primaries(scene):
    """The first API comes to the promoted standby, the second stays with the old primary: one threshold, twice."""
    with Proxy(scene.primary.socket) as replication, ExitStack() as clients:
        first, second = (clients.enter_context(api.client()) for api in scene.apis)
        _count_in(first)
        old = scene.primary
        scene.primary = standby = old.standby(scene.folder(), replication.port)
        replication.switch(None)
        cut_off(scene)
        standby.promote()
        scene.first.switch(standby.socket)
        wait_until(lambda: first.get("/v1/streams/asked").status_code == 200)
        answered_by = ["API 2"] if _measured(second) else []
        if wait_until(lambda: "measured" if _measured(first) else _ended(first)) == "measured":
            answered_by.append("API 1")
        for client, reader in ((first, "API 1"), (second, "API 2")):
            for each in ok(client.get("/v1/publications/answers/releases"))["items"]:
                scene.shown.release(each, reader)
        scene.second.switch(standby.socket)
        old.close()
    check(scene)
    assert len(answered_by) <= 1


def _count_in(client: httpx.Client) -> None:
    """A stream of 120 records of category 0, of which queries are asked; noise is small beside what one is off by."""
    budget = {"epsilon": 1000, "delta": 0}
    task = {"kind": "categorical", "cardinality": 6}
    ok(client.post("/v1/streams", json={"name": "asked", "task": task, "budget": budget}), 201)
    mechanism = {"kind": "linear_queries", "first": 100, "hits": 5, "accuracy": 0.3}
    configuration = {"name": "answers", "stream": "asked", "mechanism": mechanism, "privacy": budget}
    ok(client.post("/v1/publications", json=configuration), 201)
    ok(client.post("/v1/streams/asked/records", json={"y": [0] * 120}), 202)
    easy = {"categories": [1]}
    wait_until(lambda: ok(client.post("/v1/publications/answers/queries", json=easy))["time"] == 120)


def _measured(client: httpx.Client) -> bool:
    """Whether a hard query is answered with a number that was measured for it; an API may refuse to answer."""
    try:
        answer = client.post("/v1/publications/answers/queries", json={"categories": [0]})
    except httpx.HTTPError:
        return False
    bound = answer.json().get("error_bound") if answer.status_code == 200 else None
    return bound is not None and bound < MEASURED_BOUND


def _ended(client: httpx.Client) -> str | None:
    stream = ok(client.get("/v1/streams/asked"))
    return stream["distrusted"] or stream["halted"]
