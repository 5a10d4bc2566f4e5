"""Every setting there is. Nothing else in the service reads the environment.

Settings are `PERENNIAL_*` environment variables, or lines of a `.env` file in the working directory.
"""

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, StringConstraints
from pydantic_settings import BaseSettings, DotEnvSettingsSource, EnvSettingsSource, SettingsConfigDict

from service.addresses import PostgresUrl, RedisUrl, SegmentPlace

DaskScheduler = Annotated[str, StringConstraints(pattern=r"^(tcp|tls)://")]

API_METRICS_PORT = 9464
WORKER_METRICS_PORT = 9465
"""Ports of metrics if `metrics_port` is not set."""

SHORTEST_ADMIN_KEY = 32
"""Characters; the log warns of a shorter key."""


class Settings(BaseSettings):
    """Defaults suit one machine; `make docs` writes docs/settings.md from these descriptions."""

    model_config = SettingsConfigDict(
        env_prefix="PERENNIAL_", env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True
    )

    redis_url: RedisUrl | None = Field(
        None,
        description="Redis 7+ or Valkey that holds the log, or `redis+cluster://…`; `up` starts its own if unset",
    )
    database_url: PostgresUrl | None = Field(
        None, description="PostgreSQL 15+ that holds the record; `up` starts its own if unset"
    )
    migration_url: PostgresUrl | None = Field(
        None,
        description="The same database as the role that owns it, for `migrate` alone; unset: as the service's role",
    )
    admin_key: SecretStr | None = Field(
        None, description="The first admin key, at least 32 random characters; `up` makes one if unset"
    )
    segment_store: SegmentPlace = Field(
        Path("perennial-data/segments"),
        union_mode="left_to_right",
        description="Folder of the numbered records, or an object store: `s3://BUCKET/PREFIX`, `gs://…`, `az://…`",
    )
    segment_copies: Path = Field(
        Path("perennial-data/copies"), description="Folder for this machine's copies of segments of an object store"
    )
    max_copy_bytes: int = Field(10 * 2**30, gt=0, description="Size of all copies from which on the oldest ones go")
    dask_scheduler: DaskScheduler | None = Field(
        None,
        description="Dask scheduler, `tcp://…` or `tls://…`, whose workers share the reading of large fits",
    )
    host: str = Field("127.0.0.1", description="Address the API listens on")
    port: int = Field(8000, ge=0, le=65535, description="Port the API listens on")
    metrics_host: str = Field("127.0.0.1", description="Address that the metrics port listens on")
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="Port of `/metrics`, without a key: 9464 for `up` and `api`, 9465 for `worker` if unset; 0: none",
    )
    worker_metrics: Path | None = Field(
        None, description="Unix socket by which a worker tells its metrics to the API; `up` sets it"
    )
    operator: str | None = Field(
        None, max_length=200, description="Name and address of the operator of the service; privacy cards show it"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged")

    max_body_bytes: int = Field(16 * 2**20, gt=0, description="Largest request body, unpacked")
    max_key_body_bytes: int = Field(
        64 * 2**20, gt=0, description="Most bytes of request bodies of one key at the same time, unpacked; then 429"
    )
    max_body_bytes_in_all: int = Field(
        256 * 2**20, gt=0, description="Most bytes of request bodies at the same time, unpacked; then 429"
    )
    max_batch_records: int = Field(100_000, gt=0, description="Most records in one request")
    max_backlog_bytes: int = Field(256 * 2**20, gt=0, description="Most bytes of a stream not yet numbered; then 429")
    max_backlog_batches: int = Field(100_000, gt=0, description="Most batches of a stream not yet numbered; then 429")

    max_idempotency_keys: int = Field(
        250_000, gt=0, description="Most Idempotency-Keys of one API key that a stream remembers; then 429"
    )

    max_connections: int = Field(4096, gt=0, description="Most connections to the API at the same time; then 503")
    max_key_requests: float = Field(
        5000, gt=0, description="Most requests a second with one key, as each API counts them; then 429"
    )
    max_unknown_keys: float = Field(
        20, gt=0, description="Most requests a second from one address with keys that are not known; then 429"
    )

    lease_seconds: float = Field(
        5.0, gt=0.5, description="How long a dead worker's streams and publications wait, and a dead API's queries"
    )
    publishers: int = Field(
        2, gt=0, le=64, description="Fits that one worker runs at the same time, beside one that is short"
    )
    explorations: int = Field(
        1, ge=0, le=16, description="Comparisons of the explorer that one worker runs at the same time; 0: no explorer"
    )


IGNORED_VARIABLES: list[str] = []
"""Variables of libpq that this process was started with."""


def ignore_libpq_variables() -> None:
    """Take libpq's variables out of the environment, before anything connects.

    libpq would read them beside a URL, also beside that of the embedded server: PGHOSTADDR, PGSERVICE, PGOPTIONS …
    lead to another server, or to other rights there. PGPASSWORD stays: it is documented.
    """
    for name in [name for name in os.environ if name.startswith("PG") and name != "PGPASSWORD"]:
        del os.environ[name]
        IGNORED_VARIABLES.append(name)


def unknown_variables() -> dict[str, str | None]:
    """Return variables that begin like a setting but are none, each with the most similar setting, if any."""
    sources = EnvSettingsSource(Settings), DotEnvSettingsSource(Settings)
    given = {name.lower() for source in sources for name in source.env_vars}
    names = {name.removeprefix("perennial_") for name in given if name.startswith("perennial_")}
    nearest = {
        name: get_close_matches(name, Settings.model_fields, 1) for name in sorted(names - set(Settings.model_fields))
    }
    return {_variable(name): _variable(near[0]) if near else None for name, near in nearest.items()}


def _variable(name: str) -> str:
    return f"PERENNIAL_{name.upper()}"
