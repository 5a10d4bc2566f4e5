"""Runs the API with uvicorn."""

import asyncio
import resource
import sys
from typing import Any

import uvicorn
from fastapi import FastAPI

from service.api.app import create_app
from service.api.connections import Connection, look_at_all
from service.settings import Settings

CONFIGURATION_ERROR = 78  # sysexits.h: EX_CONFIG; whoever supervises need not try again


OTHER_FILES = 512  # that are open beside clients' connections: the database's, the log's, our own


def configuration(app: FastAPI, settings: Settings, **more: Any) -> uvicorn.Config:
    """How uvicorn serves it."""
    limited = type("Connection", (Connection,), {"most": settings.max_connections})
    return uvicorn.Config(
        app,
        http=limited,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
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
            look_at_all(self.server_state.connections, asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: object) -> None:
        services = getattr(self.config.app.state, "services", None)  # type: ignore[union-attr]
        if services is not None:
            services.stopping.set()
            services.notifier.wake_everybody()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]


def serve(settings: Settings) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status."""
    app = create_app(settings)
    config = configuration(app, settings)
    _allow_files(settings.max_connections + OTHER_FILES)
    sockets = []
    for port, name in ((settings.port, "--port"), (settings.metrics_port, "PERENNIAL_METRICS_PORT")):
        if port is None:
            continue
        try:
            sockets.append(uvicorn.Config(app, host=settings.host, port=port, log_config=None).bind_socket())
        except SystemExit:
            print(  # noqa: T201
                f"perennial: can't listen on {settings.host}:{port}: stop what uses it, or choose another {name}",
                file=sys.stderr,
            )
            return CONFIGURATION_ERROR
    server = Server(config)
    server.run(sockets=sockets)
    return 0 if server.started else 1


def _allow_files(wanted: int) -> None:
    """Raises the number of files this process may open, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
