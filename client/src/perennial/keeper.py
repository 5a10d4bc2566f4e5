"""Run a command that ends with the process that started it: `python -m perennial.keeper COMMAND…`.

Standard input is a pipe from that process. The pipe ends when that process closes it or dies; then the command is told
to stop by SIGTERM. (A notebook that a shell runs in the background ignores SIGINT, and its children do so too.)
"""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

STOP_SECONDS = 45.0


def keep(command: Sequence[str]) -> int:
    """Run the command until it ends or standard input does; return its exit status."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_stop_at_the_end, args=(child,), daemon=True).start()
    return child.wait()


def _stop_at_the_end(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 2**16):  # not sys.stdin, whose lock would block the end of the interpreter
        pass
    child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
