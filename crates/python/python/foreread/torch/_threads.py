"""Batches that threads make: decoded, transformed and collated ahead of the trainer.

No thread of ours waits for the engine: whoever asks for a batch takes from the engine what is ready and hands it to the
threads, as far ahead as is allowed. So there is nothing to stop, wake or join when a loop is left in the middle. The price
is that batches are begun only while somebody asks for one; between two steps, those that were begun go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
B = TypeVar("B")


class Pipeline(Generic[B, T]):
    """Makes items of the samples of batches, `ahead` batches at a time, in order.

    `make` turns a sample of a batch into an item; it runs on a thread, `parts` of a batch side by side.
    """

    def __init__(self, make: Callable[[B, int], T], threads: int, ahead: int) -> None:
        self._make = make
        self._threads = threads
        self._ahead = max(1, ahead)
        self._pool = ThreadPoolExecutor(threads, "foreread-transform") if threads > 0 else None
        self._under_way: deque[tuple[B, list[Future[list[T]]]]] = deque()

    def run(self, wait: Callable[[], B | None], ready: Callable[[], B | None]) -> Iterator[tuple[B, list[T]]]:
        """Batches with their items. `wait` waits for the next batch, `ready` has it or not; both end with None."""
        if self._pool is None:
            while (batch := wait()) is not None:
                yield batch, [self._make(batch, at) for at in range(len(batch))]  # type: ignore[arg-type]
            return
        self.clear()
        while True:
            while len(self._under_way) < self._ahead and (batch := ready()) is not None:
                self._begin(self._pool, batch)
            if not self._under_way:
                if (batch := wait()) is None:
                    return
                self._begin(self._pool, batch)
                continue
            batch, parts = self._under_way.popleft()
            yield batch, [item for part in parts for item in part.result()]

    def _begin(self, pool: ThreadPoolExecutor, batch: B) -> None:
        count = len(batch)  # type: ignore[arg-type]
        each = max(1, -(-count // self._threads))
        parts = [pool.submit(self._some, batch, at, min(at + each, count)) for at in range(0, count, each)]
        self._under_way.append((batch, parts))

    def _some(self, batch: B, first: int, end: int) -> list[T]:
        return [self._make(batch, at) for at in range(first, end)]

    def clear(self) -> None:
        """Gives up what is under way."""
        for _, parts in self._under_way:
            for part in parts:
                part.cancel()
        self._under_way.clear()

    def close(self) -> None:
        """Gives up what is under way, and ends the threads when they have done what they are at."""
        self.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
