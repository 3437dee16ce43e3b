"""A local bucket: the part of S3 for listing and reading, over files of a directory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

#: The size of a page of the listing.
_PAGE = 50


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    #: Keys with their contents, and the bucket's name.
    objects: dict[str, Path]
    bucket: str

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        try:
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
        except ConnectionError:
            # A client that ends during read-ahead closes its connections.
            self.close_connection = True

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if bucket != self.bucket:
            return self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        if not key:
            return self._list(query)
        path = self.objects.get(key)
        if path is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        data = path.read_bytes()
        headers = {"ETag": f'"{len(data)}"', "Last_Modified": "Sun, 22 Nov 2026 00:00:00 GMT"}
        requested = self.headers.get("Range")
        if requested is None:
            return self._answer(200, data, **headers)
        first, _, last = requested.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last), len(data) - 1)
        self._answer(206, data[start : end + 1], Content_Range=f"bytes {start}-{end}/{len(data)}", **headers)

    do_HEAD = do_GET

    def _list(self, query: dict[str, str]) -> None:
        prefix, after = query.get("prefix", ""), query.get("continuation-token") or query.get("start-after", "")
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        page = keys[:_PAGE]
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-22T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{self.objects[key].stat().st_size}&quot;</ETag><Size>{self.objects[key].stat().st_size}</Size></Contents>"
            for key in page
        )
        more = len(keys) > len(page)
        next_page = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        body = (
            f"<ListBucketResult><Name>{self.bucket}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{next_page}{contents}</ListBucketResult>"
        )
        self._answer(200, body.encode(), Content_Type="application/xml")


@contextmanager
def bucket(name: str, prefix: str, directory: Path) -> Iterator[dict[str, str]]:
    """Serves a directory's files below a prefix, and returns the environment for readers."""
    objects = {f"{prefix}/{path.relative_to(directory)}": path for path in directory.rglob("*") if path.is_file()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"objects": objects, "bucket": name}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
