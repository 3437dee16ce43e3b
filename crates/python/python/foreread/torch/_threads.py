"""Threads that decode and transform batches ahead of the trainer.

No thread waits for the engine. A request for a batch takes ready batches from the engine and submits them to the
threads, up to the prefetch limit. So a loop that is left early has nothing to stop, wake or join. The price is that new
batches are started only during a request. Between two steps, started batches continue.

PyTorch's operators use one thread in each of these threads, as in PyTorch's worker processes. Each would use all cores
otherwise, and threads that wait for each other make a loader several times slower on machines with many cores.

The interpreter's exit does not wait long, because a transform may hang in an uninterruptible call. Threads get a short
timeout to finish, because native code that runs while the interpreter shuts down may crash it. Then they are
abandoned.
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
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

from ..errors import ForkError

T = TypeVar("T")
B = TypeVar("B")

#: How long the interpreter's exit waits for threads, in seconds.
_EXIT_TIMEOUT = 1.0

#: Jobs with the future of their result. None ends a thread.
_Jobs = SimpleQueue[tuple["Future[Any]", Callable[[], Any]] | None]

_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()


class _Pool:
    """Threads that end with the pool or the interpreter."""

    def __init__(self, threads: int) -> None:
        self._jobs: _Jobs = SimpleQueue()
        self._wanted = threads
        self._started = 0
        self.close = weakref.finalize(self, _end, self._jobs, threads)
        self.close.atexit = False
        _pools.add(self)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        if self._started < self._wanted:
            self._start()
            self._started += 1
        future: Future[T] = Future()
        self._jobs.put((future, work))
        return future

    def _start(self) -> None:
        begun = threading.Event()
        thread = threading.Thread(target=_work, args=(self._jobs, begun), name="foreread-transform", daemon=True)
        _threads.add(thread)
        operators = torch.get_num_threads()
        thread.start()
        begun.wait()
        # The number is each thread's own, and that of threads to come: those are not the loader's.
        torch.set_num_threads(operators)


@contextmanager
def one_operator_thread() -> Iterator[None]:
    """Lets PyTorch's operators use one thread of the caller, until the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _work(jobs: _Jobs, begun: threading.Event) -> None:
    try:
        # A thread takes the number of all threads at its first look.
        torch.get_num_threads()
        torch.set_num_threads(1)
    finally:
        begun.set()
    while (job := jobs.get()) is not None:
        future, work = job
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
        # Releases the memory of this job while waiting for the next.
        del job, future, work


def _end(jobs: _Jobs, threads: int) -> None:
    for _ in range(threads):
        jobs.put(None)


@atexit.register
def _at_exit() -> None:
    for pool in list(_pools):
        pool.close()
    until = time.monotonic() + _EXIT_TIMEOUT
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))


def _make_items(make: Callable[[B, int], T], batch: B, span: range) -> list[T]:
    return [make(batch, at) for at in span]


class Pipeline(Generic[B, T]):
    """Converts the samples of batches into items, in order, for up to `ahead` batches, with `threads` parts of a batch in
    parallel."""

    def __init__(self, threads: int, ahead: int) -> None:
        self._threads = threads
        self._ahead = max(1, ahead)
        self._pool = _Pool(threads) if threads > 0 else None
        self._in_flight: deque[tuple[B, list[Future[list[T]]]]] = deque()
        #: Seconds that requests have waited for the conversion of available samples.
        self.waited = 0.0

    def run(
        self, make: Callable[[B, int], T], wait: Callable[[], B | None], ready: Callable[[], B | None]
    ) -> Iterator[tuple[B, list[T]]]:
        """Yields batches with their items. `make` converts a sample of a batch. `wait` waits for the next batch, `ready`
        returns it if it is available. Both return None at the end. An exception of `ready` is raised after the earlier
        batches."""
        if self._pool is None:
            while (batch := wait()) is not None:
                yield batch, self._timed(lambda: [make(batch, at) for at in range(len(batch))])  # type: ignore[arg-type]
            return
        self.clear()
        failed: Exception | None = None
        pid = os.getpid()
        while True:
            if os.getpid() != pid:
                # A forked child does not have the threads that work on these.
                self._in_flight.clear()
                raise ForkError("the loader's threads belong to another process: create the loader in the child")
            while failed is None and len(self._in_flight) < self._ahead:
                try:
                    if (batch := ready()) is None:
                        break
                except Exception as error:
                    failed = error
                    break
                self._begin(self._pool, make, batch)
            if not self._in_flight:
                if failed is not None:
                    raise failed
                if (batch := wait()) is None:
                    return
                self._begin(self._pool, make, batch)
                continue
            batch, parts = self._in_flight.popleft()
            yield batch, self._timed(lambda: [item for part in parts for item in part.result()])

    def _begin(self, pool: _Pool, make: Callable[[B, int], T], batch: B) -> None:
        count = len(batch)  # type: ignore[arg-type]
        each = max(1, -(-count // self._threads))
        spans = [range(at, min(at + each, count)) for at in range(0, count, each)]
        parts = [pool.submit(partial(_make_items, make, batch, span)) for span in spans]
        self._in_flight.append((batch, parts))

    def _timed(self, made: Callable[[], list[T]]) -> list[T]:
        begun = time.monotonic()
        try:
            return made()
        finally:
            self.waited += time.monotonic() - begun

    def clear(self) -> None:
        """Cancels batches in flight."""
        for _, parts in self._in_flight:
            for part in parts:
                part.cancel()
        self._in_flight.clear()

    def close(self) -> None:
        """Cancels batches in flight, and ends the threads after their current jobs."""
        self.clear()
        if self._pool is not None:
            self._pool.close()
