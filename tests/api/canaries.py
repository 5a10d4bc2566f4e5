"""Recognisable records, texts and keys for `test_canary`, and the doors of a service by which they go in."""

import gzip
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

from service.streams.batches.packed import zstd
from tests.api.formats import WRITERS
from tests.faults.up import Up

X, Y, CATEGORY, TEXT = [867530.5, 753951.25], 424242.25, 734521987, "zanzibar quokka"
COUNTED, CELLS, WEIGHT = 234521, 2**18, 0.734521987  # of linear queries: a record, of so many categories; what is asked
PERSON = "person.of-a-binturong@example.org"
SAID = {  # what a client says beside records
    "idempotency key": "idempotent-okapi-1",
    "guessed key": "prn_guess-of-a-pangolin",
    "agent": "agent-axolotl/1.0",
    "request id": "request-of-an-aardwolf",
    "path": "Path-Of-A-Dugong",
    "query": "query-of-a-numbat",
    "setting": "Setting Of A Kakapo",
    "referer": "https://referer.tapir.example/",
}
HASHING = {"kind": "hashing", "features": 16, "tokens": "words"}


def written(value: float) -> list[bytes]:
    """A number as people and programs write it; not so short that a time could have the same digits."""
    return [repr(value).encode(), f"{value:.6e}".encode()[:9]]


def packed(*values: float) -> list[bytes]:
    """Neighbours as programs keep them."""
    kinds = ("<f4", "<f8") if isinstance(values[0], float) else ("<i4", "<i8")
    return [np.array(values, kind).tobytes() for kind in kinds]


CANARIES: dict[str, list[bytes]] = {
    "x": [*written(X[0]), *written(X[1]), *packed(*X)],
    "y": [*written(Y), *packed(Y, Y)],
    "category": [str(CATEGORY).encode(), *packed(CATEGORY, CATEGORY)],
    "counted": packed(COUNTED, COUNTED),
    "weight": [*written(WEIGHT), *packed(WEIGHT, WEIGHT)],
    "text": [word.encode() for word in TEXT.split()],
    "unit": [b"binturong"],
    **{what: [phrase.encode()] for what, phrase in SAID.items()},
}


def found_in(data: bytes, canaries: dict[str, list[bytes]]) -> list[str]:
    return [what for what, forms in canaries.items() if any(form in data for form in forms)]


@dataclass
class Doors:
    """A service, what it answered, and the keys that it made."""

    up: Up
    client: httpx.Client
    answers: list[bytes] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    rows: dict[str, bytes] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where the client's journals are."""
        return self.up.folder.with_name("journals")

    def ask(self, method: str, path: str, key: str | None = None, **more) -> int | None:
        """Return the answer's status; store a refusal or failure whole, with its headers."""
        headers = {"User-Agent": SAID["agent"], "X-Request-ID": SAID["request id"], "Referer": SAID["referer"]}
        headers |= more.pop("headers", {}) | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            answer = self.client.request(method, path, headers=headers, **more)
        except httpx.TransportError:
            return None
        if answer.status_code >= 400:
            self.answers.append(answer.content + repr(answer.headers.raw).encode())
        self.statuses.append(answer.status_code)
        return answer.status_code

    def post(self, stream: str, x, y, form: str = "json", coding: str = "", **more) -> int | None:
        media_type, write = WRITERS[form]
        body = write(x, y)
        if coding:
            body = gzip.compress(body) if coding == "gzip" else zstd.compress(body)
            more["headers"] = more.get("headers", {}) | {"Content-Encoding": coding}
        more["headers"] = {"Content-Type": media_type} | more.get("headers", {})
        return self.ask("POST", f"/v1/streams/{stream}/records", content=body, **more)

    def make(self, kind: str, body: dict) -> dict:
        answer = self.client.post(f"/v1/{kind}", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    def stream(self, name: str, task: dict, **more) -> None:
        self.make("streams", {"name": name, "task": task, "budget": {"epsilon": 10, "delta": 0}} | more)
