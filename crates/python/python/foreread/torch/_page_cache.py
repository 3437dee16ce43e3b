"""Read-ahead into the kernel's page cache, for datasets on a local file system without caches of foreread.

The dataset opens its files itself. Before that, native threads let the kernel read them. Nothing is copied, in worker
processes either, and libraries that open files in C profit as well. Where nearly all files are in the page cache already,
only one of 64 is looked at. The price: the kernel decides what stays in memory.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

from .._native import PageCacheReader, Source
from .._stats import IDLE, TRAINER_BOUND_SHARE, Stats
from ._paths import places_of


class PageCachePart:
    """The files of a dataset that are read ahead into the page cache."""

    def __init__(self, reader: PageCacheReader, source: Source, numbers: array[int], width: int = 1) -> None:
        self._reader: PageCacheReader | None = reader
        self._pid = os.getpid()
        self._numbers = numbers
        #: The number of files per sample.
        self._width = width
        self._look_ahead = source.stats().look_ahead_bytes
        #: The position of the current epoch in the announced order, and its length.
        self._base = self._length = 0
        #: The lengths of the announced epochs after it.
        self._later: list[int] = []
        self._samples = 0
        self._seconds = self._waited = 0.0
        #: The time of the last batch of this epoch.
        self._last: float | None = None
        #: Samples, seconds and waited seconds at the last ``stats()``, and files then.
        self._before: tuple[int, float, float] = (0, 0.0, 0.0)
        self._counts: dict[str, Any] = {"cached": 0, "read_ahead": 0, "bytes": 0, "is_aside": False}
        self._counts_before = self._counts

    @property
    def is_open(self) -> bool:
        """Whether it reads ahead. It does so in the process that made it only."""
        return self._reader is not None and self._pid == os.getpid()

    def announce(self, orders: Sequence[array[int]]) -> None:
        """Replaces the order of the current epoch and later ones."""
        if self._reader is None:
            return
        # Not by PyTorch, whose threads then spin for a tenth of a second.
        self._reader.announce(array("q", map(self._numbers.__getitem__, places_of(chain.from_iterable(orders), self._width))))
        lengths = [len(order) for order in orders]
        self._base, self._length, self._later = 0, lengths[0], lengths[1:]

    def next_epoch(self) -> None:
        """Continues with the next announced epoch."""
        self._base += self._length
        self._length = self._later.pop(0) if self._later else 0

    def advance(self, delivered: int, begun: int, waited: float | None) -> None:
        """Notes that `delivered` more samples were delivered, and that work on those before `begun` in this epoch has begun."""
        now = time.monotonic()
        self._samples += delivered
        if self._last is not None:
            self._seconds += now - self._last
            self._waited += waited or 0.0
        self._last = now
        if self._reader is not None and self.is_open:
            self._reader.advance((self._base + min(begun, self._length)) * self._width)

    def pause(self) -> None:
        """Marks the end of an epoch."""
        self._last = None

    def stats(self) -> Stats:
        """The statistics so far. `hits` are the files that were looked at: found in the page cache, or read ahead."""
        if self._reader is not None and self.is_open:
            self._counts = self._reader.counts()
        counts, before = self._counts, self._counts_before
        samples, seconds, waited = (now - then for now, then in zip((self._samples, self._seconds, self._waited), self._before))
        self._before, self._counts_before = (self._samples, self._seconds, self._waited), counts
        seen = {name: counts[key] - before[key] for name, key in (("page cache", "cached"), ("origin", "read_ahead"))}
        every = sum(seen.values())
        stall = min(1.0, waited / seconds) if seconds else 0.0
        return Stats(
            samples=self._samples,
            samples_per_second=samples / seconds if seconds else 0.0,
            overall_samples_per_second=self._samples / self._seconds if self._seconds else 0.0,
            stall_share=stall,
            overall_stall_share=min(1.0, self._waited / self._seconds) if self._seconds else 0.0,
            hits={name: count / every if every else 0.0 for name, count in seen.items()},
            limiting=_limiting(stall, seen) if samples else IDLE,
            requests=counts["read_ahead"],
            origin_bytes=counts["bytes"],
            floor_bytes=counts["bytes"],
            look_ahead_bytes=self._look_ahead,
            _text=json.dumps({"page_cache": counts, "samples": self._samples}),
        )

    def close(self) -> None:
        """Ends read-ahead."""
        if self._reader is not None and self.is_open:
            self._counts = self._reader.counts()
            self._reader.close()
        self._reader = None

    def __deepcopy__(self, memo: dict[int, Any]) -> PageCachePart:
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Another process has no threads for it.
        return {**vars(self), "_reader": None, "_numbers": array("q")}


def _limiting(stall: float, seen: dict[str, int]) -> str:
    if stall < TRAINER_BOUND_SHARE:
        return "trainer"
    return "origin" if seen["origin"] > seen["page cache"] else "transform"
