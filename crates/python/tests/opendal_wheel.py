"""The wheel with the feature `opendal` reads a web server. Run by `.ci/soak opendal`, which builds it."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import foreread
from conftest import content


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
