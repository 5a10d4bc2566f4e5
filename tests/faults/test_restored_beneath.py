"""PostgreSQL is put back to what it was seconds ago, under processes that run on.

No version is ever shown with two contents. By default one restore; `pytest tests/faults/test_restored_beneath.py
--restores 50` does more, `--seed` repeats a run.
"""

import pytest

from tests.faults.failover import Round, Scene, check, pause, report

pytestmark = pytest.mark.slow

ROUNDS_OF_A_SCENE = 10
LONGEST_AGE_SECONDS = 2.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "restores" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("--restores")
        rounds = [min(ROUNDS_OF_A_SCENE, wanted - done) for done in range(0, wanted, ROUNDS_OF_A_SCENE)]
        metafunc.parametrize(("scene_number", "restores"), list(enumerate(rounds)))


@pytest.mark.more
@pytest.mark.timeout(1800)
def test_no_version_has_two_contents_after_restores_beneath_running_processes(
    servers, tmp_path, scene_number, restores, seed, record_property
):
    scene = Scene(servers, tmp_path, seed, scene_number)
    try:
        for _ in range(restores):
            _restore(scene)
        record_property("faults", f"{restores} restores (seed {seed}): {report(scene)}")
        check(scene)
    finally:
        scene.close()


def _restore(scene: Scene) -> None:
    """A copy is made, more is published, and PostgreSQL is killed and started on the copy at the same address."""
    running = Round(scene)
    running.await_versions(2)
    copy = scene.folder()
    scene.primary.back_up(copy)
    pause(scene, LONGEST_AGE_SECONDS)
    for proxy in (scene.first, scene.second):
        proxy.switch(None)
    last = scene.progress(running.stream)
    scene.primary.kill()
    scene.primary.restore(copy)
    left = scene.progress(running.stream)
    if scene.choose.random() < 0.3:
        scene.restart_worker()
    for proxy in (scene.first, scene.second):
        proxy.switch(scene.primary.socket)
    running.settle(last, left)
