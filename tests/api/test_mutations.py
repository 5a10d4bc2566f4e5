"""Bodies that were right once: what is still right is taken, all else is refused and changes nothing.

`pytest tests/api/test_mutations.py --mutations 10000` tries as many; `--seed` tries the same again.
"""

import http.client
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest

from tests.api.formats import ARROW, JSON, NDJSON, WRITERS
from tests.api.test_formats import PACKERS
from tests.api.test_records import numbered
from tests.conftest import Service, ok, publication, wait_until
from tests.streams.test_formats import PAST_FLOAT32

TOKENS = [
    b"NaN", b"Infinity", b"1e999", b"-1e39", b"3.5e38", b"null", b"true", b'"a"', b"[", b"]", b"{", b"}", b",", b":",
    b"-", b"+", b".", b"e", b"\\", b'"', b"\x00", b"\xff", b"\xed\xa0\x80", b"\n", b" ", b"0", b"2", b"9" * 40, b"[[]]",
    b'"x":', b'"y":', b'"z":1,', b"{}", b"/**/", b"\xef\xbb\xbf",
]  # fmt: skip


def mutated(body: bytes, choose: random.Random) -> bytes:
    """Changed in one to three places."""
    for _ in range(choose.choice((1, 1, 1, 2, 3))):
        at = choose.randrange(len(body) + 1)
        to = min(len(body), at + choose.choice((1, 1, 2, 5, 20)))
        piece = body[at:to]
        match choose.randrange(6):
            case 0:
                piece = bytes([choose.randrange(256)])
            case 1:
                piece = b""
            case 2:
                piece += piece
            case 3:
                piece += choose.choice(TOKENS)
            case 4:
                piece = choose.choice(TOKENS)
            case 5:
                body, piece = body[:to], body[at:to]
        body = body[:at] + piece + body[to:]
    return body


def records_of_columns(body: bytes) -> int | None:
    """How many records it holds, by the letter of the documentation; None: it is not right."""
    try:
        document = json.loads(body, object_pairs_hook=names_once)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or set(document) != {"x", "y"}:
        return None
    x, y = document["x"], document["y"]
    right = isinstance(x, list) and isinstance(y, list) and len(x) == len(y) > 0
    return len(x) if right and all(map(is_record, x, y)) else None


def records_of_rows(body: bytes) -> int | None:
    lines = body.rstrip().split(b"\n")
    try:
        rows = [json.loads(line, object_pairs_hook=names_once) for line in lines]
    except (ValueError, RecursionError):
        return None
    right = all(isinstance(row, dict) and set(row) == {"x", "y"} and is_record(row["x"], row["y"]) for row in rows)
    return len(rows) if right else None


def names_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name comes twice")
    return dict(pairs)


def is_record(x: Any, y: Any) -> bool:
    return isinstance(x, list) and len(x) == 2 and all(map(is_number, x)) and is_number(y) and y in (0, 1)


def is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) < PAST_FLOAT32 if isinstance(value, float) else abs(value) < PAST_FLOAT32


