"""Every call of the OpenAPI document, asked as the document allows and as it does not: never a 500, nothing untold.

`tests/api/at_the_bounds.py` asks thousands of times more.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings

from docs.http_reference import openapi as document
from tests.api.operations import OPERATIONS
from tests.conftest import Service, ok, unique

if TYPE_CHECKING:
    from schemathesis import Case
    from schemathesis.schemas import APIOperation, BaseSchema

CALLS = [f"{method.upper()} {path}" for method, path in OPERATIONS]
STATUSES: dict[str, set[int]] = defaultdict(set)
WITHOUT_END = "/v1/publications/{publication}/events"  # of a publication that there is


@cache
def schema() -> "BaseSchema":
    """The document as schemathesis reads it, which takes a second: not while tests are collected."""
    import schemathesis

    @schemathesis.serializer("application/x-ndjson", "application/vnd.apache.arrow.stream", "application/x-npz")
    def as_it_is(_: Any, value: Any) -> bytes:
        """Return what is generated for the formats that are not JSON."""
        return value if isinstance(value, bytes) else str(value).encode(errors="replace")

    return schemathesis.openapi.from_dict(document())


@pytest.fixture(scope="module")
def operations() -> "dict[str, APIOperation]":
    readable = (each.ok() for each in schema().get_all_operations())
    return {operation.label: operation for operation in readable}


@pytest.fixture(scope="module")
def there(service: Service) -> dict[str, str]:
    """Names of things that are, for the places of those in an address."""
    stream = service.stream()
    name = service.publish(stream, {"kind": "sliding_window", "block": 2, "blocks": 1})
    url = f"/v1/streams/{stream}/records"
    entry = ok(service.client().post(url, json={"x": [[1, 0], [0, 1]], "y": [1, 0]}), 202)["entry"]
    service.reaches(name, time=2)
    key = ok(service.client().post("/v1/keys", json={"name": unique("key"), "scopes": ["read"]}), 201)["id"]
    return {"stream": stream, "publication": name, "entry": entry, "version": "1", "key": str(key), "unit": "a"}


@pytest.fixture(scope="module")
def session(service: Service) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


@pytest.fixture(scope="module")
def ask(service: Service, session, there) -> "Callable[[Case], None]":
    from schemathesis import checks

    body = [
        checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]

    def once(case: "Case") -> None:
        if str(case.path_parameters.get("key", "")).strip("+-_ 0").isdecimal():
            case.path_parameters["key"] = there["key"]  # not our own: the calls to come need it
        if case.path != WITHOUT_END and zlib.crc32(repr(case.path_parameters).encode()) % 3:
            case.path_parameters |= {name: there[name] for name in case.path_parameters if name in there}
        if isinstance(case.body, dict) and "stream" in case.body:
            case.body["stream"] = there["stream"]
        for name in [name for name in case.headers if name.lower() == "prefer"]:
            del case.headers[name]  # it would wait
        key = {"Authorization": f"Bearer {service.admin_key}"}
        answer = case.call(base_url=service.url, session=session, headers=key, timeout=200)
        STATUSES[f"{case.operation.method.upper()} {case.path}"].add(answer.status_code)
        case.validate_response(answer, checks=body)

    return once


BOUNDED = settings(
    max_examples=5, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.more
def test_the_calls_are_those_of_the_document(operations):
    assert sorted(operations) == sorted(CALLS)


@pytest.mark.more
@pytest.mark.parametrize("call", CALLS)
def test_every_call_answers_as_the_document_says(operations, call, ask):
    """By names of their own, which schemathesis does not give them: of tests with one name, only one would be run."""
    settings(BOUNDED, phases=[Phase.generate])(given(operations[call].as_strategy())(ask))()


@pytest.mark.more
def test_it_got_past_the_door():
    """The calls above were not all refused before they were looked at."""
    assert len(STATUSES) > 20
    assert not {call: statuses for call, statuses in STATUSES.items() if statuses <= {401, 405, 415, 429}}
    assert {"GET /v1/streams", "GET /v1/publications"} < {
        call for call, statuses in STATUSES.items() if 200 in statuses
    }


@pytest.mark.parametrize(
    "call",
    [
        ("get", "/v1/publications/{publication}/label-requests"),
        ("post", "/v1/publications/{publication}/queries"),
        ("get", "/v1/streams/{stream}/units/{unit}"),
        ("delete", "/v1/streams/{stream}/units/{unit}"),
    ],
)
def test_calls_that_read_records_say_that_these_may_be_away(call):
    method, path = call
    described = document()["paths"][path][method]["responses"]["503"]["description"]
    assert described.startswith("The database is away; or: ")
    assert described.endswith("The records can't be read here")


def test_a_stream_that_a_key_may_not_make_is_not_there():
    answers = document()["paths"]["/v1/streams"]["post"]["responses"]
    assert "404" in answers
