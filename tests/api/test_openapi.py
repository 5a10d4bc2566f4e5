"""Every call of the OpenAPI document, asked as the document allows and as it does not: never a 500, nothing untold."""

import re

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import checks

from service.api.app import create_app
from service.settings import Settings
from tests.conftest import Service, ok

DOCUMENT = create_app(Settings(_env_file=None)).openapi()
CONFIG = schemathesis.Config.from_dict({"generation": {"allow-x00": True}})
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)
ASKED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
WITHOUT_END = "/v1/publications/{publication}/events"  # of a publication that there is


@pytest.fixture(scope="module")
def there(service: Service) -> dict[str, str]:
    """Names of things that are, for the places of those in an address."""
    stream = service.stream()
    name = service.publish(stream, {"kind": "sliding_window", "block": 2, "blocks": 1})
    service.post(stream, [[1, 0], [0, 1]], [1, 0])
    service.released(name, time=2)
    return {"stream": stream, "publication": name, "version": "1"}


@SCHEMA.parametrize()
@settings(
    max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
    database=None,
)  # fmt: skip
def test_every_call_answers_as_the_document_says(case, service: Service, there):
    if case.path != WITHOUT_END and case.path_parameters and len(str(case.path_parameters)) % 2:
        case.path_parameters |= {name: there[name] for name in case.path_parameters if name in there}
    case.headers = {name: value for name, value in (case.headers or {}).items() if name.lower() != "prefer"}
    answer = case.call(base_url=service.url, headers={"Authorization": f"Bearer {service.admin_key}"}, timeout=20)
    case.validate_response(answer, checks=[getattr(checks.CHECKS, "get")(name)[0] for name in ASKED])
