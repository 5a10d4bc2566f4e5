"""The HTTP service, put together."""

import contextlib
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import logs
from service.api.auth import audit_log as audit
from service.api.direct_routes import DirectRoutes
from service.api.http import problems
from service.api.http.connections import SEND_WHOLE
from service.api.http.headers import completed, next_request, of_one_answer
from service.api.http.prebuilt_responses import PREBUILT, send_prebuilt
from service.api.http.problems import Problem
from service.api.notifier import Notifier
from service.api.routes import (
    card,
    events,
    explorer,
    health,
    keys,
    labels,
    ledger,
    metrics,
    publications,
    queries,
    records,
    releases,
    sessions,
    streams,
    units,
)
from service.api.services import Services
from service.dashboard import pages
from service.log import Appenders, read_primaries
from service.queries.answering import Answerer
from service.segments.places import open_segments
from service.settings import Settings
from service.store import keys as stored_keys
from service.store.database import Database
from service.tracebacks import place_of

_log = structlog.get_logger(__name__)

MOST_CONFIGURATION_BYTES = 2**20
SECONDS_TO_ANSWER = 20.0  # of the database, to anything that a request asks it

_DESCRIPTION = """Continually published private models of a stream, with a ledger of what every record has spent.

Records come in over `/v1/streams`, models go out over `/v1/publications`. Errors are `application/problem+json`."""


class Application(FastAPI):
    """The framework's application, behind our own middleware.

    metrics_port: the port on which this process answers `GET /metrics` without a key, and nothing else.
    """

    def __init__(self, *, metrics_port: int | None, **options: Any) -> None:
        super().__init__(**options)
        self._metrics_port = metrics_port

    def build_middleware_stack(self) -> ASGIApp:
        """Return what answers a request. RequestContextMiddleware replaces the framework's answer to all errors."""
        framework = super().build_middleware_stack()
        assert isinstance(framework, ServerErrorMiddleware)  # noqa: S101 - its errors are not ours
        app: ASGIApp = DirectRoutes(framework.app)
        if self._metrics_port is not None:
            app = metrics.MetricsPort(app, self._metrics_port)
        return RequestContextMiddleware(app)


def create_app(settings: Settings, *, metrics_port: int | None = None) -> FastAPI:
    """The application; it connects when it starts.

    Args:
        settings: with both server URLs set.
        metrics_port: the port on which this process answers `GET /metrics` without a key, and nothing else.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        assert settings.database_url is not None  # noqa: S101 - `perennial api` checked
        assert settings.redis_url is not None  # noqa: S101
        database = Database(settings.database_url, connections=20, seconds=SECONDS_TO_ANSWER)
        appender = Appenders(
            read_primaries(settings.redis_url),
            max_batches=settings.max_backlog_batches,
            max_bytes=settings.max_backlog_bytes,
            max_keys=settings.max_idempotency_keys,
        )
        appender.refresh()
        files = open_segments(settings)
        services = Services(
            settings=settings,
            database=database,
            appender=appender,
            files=files,
            answerer=Answerer(database, files, lease_seconds=settings.lease_seconds),
            notifier=Notifier(database, keys_changed=lambda: services.keys.look_again()),  # noqa: PLW0108 - not made yet
        )
        if settings.admin_key is not None:
            secret = settings.admin_key.get_secret_value()
            if await services.run(stored_keys.admit_environment_key, secret):
                _log.info("admin_key_admitted", setting="PERENNIAL_ADMIN_KEY")
        app.state.services = services
        services.notifier.start()
        services.answerer.start()
        try:
            yield
        finally:
            await services.notifier.stop()
            await run_in_threadpool(services.answerer.close)
            await run_in_threadpool(services.large_bodies.close)
            await appender.close()
            database.close()

    app = Application(
        metrics_port=metrics_port,
        title="Perennial",
        version=version("perennial"),
        description=_DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # to an address made from what the request says is our name
        telemetry={"tracing": False, "metrics": False, "logs": False},  # times, too, stay inside the trust boundary
    )
    problems.install(app)
    for part in (
        records,
        releases,
        keys,
        streams,
        units,
        ledger,
        publications,
        card,
        labels,
        events,
        explorer,
        queries,
        sessions,
        health,
        metrics,
        pages,
    ):  # tried in this order
        app.router.routes += part.router.routes  # `include_router` would build all of each route again: 0.2 s and more
    app.add_middleware(ConfigurationLimit)
    _complete_openapi(app)
    return app


_READ_BY_ROUTES = ("/records", "/predict", "/queries", "/explorer/datasets")


class ConfigurationLimit:
    """Configuration is small. Routes that take records have a limit of their own (bodies.py)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(_READ_BY_ROUTES):
            await self._app(scope, receive, send)
            return
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MOST_CONFIGURATION_BYTES:
                raise HTTPException(413)
            return message

        await self._app(scope, limited, send)


class RequestContextMiddleware:
    """Add to every request and every answer what they all have (http/headers.py).

    Each request has an id, which every line of the log about it names. HEAD is GET without the body, which the server
    leaves out. All are timed. Acts and attempts of administrators are logged. An unforeseen error is logged without its
    text, and answered.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", "perennial.head": True}
            scope.pop(SEND_WHOLE, None)  # it would send the body
        request = next_request()
        logs.request.set(request)
        began, started = time.perf_counter(), False

        async def complete(message: Message) -> None:
            if message["type"] == PREBUILT:
                answered(message["status"], message["head"].headers)
                await send_prebuilt(message, request, scope, send)
                return
            if message["type"] == "http.response.start":
                headers = message["headers"] = [*completed(message.get("headers", ())), *of_one_answer(request)]
                answered(message["status"], headers)
            await send(message)

        def answered(status: int, headers: list[tuple[bytes, bytes]]) -> None:
            nonlocal started
            started = True
            metrics.answered(scope, status, time.perf_counter() - began)
            if "perennial.audit" in scope:
                audit.log(scope, status, headers)

        try:
            await self._app(scope, receive, complete)
        except Exception as error:
            _log.error("unexpected_error", error=type(error).__name__, at=place_of(error))
            if started:
                raise
            problem = Problem(
                "internal-error", f"It was logged as request {request}; nothing about it is repeated here."
            )
            await problem.response()(scope, receive, complete)


def _complete_openapi(app: FastAPI) -> None:
    """Replaces FastAPI's own shape of a 422, which is never sent, by the problems that are."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            schemas = document["components"]["schemas"]
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            schemas["ProblemDetails"] = problems.ProblemDetails.model_json_schema()
            invalid = problems.documented("invalid-request")[422]
            for path in document["paths"].values():
                for operation in path.values():
                    answers = operation["responses"]
                    if "application/json" in answers.get("422", {}).get("content", {}):
                        answers["422"] = invalid
        assert app.openapi_schema is not None  # noqa: S101 - generate() keeps it
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
