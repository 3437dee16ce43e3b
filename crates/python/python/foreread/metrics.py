"""Prometheus metrics, on request.

Counting starts with the first of these calls, for loaders created afterwards. Call ``serve`` or ``enable`` before
creating the first loader.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import _native

__all__ = ["enable", "render", "serve"]


def enable() -> None:
    """Starts counting, for loaders created from now on."""
    _native.enable_metrics()


def render() -> str:
    """The counters in Prometheus's text format."""
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
        """Does not log scrapes."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def serve(port: int, host: str = "127.0.0.1") -> int:
    """Serves GET /metrics on a thread that ends with the process. Returns the port, a free one if `port` is 0.

    It listens on the loopback address by default, because it has no authentication.
    """
    enable()
    server = _Server((host, port), _Handler)
    threading.Thread(target=server.serve_forever, name="foreread-metrics", daemon=True).start()
    return int(server.server_address[1])
