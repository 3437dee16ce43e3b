"""Announcers of frameworks' orders, and their worker processes."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from foreread._announcer import Announcer, RemoteAnnouncer


class FailingOrder:
    length = epoch_length = 100
    width = 1

    def ids(self, indices: Sequence[int]) -> array[int]:
        raise RuntimeError(f"a fault of the sampler at {indices[0]}")


def test_failing_sampler_hangs_no_worker(caplog: pytest.LogCaptureFixture) -> None:
    engine: Any = None
    announcer = Announcer(engine, FailingOrder())
    _, (address, length) = announcer.__reduce__()
    for _ in range(3):
        worker = RemoteAnnouncer(address, length)
        noting = threading.Thread(target=worker.note, args=(0,), daemon=True)
        noting.start()
        noting.join(60)
        assert not noting.is_alive(), "the worker waits for ever"
        worker.close()
    announcer.close()
    assert caplog.text.count("a fault of the sampler at 0; samples are read on request") == 3
