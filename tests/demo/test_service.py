"""A port that was free a moment ago can be taken by somebody else, even by another Perennial."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from demo import service
from tests.ports import free_port


class AnotherService(BaseHTTPRequestHandler):
    """Ready, but it does not know our key."""

    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 401)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.more
@pytest.mark.slow
def test_another_port_is_taken_when_the_first_ones_are_not_free_any_more(monkeypatch):
    """Neither the one of a service that is ready nor the one of a service that never answers."""
    ready, silent = (HTTPServer(("127.0.0.1", 0), AnotherService) for _ in range(2))
    threading.Thread(target=ready.serve_forever, args=(0.05,), daemon=True).start()
    free = free_port()
    ports = [ready.server_port, silent.server_port, free]
    monkeypatch.setattr(service, "_free_port", lambda: ports.pop(0))

    async def look():
        async with service.running() as up:
            headers = {"Authorization": f"Bearer {up.admin_key}"}
            async with httpx.AsyncClient(trust_env=False) as client:
                return up.address, (await client.get(f"{up.address}/v1/streams", headers=headers)).status_code

    try:
        assert asyncio.run(look()) == (f"http://127.0.0.1:{free}", 200)
    finally:
        ready.shutdown()
        ready.server_close()
        silent.server_close()
    assert ports == []
