"""A port that was free a moment ago can be taken by somebody else, even by another Perennial."""

import asyncio
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from demo import service


class AnotherService(BaseHTTPRequestHandler):
    """Ready, but it does not know our key."""

    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 401)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("answers", [True, False])
def test_another_port_is_taken_when_the_first_is_not_free_any_more(monkeypatch, answers):
    taken = HTTPServer(("127.0.0.1", 0), AnotherService)
    if answers:
        threading.Thread(target=taken.serve_forever, args=(0.05,), daemon=True).start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    ports = [taken.server_port, free]
    monkeypatch.setattr(service, "_free_port", lambda: ports.pop(0))

    async def look():
        async with service.running() as up:
            headers = {"Authorization": f"Bearer {up.admin_key}"}
            async with httpx.AsyncClient(trust_env=False) as client:
                return up.address, (await client.get(f"{up.address}/v1/streams", headers=headers)).status_code

    try:
        assert asyncio.run(look()) == (f"http://127.0.0.1:{free}", 200)
    finally:
        if answers:
            taken.shutdown()
        taken.server_close()
    assert ports == []
