"""How good the models are: what the service itself says, from days that no model reads, beside public test days."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from demo.client import Client
    from demo.weather import Weather

NAME = "figures"
EVERY = 10  # one in ten of the days that are sent is for evaluations
BLOCK = 200  # evaluation days per figure: about seven years
SLOTS = {"every": EVERY}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The accuracy of a version on the days of a block: by the service, with its interval, and on public test days."""

    publication: str
    version: int
    years: tuple[float, float]
    accuracy: float
    low: float
    high: float
    public: float


def publication(stream: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the evaluation of these publications, as the service takes it."""
    mechanism = {"kind": "evaluation", "of": list(names), "block": BLOCK, "bins": False}
    return {"name": NAME, "stream": stream, "mechanism": mechanism, "privacy": {"epsilon": 1, "delta": 0}}


async def figures(client: Client, weather: Weather) -> list[Figure]:
    """Wait for the last block, and return the figures of all blocks."""
    last = len(weather.sent) // (EVERY * BLOCK) * EVERY * BLOCK
    while True:
        releases = (await client.get(f"/v1/publications/{NAME}/releases"))["items"]
        if releases and releases[0]["time"] >= last:
            break
        await asyncio.sleep(0.2)
    return [
        await _figure(client, weather, name, counted, release["fit"])
        for release in reversed(releases)
        for name, counted in release["evaluation"].items()
        if counted["version"] is not None
    ]


async def _figure(
    client: Client, weather: Weather, name: str, counted: Mapping[str, Any], fit: Mapping[str, int]
) -> Figure:
    x, y = weather.held_out(fit["start"], fit["end"])
    path = f"/v1/publications/{name}/predict?version={counted['version']}"
    labels = (await client.post(path, {"x": x.astype(float).round(4).tolist()}))["labels"]
    return Figure(
        publication=name,
        version=counted["version"],
        years=(weather.year(fit["start"] or 1), weather.year(fit["end"])),
        accuracy=counted["accuracy"],
        low=counted["low"],
        high=counted["high"],
        public=float((y == labels).mean()),
    )
