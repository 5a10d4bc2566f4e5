"""`perennial load`: files of every kind, none of their records twice, and no word of what is in them."""

import io
import json
import os
import re
import subprocess
import sys

import httpx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import perennial.__main__ as command
from perennial import files
from perennial.stores import LocalFile
from service import cli, client_commands
from tests.client.conftest import numbered, posts
from tests.conftest import Service

RECORDS = 250
FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(RECORDS, 2)).round(3), columns=["a", "b"])
FRAME["rain"] = (FRAME["a"] > 0).astype(int)


def as_arrow(path, frame, new):
    table = pa.Table.from_pandas(frame, preserve_index=False)
    with new(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


def as_ndjson(path, frame):
    path.write_text("\n".join(json.dumps(row) for row in frame.to_dict("records")) + "\n\n")


WRITERS = {
    "days.csv": lambda path, frame: frame.to_csv(path, index=False),
    "days.parquet": lambda path, frame: frame.to_parquet(path, row_group_size=100),
    "days.arrow": lambda path, frame: as_arrow(path, frame, pa.ipc.new_file),
    "days.arrows": lambda path, frame: as_arrow(path, frame, pa.ipc.new_stream),
    "days.ndjson": as_ndjson,
    "DAYS.JSONL": as_ndjson,
}


@pytest.mark.more
@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_loaded_once(service: Service, client, load, tmp_path, capsys, name):
    WRITERS[name](tmp_path / name, FRAME)
    stream = client.stream(service.stream())
    for _ in range(2):
        assert load(stream.name, tmp_path / name, "--batch", "100") == 0
        assert capsys.readouterr().out.endswith(f"{name}: {RECORDS} records accepted\n")
    numbered(stream, RECORDS)


@pytest.mark.parametrize("name", ["days.csv", "days.parquet", "days.ndjson"])
def test_a_column_of_units_is_loaded_as_it_is_written(service: Service, client, load, tmp_path, capsys, name):
    ids = [f"{row % 5:03}" for row in range(RECORDS)]
    WRITERS[name](tmp_path / name, FRAME.assign(who=ids))
    stream = client.stream(service.stream(unit={"max_records": 3}))
    for _ in range(2):
        assert load(stream.name, tmp_path / name, "--unit", "who", "--features", "a,b") == 0, capsys.readouterr().err
    numbered(stream, RECORDS)
    assert service.client().get(f"/v1/streams/{stream.name}/units/004").json()["records"] == [4, 9, 14]


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("installed", [True, False])
def test_a_terminal_shows_a_bar_where_tqdm_is_installed(service: Service, load, tmp_path, monkeypatch, installed):
    """It is an extra, which files are loaded without."""
    WRITERS["days.csv"](tmp_path / "days.csv", FRAME)
    monkeypatch.setattr(sys, "stderr", Terminal())
    if not installed:
        for name in ("tqdm", "tqdm.auto"):
            monkeypatch.setitem(sys.modules, name, None)
    assert load(service.stream(), tmp_path / "days.csv") == 0, sys.stderr.getvalue()
    assert ("250 records" in sys.stderr.getvalue()) == installed


def test_two_files_of_one_name_are_not_taken_for_one(service: Service, client, load, tmp_path, capsys):
    """With --name a file is known by its own name alone: of two that hold the same, the second was passed over."""
    stream = client.stream(service.stream())
    paths = [tmp_path / month / "days.csv" for month in ("may", "june")]
    for path in paths:
        path.parent.mkdir()
        WRITERS[path.name](path, FRAME)
    assert load(stream.name, *paths, "--name", "spring") == 1
    assert "Two files have the name days.csv" in capsys.readouterr().err
    numbered(stream, 0)
    assert load(stream.name, *paths) == 0
    numbered(stream, 2 * RECORDS)


def test_with_a_name_files_of_different_names_are_each_loaded_once(service: Service, client, load, tmp_path):
    stream = client.stream(service.stream())
    paths = [tmp_path / name for name in ("may.csv", "june.csv")]
    for path in paths:
        WRITERS["days.csv"](path, FRAME)
    for _ in range(2):
        assert load(stream.name, *paths, "--name", "spring") == 0
    numbered(stream, 2 * RECORDS)


def test_threads_of_arrow_read_a_file_of_this_machine_without_python(tmp_path):
    """One that had to call Python while Python ends would abort the process."""
    path = tmp_path / "days.csv"
    path.write_text("a,b\n1,2\n")
    with files._read_by_arrow(LocalFile(path)) as source:
        assert isinstance(source, pa.OSFile)


def test_a_load_that_is_interrupted_goes_on(service: Service, client, faults, load, tmp_path, capsys, monkeypatch):
    interrupted, transport = faults
    path = tmp_path / "days.csv"
    WRITERS[path.name](path, FRAME)
    stream = client.stream(service.stream())

    def interrupting(_: httpx.Request) -> None:
        if len(posts(transport)) == 2:
            raise KeyboardInterrupt

    transport.after = interrupting
    with monkeypatch.context() as patch:
        patch.setattr(command, "connect", lambda *_: interrupted)
        assert load(stream.name, path, "--batch", "100") == 1
    assert "run the same command again" in capsys.readouterr().err
    numbered(stream, 200)
    assert load(stream.name, path, "--batch", "100") == 0
    numbered(stream, RECORDS)


def test_a_file_that_has_changed_is_refused_not_doubled(service: Service, client, load, tmp_path, capsys):
    path = tmp_path / "days.csv"
    stream = client.stream(service.stream())
    for frame in (FRAME, pd.concat((FRAME[:220], FRAME))):
        WRITERS[path.name](path, frame)
        status = load(stream.name, path, "--batch", "100")
    error = capsys.readouterr().err
    assert status == 1
    assert "200 records in 2 batches were accepted before this." in error
    assert "under another key, which is --name of `perennial load`" in error
    numbered(stream, RECORDS)


SECRET = "a-secret"


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("days.csv", f"a,b,rain\n1,2,0\n{SECRET},2,1\n", "'a'|texts"),
        ("days.csv", "a,b,rain\n" + "1,2,0\n" * 400_000 + f"{SECRET},2,1\n", "can't be read as csv"),
        ("days.csv", "a,b,rain\n1,2,0\n1,,1\n", "'b': row 1,"),
        (
            "days.csv",
            f"a,b,rain\n1,2,0\n1,{SECRET}\n",
            "row 3, of which the header is the first, has 2 values, and the header 3",
        ),
        ("days.ndjson", f'{{"a":1,"b":2,"rain":0}}\n{SECRET}\n', "line 2 is no JSON object"),
        ("days.parquet", SECRET, "can't be read as parquet"),
        ("days.arrow", SECRET, "can't be read as arrow"),
        ("days.xlsx", SECRET, r"must end in \.arrow"),
    ],
    ids=range(8),
)
def test_what_cannot_be_read_is_not_repeated(service: Service, load, tmp_path, capsys, name, content, message):
    (tmp_path / name).write_text(content)
    assert load(service.stream(), tmp_path / name, "--batch", "1000000") == 1
    error = capsys.readouterr().err
    assert pytest.raises(AssertionError, match=message).matches(AssertionError(error)), error
    assert SECRET not in error


