"""Worker processes that decode, transform and collate batches ahead of the trainer.

The processes are those of a plain ``torch.utils.data.DataLoader``, whose "samples" are the numbers of batches. So start
methods, seeds of workers, ``worker_init_fn``, ``get_worker_info()``, errors, pinning and the end of a worker are PyTorch's. A
worker requests a batch by its number and gets the samples where the engine has read them, without a copy. Only finished
batches go through the trainer's process, in shared memory as in PyTorch.

No thread waits for the engine: a request for a batch lends the ready ones to the workers, up to the prefetch limit, as
``Pipeline`` gives them to threads. Workers that are ahead wait for theirs.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch.utils.data
from torch._utils import ExceptionWrapper

from .._native import Batch, BatchLender, Catalog, Loader, ShareClient
from ..errors import ForkError
from ._frameworks import as_is
from ._maker import BatchMaker, Joined, LentSamples
from ._threads import Ahead, Outcome


class _Numbers(torch.utils.data.Sampler[int]):
    """The numbers of batches, without an end, from one that is set before each iteration."""

    def __init__(self) -> None:
        self.first = 0

    def __iter__(self) -> Iterator[int]:
        return itertools.count(self.first)


class _LentBatches(torch.utils.data.Dataset[Any]):
    """Makes the batches that the trainer's process lends, in a worker process."""

    def __init__(self, address: str, catalog: Catalog, maker: BatchMaker) -> None:
        self._client = ShareClient(address)
        self._catalog = catalog
        self._maker = maker

    def __getitem__(self, number: int) -> _Made:
        maker = self._maker
        maker.pin, maker.noted = None, []
        try:
            batch = LentSamples(*self._client.batch(number, self._catalog))
            made: Joined | ExceptionWrapper = maker.joined(batch, [maker.item(batch, at) for at in range(len(batch))])
            _check(made)
        except Exception:
            made = _wrapped()
        return _Made(number, made, tuple(maker.noted))


class _Made(NamedTuple):
    """What a worker has made of a batch."""

    number: int
    result: Joined | ExceptionWrapper
    warnings: tuple[str, ...]


