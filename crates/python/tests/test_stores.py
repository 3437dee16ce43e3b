"""Stores of the wheel beyond directories and S3: web servers, Google's and Azure's."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import bucket
import pytest

import foreread
from conftest import content
from waiting import until

#: Microsoft's emulator of Azure's storage, which `.ci/run` installs, and the account that all of these emulators have.
AZURITE = Path(__file__).parents[3] / "target" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    #: Each read is a connection, and many are concurrent.
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores connections that a client closes during read-ahead."""


def test_web_server_is_read(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(str(path.relative_to(directory)) for path in directory.rglob("*.bin"))
    listed = tmp_path / "paths.txt"
    listed.write_text("".join(f"{path}\n" for path in paths))
    monkeypatch.setenv("FOREREAD_HTTP_LIST", str(listed))
    server = _Server(("127.0.0.1", 0), partial(_Quiet, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        catalog = foreread.index(url)
        assert [catalog.path(number) for number in range(len(catalog))] == paths
        with foreread.Loader(catalog, batch_size=8, epochs=2, seed=0, memory="1MiB") as loader:
            seen = [sample.id for batch in loader for sample in batch if bytes(sample) == content(sample.id)]
            report = loader.report()
        assert sorted(seen) == sorted([*range(100), *range(100)])
        assert report["origin_requests"] - report["retried"] - report["hedged"] == 100
        (directory / paths[7]).unlink()
        with pytest.raises(foreread.NotFoundError, match=paths[7].replace(".", r"\.")):
            list(foreread.Loader(catalog, batch_size=8, epochs=1))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def check(url: str) -> None:
    """Indexes and loads the files of `directory` in a store."""
    catalog = foreread.index(url)
    assert len(catalog) == 100 and catalog.labels == [f"class{number}" for number in range(4)]
    with foreread.Loader(catalog, batch_size=8, epochs=2, seed=0, memory="1MiB") as loader:
        seen = [sample.id for batch in loader for sample in batch if bytes(sample) == content(sample.id)]
    assert sorted(seen) == sorted([*range(100), *range(100)])


def test_google_storage_is_read(directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Google's interface for listing and reading is that of S3.
    with bucket.bucket("my-bucket", "train", directory) as environment:
        account = {"gcs_base_url": environment["AWS_ENDPOINT_URL"], "disable_oauth": True, "client_email": "", "private_key": ""}
        key = tmp_path / "account.json"
        key.write_text(json.dumps(account | {"private_key_id": ""}))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(key))
        check("gs://my-bucket/train")


@pytest.fixture
def azurite(tmp_path: Path) -> Iterator[str]:
    """The address of an emulator."""
    if not AZURITE.exists():
        pytest.skip(f"needs {AZURITE}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [AZURITE, "--silent", "--skipApiVersionCheck", "--location", tmp_path / "azurite", "--blobPort", str(port)]
    with subprocess.Popen([*map(str, words), "--blobHost", "127.0.0.1"]) as process:

        def is_up() -> bool:
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        until("the emulator listens", is_up)
        yield f"http://127.0.0.1:{port}"
        process.kill()


def put(endpoint: str, path: str, query: str = "", data: bytes = b"", **headers: str) -> None:
    """Sends a PUT that is signed with the account's key (Shared Key)."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named |= {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    lines = "".join(f"{name}:{value}\n" for name, value in sorted(named.items()))
    length = str(len(data)) if data else ""
    target = f"/{ACCOUNT}/{path}"
    arguments = f"\n{query.replace('=', ':')}" if query else ""
    text = f"PUT\n\n\n{length}\n\napplication/octet-stream\n\n\n\n\n\n\n{lines}/{ACCOUNT}{target}{arguments}"
    signed = base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
    named |= {"Authorization": f"SharedKey {ACCOUNT}:{signed}", "Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{endpoint}{target}{'?' if query else ''}{query}", data, named, method="PUT")
    urllib.request.urlopen(request, timeout=60).close()


def test_azure_storage_is_read(directory: Path, azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(azurite, "train", "restype=container")
    for path in directory.rglob("*.bin"):
        put(azurite, f"train/data/{path.relative_to(directory)}", data=path.read_bytes(), x_ms_blob_type="BlockBlob")
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", azurite)
    check("az://train/data")
