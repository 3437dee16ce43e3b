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
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

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
        with pytest.raises(foreread.errors.NotFoundError, match=paths[7].replace(".", r"\.")):
            list(foreread.Loader(catalog, batch_size=8, epochs=1))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def check(url: str) -> None:
    """Indexes and loads the files of `directory` in a store."""
    catalog = foreread.index(url)
    assert len(catalog) == 100 and catalog.classes == [f"class{number}" for number in range(4)]
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


class _Hub(BaseHTTPRequestHandler):
    """The part of the Hugging Face Hub for listing and reading a repository."""

    protocol_version = "HTTP/1.1"
    root: Path
    #: The requests, by their paths and tokens.
    seen: list[tuple[str, str | None]]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        url = urlsplit(self.path)
        path = unquote(url.path)
        if path.startswith("/api/datasets/me/set/tree/v1/data"):
            return self._tree(parse_qs(url.query))
        if path.startswith("/datasets/me/set/resolve/v1/data/"):
            address = f"http://localhost:{self.server.server_address[1]}/store/"
            return self._answer(302, Location=address + quote(path.split("/data/", 1)[1]))
        file = self.root / path.removeprefix("/store/")
        if not path.startswith("/store/") or not file.is_file():
            return self._answer(404)
        data, wanted = file.read_bytes(), self.headers.get("Range")
        if wanted is None:
            return self._answer(200, data, ETag='"of the store"')
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last), len(data) - 1)
        self._answer(206, data[start : end + 1], ETag='"of the store"', Content_Range=f"bytes {start}-{end}/{len(data)}")

    do_HEAD = do_GET

    def _tree(self, query: dict[str, list[str]]) -> None:
        files = sorted(path for path in self.root.rglob("*"))
        if query["recursive"] == ["false"]:
            files = [path for path in files if path.parent == self.root]
        start = int(query.get("cursor", ["0"])[0])
        entries = [
            {"type": "directory", "path": f"data/{path.relative_to(self.root)}", "oid": "0"}
            if path.is_dir()
            else {"type": "file", "path": f"data/{path.relative_to(self.root)}", "size": path.stat().st_size, "oid": "0"}
            for path in files[start : start + 30]
        ]
        headers = {}
        if start + 30 < len(files):
            here = f"http://127.0.0.1:{self.server.server_address[1]}{urlsplit(self.path).path}"
            headers["Link"] = f'<{here}?recursive={query["recursive"][0]}&cursor={start + 30}>; rel="next"'
        self._answer(200, json.dumps(entries).encode(), **headers)


def test_hub_is_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = directory / "class0" / "a b+c%.bin"
    odd.write_bytes(b"odd")
    seen: list[tuple[str, str | None]] = []
    server = _Server(("127.0.0.1", 0), type("Hub", (_Hub,), {"root": directory, "seen": seen}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("HF_TOKEN", "secret")
        catalog = foreread.index("hf://datasets/me/set@v1/data", exclude="**/a b*")
        assert len(catalog) == 100 and catalog.classes == [f"class{number}" for number in range(4)]
        with foreread.Loader(catalog, batch_size=8, epochs=2, seed=0, memory="1MiB") as loader:
            found = [sample.id for batch in loader for sample in batch if bytes(sample) == content(sample.id)]
        assert sorted(found) == sorted([*range(100), *range(100)])
        whole = foreread.index("hf://datasets/me/set@v1/data")
        with foreread.Loader(whole.filter(lambda row: row["size"] == 3), epochs=1) as loader:
            assert [(sample.path, bytes(sample)) for batch in loader for sample in batch] == [("class0/a b+c%.bin", b"odd")]
        # The token is for the Hub, and not for the store that it redirects to.
        assert {token for path, token in seen if not path.startswith("/store/")} == {"Bearer secret"}
        assert {token for path, token in seen if path.startswith("/store/")} == {None}
        with pytest.raises(foreread.errors.NotFoundError):
            foreread.index("hf://datasets/me/none@v1/data")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
