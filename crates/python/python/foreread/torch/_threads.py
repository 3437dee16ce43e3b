"""Threads that decode, transform and collate batches ahead of the trainer.

The thread that makes a batch's last item collates it, so no thread waits for another, and the trainer only takes the result.
A batch holds its samples until the trainer takes it, so batches that are ready count in the engine's look-ahead.

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
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from ..errors import ForkError

B = TypeVar("B")
I = TypeVar("I")  # noqa: E741
T = TypeVar("T")

#: How long the interpreter's exit waits for threads, in seconds.
_EXIT_TIMEOUT = 1.0

#: Functions that raise nothing. None ends a thread.
_Jobs = SimpleQueue[Callable[[], None] | None]

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

    def submit(self, job: Callable[[], None]) -> None:
        if self._started < self._wanted:
            self._start()
            self._started += 1
        self._jobs.put(job)

    def _start(self) -> None:
        begun = threading.Event()
        thread = threading.Thread(target=_work, args=(self._jobs, begun, _device()), name="foreread-transform", daemon=True)
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


def _device() -> int | None:
    """The caller's CUDA device, if CUDA is in use."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def _work(jobs: _Jobs, begun: threading.Event, device: int | None) -> None:
    try:
        if device is not None:
            # Each thread has a device of its own, and begins with the first one.
            torch.cuda.set_device(device)
        # A thread takes the number of all threads at its first look.
        torch.get_num_threads()
        torch.set_num_threads(1)
    finally:
        begun.set()
    while (job := jobs.get()) is not None:
        job()
        # Releases the memory of this job while waiting for the next.
        del job


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


class Outcome(NamedTuple):
    """A batch of samples, and what was made of it: a result or an exception."""

    batch: Any
    made: Any = None
    error: BaseException | None = None


class _Job(Generic[B, I, T]):
    """Makes the items of a batch in parts, and joins them in the thread that finishes last.

    It does not hold the functions, because these hold the loader that holds it.
    """

    def __init__(self, batch: B, parts: list[range]) -> None:
        self._batch = batch
        self._parts = parts
        self._items: list[list[I]] = [[] for _ in parts]
        self._errors: dict[int, BaseException] = {}
        self._left = len(parts)
        self._lock = threading.Lock()
        self.future: Future[T] = Future()
        #: Seconds of making an item part, on average, and of joining.
        self.making = self.joining = 0.0

    def run(self, make: Callable[[B, int], I], join: Callable[[B, list[I]], T], number: int) -> None:
        """Makes a part."""
        begun = time.monotonic()
        if not self.future.cancelled():
            try:
                self._items[number] = [make(self._batch, at) for at in self._parts[number]]
            except BaseException as error:
                self._errors[number] = error
        with self._lock:
            self.making += (time.monotonic() - begun) / len(self._parts)
            self._left -= 1
            if self._left:
                return
        if self.future.set_running_or_notify_cancel():
            self._finish(join)

    def _finish(self, join: Callable[[B, list[I]], T]) -> None:
        if self._errors:
            self.future.set_exception(self._errors[min(self._errors)])
            return
        begun = time.monotonic()
        try:
            made = join(self._batch, [item for items in self._items for item in items])
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.joining = time.monotonic() - begun
            self.future.set_result(made)


class Ahead:
    """Batches that are begun before they are requested, in their order, up to a limit."""

    def __init__(self, ahead: int) -> None:
        self._ahead = max(1, ahead)
        self._in_flight: deque[Any] = deque()
        self._failed: Exception | None = None

    def _fill(self, ready: Callable[[], Any], begin: Callable[[Any], None]) -> None:
        """Begins batches of `ready` as long as it has some. Its exception is kept, and raised after the earlier batches."""
        while self._failed is None and len(self._in_flight) < self._ahead:
            try:
                if (batch := ready()) is None:
                    return
            except Exception as error:
                self._failed = error
                return
            begin(batch)