class _Begin:
    """Begins a worker. An interrupt by the keyboard is the trainer's: workers that end lose their batches."""

    def __init__(self, init: Callable[[int], None] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self._init is not None:
            self._init(worker)


class _Check(pickle.Pickler):
    """Pickles without the contents of tensors, which are shared."""

    def reducer_override(self, value: Any) -> Any:
        return (int, ()) if isinstance(value, torch.Tensor) else NotImplemented


class _Nowhere:
    """A file that keeps nothing."""

    @staticmethod
    def write(data: Any) -> int:
        return len(data)


def _check(value: Any) -> None:
    """Raises if a value cannot be pickled. Python's queues print such an error, and their readers wait for ever."""
    _Check(_Nowhere(), pickle.HIGHEST_PROTOCOL).dump(value)


def _wrapped() -> ExceptionWrapper:
    """The exception that is handled now, for the trainer's process."""
    worker = torch.utils.data.get_worker_info()
    wrapped = ExceptionWrapper(where=f"in DataLoader worker process {worker.id if worker else 0}")
    try:
        _check(wrapped)
    except Exception:
        # A class that only this process has.
        wrapped.exc_type = RuntimeError
    return wrapped


class TimedOutError(Exception):
    """PyTorch's error of a worker that is late, as the cause. The batch is still to come."""


class ProcessPipeline(Ahead):
    """Makes results of batches of samples, in order, in worker processes, as ``Pipeline`` does in threads.

    After an interrupt the state of PyTorch's iterator is unknown. So the next request begins another one, which makes the
    batches in flight again.

    Args:
        settings: num_workers, prefetch_factor and further arguments of PyTorch's loader about workers.
    """

    def __init__(self, native: Loader, maker: BatchMaker, settings: dict[str, Any]) -> None:
        super().__init__(settings["num_workers"] * settings["prefetch_factor"])
        self._lender: BatchLender = native.lender()
        # Workers that wait for a batch end at once, also if the collector of garbage takes the loader.
        self._finish = weakref.finalize(self, self._lender.close)
        self._finish.atexit = False
        self._numbers = _Numbers()
        self._loader = torch.utils.data.DataLoader(
            _LentBatches(self._lender.address, native.catalog, maker),
            batch_size=None,
            sampler=self._numbers,
            collate_fn=as_is,
            **(settings | {"worker_init_fn": _Begin(settings.get("worker_init_fn"))}),
        )
        self._results: Iterator[_Made] | None = None
        self._pid = os.getpid()
        self._in_flight: deque[tuple[int, Batch]] = deque()
        #: The number of the next batch.
        self._next = 0
        #: Whether a request was left by an interrupt.
        self._interrupted = False
        #: Seconds that requests have waited for workers. They join, too.
        self.waited = self.joined = 0.0

    def next(
        self,
        make: Callable[..., Any],
        join: Callable[..., Any],
        wait: Callable[[], Any],
        ready: Callable[[], Any],
    ) -> Outcome | None:
        """The next batch with its result or exception: see ``Pipeline.next``. The workers have their own `make` and `join`.

        Raises:
            TimedOutError: if no result came within the timeout. The next request waits again.
        """
        if os.getpid() != self._pid:
            raise ForkError("the loader's workers belong to another process: create the loader in the child")
        if self._interrupted:
            self._again()
        self._interrupted = True
        try:
            outcome = self._outcome(wait, ready)
        except Exception:
            self._interrupted = False
            raise
        self._interrupted = False
        return outcome

    def _outcome(self, wait: Callable[[], Batch | None], ready: Callable[[], Batch | None]) -> Outcome | None:
        self._fill(ready, self._lend)
        if not self._in_flight:
            if self._failed is not None:
                raise self._failed
            if (batch := wait()) is None:
                self._rest()
                return None
            self._lend(batch)
            self._fill(ready, self._lend)
        begun = time.monotonic()
        try:
            made = self._result()
        finally:
            self.waited += time.monotonic() - begun
        number, batch = self._in_flight[0]
        for text in made.warnings:
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        if isinstance(made.result, ExceptionWrapper):
            try:
                made.result.reraise()
            except Exception as error:
                outcome = Outcome(batch, error=error)
        else:
            outcome = Outcome(batch, made.result)
        self._lender.take_back(number)
        # Last: until here an interrupt leaves the batch for the next request.
        self._in_flight.popleft()
        return outcome

    def _lend(self, batch: Batch) -> None:
        if self._results is None:
            # Workers request the first batches at once.
            self._numbers.first = self._next
            self._results = iter(self._loader)
        # No number is used twice, whenever an interrupt comes. The loader sees by its index that a batch is lost.
        number, self._next = self._next, self._next + 1
        self._lender.lend(number, batch)
        self._in_flight.append((number, batch))

    def _result(self) -> _Made:
        """The result of the oldest batch in flight."""
        assert self._results is not None
        try:
            made = next(self._results)
        except RuntimeError as error:
            if str(error).startswith("DataLoader timed out"):
                raise TimedOutError from error
            # A worker has ended. Persistent ones would not begin anew.
            self._drop()
            raise
        if made.number != self._in_flight[0][0]:
            raise RuntimeError(f"a worker process returned batch {made.number} in place of {self._in_flight[0][0]}")
        return made

    def batches(self) -> list[Batch]:
        """The batches in flight."""
        return [batch for _, batch in self._in_flight]

    def clear(self) -> None:
        """Cancels batches in flight."""
        self._in_flight.clear()
        self._failed = None
        if self._interrupted:
            self._drop()
        self._rest()

    def _again(self) -> None:
        """Has the batches in flight made by new workers."""
        batches, failed = self.batches(), self._failed
        self._in_flight.clear()
        self._drop()
        for batch in batches:
            self._lend(batch)
        self._failed, self._interrupted = failed, False

    def _rest(self) -> None:
        """Ends the iteration over the workers. They end, too, unless they are persistent."""
        if self._results is None or os.getpid() != self._pid:
            return
        # Workers have requested batches up to the prefetch limit.
        self._next += self._ahead
        self._lender.refuse_below(self._next)
        self._results = None

    def _drop(self) -> None:
        """Ends the workers."""
        self._rest()
        if os.getpid() == self._pid:
            # A persistent iterator would keep them.
            self._loader._iterator = None
        self._interrupted = False

    def close(self) -> None:
        """Cancels batches in flight, and ends the workers."""
        self._in_flight.clear()
        if os.getpid() == self._pid:
            self._lender.close()
            self._results = None
            self._loader._iterator = None
