"""A port for a process that has to be told which one to take, and takes it only after it has started."""

import contextlib
import os
import random
import socket

OUT_OF_REACH = range(10_000, 32_768)  # Linux gives higher ones to connections and servers that take any
NUMBER, COUNT = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
OURS = OUT_OF_REACH[int(NUMBER.removeprefix("gw")) :: int(COUNT)]  # other processes of the run choose others
_chosen: set[int] = set()  # not again: who was told may not have taken it yet


def free_port() -> int:
    """Return a free port below the range that the system gives to outgoing connections, so that none takes it."""
    while True:
        port = random.SystemRandom().choice(OURS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _chosen:
                _chosen.add(port)
                return port
