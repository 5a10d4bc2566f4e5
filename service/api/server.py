"""Runs the API with uvicorn."""

import sys

import uvicorn

from service.api.app import create_app
from service.settings import Settings

CONFIGURATION_ERROR = 78  # sysexits.h: EX_CONFIG; whoever supervises need not try again


class Server(uvicorn.Server):
    """Lets go of those who wait as soon as it is told to stop, instead of when their time is up."""

    def handle_exit(self, sig: int, frame: object) -> None:
        services = getattr(self.config.app.state, "services", None)  # type: ignore[union-attr]
        if services is not None:
            services.stopping.set()
            services.notifier.wake_everybody()
        super().handle_exit(sig, frame)  # type: ignore[arg-type]


def serve(settings: Settings) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit status."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=75,
        h11_max_incomplete_event_size=64 * 1024,
        lifespan="on",
    )
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
