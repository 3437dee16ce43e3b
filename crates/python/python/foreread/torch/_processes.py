"""Worker processes that decode, transform and collate batches ahead of the trainer.

The processes are those of a plain ``torch.utils.data.DataLoader``, whose "samples" are the numbers of batches. So start
methods, seeds of workers, ``worker_init_fn``, ``get_worker_info()``, errors, pinning and the end of a worker are PyTorch's. A
worker requests a batch by its number and gets the samples where the engine has read them, without a copy. Only finished
batches go through the trainer's process, in shared memory as in PyTorch.

No thread waits for the engine: a request for a batch lends the ready ones to the workers, up to the prefetch limit, as
``Pipeline`` gives them to threads. Workers that are ahead wait for theirs.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data
from torch._utils import ExceptionWrapper

from .._native import Batch, BatchLender, Catalog, Loader, ShareClient
from ..errors import ForkError
from ._frameworks import as_is
from ._maker import BatchMaker, Joined, LentSamples
from ._threads import Outcome


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

    def __getitem__(self, number: int) -> tuple[int, Joined | ExceptionWrapper]:
        """What is made of the batch, or its exception, with its number."""
        maker = self._maker
        maker.pin, maker.noted = None, []
        try:
            batch = LentSamples(*self._client.batch(number, self._catalog))
            joined = maker.joined(batch, [maker.item(batch, at) for at in range(len(batch))])
            if not maker.has_default_collate:
                _check(joined)
        except Exception:
            return number, _wrapped()
        return number, joined._replace(warnings=tuple(maker.noted))


class _Check(pickle.Pickler):
    """Pickles without the contents of tensors, which are shared."""

    def reducer_override(self, value: Any) -> Any:
        return (int, ()) if isinstance(value, torch.Tensor) else NotImplemented


def _check(value: Any) -> None:
    """Raises if a value cannot be pickled. Python's queues print such an error and wait for ever."""
    _Check(io.BytesIO(), pickle.HIGHEST_PROTOCOL).dump(value)


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


class ProcessPipeline:
    """Makes results of batches of samples, in order, in worker processes, as ``Pipeline`` does in threads.

    Args:
        settings: num_workers, prefetch_factor and further arguments of PyTorch's loader about workers.
    """

    def __init__(self, native: Loader, maker: BatchMaker, settings: dict[str, Any]) -> None:
        self._lender: BatchLender = native.lender()
        self._ahead = settings["num_workers"] * settings["prefetch_factor"]
        self._numbers = _Numbers()
        self._loader = torch.utils.data.DataLoader(
            _LentBatches(self._lender.address, native.catalog, maker),
            batch_size=None,
            sampler=self._numbers,
            collate_fn=as_is,
            **settings,
        )
        self._results: Iterator[tuple[int, Joined | ExceptionWrapper]] | None = None
        self._pid = os.getpid()
        self._in_flight: deque[tuple[int, Batch]] = deque()
        #: The number of the next batch.
        self._next = 0
        self._failed: Exception | None = None
        #: Seconds that requests have waited for workers. They join, too.
        self.waited = self.joined = 0.0

    def next(
        self,
        make: Callable[..., Any],
        join: Callable[..., Any],
        wait: Callable[[], Any],
        ready: Callable[[], Any],
    ) -> Outcome | None:
        """The next batch with its result or exception: see ``Pipeline.next``. The workers have their own `make` and `join`."""
        if os.getpid() != self._pid:
            raise ForkError("the loader's workers belong to another process: create the loader in the child")
        self._fill(ready)
        if not self._in_flight:
            if self._failed is not None:
                raise self._failed
            if (batch := wait()) is None:
                self._rest()
                return None
            self._lend(batch)
            self._fill(ready)
        begun = time.monotonic()
        try:
            made = self._result()
        finally:
            self.waited += time.monotonic() - begun
        number, batch = self._in_flight.popleft()
        self._lender.take_back(number)
        if not isinstance(made, ExceptionWrapper):
            for text in made.warnings:
                warnings.warn(text, RuntimeWarning, stacklevel=4)
            return Outcome(batch, made)
        try:
            made.reraise()
        except Exception as error:
            return Outcome(batch, error=error)
        raise AssertionError("an exception was raised again")

    def _fill(self, ready: Callable[[], Batch | None]) -> None:
        while self._failed is None and len(self._in_flight) < self._ahead:
            try:
                if (batch := ready()) is None:
                    return
            except Exception as error:
                # Raised after the earlier batches.
                self._failed = error
                return
            self._lend(batch)

    def _lend(self, batch: Batch) -> None:
        if self._results is None:
            # Workers request the first batches at once.
            self._numbers.first = self._next
            self._results = iter(self._loader)
        self._lender.lend(self._next, batch)
        self._in_flight.append((self._next, batch))
        self._next += 1

    def _result(self) -> Joined | ExceptionWrapper:
        """The result of the oldest batch in flight."""
        while True:
            assert self._results is not None
            try:
                number, made = next(self._results)
            except StopIteration:
                raise RuntimeError("the worker processes have ended") from None
            if number == self._in_flight[0][0]:
                return made
            # An interrupt has lost the result on its way.
            batches = self.batches()
            self.clear()
            for batch in batches:
                self._lend(batch)

    def batches(self) -> list[Batch]:
        """The batches in flight."""
        return [batch for _, batch in self._in_flight]

    def clear(self) -> None:
        """Cancels batches in flight."""
        self._in_flight.clear()
        self._failed = None
        self._rest()

    def _rest(self) -> None:
        """Ends the iteration over the workers. They end, too, unless they are persistent."""
        if self._results is None or os.getpid() != self._pid:
            return
        # The workers have requested batches up to the prefetch limit.
        self._next += self._ahead + self._loader.num_workers
        self._lender.refuse_below(self._next)
        self._results = None

    def close(self) -> None:
        """Cancels batches in flight, and ends the workers."""
        self.clear()
        if os.getpid() == self._pid:
            self._lender.close()
            # A persistent iterator would keep them.
            self._loader._iterator = None
