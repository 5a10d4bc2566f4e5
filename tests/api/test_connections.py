"""uvicorn still has the internals that service/api/http/connections.py and server.py build on."""

import ast
import asyncio
import inspect

import pytest
import uvicorn
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.server import ServerState

from service.api.http import connections, server
from service.api.http.connections import Connection

OVERRIDDEN = [
    (connections.Connection, httptools_impl.HttpToolsProtocol, name)
    for name, member in vars(Connection).items()
    if inspect.isfunction(member) and not name.startswith("__")
] + [(server.Server, uvicorn.Server, name) for name in ("on_tick", "handle_exit")]
OWN = {"close_if_overdue", "_wait_for_request", "_abort_stalled_reader", "_refuse"}
ADVICE = (
    f"uvicorn {uvicorn.__version__} moved an internal that service/api/http builds on: "
    "look at what took its place before you raise the version in pyproject.toml"
)


@pytest.mark.parametrize(("ours", "theirs", "name"), OVERRIDDEN, ids=str)
def test_uvicorn_calls_what_is_overridden(ours, theirs, name):
    if ours is Connection and name in OWN:
        assert not hasattr(theirs, name), f"{ADVICE}: it has a {name} of its own now"
        return
    assert hasattr(theirs, name), f"{ADVICE}: {theirs.__name__}.{name} is gone"
    parameters = [list(inspect.signature(getattr(of, name)).parameters) for of in (ours, theirs)]
    assert parameters[0] == parameters[1], f"{ADVICE}: {theirs.__name__}.{name} takes {parameters[1]}"


def test_uvicorn_has_every_attribute_that_a_connection_reads():
    loop = asyncio.new_event_loop()
    try:
        config = uvicorn.Config(lambda: None, http=Connection, ws="none", log_config=None)
        theirs = httptools_impl.HttpToolsProtocol(config, ServerState(), app_state={}, _loop=loop)
    finally:
        loop.close()
    read, assigned = _attributes_of_self()
    missing = read - assigned - set(vars(Connection)) - set(dir(theirs))
    assert not missing, f"{ADVICE}: HttpToolsProtocol has no {', '.join(sorted(missing))}"
    of_cycle = inspect.getsource(httptools_impl.RequestResponseCycle.__init__)
    answer = ast.parse(inspect.getsource(connections._answer))
    attributes = [node for node in ast.walk(answer) if isinstance(node, ast.Attribute)]
    names = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "cycle"}
    assert {"response_started", "response_complete", "on_response"} <= names
    for name in names:
        assert f"self.{name} = " in of_cycle, f"{ADVICE}: RequestResponseCycle has no {name}"
    assert "self.read_paused = " in inspect.getsource(flow_control.FlowControl.__init__), ADVICE
    assert httptools_impl.STATUS_LINE[400] == b"HTTP/1.1 400 Bad Request\r\n", ADVICE


def _attributes_of_self() -> tuple[set[str], set[str]]:
    """Return the attributes that a connection uses, and those of its own that it assigns."""
    nodes = [node for node in ast.walk(ast.parse(inspect.getsource(Connection))) if isinstance(node, ast.Attribute)]
    own = [node for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "self"]
    read = {node.attr for node in own}
    assert {"transport", "cycle", "flow", "connections", "timeout_keep_alive_task"} <= read
    return read, {node.attr for node in own if isinstance(node.ctx, ast.Store) and node.attr.startswith("_")}
