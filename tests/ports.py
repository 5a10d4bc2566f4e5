"""A port for a process that has to be told which one to take, and takes it only after it has started."""

import contextlib
import random
import socket

OUT_OF_REACH = range(10_000, 32_768)  # Linux gives higher ones to connections and servers that take any


def free_port() -> int:
    """Return a free port below the range that the system gives to outgoing connections, so that none takes it."""
    while True:
        port = random.SystemRandom().choice(OUT_OF_REACH)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