def test_files_and_keys_that_are_not_there_are_named(service: Service, load, key_file, tmp_path, capsys):
    assert load(service.stream(), tmp_path / "nothing.csv") == 1
    assert "can't read" in capsys.readouterr().err
    key_file.unlink()
    assert load(service.stream(), tmp_path / "nothing.csv") == 1
    assert re.search(rf"can't read {key_file}: .*--key-file", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "extra"), [(["load", "days", "days.csv"], "arrow"), (["bridge", "nats", "days"], "nats")]
)
def test_without_the_client_its_commands_say_what_to_install(monkeypatch, arguments, extra):
    monkeypatch.setattr(client_commands, "find_spec", lambda _: None)
    answer = CliRunner().invoke(cli.app, arguments)
    assert (answer.exit_code, f"./client[{extra}]" in answer.output) == (cli.CONFIGURATION_ERROR, True)


@pytest.mark.more
def test_the_command_of_the_service_hands_it_over(service: Service, client, key_file, tmp_path):
    path = tmp_path / "days.ndjson"
    WRITERS[path.name](path, FRAME)
    stream = client.stream(service.stream())
    more = ["--label", "rain", "--features", "a,b", "--url", service.url, "--key-file", key_file, "--name", "mine"]
    loaded = subprocess.run(
        [sys.executable, "-m", "service", "load", stream.name, path, *more], capture_output=True, text=True, check=False
    )
    assert (loaded.returncode, loaded.stdout) == (0, f"{path}: {RECORDS} records accepted\n"), loaded.stderr
    numbered(stream, RECORDS)


