"""Parts that are forked: nothing random is copied, and each is the process that its command would be."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from service.embedded.forks import Fork
from service.embedded.processes import Program

ROOT = Path(__file__).parents[2]
PROGRAM = Program(name="worker", command=("python", "-m", "service", "worker"), environment={"A": "1"}, stop_signals=())
DRAWING = """
import json, os, signal, sys
from fractions import Fraction
from pathlib import Path
from service.embedded.forks import Fork
from service.learning.optimization.descent import random_places
from service.privacy.noise import samplers
from tests.embedded.test_forks import PROGRAM
from tests.guarantees import planted

if sys.argv[1:]:
    planted.BUGS[sys.argv[1]].plant()

def draw():
    print(json.dumps({
        "gaussian": samplers.discrete_gaussian(Fraction(10**24), 4).tolist(),
        "laplace": samplers.discrete_laplace(Fraction(10**12)),
        "gamma": str(samplers.gamma(3)),
        "places": random_places(40, 40).tolist(),
        "command": Path("/proc/self/cmdline").read_bytes().decode(),
        "environment": dict(os.environ),
        "leads": os.getsid(0) == os.getpid(),
        "terminates": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    }), flush=True)

signal.signal(signal.SIGTERM, lambda *_: None)
draw()
for child in [Fork(PROGRAM, None, draw) for _ in range(2)]:
    child.start()
    while child.running:
        pass
    assert child.poll() == 0
"""


@pytest.fixture(scope="module")
def drawn(request):
    """Return the lines of a process and of two forks of it; the process draws first, which would fill a buffer."""
    planted = request.config.getoption("--plant")
    command = [sys.executable, "-c", DRAWING, *([planted] if planted else [])]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, timeout=200)
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "gamma", "places"])
def test_two_forks_never_draw_the_same_noise(drawn, kind):
    assert len({str(each[kind]) for each in drawn}) == 3


def test_a_fork_is_the_process_that_its_command_would_be(drawn):
    for fork in drawn[1:]:
        assert fork["command"].rstrip("\0") == "python -m service worker"
        assert fork["environment"] == {"A": "1"}
        assert fork["leads"]
        assert fork["terminates"]


def test_beside_another_thread_nothing_is_forked():
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        with pytest.raises(RuntimeError, match="another thread"):
            Fork(PROGRAM, None, lambda: None).start()
    finally:
        end.set()
        other.join()
