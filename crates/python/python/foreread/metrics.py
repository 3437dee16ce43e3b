"""Prometheus metrics, for those who ask for them.

Nothing is counted until one of these is called, and runs that were started before are not counted: call ``serve`` or
``enable`` before the first loader is made.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import _native

__all__ = ["enable", "render", "serve"]


def enable() -> None:
    """Counts from now on, in loaders that are made from now on."""
    _native.enable_metrics()


def render() -> str:
    """What has been counted, in Prometheus's text format."""
    return _native.render_metrics()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.split("?")[0] not in ("/", "/metrics"):
            self.send_error(404, "metrics are at /metrics")
            return
        body = render().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A scrape is no news."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def serve(port: int, host: str = "127.0.0.1") -> int:
    """Answers GET /metrics, on a thread that ends with the process; returns the port, which is chosen if `port` is 0.

    It listens on this machine's own address alone, unless `host` says otherwise: anybody who reaches it can read it.
    """
    enable()
    server = _Server((host, port), _Handler)
    threading.Thread(target=server.serve_forever, name="foreread-metrics", daemon=True).start()
    return int(server.server_address[1])
