"""A service whose PostgreSQL is lost beneath it: other data at the address that its processes know.

Two APIs and a worker are processes of their own. The worker and the first API come to PostgreSQL by one proxy, the
second API by another, so that it can stay with a primary that the others have left. Each round has a stream of its own:
one that is distrusted publishes nothing more.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import make_url

from service.settings import Settings
from service.store.migrate import migrate
from tests.conftest import ADMIN_KEY, ok, publication, wait_until
from tests.faults.clusters import Cluster, Progress
from tests.faults.load import Producer, set_up
from tests.faults.processes import Api, end, start_worker
from tests.faults.proxy import Proxy
from tests.faults.readers import Follower, Reader, Shown

if TYPE_CHECKING:
    from pathlib import Path

    from service.embedded import Servers

ENDED_STATES = ("distrusted", "halted")
LOST_THINGS = ("charge", "record", "release", "erasure")  # a reason names at least one of them

# Prompt publications show the most: nothing lies between a commit and its readers.
PROMPT = {"publish_delay": 0}


def mechanisms() -> dict[str, dict[str, Any]]:
    return {
        "batches": {"kind": "independent_batches", "batch": 20},
        "levels": {"kind": "multi_resolution", "base": 20},
        "online": {"kind": "online_leader", "batch": 10, "noise": "window_tree", "window": 4},
    }


class Scene:
    """The processes, the proxies before their PostgreSQL, and the readers."""

    def __init__(self, servers: Servers, folder: Path, seed: str, number: int = 0) -> None:
        self.choose = random.Random(f"{seed} {number}")
        self.seed, self._folder, self._rounds = seed, folder, 0
        self._stack = ExitStack()
        self.wrong: list[str] = []
        self.outcomes: list[str] = []
        self.shown = Shown()
        self.primary = Cluster(folder / "0").start()
        self._stack.callback(self._close_primary)
        owner, service = self.primary.urls
        migrate(owner, service=service)
        settings = Settings(
            metrics_port=0,
            _env_file=None,
            redis_url=servers.redis_url,
            database_url=service,
            segment_store=folder / "segments",
            admin_key=ADMIN_KEY,
            lease_seconds=3.0,
        )
        self.first, self.second = (self._stack.enter_context(Proxy(self.primary.socket)) for _ in range(2))
        self.settings = _through(settings, self.first)
        self.worker = start_worker(self.settings)
        self.apis = [Api(self.settings), Api(_through(settings, self.second))]
        self._stack.callback(self._end_processes)
        self.readers = [Reader(api.client, f"API {n}", self.shown, seed) for n, api in enumerate(self.apis, 1)]
        for reader in self.readers:
            reader.start()

    def close(self) -> None:
        self._stack.close()

    def _close_primary(self) -> None:
        self.primary.close()

    def _end_processes(self) -> None:
        for reader in self.readers:
            reader.finish()
        for process in (self.worker, *(api.process for api in self.apis)):
            end(process)

    def restart_worker(self) -> None:
        """Kills it with -9, and starts another, which waits for the first one's leases."""
        self.worker.kill()
        self.worker.join()
        self.worker = start_worker(self.settings)

    def folder(self) -> Path:
        self._rounds += 1
        return self._folder / str(self._rounds)

    def progress(self, stream: str, cluster: Cluster | None = None) -> Progress:
        progress = (cluster or self.primary).progress(stream)
        assert progress is not None
        return progress


