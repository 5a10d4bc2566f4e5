"""An S3 server with faults: moto, behind somebody who can be told to fail, to cut answers short or to be late."""

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

BUCKET = "segments"
CREDENTIALS = {
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


@dataclass
class Faults:
    """The part of requests that go wrong, and what else is wrong with the server."""

    refused: float = 0.0
    """Answered with 503, and nothing done."""
    forgotten: float = 0.0
    """Done, and answered with 500."""
    cut: float = 0.0
    """Answers with a body of which half is missing."""
    seconds: float = 0.0
    """By which some answers are late."""
    overwrites: bool = False
    """Objects that are to be created only once are overwritten."""
    requests: int = 0
    failed: int = 0


@dataclass
class Server:
    """A running server."""

    url: str = ""
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()  # a store creates an object once; moto's checks and writes are not one step

    def __call__(self, environ, start_response):
        self.faults.requests += 1
        if random.random() < self.faults.refused:
            self.faults.failed += 1
            return Response("SlowDown", status=503)(environ, start_response)
        if self.faults.overwrites:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        request = Request(environ)
        with self._lock:
            answer = Response.from_app(self._moto, environ)
        if random.random() < self.faults.forgotten:
            self.faults.failed += 1
            return Response("InternalError", status=500)(environ, start_response)
        if self.faults.seconds and random.random() < 0.05:
            time.sleep(self.faults.seconds)
        if request.method == "GET" and random.random() < self.faults.cut:
            self.faults.failed += 1
            content = answer.get_data()
            answer.set_data(content[: len(content) // 2])
            answer.headers["Content-Length"] = str(len(content))
        return answer(environ, start_response)


class _Silent(WSGIRequestHandler):
    def log(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server with a bucket, whose address and credentials are in the environment."""
    server = Server()
    listening = make_server("127.0.0.1", 0, server, threaded=True, request_handler=_Silent)
    listening.daemon_threads = True
    server.url = f"http://127.0.0.1:{listening.port}"
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    environment = {**CREDENTIALS, "AWS_ENDPOINT": server.url}
    before = {name: os.environ.get(name) for name in (*environment, "SSL_CERT_DIR")}
    os.environ |= environment
    os.environ.pop("SSL_CERT_DIR", None)  # without certificates the client of the store does not even start
    httpx.put(f"{server.url}/{BUCKET}", trust_env=False).raise_for_status()
    try:
        yield server
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        listening.shutdown()
        thread.join()
        listening.server_close()
