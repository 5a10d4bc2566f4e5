"""Runs the API with uvicorn."""

import asyncio
import errno
import gc
import os
import resource
import socket
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

from service import metrics
from service.addresses import cannot_listen
from service.api.app import create_app
from service.api.http.connections import Connection, close_overdue
from service.log import LogUnsuitable, probe, read_primaries
from service.settings import API_METRICS_PORT, Settings

CONFIGURATION_ERROR = 78  # sysexits.h: EX_CONFIG; whoever supervises need not try again


OTHER_FILES = 512  # that are open beside clients' connections: the database's, the log's, our own

SWITCH_SECONDS = 0.0005
"""For how long a thread that parses a large body keeps the others waiting, where Python's own 5 ms add up."""


def configuration(app: FastAPI, settings: Settings, **more: Any) -> uvicorn.Config:
    """Return uvicorn's settings for this application."""
    limited = type("Connection", (Connection,), {"most": settings.max_connections})
    return uvicorn.Config(
        app,
        http=limited,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,  # uvicorn's is older than the answer: `headers.of_one_answer` has the time
        proxy_headers=False,  # whoever asks could say to be somebody else
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
        lifespan="on",
        **more,
    )


class Server(uvicorn.Server):
    """Lets go of those who wait as soon as it is told to stop, instead of when their time is up."""

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % 10 == 0:
            close_overdue(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: object) -> None:
        services = getattr(self.config.app.state, "services", None)  # type: ignore[union-attr]
        if services is not None:
            services.stopping.set()
            services.notifier.wake_everybody()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]


def serve(settings: Settings) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status."""
    try:
        probe(read_primaries(str(settings.redis_url)))
        sockets = listen(settings)
    except (metrics.CannotListen, LogUnsuitable) as error:
        print(f"perennial: {error}", file=sys.stderr)  # noqa: T201
        return CONFIGURATION_ERROR
    _allow_files(settings.max_connections + OTHER_FILES)
    sys.setswitchinterval(SWITCH_SECONDS)
    app = create_app(settings, metrics_port=sockets[1].getsockname()[1] if len(sockets) > 1 else None)
    server = Server(configuration(app, settings))
    gc.freeze()  # what is there now stays: looking through it again takes 100 ms, in which nobody is answered
    server.run(sockets=sockets)
    return 0 if server.started else 1


def listen(settings: Settings) -> list[socket.socket]:
    """Listen for clients, and on a port of its own for Prometheus, if there is to be one.

    Raises:
        CannotListen: one of the addresses is taken, or not ours.
    """
    try:
        api = _listen_on(settings.host, settings.port)
    except OSError as error:
        raise metrics.CannotListen(
            cannot_listen(settings.host, settings.port, error, "PERENNIAL_HOST", "PERENNIAL_PORT")
        ) from None

    def listen_for_prometheus(host: str, port: int) -> socket.socket:
        if port == api.getsockname()[1]:  # requests are told apart by their port alone
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return _listen_on(host, port)

    try:
        own = metrics.open_port(settings, API_METRICS_PORT, listen_for_prometheus)
    except metrics.CannotListen:
        api.close()
        raise
    return [api] if own is None else [api, own]


def _listen_on(host: str, port: int) -> socket.socket:
    if ":" not in host:
        return socket.create_server((host, port))
    return socket.create_server(
        (host, port), family=socket.AF_INET6, dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6()
    )


def _allow_files(wanted: int) -> None:
    """Raises the number of files this process may open, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