class Round:
    """One stream under load, until its database is lost and everybody has seen what came of that."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.stream = f"stream-{len(scene.outcomes)}"
        configurations = {f"{name}-{len(scene.outcomes)}": each for name, each in mechanisms().items()}
        self.publications = tuple(configurations)
        online = {"learner": {"kind": "noisy_gradient_descent"}}
        made = {
            name: publication(self.stream, each, **(online if each["kind"] == "online_leader" else {}), **PROMPT)
            for name, each in configurations.items()
        }
        with scene.apis[0].client() as client:
            set_up(client, [self.stream], made)
        self._producers = [Producer(scene.apis[0].client, self.stream, number) for number in range(2)]
        self._followers = [
            Follower(api.client, f"events of API {n}", scene.shown, self.publications[0])
            for n, api in enumerate(scene.apis, 1)
        ]
        for reader in scene.readers:
            reader.look_at(self.stream, self.publications)
        for thread in (*self._producers, *self._followers):
            thread.start()

    def await_versions(self, count: int) -> None:
        """Waits until readers were shown so many more versions of each publication."""
        before = self._newest_shown()
        wait_until(lambda: all(now >= before[name] + count for name, now in self._newest_shown().items()))

    def _newest_shown(self) -> dict[str, int]:
        shown = self.scene.shown.versions(set(self.publications))
        return {of: max((version for name, version in shown if name == of), default=0) for of in self.publications}

    def settle(self, last: Progress, left: Progress) -> None:
        """Waits until the stream goes on or has stopped for good, and notes what must not have happened.

        last: how far the lost database had come. left: the state of its successor before its first use.
        """
        state = wait_until(lambda: self._state(left))
        lost = self._lost()
        if lost and state != "distrusted":
            try:
                wait_until(lambda: self._state(left) == "distrusted")
            except AssertionError:
                self._complain(f"{lost} were shown and are lost, but the stream is not distrusted: {state}")
        state = self._state(left) or state
        if state in ENDED_STATES:
            self._check_reason(state, last, left)
        self._read_all_again()
        self._end()
        things = len(last.charges) - len(left.charges)
        self.scene.outcomes.append(f"{state} ({things} charges lost, of them {len(lost)} things shown)")

    def _state(self, left: Progress) -> str | None:
        """`distrusted`, `halted`, or `goes on` once each publication published more than `left`; None: not yet."""
        with self.scene.apis[0].client() as client:
            answer = client.get(f"/v1/streams/{self.stream}")
        if answer.status_code != 200:
            return None
        for state in ENDED_STATES:
            if answer.json()[state] is not None:
                return state
        now = self.scene.progress(self.stream)
        return "goes on" if all(now.newest(name) > left.newest(name) for name in self.publications) else None

    def _lost(self) -> list[str]:
        """Return what readers were shown and the database does not hold now, under any content."""
        shown, now = self.scene.shown, self.scene.progress(self.stream)
        versions = shown.versions(set(self.publications)) - now.versions
        charges = shown.charges(self.stream) - set(now.charges)
        return [f"{name} {version}" for name, version in sorted(versions)] + [
            f"charge {each}" for each in sorted(charges)
        ]

    def _check_reason(self, state: str, last: Progress, left: Progress) -> None:
        with self.scene.apis[0].client() as client:
            reason = ok(client.get(f"/v1/streams/{self.stream}"))[state]
        if last == left:
            self._complain(f"nothing was lost, but the stream is {state}: {reason}")
        elif state == "distrusted" and not any(thing in reason for thing in LOST_THINGS):
            self._complain(f"the reason does not name what was lost: {reason}")

    def _read_all_again(self) -> None:
        """Every version that there is, by the first API, so that another content under a known version is found."""
        with self.scene.apis[0].client() as client:
            for name, version in sorted(self.scene.progress(self.stream).versions):
                answer = client.get(f"/v1/publications/{name}/releases/{version}")
                if answer.status_code == 200:  # else it is not to be seen yet
                    self.scene.shown.release(answer.json(), "API 1, at the end")

    def _end(self) -> None:
        """Stop the load, whatever a halted stream answers."""
        for follower in self._followers:
            follower.finish()
        for producer in self._producers:
            producer._over.set()

    def _complain(self, complaint: str) -> None:
        self.scene.wrong.append(f"{self.stream}: {complaint}")


def report(scene: Scene) -> str:
    """Return what the rounds came to, for the summary."""
    doubles = scene.shown.doubles()
    return "; ".join([f"{len(doubles)} things shown with two contents", *scene.outcomes])


def check(scene: Scene) -> None:
    """Check that no version and no charge was shown with two contents, and that nothing else went wrong."""
    doubles = scene.shown.doubles()
    assert not doubles, f"{len(doubles)} with two contents, the first: {dict(list(doubles.items())[:5])}; {scene.wrong}"
    assert not scene.wrong


def cut_off(scene: Scene) -> None:
    """No process reaches any PostgreSQL by the first proxy until it is switched again."""
    scene.first.switch(None)


def pause(scene: Scene, longest_seconds: float) -> None:
    time.sleep(scene.choose.uniform(0.0, longest_seconds))


def _through(settings: Settings, proxy: Proxy) -> Settings:
    url = make_url(settings.database_url).set(host="127.0.0.1", port=proxy.port, query={"sslmode": "disable"})
    return settings.model_copy(update={"database_url": url.render_as_string(False)})
