"""The HTTP service, put together."""

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api import events, health, keys, metrics, problems, publications, records, releases, streams
from service.api.notifier import Notifier
from service.api.services import Services
from service.log import Appender
from service.settings import Settings
from service.store import keys as stored_keys
from service.store.database import Database

MOST_CONFIGURATION_BYTES = 2**20

_DESCRIPTION = """Continually published private models of a stream, with a ledger of what every record has spent.

Records come in over `/v1/streams`, models go out over `/v1/publications`. Errors are `application/problem+json`."""


def create_app(settings: Settings) -> FastAPI:
    """The application; it connects when it starts.

    Args:
        settings: with both server URLs set.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        assert settings.database_url is not None  # noqa: S101 - `perennial api` checked
        assert settings.redis_url is not None  # noqa: S101
        database = Database(settings.database_url, connections=20)
        appender = Appender(
            settings.redis_url, max_batches=settings.max_backlog_batches, max_bytes=settings.max_backlog_bytes
        )
        services = Services(
            settings=settings,
            database=database,
            appender=appender,
            notifier=Notifier(database, keys_changed=lambda: services.keys.clear()),  # noqa: PLW0108 - not made yet
        )
        if settings.admin_key is not None:
            await services.run(stored_keys.admit_environment_key, settings.admin_key.get_secret_value())
        app.state.services = services
        services.notifier.start()
        try:
            yield
        finally:
            await services.notifier.stop()
            await appender.close()
            database.close()

    app = FastAPI(
        title="Perennial",
        version=version("perennial"),
        description=_DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        lifespan=lifespan,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
    )
    problems.install(app)
    for part in (records, releases, keys, streams, publications, events, health, metrics):  # tried in this order
        app.include_router(part.router)
    app.add_middleware(records.Shortcut, handlers=app.exception_handlers)
    app.add_middleware(ConfigurationLimit)
    app.add_middleware(metrics.Timing)
    if settings.metrics_port is not None:
        app.add_middleware(metrics.OwnPort, port=settings.metrics_port)
    app.add_middleware(SecurityHeaders)
    _complete_openapi(app)
    return app


class ConfigurationLimit:
    """A body is read before the key is looked at, so it must be small: whoever asks, at most what configuration needs.

    Routes that take records check the key first and then have a limit of their own (bodies.py).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(("/records", "/predict")):
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


class SecurityHeaders:
    """Answers are data for programs: nothing may run them, frame them, or keep them where others look."""

    _HEADERS = (
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        (b"referrer-policy", b"no-referrer"),
    )

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                if not any(name.lower() == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"private, no-cache"))
                message["headers"] = [*headers, *self._HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


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
