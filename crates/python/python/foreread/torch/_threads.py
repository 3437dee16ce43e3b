"""Batches that threads make: decoded, transformed and collated ahead of the trainer.

No thread of ours waits for the engine: whoever asks for a batch takes from the engine what is ready and hands it to the
threads, as far ahead as is allowed. So there is nothing to stop, wake or join when a loop is left in the middle. The price
is that batches are begun only while somebody asks for one; between two steps, those that were begun go on.

Nor does the interpreter's end wait for long: a transform may hang in a call that nothing interrupts, and who has pressed
Ctrl-C wants to leave. Threads are given a moment to come to the end of what they are at, because one that is in the middle of
native code when the interpreter goes may crash it; then they are left behind.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ..errors import ForkError

T = TypeVar("T")
B = TypeVar("B")

#: How long the interpreter's end waits for threads, in seconds.
_MOMENT = 1.0

#: What a thread is to do, and where its result goes; None ends it.
_Jobs = SimpleQueue[tuple["Future[Any]", Callable[[], Any]] | None]

_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()


class _Pool:
    """Threads that end with the pool, or with the interpreter."""

    def __init__(self, threads: int) -> None:
        self._jobs: _Jobs = SimpleQueue()
        self._wanted = threads
        self._started = 0
        self.close = weakref.finalize(self, _end, self._jobs, threads)
        self.close.atexit = False
        _pools.add(self)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        if self._started < self._wanted:
            thread = threading.Thread(target=_work, args=(self._jobs,), name="foreread-transform", daemon=True)
            _threads.add(thread)
            thread.start()
            self._started += 1
        future: Future[T] = Future()
        self._jobs.put((future, work))
        return future


def _work(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        future, work = job
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
        # Until the next one comes, nothing of this one is kept.
        del job, future, work


def _end(jobs: _Jobs, threads: int) -> None:
    for _ in range(threads):
        jobs.put(None)


@atexit.register
def _leave() -> None:
    for pool in list(_pools):
        pool.close()
    until = time.monotonic() + _MOMENT
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))


def _some(make: Callable[[B, int], T], batch: B, span: range) -> list[T]:
    return [make(batch, at) for at in span]


class Pipeline(Generic[B, T]):
    """Makes items of the samples of batches, `ahead` batches at a time, in order, `threads` parts of a batch side by side."""

    def __init__(self, threads: int, ahead: int) -> None:
        self._threads = threads
        self._ahead = max(1, ahead)
        self._pool = _Pool(threads) if threads > 0 else None
        self._under_way: deque[tuple[B, list[Future[list[T]]]]] = deque()
        #: How long whoever asks has waited for items to be made of samples that were there, in seconds.
        self.waited = 0.0

    def run(
        self, make: Callable[[B, int], T], wait: Callable[[], B | None], ready: Callable[[], B | None]
    ) -> Iterator[tuple[B, list[T]]]:
        """Batches with their items. `make` turns a sample of a batch into an item; `wait` waits for the next batch, `ready` has it
        or not; both end with None. What `ready` raises comes behind the batches that were there before."""
        if self._pool is None:
            while (batch := wait()) is not None:
                yield batch, self._timed(lambda: [make(batch, at) for at in range(len(batch))])  # type: ignore[arg-type]
            return
        self.clear()
        failed: Exception | None = None
        pid = os.getpid()
        while True:
            if os.getpid() != pid:
                # What is under way is made by threads that a forked child does not have.
                self._under_way.clear()
                raise ForkError("a loader's threads are in the process that made it; this is another one: make the loader in the child")
            while failed is None and len(self._under_way) < self._ahead:
                try:
                    if (batch := ready()) is None:
                        break
                except Exception as error:
                    failed = error
                    break
                self._begin(self._pool, make, batch)
            if not self._under_way:
                if failed is not None:
                    raise failed
                if (batch := wait()) is None:
                    return
                self._begin(self._pool, make, batch)
                continue
            batch, parts = self._under_way.popleft()
            yield batch, self._timed(lambda: [item for part in parts for item in part.result()])

    def _begin(self, pool: _Pool, make: Callable[[B, int], T], batch: B) -> None:
        count = len(batch)  # type: ignore[arg-type]
        each = max(1, -(-count // self._threads))
        spans = [range(at, min(at + each, count)) for at in range(0, count, each)]
        parts = [pool.submit(partial(_some, make, batch, span)) for span in spans]
        self._under_way.append((batch, parts))

    def _timed(self, made: Callable[[], list[T]]) -> list[T]:
        begun = time.monotonic()
        try:
            return made()
        finally:
            self.waited += time.monotonic() - begun

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
            self._pool.close()
