"""The commands that need no running service: in this process where only words and exit statuses count."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import update
from typer.testing import CliRunner, Result

from service import cli, metrics
from service.api.http import server
from service.embedded import embedded_servers
from service.segments.files import SegmentFiles
from service.settings import Settings
from service.store import segments, tables
from service.store.database import Database
from service.store.migrate import migrate
from tests.conftest import World
from tests.worker.published import Bench, number
from tests.worker.test_audit import tampering
from tests.worker.test_publishing import bench  # noqa: F401

STREAM = {"features": 3, "task": {"kind": "classification", "classes": 2}, "budget": {"epsilon": 1, "delta": 0}}
SECRET = "zebra-crossing-7319"
PUBLICATION = {
    "mechanism": {"kind": "sliding_window", "block": 100, "blocks": 7},
    "learner": {"kind": "output_perturbation"},
    "privacy": {"epsilon": 1, "delta": 0},
}


def invoked(*arguments: str, stdin: str = "", **settings: str) -> Result:
    """Run a command in this process; return what it prints and its exit status."""
    unset = {name: None for name in os.environ if name.startswith("PERENNIAL_")}
    return CliRunner().invoke(cli.app, arguments, input=stdin, env=unset | settings)


def perennial(*arguments: str, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, as a user starts it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PERENNIAL_")} | settings
    command = [sys.executable, "-m", "service", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=environment, timeout=200, check=False
    )


@pytest.mark.more
def test_a_plan_needs_no_server():
    done = perennial("plan", "-", stdin=json.dumps({"stream": STREAM, "publication": PUBLICATION}))
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["lifetime"]["epsilon"] == 1
    assert any(line["this"] for line in plan["measured"]["lines"])
    (note,) = plan["notes"]
    assert note.startswith("In a score, the noise of each ")


def test_a_plan_just_under_the_cap_of_pure_epsilon_is_made():
    settings = {"stream": STREAM, "publication": PUBLICATION | {"privacy": {"epsilon": 26.627274}}}
    done = invoked("plan", "-", stdin=json.dumps(settings))
    assert done.exit_code == 0, done.stderr
    sampling = json.loads(done.stdout)["guarantee"]["sampling"]
    assert sampling["draws"] == 3
    assert 0.999999 * 2**-60 < sampling["delta"] <= 2**-60


def test_a_plan_of_regressions_tells_no_accuracies():
    stream = STREAM | {"task": {"kind": "regression", "bound": 1}}
    done = invoked("plan", "-", stdin=json.dumps({"stream": stream, "publication": PUBLICATION}))
    assert json.loads(done.stdout)["measured"] is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("{", "must hold JSON"),
        ("[]", "must hold JSON"),
        (json.dumps({"stream": STREAM}), "must hold JSON"),
        ('{"stream": 1 "publication": 2}', "this is not JSON from character 14 on (line 1, column 14)"),
        (
            json.dumps({"stream": STREAM, "publication": PUBLICATION | {"mechanism": {"kind": "continual", "bse": 1}}}),
            "mechanism.bse: no such field (did you mean base?)",
        ),
        (
            json.dumps({"stream": STREAM | {"feature_map": {"kind": "standardize"}}, "publication": PUBLICATION}),
            "feature_map: standardize without numbers changes nothing",
        ),
        (
            json.dumps({"stream": STREAM, "publication": PUBLICATION | {"privacy": {"epsilon": 0}}}),
            "privacy.epsilon: must be above 0, at least 1e-9 (0.1 to 10 is usual)",
        ),
        (
            json.dumps({"stream": STREAM, "publication": PUBLICATION | {"privacy": {"epsilon": 26.627275}}}),
            "privacy.epsilon: epsilon must be at most 26.627274 here: one record moves up to 3 draws",
        ),
        (
            json.dumps({"stream": STREAM, "publication": PUBLICATION | {"privacy": {"epsilon": 1, "delta": 1e-6}}}),
            "budget has delta 0",
        ),
        (
            json.dumps({"stream": STREAM, "publication": PUBLICATION}).replace(
                '"delta": 0', '"delta": 0, "delta": 0', 1
            ),
            "stream.budget.delta: this name comes twice in its object; write it once",
        ),
        (
            json.dumps({"stream": STREAM, "publication": PUBLICATION}).replace(
                '"privacy": {"epsilon": 1', '"privacy": {"epsilon": 3.99999999999999999'
            ),
            "publication.privacy.epsilon: this number can't be kept exactly as it is written; round it",
        ),
    ],
)
def test_a_bad_plan_is_refused_in_a_sentence(settings, reason):
    done = invoked("plan", "-", stdin=settings)
    assert (done.exit_code, done.stdout) == (78, "")
    assert reason in done.stderr


@pytest.mark.parametrize("command", ["api", "worker", "migrate"])
def test_parts_ask_for_the_servers_they_need(command):
    done = invoked(command)
    assert done.exit_code == 78
    assert "set PERENNIAL_DATABASE_URL" in done.stderr


@pytest.mark.parametrize("command", ["api", "worker"])
def test_parts_do_not_run_on_another_schema(command, servers):
    url = servers.database_url.replace("/perennial?", "/postgres?")
    done = invoked(command, PERENNIAL_DATABASE_URL=url, PERENNIAL_REDIS_URL=servers.redis_url)
    assert done.exit_code == 78
    assert "perennial migrate" in done.stderr


@pytest.mark.parametrize("command", ["up", "api", "worker", "segments copy here there", "ledger verify"])
def test_a_command_that_reads_records_leaves_no_crash_dumps(command, monkeypatch: pytest.MonkeyPatch):
    left = []
    monkeypatch.setattr(cli, "leave_no_crash_dumps", lambda: left.append(command))
    assert invoked(*command.split(), PERENNIAL_PORT="many").exit_code == 78
    assert left == [command]


def test_a_bad_setting_is_named():
    done = perennial("api", PERENNIAL_PORT="many")
    assert done.returncode == 78
    assert "PERENNIAL_PORT" in done.stderr
    assert "Traceback" not in done.stderr


ENCODED = "percent-encoded (@ is %40, : is %3A"
STORES = "begins with s3://, gs:// or az://"


@pytest.mark.parametrize("command", ["up", "api", "worker", "migrate", "ledger verify", "segments copy a b"])
@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("DATABASE_URL", f"postgresql://u:pw@x:{SECRET}@127.0.0.1:5432/x", ENCODED),
        ("DATABASE_URL", f"postgresql://u:pw@{SECRET}@127.0.0.1:5432/x", ENCODED),
        ("DATABASE_URL", f"postgresql://u:pw@127.0.0.1:5432/x?{SECRET}=1", "an option behind the ?"),
        ("DATABASE_URL", f"postgresql://u:{SECRET}@127.0.0.1:5432/x?sslmode=bogus", "can't be used, since PostgreSQL"),
        ("DATABASE_URL", f"postgresql://u:pw@/x?host=a:1&host=b:2&sslmode={SECRET}", "can't be used, since PostgreSQL"),
        ("DATABASE_URL", f"postgresql://u:{SECRET}@127.0.0.1:65536/x", ENCODED),
        ("DATABASE_URL", f"mysql://u:{SECRET}@127.0.0.1/x", "begins with postgresql://"),
        ("DATABASE_URL", f"host=127.0.0.1 password={SECRET}", "begins with postgresql://"),
        ("MIGRATION_URL", f"postgresql://u:pw@x:{SECRET}@127.0.0.1:5432/x", ENCODED),
        ("REDIS_URL", f"redis://:pw#{SECRET}@127.0.0.1:1", ENCODED),
        ("REDIS_URL", f"redis://127.0.0.1:1,redis://127.0.0.1:{SECRET}", "must name one server, or a cluster"),
        ("REDIS_URL", f"redis+cluster://127.0.0.1:1,127.0.0.1:{SECRET}", ENCODED),
        ("REDIS_URL", f"redis://127.0.0.1:1?{SECRET}=1", ENCODED),
        ("REDIS_URL", f"http://{SECRET}", "must be like redis://"),
        ("SEGMENT_STORE", f"s3:/{SECRET}/x", STORES),
        ("SEGMENT_STORE", f"gs:/{SECRET}/x", STORES),
        ("SEGMENT_STORE", f"S3://{SECRET}/x", STORES),
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused_by_every_command_that_reads_settings_and_not_repeated(
    command, setting, value, reason
):
    done = invoked(*command.split(), **{f"PERENNIAL_{setting}": value})
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (78, "", 1)
    assert done.stderr.startswith(f"perennial: PERENNIAL_{setting}: ")
    assert reason in done.stderr
    assert SECRET not in done.stderr


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("database_url", "postgres://u:p%40%3Aw@127.0.0.1/x"),
        ("database_url", "postgresql+psycopg://u:p/w?#@[::1]:5432/x?sslmode=require&target_session_attrs=primary"),
        ("database_url", "postgresql://u@/x?host=a:1&host=b:2"),
        ("database_url", "postgresql:///x?host=/run/postgresql"),
        ("database_url", "postgresql://u:pw@x/x?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert=system"),
        ("redis_url", "redis://u:p@w:x,y@127.0.0.1:1/0"),
        ("redis_url", "unix:///run/valkey.sock?db=1"),
        ("redis_url", "rediss+cluster://u:p,w@a:1,b"),
        ("segment_store", "s3://bucket/prefix"),
    ],
)
def test_an_address_is_taken_as_it_is_written(setting, value):
    assert getattr(Settings(_env_file=None, **{setting: value}), setting) == value


@pytest.mark.parametrize("folder", ["segments", "./s3:/x", "a/b:/c", "/s3:/x", "data:/x", "s3:x"])
def test_a_folder_is_a_folder(folder):
    assert Settings(_env_file=None, segment_store=folder).segment_store == Path(folder)


def test_options_of_a_database_are_checked_without_the_servers_that_variables_name(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"PGHOST": "a,b", "PGHOSTADDR": "127.0.0.1,127.0.0.1", "PGPORT": "1,2"}.items():
        monkeypatch.setenv(name, value)
    url = "postgresql://u:pw@/x?sslmode=require"
    assert Settings(_env_file=None, database_url=url).database_url == url


@pytest.mark.parametrize("address", ["s3:/bucket/x", "gs:/bucket", "AZ://bucket"])
def test_no_segments_are_copied_to_or_from_a_folder_that_was_meant_as_a_store(tmp_path: Path, address):
    (tmp_path / "segments").mkdir()
    for places in ((str(tmp_path / "segments"), address), (address, str(tmp_path / "segments"))):
        done = invoked("segments", "copy", *places)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (78, "", 1)
        assert STORES in done.stderr
    assert not Path(address).exists()


def test_segments_are_copied_to_a_store_that_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tried = []
    monkeypatch.setattr(SegmentFiles, "probe", lambda files: tried.append(files.root))
    source, target = tmp_path / "source", tmp_path / "target"
    SegmentFiles(source).write("log", 0, 1, {"x": np.zeros((1, 1), np.float32)})
    assert invoked("segments", "copy", str(source), str(target)).exit_code == 0
    assert (tried, SegmentFiles(target).logs()) == ([target], {"log"})


@pytest.mark.more
@pytest.mark.parametrize("host", ["300.1.1.1", "203.0.113.7", "no-such-host.invalid"])
def test_a_host_that_this_machine_has_not_is_said(tmp_path: Path, host):
    done = perennial("up", "--data-dir", str(tmp_path / "data"), "--host", host)
    assert done.returncode == 78
    assert f"can't listen on {host}:8000: this machine has no such address, so choose another --host" in done.stderr
    with pytest.raises(metrics.CannotListen, match="no such address, so choose another PERENNIAL_HOST"):
        server.listen(Settings(_env_file=None, host=host))


def test_verify_passes_on_an_honest_ledger_and_fails_where_there_is_none(world: World, tmp_path: Path):
    assert invoked("ledger", "verify", PERENNIAL_DATABASE_URL=str(world.settings.database_url)).exit_code == 0
    assert invoked("ledger", "verify", "--data-dir", str(tmp_path / "none")).exit_code == 78


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PGHOSTADDR", "127.0.0.1"),
        ("PGOPTIONS", "-c search_path=mine"),
        ("PGREQUIREAUTH", "scram-sha-256"),
        ("PGSERVICE", "mine"),
        ("PGTARGETSESSIONATTRS", "standby"),
    ],
)
def test_variables_for_other_clients_of_postgresql_change_nothing(world: World, variable, value):
    settings = {"PERENNIAL_DATABASE_URL": str(world.settings.database_url), variable: value}
    assert invoked("ledger", "verify", **settings).exit_code == 0


def test_a_variable_of_postgresql_that_does_not_count_is_told_by_its_name(world: World):
    """Somebody may have asked for TLS by it. The password is still taken from there."""
    done = perennial(
        "api",
        PERENNIAL_DATABASE_URL=str(world.settings.database_url),
        PERENNIAL_REDIS_URL="redis://127.0.0.1:1",
        PERENNIAL_HOST="192.0.2.1",  # where it can't listen
        PGSSLMODE="verify-full",
        PGPASSWORD=SECRET,
    )
    assert "can't listen on 192.0.2.1" in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "variable_ignored" in line]
    assert json.loads(line)["variable"] == "PGSSLMODE"


@pytest.mark.parametrize("wrong", ["nothing", "a charge", "the newest segment"])
def test_verify_fails_where_anything_is_wrong_and_names_it(bench: Bench, wrong):  # noqa: F811
    bench.publish_all()
    number(bench.database, bench.files, 1, {"x": np.ones((1, 1), np.float32), "y": np.zeros(1, np.int32)})
    with bench.database.transaction() as connection:
        (_, newest) = segments.holding(connection, 1, 0, 11)
    if wrong == "a charge":
        owner = Database(bench.world.settings.migration_url)
        with tampering(owner) as connection:
            connection.execute(update(tables.charges).where(tables.charges.c.id == 3).values(epsilon=0.01))
        owner.close()
    if wrong == "the newest segment":
        (bench.world.settings.segment_store / "log" / newest.file).unlink()
    done = invoked(
        "ledger",
        "verify",
        PERENNIAL_DATABASE_URL=str(bench.world.settings.database_url),
        PERENNIAL_SEGMENT_STORE=str(bench.world.settings.segment_store),
    )
    assert done.exit_code == (wrong != "nothing")
    findings = {
        "a charge": "charge 3: its hash",
        "the newest segment": newest.file,
        "nothing": "5 charges on 1 streams: 0",
    }
    assert findings[wrong] in done.output


@pytest.mark.more
def test_verify_starts_the_database_of_a_stopped_service(tmp_path: Path):
    with embedded_servers(tmp_path / "data") as servers:
        migrate(servers.database_url)
    done = perennial("ledger", "verify", "--data-dir", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (0, "0 charges on 0 streams: 0 findings\n")
