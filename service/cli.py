"""`perennial`: the commands."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from service import client_commands
from service.process import keep_memory, leave_no_crash_dumps, loading

if TYPE_CHECKING:
    from pydantic import BaseModel

    from service.settings import Settings

Model = TypeVar("Model", bound="BaseModel")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a traceback with local variables would show records
    help="Continually published private models of a stream, with a ledger of what every record has spent.",
)

CONFIGURATION_ERROR = 78


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if show_version:
        from importlib.metadata import version

        print(version("perennial"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def up(
    data_dir: Annotated[Path, typer.Option(help="Folder that holds everything.")] = Path("perennial-data"),
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.  [default: 8000]")] = None,
) -> None:
    """Run everything on this machine, in the foreground: Valkey, PostgreSQL, API and worker."""
    leave_no_crash_dumps()
    with loading():
        settings = _settings()
        from service import embedded, logs

    logs.begin(settings)
    raise typer.Exit(
        embedded.up(
            data_dir,
            host=host or settings.host,
            port=port or settings.port,
            redis_url=settings.redis_url,
            database_url=settings.database_url,
            admin_key=settings.admin_key.get_secret_value() if settings.admin_key else None,
            segment_store=_absolute(settings.segment_store) if "segment_store" in settings.model_fields_set else None,
            run=lambda part: app([part], prog_name="perennial"),
            load=_load_parts,
        )
    )


@app.command()
def api() -> None:
    """Run the HTTP service alone, against PERENNIAL_REDIS_URL and PERENNIAL_DATABASE_URL."""
    leave_no_crash_dumps()
    keep_memory()
    with loading():
        settings = _settings(servers=True, database=True)
        from service import logs
        from service.api.http.server import serve

    logs.begin(settings)
    raise typer.Exit(serve(settings))


@app.command()
def worker() -> None:
    """Run a worker alone, against PERENNIAL_REDIS_URL and PERENNIAL_DATABASE_URL."""
    leave_no_crash_dumps()
    keep_memory()
    with loading():
        settings = _settings(servers=True, database=True)
        from service import logs
        from service.worker.main import run

    logs.begin(settings)
    raise typer.Exit(run(settings))


@app.command()
def migrate() -> None:
    """Bring the database's schema up to this version, and grant the service's role what it needs."""
    with loading():
        settings = _settings(database=True)
        from service.store.migrate import CannotMigrate
        from service.store.migrate import migrate as bring_up

    variable = "PERENNIAL_DATABASE_URL" if settings.migration_url is None else "PERENNIAL_MIGRATION_URL"
    try:
        with _database_errors(variable):
            url = settings.migration_url or str(settings.database_url)
            bring_up(url, service=settings.database_url, variable=variable)
    except CannotMigrate as refused:
        _fail(str(refused))


ledger_commands = typer.Typer(no_args_is_help=True, help="Check the ledger.")
app.add_typer(ledger_commands, name="ledger")


@ledger_commands.command("verify")
def verify_ledger(
    data_dir: Annotated[Path, typer.Option(help="Folder of `perennial up`, running or not.")] = Path("perennial-data"),
) -> None:
    """Walk the whole ledger and recompute every hash and bound; name what does not hold."""
    leave_no_crash_dumps()
    with loading():
        from service.embedded import EmbeddedError, embedded_database
        from service.ledger.verify import verify, verify_segments
        from service.segments.files import StoreUnsuitable
        from service.segments.places import open_place
        from service.store.database import Database, DatabaseUnavailable

    settings = _settings()
    try:
        with ExitStack() as stack:
            url = settings.database_url or stack.enter_context(embedded_database(data_dir))
            # The setting, or the folder that `up` uses.
            segments = settings.segment_store if "segment_store" in settings.model_fields_set else data_dir / "segments"
            database = Database(url)
            with database.transaction() as connection:
                report = verify(connection)
            copies = settings.segment_copies if "segment_copies" in settings.model_fields_set else data_dir / "copies"
            files = open_place(segments, copies, most_bytes=settings.max_copy_bytes)
            stack.callback(files.drop_copies)
            findings = [*report.findings, *verify_segments(database, files)]
            database.close()
    except (EmbeddedError, DatabaseUnavailable, StoreUnsuitable) as error:
        _fail(str(error))
    for finding in findings:
        print(finding)
    print(f"{report.charges} charges on {report.streams} streams: {len(findings)} findings")
    raise typer.Exit(1 if findings else 0)


segment_commands = typer.Typer(no_args_is_help=True, help="Move the numbered records.")
app.add_typer(segment_commands, name="segments")


@segment_commands.command("copy")
def copy_segments(
    source: Annotated[str, typer.Argument(help="Folder, or object store: s3://BUCKET/PREFIX, gs://…, az://….")],
    target: Annotated[str, typer.Argument(help="The same; empty, or left by an attempt that was stopped.")],
) -> None:
    """Copy all numbered records to another folder or object store, while no API and no worker runs."""
    leave_no_crash_dumps()
    from service.addresses import segment_place
    from service.segments.copying import PlaceTaken, copy
    from service.segments.files import StoreUnsuitable
    from service.segments.places import open_place

    settings = _settings()
    try:
        places = [segment_place(url) for url in (source, target)]
    except ValueError as error:
        _fail(str(error))
    if isinstance(places[0], Path) and not places[0].is_dir():
        _fail(f"there is no folder {source}")
    try:
        files = [open_place(place, settings.segment_copies, most_bytes=settings.max_copy_bytes) for place in places]
        files[1].probe()
        copied = copy(*files)
    except (PlaceTaken, StoreUnsuitable) as error:
        _fail(f"{target}: {error}")
    except OSError as error:
        _fail(f"nothing was lost, run it again: {error.strerror}")
    print(f"{copied} segments copied; now set PERENNIAL_SEGMENT_STORE={target} and run `perennial ledger verify`")


@app.command()
def plan(
    file: Annotated[Path, typer.Argument(help='JSON: {"stream":{…},"publication":{…}}; - reads standard input.')],
) -> None:
    """Tell what a publication would cost and how noisy each release would be, without any server."""
    with loading():
        from service.inputs import strict_json
        from service.mechanisms.admission import admit
        from service.mechanisms.configuration import AskedPublication, Refused, StreamBudget
        from service.mechanisms.measured import measured
        from service.mechanisms.notes import notes
        from service.mechanisms.timing import timing
        from service.streams.schema import NewStreamSchema

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        request = strict_json.read(text)
        stream, publication = dict(request["stream"]), dict(request["publication"])
    except OSError as error:
        _fail(f"can't read {file}: {error.strerror}")
    except strict_json.Misread as misread:
        _fail(f"{'.'.join(map(str, misread.place))}: {misread.reason}")
    except json.JSONDecodeError as error:
        _fail(f"the file must hold JSON: {strict_json.not_json(text, error.pos)}")
    except (ValueError, TypeError, KeyError, RecursionError):
        _fail('the file must hold JSON: {"stream": {…}, "publication": {…}}, as in POST /v1/streams and /v1/plan')
    schema = {name: value for name, value in stream.items() if name not in ("name", "retention", "budget")}
    wanted = {name: value for name, value in publication.items() if name not in ("name", "stream", "start")}
    try:
        held = _checked(StreamBudget, stream.get("budget", _ANY_BUDGET), "budget").budget
        configuration = _checked(AskedPublication, wanted).configuration(held)
        stored_schema = _checked(NewStreamSchema, schema)
        mechanism = admit(stored_schema, configuration, budget=held)
        planned, size = mechanism.plan(), mechanism.obligations().fit
    except Refused as refused:
        _fail(str(refused))
    answer = {
        "measured": measured(stored_schema, configuration),
        "timing": timing(size, configuration.delay, in_blocks=mechanism.reads_blocks(size.records)),
        "notes": notes(planned, configuration, stored_schema, held),
    }
    print(json.dumps(planned | answer, indent=2))


@app.command()
def advise(
    file: Annotated[
        Path,
        typer.Argument(
            help="A public sample of the stream, in its order: CSV with a header, NDJSON, Parquet or Arrow."
        ),
    ],
    label: Annotated[str, typer.Option(help="The column of labels.")],
    bound: Annotated[float | None, typer.Option(min=1e-6, max=1e6, help="Labels are numbers within ±BOUND.")] = None,
    epsilon: Annotated[float, typer.Option(min=1e-3, max=1000, help="The most that a record may lose.")] = 1.0,
    delta: Annotated[float, typer.Option(min=1e-18, max=0.5, help="The same.")] = 1e-6,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Records a release.  [default: a fortieth of the sample]")
    ] = None,
    runs: Annotated[int, typer.Option(min=1, max=20, help="Runs of each candidate, with fresh noise.")] = 3,
    forget: Annotated[bool, typer.Option(help="Only candidates that forget old records.")] = False,
) -> None:
    """Measure on a public sample which mechanism suits a stream, and print what to post. Runs without any server."""
    with loading():
        from service.explorer.advice import advise as measure
        from service.explorer.report import report
        from service.explorer.sample import Unusable, read_sample
        from service.inputs.refused import Refused
        from service.mechanisms.configuration import StreamBudget

    _checked(StreamBudget, {"epsilon": epsilon, "delta": delta})
    try:
        sample = read_sample(file, label, bound)
        advice = measure(
            sample,
            epsilon=epsilon,
            delta=delta,
            batch=batch,
            runs=runs,
            forget=forget,
            progress=lambda title: typer.echo(f"measuring: {title}", err=True),
        )
    except OSError as error:
        _fail(f"can't read {file}: {error.strerror}")
    except UnicodeDecodeError:
        _fail(f"{file} is not a text in UTF-8")
    except (Unusable, Refused) as problem:
        _fail(str(problem))
    typer.echo(report(advice), err=True)
    print(json.dumps({"stream": advice.stream, "publication": advice.publication}, indent=2))


_ANY_BUDGET = {"epsilon": 1000, "delta": 0.5}  # the budget of a stream whose file names none
_OF_THE_CLIENT = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(add_help_option=False, context_settings=_OF_THE_CLIENT)
def load(context: typer.Context) -> None:
    """Append files to a stream: CSV, Parquet, Arrow or NDJSON. The Python client does it, which must be installed."""
    client_commands.become("load", context.args)


@app.command(add_help_option=False, context_settings=_OF_THE_CLIENT)
def bridge(context: typer.Context) -> None:
    """Send a message broker's messages to a stream. The Python client does it, which must be installed."""
    client_commands.become("bridge", context.args)


