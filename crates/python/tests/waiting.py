"""Waiting for what foreread, a process or the system shows."""

from __future__ import annotations

import time
from collections.abc import Callable

#: What never happened in this time does not happen. Nothing about speed: a busy machine fails no test. Seconds.
NEVER = 300


def until(what: str, holds: Callable[[], object]) -> None:
    """Waits until a condition holds, and looks every 10 ms."""
    end = time.monotonic() + NEVER
    while not holds():
        assert time.monotonic() < end, f"it never happened: {what}"
        time.sleep(0.01)