class Line:
    """One connection, on which request after request is sent."""

    def __init__(self, service: Service) -> None:
        url = httpx.URL(service.url)
        self._connection = http.client.HTTPConnection(url.host, url.port, timeout=200)
        self._headers = {"Authorization": f"Bearer {service.admin_key}"}

    def close(self) -> None:
        self._connection.close()

    def post(self, path: str, body: bytes, media_type: str, **more: str) -> tuple[int, dict[str, Any]]:
        headers = self._headers | {"Content-Type": media_type} | more
        self._connection.request("POST", path, body, headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_mutated_batches_are_stored_if_valid_and_else_change_nothing(
    service: Service, seed, pytestconfig, record_property
):
    choose, stream = random.Random(seed), service.stream()
    path = f"/v1/streams/{stream}/records"
    x, y = [[1, 2.5], [-3e-5, 0], [12345678, -0.0]], [0, 1, 1]
    right: dict[str, Callable[[bytes], int | None] | None] = {
        JSON: records_of_columns, NDJSON: records_of_rows, ARROW: None
    }  # fmt: skip
    bodies = [(media_type, write(x, y)) for media_type, write in WRITERS.values()]
    bodies += [bodies[0], bodies[1]] * 2
    wanted, stored, statuses = pytestconfig.getoption("--mutations"), 0, Counter[int]()
    with closing(Line(service)) as line:
        for _ in range(wanted):
            media_type, body = choose.choice(bodies)
            body = mutated(body, choose)
            status, answer = line.post(path, body, media_type)
            statuses[status] += 1
            assert status in (202, 422), (status, media_type, body)
            stored += answer.get("accepted", 0)
            if records := right[media_type]:
                assert (status == 202, answer.get("accepted")) == ((n := records(body)) is not None, n), body
        for coding, pack in PACKERS.items():
            packed = pack(bodies[0][1])
            for end in range(len(packed)):
                status, _ = line.post(path, packed[:end], JSON, **{"Content-Encoding": coding})
                assert status == 422, (coding, end)
    wait_until(lambda: numbered(service, stream) >= stored)
    assert service.post(stream, [[0, 0]], [1]) == (stored, stored + 1)
    record_property("faults", f"{wanted} mutated batches, {statuses[202]} still right: --seed {seed}")


@pytest.mark.more
def test_mutated_configurations_change_nothing(service: Service, seed, pytestconfig):
    choose = random.Random(seed)
    stream = service.stream()
    configuration = publication(
        stream, {"kind": "continual", "base": 100, "update_every": 50, "shares": "improving"}, delta=0
    )
    configuration["learner"] |= {"loss": "logistic", "regularization": 0.1}
    documents = {
        "/v1/streams": {
            "name": "mutant",
            "features": 2,
            "task": {"kind": "regression", "bound": 1.5},
            "feature_map": {"kind": "random_fourier", "features": 4, "bandwidth": 1.0, "seed": 1},
            "budget": {"epsilon": 1, "delta": 0},
        },
        "/v1/publications": configuration | {"name": "mutant"},
        "/v1/plan": configuration,
        "/v1/keys": {"name": "mutant", "scopes": ["read"], "streams": [stream]},
    }

    def there_is() -> list[list[str]]:  # by name: of other tests' streams something may go on
        kinds = ("keys", "streams", "publications")
        pages = [ok(service.client().get(f"/v1/{kind}?limit=1000")) for kind in kinds]
        return [[item["name"] for item in page["items"]] for page in pages]

    before = there_is()
    with closing(Line(service)) as line:
        for _ in range(pytestconfig.getoption("--mutations") // 4):
            path, document = choose.choice(list(documents.items()))
            body = spoilt(document, choose)
            status, _ = line.post(path, body, "application/json")
            assert status == 422, (status, path, body)
    assert there_is() == before


def spoilt(document: dict[str, Any], choose: random.Random) -> bytes:
    """Wrong for certain: something of the wrong kind, something nobody asked for, or the end of it missing."""
    document = json.loads(json.dumps(document))
    places = list(_places(document))
    match choose.randrange(4):
        case 0:
            holder, name = choose.choice(places)
            holder[name] = choose.choice(({"no": "such"}, [[[]]], {"kind": "none such"}, "\x00", 10**40, -(10**12)))
        case 1:
            holder, _ = choose.choice([place for place in places if isinstance(place[0], dict)])
            holder[choose.choice(("zz", "", "kind ", "é", "x" * 500))] = choose.choice((None, 1, {}, "a"))
        case 2:
            return json.dumps(document).encode()[: choose.randrange(1, 40)]
        case 3:
            document.pop(choose.choice([name for name in ("budget", "task", "privacy", "scopes") if name in document]))
    return json.dumps(document).encode()


def _places(value: Any) -> Any:
    """Every place in it: what it is in, and where."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in items:
        yield value, name
        yield from _places(each)
