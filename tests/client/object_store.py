"""An S3 server for tests, as a process of its own: `python -m tests.client.object_store`.

It makes the bucket `days` and then prints its port: its first answer takes seconds, in which nobody waits for it. It
answers 503 to every third request for an object, and tells at `/requests` for which ranges.
"""

import json
from itertools import count

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

BUSY_EVERY = 3


class Busy:
    """Moto, with a middleman that is busy now and then."""

    def __init__(self) -> None:
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.numbers = count(1)
        self.log: list[tuple[str, str | None, int]] = []

    def __call__(self, environ, start_response):
        request = Request(environ)
        if request.path == "/requests":
            return Response(json.dumps(self.log), mimetype="application/json")(environ, start_response)
        if request.method not in ("GET", "HEAD"):
            return self.moto(environ, start_response)
        busy = next(self.numbers) % BUSY_EVERY == 0
        self.log.append((request.path, request.headers.get("Range"), 503 if busy else 200))
        return Response("SlowDown", status=503)(environ, start_response) if busy else self.moto(environ, start_response)


if __name__ == "__main__":
    busy = Busy()
    assert Client(busy).put("/days").status_code == 200
    server = make_server("127.0.0.1", 0, busy, threaded=True)
    print(server.port, flush=True)
    server.serve_forever()