def test_a_command_that_fails_says_so_by_its_status(tmp_path):
    program = [sys.executable, "-m", "perennial", "load", "days", tmp_path / "days.csv", "--key-file", tmp_path / "key"]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("perennial: can't read ")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["at the end", "at once"])
def test_an_answer_that_nobody_can_read_is_no_success(unbuffered):
    program = """
from contextlib import nullcontext
from perennial import __main__ as command
command._key, command.connect = str, lambda *_: nullcontext()
command.loading.run = lambda *_: print("250 records accepted")
command._end(command.main(["load", "days", "days.csv"]))
"""
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a disk without room
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, "perennial: can't print: No space left on device\n")


HANDED_OVER = """
import os, sys
from service.__main__ import main

def become(program, arguments, environment):
    print("typer" in sys.modules, *arguments[1:], environment["OPENBLAS_NUM_THREADS"])
    sys.exit()

os.execve = become
sys.argv[1:] = ["load", "days", "days.csv"]
main()
"""


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "2"}, "2")])
def test_it_is_handed_over_before_the_service_loads_its_commands(monkeypatch, given, threads):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    program = [sys.executable, "-c", HANDED_OVER]
    printed = subprocess.run(program, env=os.environ | given, capture_output=True, text=True, check=True).stdout
    assert printed == f"False -m perennial load days days.csv {threads}\n"


@pytest.mark.parametrize(
    "url",
    [
        "localhost:9411",
        "http://h:abc",
        "http://h:99999",
        "http://h:0",
        "http://[::1",
        "http://",
        "http://a..b",
        "ftp://h",
    ],
)
def test_an_address_that_is_none_is_refused(key_file, capsys, url):
    arguments = ["days", "days.csv", "--url", url, "--key-file", str(key_file)]
    assert command.main(["load", *arguments]) == 1
    assert capsys.readouterr().err.startswith("perennial: url must be the address of a server, such as http://")


@pytest.mark.parametrize(
    "content", [b"", b"\n", SECRET.encode("utf-16"), f"{SECRET}ü".encode("latin-1"), b"a-secret\nb"]
)
def test_a_file_that_holds_no_key_is_refused(service: Service, load, key_file, tmp_path, capsys, content):
    key_file.write_bytes(content)
    assert load("days", tmp_path / "days.csv") == 1
    error = capsys.readouterr().err
    assert f"{key_file} holds no key: it must hold the text of one key" in error
    assert SECRET not in error


@pytest.mark.parametrize("batch", ["0", "-1", "many", "1.5"])
def test_a_batch_is_a_number_of_records(load, capsys, batch):
    with pytest.raises(SystemExit):
        load("days", "days.csv", "--batch", batch)
    assert "--batch: it must be a whole number, at least 1" in capsys.readouterr().err


def test_a_key_may_begin_with_a_byte_order_mark(service: Service, load, key_file, tmp_path):
    key_file.write_text(f"{service.admin_key}\n", encoding="utf-8-sig")
    WRITERS["days.csv"](tmp_path / "days.csv", FRAME)
    assert load(service.stream(), tmp_path / "days.csv") == 0


def test_texts_of_a_csv_may_look_like_numbers(service: Service, faults, load, tmp_path, monkeypatch):
    connected, transport = faults
    monkeypatch.setattr(command, "connect", lambda *_: connected)
    texts = ["007", "2020-01-01", "true", "1.50", ""]
    (tmp_path / "days.csv").write_text("t,rain\n" + "".join(f"{text},1\n" for text in texts))
    stream = service.stream(features=1, feature_map={"kind": "hashing", "features": 16, "tokens": "words"})
    assert load(stream, tmp_path / "days.csv") == 0
    (sent,) = posts(transport)
    assert json.loads(sent.content) == {"x": [[text] for text in texts], "y": [1.0] * len(texts)}