class Pipeline(Ahead, Generic[B, I, T]):
    """Makes results of batches of samples, in order, for up to `ahead` batches, with `threads` parts of a batch in parallel.

    With 0 threads the caller's thread makes them. An interrupt (KeyboardInterrupt) loses no batch that is in flight.
    """

    def __init__(self, threads: int, ahead: int) -> None:
        super().__init__(ahead)
        self._threads = threads
        self._pool = _Pool(threads) if threads > 0 else None
        self._pid = os.getpid()
        self._in_flight: deque[tuple[B, _Job[B, I, T] | None]] = deque()
        #: Seconds that requests have waited for making items of available samples, and for joining them.
        self.waited = self.joined = 0.0

    def next(
        self,
        make: Callable[[B, int], I],
        join: Callable[[B, list[I]], T],
        wait: Callable[[], B | None],
        ready: Callable[[], B | None],
    ) -> Outcome | None:
        """The next batch with its result or exception. `make` makes an item of a sample of a batch, `join` a result of the
        items. `wait` waits for the next batch of samples, `ready` returns it if it is available. Both return None at the
        end. Their exceptions are raised, those of `ready` after the earlier batches."""
        if os.getpid() != self._pid and self._pool is not None:
            # A forked child does not have the threads that work on these.
            self._in_flight.clear()
            raise ForkError("the loader's threads belong to another process: create the loader in the child")
        if self._pool is not None:
            begin = partial(self._begin, self._pool, make, join)
            self._fill(ready, begin)
        if not self._in_flight:
            if self._failed is not None:
                raise self._failed
            if (batch := wait()) is None:
                return None
            if self._pool is None:
                self._in_flight.append((batch, None))
            else:
                begin(batch)
                self._fill(ready, begin)
        batch, job = self._in_flight[0]
        # It is in flight until there is an outcome, so an interrupt leaves it for the next request.
        outcome = self._waited(batch, job) if job is not None else self._made(make, join, batch)
        self._in_flight.popleft()
        return outcome

    def _begin(self, pool: _Pool, make: Callable[[B, int], I], join: Callable[[B, list[I]], T], batch: B) -> None:
        count = len(batch)  # type: ignore[arg-type]
        each = max(1, -(-count // self._threads))
        # An empty batch has one part, which is empty.
        parts = [range(at, min(at + each, count)) for at in range(0, max(1, count), each)]
        job: _Job[B, I, T] = _Job(batch, parts)
        for number in range(len(parts)):
            pool.submit(partial(job.run, make, join, number))
        # Last: an interrupt before it loses the batch, which the loader sees by its number and reads again. A batch in
        # flight has all of its parts.
        self._in_flight.append((batch, job))

    def _waited(self, batch: B, job: _Job[B, I, T]) -> Outcome:
        begun = time.monotonic()
        try:
            if (error := job.future.exception()) is not None:
                return Outcome(batch, error=error)
            return Outcome(batch, job.future.result())
        finally:
            waited = time.monotonic() - begun
            joined = waited * job.joining / max(job.making + job.joining, 1e-9)
            self.joined += joined
            self.waited += waited - joined

    def _made(self, make: Callable[[B, int], I], join: Callable[[B, list[I]], T], batch: B) -> Outcome:
        begun = time.monotonic()
        try:
            items = [make(batch, at) for at in range(len(batch))]  # type: ignore[arg-type]
        except Exception as error:
            return Outcome(batch, error=error)
        finally:
            self.waited += (made := time.monotonic()) - begun
        try:
            with one_operator_thread():
                return Outcome(batch, join(batch, items))
        except Exception as error:
            return Outcome(batch, error=error)
        finally:
            self.joined += time.monotonic() - made

    def batches(self) -> list[B]:
        """The batches in flight."""
        return [batch for batch, _ in self._in_flight]

    def clear(self) -> None:
        """Cancels batches in flight."""
        for _, job in self._in_flight:
            if job is not None:
                job.future.cancel()
        self._in_flight.clear()
        self._failed = None

    def close(self) -> None:
        """Cancels batches in flight, and ends the threads after their current jobs."""
        self.clear()
        if self._pool is not None:
            self._pool.close()
