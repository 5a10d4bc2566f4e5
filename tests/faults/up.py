"""`perennial up` as a user runs it: one data folder, started and killed as often as a test likes."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import httpx

from tests.conftest import wait_until
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PARTS = {"valkey": "valkey-server", "postgres": "bin/postgres", "api": "-m service api", "worker": "-m service worker"}


class Up:
    """A data folder and what runs on it, with settings of its own beside those that it is started with."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder, self.settings = folder, settings
        self.output = folder.with_name(f"{folder.name}.log")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self, **settings: str) -> None:
        self.begin(**settings)
        self.await_ready()

    def begin(self, **settings: str) -> None:
        """Starts it and does not wait."""
        command = [sys.executable, "-m", "service", "up", "--data-dir", str(self.folder), "--port", str(self.port)]
        settings = {"metrics_port": "0"} | settings  # those of other tests run on this machine at the same time
        environment = self.environment | {f"PERENNIAL_{name.upper()}": value for name, value in settings.items()}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of commands on the data folder."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")}
        return inherited | {f"PERENNIAL_{name.upper()}": value for name, value in self.settings.items()}

    def stop(self) -> None:
        """As Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(200) == 0

    def ready(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.url}/readyz", timeout=10).status == 200
        except OSError:
            return False

    def await_ready(self, *, again: bool = False) -> None:
        """Whatever just died; it may not give up by itself. `again`: as whoever runs it for good would start it."""

        def ready() -> bool:
            if again:
                self.go_on()
            assert self.process.poll() is None, self.output.read_text()[-3000:]
            return self.ready()

        wait_until(ready)

    def go_on(self) -> None:
        """Starts it again if it ended before it was ready, which it does when a server dies under it just then."""
        if self.process.poll() is not None:
            assert "Perennial is ready" not in (text := self.output.read_text()), text[-3000:]
            self.begin()

    def descendants(self) -> set[int]:
        """Every process under the supervisor."""
        running = _processes()
        family, grew = {self.process.pid}, True
        while grew:
            more = {pid for pid, (parent, _) in running.items() if parent in family} - family
            family, grew = family | more, bool(more)
        return family - {self.process.pid}

    def children(self) -> dict[str, int]:
        """Those of PARTS that the supervisor runs now, by name."""
        return {
            name: pid
            for pid, (parent, command) in _processes().items()
            for name, words in PARTS.items()
            if parent == self.process.pid and words in command
        }

    def kill(self) -> None:
        """The supervisor alone; its children must follow by themselves."""
        left = self.descendants()
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))

    def key(self) -> str:
        """The admin key."""
        return (self.folder / "admin.key").read_text().strip()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {self.key()}"}, timeout=200)


def _processes() -> dict[int, tuple[int, str]]:
    """Parent and command of every process of this machine."""
    processes = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                processes[int(path.name)] = (parent, (path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return processes
