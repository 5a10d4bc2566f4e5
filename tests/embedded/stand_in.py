"""Stands in for `perennial migrate`, `api` and `worker`: STAND_IN_<PART> says how it misbehaves."""

import http.server
import os
import signal
import threading
from pathlib import Path


def main(part: str) -> int:
    manner = os.environ.get(f"STAND_IN_{part.upper()}", "")
    if manner.startswith("exits "):
        return int(manner.removeprefix("exits "))
    if part == "migrate":
        return 0
    stopping = threading.Event()
    if manner == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    if part == "api":
        try:
            server = http.server.ThreadingHTTPServer(
                (os.environ["PERENNIAL_HOST"], int(os.environ["PERENNIAL_PORT"])), Handler
            )
        except OSError:
            return 78
        threading.Thread(target=server.serve_forever, daemon=True).start()
    Path(os.environ["STAND_IN_PIDS"], f"{part}.pid").write_text(str(os.getpid()))
    while not stopping.wait(0.05):
        pass
    folder = Path(os.environ["STAND_IN_PIDS"])
    (folder / f"{part}.stopped").write_text("with" if (folder / "run" / "valkey.sock").exists() else "without")
    return 0


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer with the settings that a test may want to see."""
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
        names = ("PERENNIAL_ADMIN_KEY", "PERENNIAL_SEGMENT_STORE", "PERENNIAL_REDIS_URL", "PERENNIAL_DATABASE_URL")
        self.wfile.write("\n".join(os.environ[name] for name in names).encode())

    def log_message(self, *_: object) -> None:
        pass
