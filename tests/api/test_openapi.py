"""Every call of the OpenAPI document, asked as the document allows and as it does not: never a 500, nothing untold."""

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from service.api.app import create_app
from service.settings import Settings
from tests.conftest import Service

SCHEMA = schemathesis.openapi.from_dict(create_app(Settings(_env_file=None)).openapi())
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
WITHOUT_END = "/v1/publications/{publication}/events"  # of a publication that there is


@schemathesis.serializer("application/x-ndjson", "application/vnd.apache.arrow.stream")
def as_it_is(_: Any, value: Any) -> bytes:
    """What is generated for the formats that are not JSON."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@pytest.fixture(scope="module")
def there(service: Service) -> dict[str, str]:
    """Names of things that are, for the places of those in an address."""
    stream = service.stream()
    name = service.publish(stream, {"kind": "sliding_window", "block": 2, "blocks": 1})
    service.post(stream, [[1, 0], [0, 1]], [1, 0])
    service.released(name, time=2)
    return {"stream": stream, "publication": name, "version": "1"}


@pytest.fixture(scope="module")
def session(service: Service) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        session.headers["Authorization"] = f"Bearer {service.admin_key}"
        yield session


@SCHEMA.parametrize()
@settings(
    max_examples=10,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_call_answers_as_the_document_says(case, service: Service, session, there):
    if case.path != WITHOUT_END and zlib.crc32(repr(case.path_parameters).encode()) % 3:
        case.path_parameters |= {name: there[name] for name in case.path_parameters if name in there}
    for name in [name for name in case.headers if name.lower() == "prefer"]:
        del case.headers[name]  # it would wait
    answer = case.call(base_url=service.url, session=session, timeout=20)
    case.validate_response(answer, checks=CHECKS)
