"""`perennial load` from object stores: a real S3 server, which is busy every third time, and folders as file://."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import obstore
import pandas as pd
import pytest
from obstore.store import from_url

import perennial.__main__ as command
from perennial import stores
from tests.client.conftest import numbered, posts
from tests.client.test_load import FRAME, RECORDS, WRITERS
from tests.conftest import Service

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def s3():
    """The address of an S3 server with a bucket `days`."""
    here = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    arguments = [sys.executable, "-m", "tests.client.object_store"]
    with subprocess.Popen(
        arguments, env=os.environ | here, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.terminate()


@pytest.fixture
def bucket(s3, monkeypatch):
    """A function that puts a file into the bucket and returns its address."""
    monkeypatch.delenv("SSL_CERT_DIR")  # without certificates the client of the store does not even start
    for name, value in {
        "AWS_ENDPOINT": s3,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)

    def put(path: Path) -> str:
        obstore.put(from_url("s3://days/of"), path.name, path)
        return f"s3://days/of/{path.name}"

    return put


def requests(s3, name):
    """The requests for an object: (range, status)."""
    log = httpx.get(f"{s3}/requests", trust_env=False).json()
    return [(range_, status) for path, range_, status in log if path.endswith(name)]


@pytest.mark.more
@pytest.mark.parametrize("name", WRITERS)
def test_an_object_is_loaded_once_from_a_busy_store(service: Service, client, load, bucket, s3, tmp_path, capsys, name):
    WRITERS[name](tmp_path / name, FRAME)
    address = bucket(tmp_path / name)
    stream = client.stream(service.stream())
    before = len(requests(s3, name))
    for _ in range(2):
        assert load(stream.name, address, "--batch", "100") == 0
        assert capsys.readouterr().out.endswith(f"{address}: {RECORDS} records accepted\n")
    assert 503 in {status for _, status in requests(s3, name)[before:]}
    numbered(stream, RECORDS)


@pytest.mark.parametrize("name", ["days.csv", "days.parquet"])
def test_a_load_from_a_store_that_is_interrupted_goes_on(
    service: Service, client, faults, load, bucket, tmp_path, monkeypatch, name
):
    interrupted, transport = faults
    WRITERS[name](tmp_path / name, FRAME)
    address = bucket(tmp_path / name)
    stream = client.stream(service.stream())

    def interrupting(_: httpx.Request) -> None:
        if len(posts(transport)) == 2:
            raise KeyboardInterrupt

    transport.after = interrupting
    with monkeypatch.context() as patch:
        patch.setattr(command, "connect", lambda *_: interrupted)
        assert load(stream.name, address, "--batch", "100") == 1
    assert load(stream.name, address, "--batch", "100") == 0
    numbered(stream, RECORDS)


def test_of_parquet_only_the_columns_that_are_wanted_are_read(service: Service, client, load, bucket, s3, tmp_path):
    path = tmp_path / "wide.parquet"
    rng = np.random.default_rng(1)
    wide = pd.DataFrame(rng.normal(size=(20_000, 40)), columns=[f"c{number}" for number in range(40)])
    wide["rain"] = (wide["c0"] > 0).astype(int)
    wide.to_parquet(path, row_group_size=5_000)
    stream = client.stream(service.stream())
    assert load(stream.name, bucket(path), "--features", "c3,c17") == 0
    numbered(stream, 20_000)
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", range_) for range_, status in requests(s3, path.name) if range_]
    read = sum(int(interval[2]) - int(interval[1]) + 1 for interval in ranges if interval)
    assert ranges
    assert read < path.stat().st_size / 4


def test_files_have_addresses_too(service: Service, client, load, tmp_path, capsys):
    WRITERS["days.parquet"](tmp_path / "days.parquet", FRAME)
    stream = client.stream(service.stream())
    assert load(stream.name, f"file://{tmp_path}/days.parquet") == 0
    assert capsys.readouterr().out.endswith(f"{RECORDS} records accepted\n")
    numbered(stream, RECORDS)


def test_objects_that_are_not_there_are_named(service: Service, load, bucket, tmp_path, capsys):
    for address in ("s3://days/of/nothing.parquet", f"file://{tmp_path}/nothing.csv"):
        assert load(service.stream(), address) == 1
        assert f"can't read {address}: there is no such object" in capsys.readouterr().err


@pytest.mark.more
def test_other_addresses_are_refused(service: Service, load, capsys):
    with pytest.raises(SystemExit):
        load(service.stream(), "ftp://days/of/may.csv")
    assert "an address must begin with s3://, gs://, az://, file://" in capsys.readouterr().err


@pytest.mark.more
def test_an_object_that_changes_while_it_is_read_is_noticed(bucket, tmp_path):
    """Else some of its records would be of the old one, and others of the new one."""
    path = tmp_path / "days.ndjson"
    path.write_bytes(b"1" * 2000)
    object_ = stores.source(bucket(path))
    with pytest.raises(OSError, match="it has changed while it was read"), object_.opened(buffer=100) as opened:
        assert opened.read(50) == b"1" * 50
        path.write_bytes(b"2" * 2000)
        bucket(path)
        opened.read()
