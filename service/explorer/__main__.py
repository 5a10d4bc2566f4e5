"""Run one comparison in a process of its own, at a low priority.

    python -m service.explorer NICENESS

On its input: a line of JSON, `{"comparison": …, "done": [numbers of cells], "size": n}`, then the n bytes of the
packed data set. On its output a line of JSON for each thing to tell: `{"cell": n, "progress": p}` or
`{"cell": n, "found": …}`. When its input ends, nobody waits for it any more, and so does it.
"""

import gc
import json
import os
import sys
import threading
import time
from typing import Any

from service.explorer.comparison import Comparison, cells, run
from service.explorer.datasets import unpacked

SECONDS_BETWEEN_TELLING = 0.5


def main() -> None:
    gc.freeze()  # freeing the loaded modules at the end would take a third of a second
    os.nice(int(sys.argv[1]))
    request = json.loads(sys.stdin.buffer.readline())
    data = unpacked(sys.stdin.buffer.read(request["size"]))
    threading.Thread(target=_until_the_input_ends, daemon=True).start()
    comparison = Comparison.model_validate(request["comparison"])
    for number, cell in enumerate(cells(comparison)):
        if number in request["done"]:
            continue
        reported_at = 0.0

        def progress(part: float, number: int = number) -> None:
            nonlocal reported_at
            if time.monotonic() > reported_at + SECONDS_BETWEEN_TELLING:
                reported_at = time.monotonic()
                _tell({"cell": number, "progress": round(part, 3)})

        _tell({"cell": number, "found": run(comparison, cell, data, progress)})


def _tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _until_the_input_ends() -> None:
    sys.stdin.buffer.read(1)
    os._exit(1)


if __name__ == "__main__":
    main()
