"""A port for a process that has to be told which one to take, and takes it only after it has started."""

import random
import socket

OUT_OF_REACH = range(10_000, 32_768)  # Linux gives higher ones to connections and servers that take any


def free_port() -> int:
    """Return a free port below the range that the system gives to outgoing connections, so that none takes it.

    It stays reserved until this process ends: as long as a socket has it that does not listen, other tests find it
    taken, and a server may listen there that lets an address be used again, as nearly all do.
    """
    while True:
        reserved = socket.socket()
        try:
            reserved.bind(("127.0.0.1", random.SystemRandom().choice(OUT_OF_REACH)))
        except OSError:
            reserved.close()
            continue
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = reserved.getsockname()[1]
        reserved.detach()  # never closed
        return port
