"""The demo's story: make a stream and two publications, send fifty years of days, follow their models."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from demo import evaluation, service, weather
from demo.client import Client
from demo.follow import Row, follow
from demo.screen import Screen
from demo.service import DemoError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STREAM = "weather"

# How these were chosen, and the columns in weather.py: by held-out accuracy of releases of the first 17 of the 50 years
# alone. The data set is public, so looking at it costs no privacy; with private records, settings have to come from
# elsewhere.
#  - online-leader is the mechanism that docs/choosing.md recommends, with its defaults; sliding-window is paper A's.
#  - norm_bound 1 on standardised values, whose typical length is 2.4: nearly every day is scaled down to length 1,
#    and the model sees the direction of its weather.
#  - both learners have their defaults.
#  - 400 records: a fit's noise falls as 1/records, so blocks of a few weeks are hopeless. 3 blocks cost a record less
#    than 7, and are as accurate from a shorter, fresher window.
EVERY = 400
EPSILON, DELTA = 1, 1e-6
PUBLICATIONS: dict[str, dict[str, Any]] = {
    "online-leader": {
        "mechanism": {"kind": "online_leader", "batch": EVERY},
        "learner": {"kind": "noisy_gradient_descent"},
    },
    "sliding-window": {
        "mechanism": {"kind": "sliding_window", "block": EVERY, "blocks": 3},
        "learner": {"kind": "output_perturbation"},
    },
}
SCHEMA = {
    "features": len(weather.FEATURES),
    "task": {"kind": "classification", "classes": 2},
    "norm_bound": 1.0,
    "budget": {"epsilon": EPSILON * len(PUBLICATIONS), "delta": DELTA * len(PUBLICATIONS)},
    "evaluation": evaluation.SLOTS,
}

_BATCH = 100  # about four months of days that are sent
REPLAY_SECONDS = 30.0


async def run(chart_file: Path, screen: Screen, *, seconds: float) -> None:
    """Run it all; raise DemoError with a text for the person at the screen."""
    began = time.monotonic()
    days = weather.load()
    screen.introduce(PUBLICATIONS["sliding-window"]["mechanism"]["blocks"] * EVERY, EVERY)
    async with service.running() as up:
        screen.dashboard(up.address, up.key_file)
        rows, figures, ledger = await _publish(up, days, screen, seconds)
    from demo import chart  # here, because importing matplotlib takes a second

    chart.draw(rows, chart_file, figures)
    screen.compare(figures)
    screen.conclude(rows, ledger, chart_file, time.monotonic() - began)


async def _publish(
    up: service.Service, days: weather.Weather, screen: Screen, seconds: float
) -> tuple[list[Row], list[evaluation.Figure], dict[str, Any]]:
    async with Client(up.address, up.admin_key) as admin:
        await admin.post("/v1/streams", {"name": STREAM, **SCHEMA})
        privacy = {"epsilon": EPSILON, "delta": DELTA}
        for name, settings in PUBLICATIONS.items():
            await admin.post("/v1/publications", {"name": name, "stream": STREAM, "privacy": privacy, **settings})
        await admin.post("/v1/publications", evaluation.publication(STREAM, PUBLICATIONS))
        # The station may only send and the reader only read: neither needs more.
        station_key = (await admin.post("/v1/keys", _key("station", "ingest")))["key"]
        reader_key = (await admin.post("/v1/keys", _key("reader", "read")))["key"]
    last = len(days.sent) // EVERY * EVERY
    async with Client(up.address, station_key) as station, Client(up.address, reader_key) as reader:
        with screen.replay(len(days.sent)) as progress:
            try:
                async with asyncio.TaskGroup() as tasks:
                    watch = tasks.create_task(up.watch())
                    following = [
                        tasks.create_task(follow(reader, days, name, last=last, delta=DELTA, show=screen.row))
                        for name in PUBLICATIONS
                    ]
                    await _send(station, days, progress, seconds)
                    await asyncio.wait(following)
                    watch.cancel()
            except* DemoError as errors:
                raise _first(errors) from None
        rows = [row for task in following for row in task.result()]
        figures = await evaluation.figures(reader, days)
        return rows, figures, await reader.get(f"/v1/streams/{STREAM}/ledger")


def _key(name: str, scope: str) -> dict[str, Any]:
    return {"name": name, "scopes": [scope], "streams": [STREAM]}


async def _send(station: Client, days: weather.Weather, progress: Callable[[int], None], seconds: float) -> None:
    """Post the days in order, one batch after the other, evenly over `seconds`."""
    began, records = time.monotonic(), len(days.sent)
    for start in range(0, records, _BATCH):
        end = min(start + _BATCH, records)
        x, y = days.window(start, end)
        body = {"x": x.astype(float).round(4).tolist(), "y": y.tolist()}
        await station.post(f"/v1/streams/{STREAM}/records", body, Idempotency_Key=f"records-{start}-{end}")
        progress(end)
        await asyncio.sleep(began + seconds * end / records - time.monotonic())


def _first(errors: BaseExceptionGroup[DemoError]) -> DemoError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, DemoError) else DemoError(str(error))
