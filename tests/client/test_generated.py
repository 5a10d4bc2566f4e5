"""openapi-python-client makes a client of the OpenAPI document, for those who want one of another kind than ours."""

import json
import subprocess
import sys

import pytest

from docs.http_reference import openapi as document
from tests.conftest import Service

NOT_JSON = {"application/x-ndjson", "application/vnd.apache.arrow.stream", "application/x-npz", "text/csv"}
USE = """
import sys
from made import AuthenticatedClient
from made.api.records import post_records_v1_streams_stream_records_post as post
from made.api.streams import list_streams_v1_streams_get as list_, make_stream_v1_streams_post as make
from made.models import StreamRequest, PostRecordsV1StreamsStreamRecordsPostJsonBody as Records

url, key, name = sys.argv[1:]
with AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True) as client:
    new = {"name": name, "features": 2, "task": {"kind": "classification", "classes": 2}, "budget": {"epsilon": 1}}
    made = make.sync(client=client, body=StreamRequest.from_dict(new))
    accepted = post.sync(made.name, client=client, body=Records.from_dict({"x": [[1, 2], [3, 4]], "y": [0, 1]}))
    print(accepted.accepted, name in [stream.name for stream in list_.sync(client=client).items])
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of the generated package `made`."""
    folder = tmp_path_factory.mktemp("generated")
    (folder / "openapi.json").write_text(json.dumps(document()))
    from openapi_python_client import generate
    from openapi_python_client.config import Config, ConfigFile, MetaType

    settings = ConfigFile(post_hooks=[])
    config = Config.from_sources(settings, MetaType.NONE, folder / "openapi.json", "utf-8", False, folder / "made")
    left_out = [line for error in generate(config=config) for line in (error.detail or "").splitlines()]
    assert {line.removeprefix("Unsupported content type ") for line in left_out} <= NOT_JSON
    return folder


@pytest.mark.more
def test_it_compiles(made):
    command = [sys.executable, "-W", "ignore", "-m", "compileall", "-q", str(made / "made")]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (compiled.returncode, compiled.stdout) == (0, "")


@pytest.mark.more
def test_it_makes_a_stream_and_appends_records(service: Service, made):
    command = [sys.executable, "-W", "ignore", "-c", USE, service.url, service.admin_key, "generated"]
    used = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
    assert used.stdout == "2 True\n", used.stderr
