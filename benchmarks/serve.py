"""How fast a model reaches those who want it: the API beside a handler that answers a constant (bare.py).

    python -m benchmarks.serve

`GET latest`, with and without `If-None-Match`, over 8 connections, of a publication with the default tick and of one
without ticks; all take turns, and the medians of the turns are compared. Then one release wakes 100 long polls
(`Prefer: wait`) and, at other times, 100 clients of the event stream: the time from PostgreSQL's own notification of
the commit, which this process hears too, to the last byte of each answer; the bare handler's from the moment somebody
asks it to wake them. The worker runs.
"""

from __future__ import annotations

import argparse
import contextlib
import selectors
import socket
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.bare import CONSTANT
from benchmarks.serving import Connection, Service, picture, request, service, turn
from service.store.database import NEW_RELEASE, Database

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

FEATURES = 32
BLOCK = 100
CONNECTIONS = 8
WAITING = 100
SECONDS_TO_SETTLE = 0.8  # seconds until all clients wait
SECONDS_TO_WAKE = 20.0
TICK_SECONDS = 1.0  # the default


class Publication:
    """A model of the last records, and records to make the next one of."""

    def __init__(self, running: Service, notices: psycopg.Connection[Any], *, publish_delay: float) -> None:
        stream = running.stream(FEATURES)
        self.name = running.publish(stream, block=BLOCK, regularization=0.1, publish_delay=publish_delay)
        self.path = f"/v1/publications/{self.name}/releases/latest"
        self._running, self._records, self._notices = running, f"/v1/streams/{stream}/records", notices
        self._random = np.random.default_rng(1)
        self.version = 0

    def release(self) -> float:
        """Publish one more model; return the time of its commit's notification."""
        x = self._random.standard_normal((BLOCK, FEATURES)).tolist()
        answer = self._running.client.post(self._records, json={"x": x, "y": [0, 1] * (BLOCK // 2)})
        assert answer.status_code == 202, answer.text
        for _ in self._notices.notifies(timeout=SECONDS_TO_WAKE, stop_after=1):
            committed = time.perf_counter()
            self.version += 1
            return committed
        raise TimeoutError("nothing was published")

    @property
    def tag(self) -> str:
        return f'"{self.version}.json.1"'


def woken(port: int, sent: bytes, expected: bytes, wake: Callable[[], float]) -> list[float]:
    """Return the seconds from the moment that `wake` returns until each waiting client had the expected answer."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(WAITING):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(sent)
            selector.register(connection, selectors.EVENT_READ, bytearray())
        settled = time.perf_counter() + SECONDS_TO_SETTLE
        while (left := settled - time.perf_counter()) > 0:  # heads of event streams, and what is sent at first
            for key, _ in selector.select(left):
                key.data.extend(key.fileobj.recv(65536))  # type: ignore[union-attr]
                assert expected not in key.data
        began = wake()
        took: list[float] = []
        while len(took) < WAITING:
            ready = selector.select(SECONDS_TO_WAKE)
            if not ready:
                raise TimeoutError(f"{WAITING - len(took)} still wait")
            for key, _ in ready:
                key.data.extend(key.fileobj.recv(65536))  # type: ignore[union-attr]
                if expected in key.data:
                    took.append(time.perf_counter() - began)
                    selector.unregister(key.fileobj)
        return took


def compare_reading(running: Service, prompt: Publication, ticking: Publication, turns: int, seconds: float) -> None:
    """Print the times of `GET latest` of both publications beside those of the constant."""
    requests = {
        f"{kind}, {when}": (running.request("GET", publication.path, if_none_match=tag), status)
        for when, publication in (("default tick", ticking), ("no ticks", prompt))
        for kind, tag, status in (("whole", '"none"', 200), ("If-None-Match", publication.tag, 304))
    }
    print("| `GET latest` | API | bare | ratio |\n|---|---|---|---|")
    for name, (sent, status) in requests.items():
        pairs = []
        for _ in range(turns):
            api = turn(running.port, sent, status, seconds=seconds, connections=CONNECTIONS)
            bare = turn(running.bare_port, request("GET", "/"), 200, seconds=seconds, connections=CONNECTIONS)
            pairs.append((api.rate, bare.rate))
        mine, least = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
        ratio = statistics.median(api / bare for api, bare in pairs)
        print(f"| {name} | {mine:,.0f}/s | {least:,.0f}/s | {ratio:.2f} |", flush=True)


def compare_waking(running: Service, publication: Publication, rounds: int) -> None:
    """Print the times of 100 clients that wait for one model beside 100 that wait for the constant."""

    def wake() -> float:
        with Connection(running.bare_port) as connection:
            began = time.perf_counter()
            connection.ask(request("GET", "/wake"), 200)
            return began

    events = publication.path.replace("releases/latest", "events")
    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, bare_path, bare_expected in (
            ("long poll", "/wait", CONSTANT[:8]),
            ("event stream", "/events", b"woken"),
        ):
            if name == "long poll":
                sent = running.request("GET", publication.path, if_none_match=publication.tag, prefer="wait=60")
                expected = b'"version":%d,' % (publication.version + 1)
            else:
                sent = running.request("GET", events, last_event_id=str(publication.version))
                expected = b"id: %d\n" % (publication.version + 1)
            api = woken(running.port, sent, expected, publication.release)
            bare = woken(running.bare_port, request("GET", bare_path), bare_expected, wake)
            took.setdefault((name, "API"), []).extend(api)
            took.setdefault((name, "bare"), []).extend(bare)
    print(f"\n| {WAITING} woken | | median | p99 |\n|---|---|---|---|")
    quantiles = {}
    for (name, who), seconds in took.items():
        quantiles[name, who] = [1e3 * float(q) for q in np.quantile(seconds, (0.5, 0.99))]
        print(f"| {name} | {who} | {quantiles[name, who][0]:.1f} ms | {quantiles[name, who][1]:.1f} ms |", flush=True)
    picture(
        "serve.svg",
        f"{WAITING} clients woken by one release",
        "ms after its commit",
        ["long poll, median", "long poll, p99", "event stream, median", "event stream, p99"],
        {who: quantiles["long poll", who] + quantiles["event stream", who] for who in ("API", "bare")},
    )


def main() -> None:
    """Print the tables, in Markdown."""
    parser = argparse.ArgumentParser(description="How fast a model reaches those who want it, beside a bare handler.")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    with (
        service(worker=True, max_key_requests=1e9) as running,
        Database(running.database_url).listen(NEW_RELEASE) as notices,
    ):
        prompt, ticking = (Publication(running, notices, publish_delay=delay) for delay in (0, TICK_SECONDS))
        prompt.release()
        ticking.release()
        running.await_release(ticking.name)
        compare_reading(running, prompt, ticking, options.turns, options.seconds)
        compare_waking(running, prompt, options.rounds)


if __name__ == "__main__":
    main()
