"""`python -m demo`: replay a real data stream, watch private models being published, draw how good they are."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from demo.run import REPLAY_SECONDS, run
from demo.screen import Screen
from demo.service import DemoError

_CHART = Path(__file__).with_name("releases.svg")


def main() -> int:
    """Run the demo; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--chart", type=Path, default=_CHART, help="where to write the chart (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=REPLAY_SECONDS, help="how long sending the days takes (default: %(default)g)"
    )
    arguments = parser.parse_args()
    chart: Path = arguments.chart.absolute()
    if not os.access(chart.parent, os.W_OK | os.X_OK):
        print(f"demo: can't write {chart}; name another place with --chart", file=sys.stderr)
        return 1
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # hides messages about its font cache
    try:
        return asyncio.run(_until_interrupted(chart, arguments.seconds))
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


async def _until_interrupted(chart: Path, seconds: float) -> int:
    task = asyncio.ensure_future(run(chart, Screen(), seconds=seconds))
    interrupted: list[signal.Signals] = []

    def interrupt(number: signal.Signals) -> None:
        if not interrupted:  # a second Ctrl-C changes nothing while everything stops
            interrupted.append(number)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt, number)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    if interrupted:
        print("demo: interrupted; everything is stopped and removed", file=sys.stderr)
        return 128 + interrupted[0]
    return 0


if __name__ == "__main__":
    sys.exit(main())