def _absolute(place: str | Path) -> str:
    """Return a folder's whole path, or the address of an object store as it is."""
    return str(place.absolute()) if isinstance(place, Path) else place


def _checked(model: type[Model], document: object, *above: str) -> Model:
    """Return a document as a model, or print which of its fields is wrong, and exit.

    above: the place of the document.
    """
    from pydantic import ValidationError

    from service.inputs import words

    try:
        return model.model_validate(document)
    except ValidationError as error:
        explained = words.explained(error.errors(), model)
        _fail("\n".join(f"{'.'.join(map(str, (*above, *place)))}: {reason}" for place, reason in explained))


def _load_parts() -> None:
    """Load the modules that the API and workers share; the API loads its own later."""
    with loading():
        import service.store.migrate
        import service.worker.main  # noqa: F401


def _settings(*, servers: bool = False, database: bool = False) -> "Settings":
    from pydantic import ValidationError

    from service.settings import Settings, ignore_libpq_variables

    ignore_libpq_variables()
    try:
        settings = Settings()
    except ValidationError as error:
        _fail("\n".join(f"PERENNIAL_{str(problem['loc'][0]).upper()}: {problem['msg']}" for problem in error.errors()))
    for wanted, name in ((database, "database_url"), (servers, "redis_url")):
        if wanted and getattr(settings, name) is None:
            _fail(f"set PERENNIAL_{name.upper()}, or run `perennial up`, which brings its own servers")
    if servers:
        _check_database(str(settings.database_url))
    return settings


