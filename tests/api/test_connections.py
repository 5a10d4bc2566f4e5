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
OWN = {"close_if_overdue", "_wait_for_request", "_abort_stalled_reader", "_refuse", "_head_bytes", "_is_answering"}
OWN |= {"_parse", "_head_without_upgrade"}
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
        theirs.on_message_begin()
    finally:
        loop.close()
    read, assigned = _attributes_of_self()
    missing = read - assigned - set(vars(Connection)) - set(dir(theirs))
    assert not missing, f"{ADVICE}: HttpToolsProtocol has no {', '.join(sorted(missing))}"
    of_cycle = inspect.getsource(httptools_impl.RequestResponseCycle.__init__)
    answer = ast.parse(inspect.getsource(connections._send_whole))
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


class _Socket(asyncio.Transport):
    """A transport that notes whether reading pauses."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("127.0.0.1", 1), "peername": ("127.0.0.1", 2)})
        self.pauses = 0
        self.paused = False

    def pause_reading(self) -> None:
        self.pauses, self.paused = self.pauses + 1, True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        """Nobody reads it."""


def _posting(application, pieces: int) -> _Socket:
    """Return the transport of a connection that got so many pieces of a body of a hundred, in turns of the loop."""

    async def post() -> _Socket:
        config = uvicorn.Config(application, http=Connection, ws="none", log_config=None, lifespan="off")
        config.load()
        socket = _Socket()
        connection = Connection(config, ServerState(), app_state={})
        connection.connection_made(socket)
        piece = bytes(flow_control.HIGH_WATER_LIMIT + 1)
        connection.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (100 * len(piece)))
        for _ in range(pieces):
            connection.data_received(piece)
            for _ in range(3):
                await asyncio.sleep(0)
        connection.cycle.disconnected = True
        connection.cycle.message_event.set()
        await asyncio.gather(*connection.tasks)
        return socket

    return asyncio.run(post())


async def _takes_all(scope, receive, send):
    while (await receive())["type"] == "http.request":
        pass


async def _takes_nothing(scope, receive, send):
    for _ in range(100):
        await asyncio.sleep(0)


async def _answers_at_once(scope, receive, send):
    await scope[connections.WHOLE_ANSWER](413, b"content-length: 0\r\n", b"")


def test_reading_never_pauses_for_a_body_that_the_application_takes():
    assert _posting(_takes_all, pieces=5).pauses == 0


def test_reading_pauses_while_much_of_a_body_waits_for_the_application():
    assert not _posting(_takes_nothing, pieces=1).paused
    assert _posting(_takes_nothing, pieces=2).paused


def test_reading_goes_on_after_the_answer_to_a_body_that_nobody_takes():
    assert not _posting(_answers_at_once, pieces=3).paused
