"""Follows a publication over HTTP, release by release, and says how good each model is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from demo import model
from demo.service import DemoError
from service.privacy.currency import zcdp_epsilon

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from demo.client import Client
    from demo.weather import Weather


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published model, and what it is compared with on the same held-out days."""

    publication: str
    version: int
    year: float
    records: int
    window: tuple[int, int]
    accuracy: float
    without_noise: float
    yesterday: float
    dry: float
    spent: float
    """The most that any record has paid to this publication so far, in ε."""


class Spending:
    """Adds up the ρ that each record was charged."""

    def __init__(self, records: int, delta: float) -> None:
        self._rho = np.zeros(records)
        self._delta = delta

    def add(self, charge: Mapping[str, Any]) -> None:
        """Count one charge of the ledger."""
        self._rho[charge["start"] : charge["end"]] += charge["rho"]

    @property
    def worst(self) -> float:
        """Return the ε that the charges of the record that paid most imply."""
        return float(zcdp_epsilon(float(np.max(self._rho)), self._delta))


async def follow(
    client: Client, weather: Weather, publication: str, *, last: int, delta: float, show: Callable[[Row], None]
) -> list[Row]:
    """Wait for each model until the one of `last` records, show it, and return them all.

    A long poll wakes us; the list then holds whatever came since, also the models that only later fits start from: they
    are charged as well.
    """
    path = f"/v1/publications/{publication}"
    spending = Spending(len(weather.sent), delta)
    rows: list[Row] = []
    seen, tag = 0, ""
    while not rows or rows[-1].records < last:
        conditions = {"Prefer": "wait=10"} | ({"If-None-Match": tag} if tag else {})
        answer = await client.request("GET", f"{path}/releases/latest", headers=conditions, also=(304, 404))
        if answer.status_code != 200:
            now = await client.get(path)
            if now["state"] != "running":
                raise DemoError(f"publication {publication} is {now['state']}: {now['reason']}")
            continue
        tag, newest = answer.headers["ETag"], answer.json()["version"]
        page = await client.get(f"{path}/releases?before={newest + 1}&limit={newest - seen}")
        for release in reversed(page["items"]):
            spending.add(release["charge"])
            if release["role"] == "model":
                release = await client.get(f"{path}/releases/{release['version']}")  # noqa: PLW2901 - the same, whole
                rows.append(judge(weather, release, spending.worst))
                show(rows[-1])
        seen = newest
    return rows


def judge(weather: Weather, release: Mapping[str, Any], spent: float) -> Row:
    """Compare one release with a model without noise on the same window, and with two rules that need no model."""
    records = release["time"]
    window = (release["window"]["start"], release["window"]["end"])
    twin = model.without_noise(*weather.window(*window), norm_bound=release["model"]["norm_bound"])
    return Row(
        publication=release["publication"],
        version=release["version"],
        year=weather.year(records),
        records=records,
        window=window,
        accuracy=weather.judge(model.from_release(release), records),
        without_noise=weather.judge(twin, records),
        yesterday=weather.judge_yesterday(records),
        dry=weather.judge_dry(records),
        spent=spent,
    )