def _check_database(url: str) -> None:
    """Exit where the database would lose what it has committed, or has another schema than this version's."""
    from service.store.database import Database
    from service.store.schema_version import serves

    with _database_errors("PERENNIAL_DATABASE_URL"):
        database = Database(url, connections=1)
        with database.transaction() as connection:
            served = serves(connection)
        database.close()
    if not served:
        _fail("the database's schema is not this version's: run `perennial migrate`")


@contextmanager
def _database_errors(variable: str) -> Iterator[None]:
    """Exit with a sentence in the place of a traceback. variable: the setting that holds the database's URL."""
    from psycopg.errors import InsufficientPrivilege
    from sqlalchemy.exc import ProgrammingError

    from service.store.database import DatabaseUnavailable, DatabaseUnsuitable

    try:
        yield
    except DatabaseUnsuitable as unsuitable:
        _fail(str(unsuitable))
    except DatabaseUnavailable as away:
        print(f"perennial: {away}", file=sys.stderr)
        raise typer.Exit(1) from None
    except ProgrammingError as error:
        if not isinstance(error.orig, InsufficientPrivilege):
            raise
        _fail(
            f"the role that {variable} names lacks a right: let PERENNIAL_MIGRATION_URL name the database's owner, and "
            "run `perennial migrate`, which grants the service's role what it needs"
        )


def _fail(message: str) -> NoReturn:
    print(f"perennial: {message}", file=sys.stderr)
    raise typer.Exit(CONFIGURATION_ERROR)
