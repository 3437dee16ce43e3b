"""Batches of one epoch after another for a framework that iterates its own dataset, made ahead on a thread.

A framework begins an iteration where it expects an epoch. So each iteration is the next epoch. Frameworks also look at
the first batch (``take(1)``, Keras before it trains). An iteration that is left after a few batches does not count: the
next one gets the same batches. The price: these batches stay in memory until the iteration has passed them.
"""

from __future__ import annotations

import json
import operator
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ._native import MAX_EPOCHS, Batch, Loader
from .errors import ClosedError, ConfigError

#: Batches that are made ahead of the framework.
_AHEAD = 2

#: An iteration that is left after at most this many batches does not count as an epoch.
_LOOKED_AT = 4


class EpochStream:
    """The batches of one epoch, made on a thread."""

    def __init__(self, loader: Loader, make: Callable[[Batch], Any], batches: int) -> None:
        self._condition = threading.Condition()
        self._made: deque[Any] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._left = batches
        #: Batches that were taken, for another iteration. None after too many.
        self.taken: list[Any] | None = []
        self._thread = threading.Thread(
            target=self._work, args=(loader, make, batches), name="foreread-batches", daemon=True
        )
        self._thread.start()

    def _work(self, loader: Loader, make: Callable[[Batch], Any], batches: int) -> None:
        try:
            for number in range(batches):
                batch = next(loader, None)
                if batch is None:
                    raise ConfigError(
                        f"the run has ended after batch {number} of {batches}: set epochs= to the number of epochs that "
                        "are read"
                    )
                if batch.phase != "train":
                    raise ConfigError(
                        "a validation set is set (FOREREAD_VALIDATE, foreread.toml): use a separate dataset for it"
                    )
                made = make(batch)
                del batch
                with self._condition:
                    self._condition.wait_for(lambda: len(self._made) < _AHEAD or self._closed)
                    if self._closed:
                        return
                    self._made.append(made)
                    self._condition.notify_all()
        except BaseException as error:
            with self._condition:
                self._error = error
                self._condition.notify_all()

    def __iter__(self) -> Iterator[Any]:
        """The batches from the first one: possible while `taken` is not None."""
        yield from list(self.taken or ())
        while self._left > 0:
            with self._condition:
                self._condition.wait_for(lambda: self._made or self._error is not None or self._closed)
                if not self._made:
                    if self._error is not None:
                        raise self._error
                    raise ClosedError("the dataset is closed, or a later iteration has ended this one")
                made = self._made.popleft()
                self._left -= 1
                self._condition.notify_all()
            if self.taken is not None:
                self.taken.append(made)
                if len(self.taken) > _LOOKED_AT:
                    self.taken = None
            yield made
        self.taken = None

    def close(self) -> None:
        """Ends the thread after its present batch."""
        with self._condition:
            self._closed = True
            self._made.clear()
            self._condition.notify_all()

    def join(self) -> None:
        """Waits for the thread."""
        if threading.current_thread() is not self._thread:
            self._thread.join()


class Reader:
    """The epochs of a dataset, one for each iteration. Frameworks' datasets are made of it.

    Args:
        loader: the loader. The reader closes it.
        make: makes what the framework gets of a batch.
        batch_size, drop_last: the loader's.
        start_epoch: the epoch of the first iteration.
    """

    def __init__(
        self, loader: Loader, make: Callable[[Batch], Any], batch_size: int, drop_last: bool, start_epoch: int
    ) -> None:
        self._loader = loader
        self._make = make
        samples = loader.samples
        world = loader.world_size
        share = samples // world if drop_last else -(-samples // world)
        #: The batches of an epoch on this rank.
        self.batches = share // batch_size if drop_last else -(-share // batch_size)
        self._next_epoch = operator.index(start_epoch)
        if self._next_epoch < 0:
            raise ConfigError(f"invalid start_epoch={start_epoch}: must be at least 0")
        self._stream: EpochStream | None = None
        #: The epoch at which the loader is when no stream is being read.
        self._loader_at = 0
        self._runs = 0
        self._lock = threading.Lock()

    def stream(self) -> EpochStream:
        """The batches of the epoch that is due."""
        with self._lock:
            if self._stream is not None and self._stream.taken is not None:
                return self._stream
            if self._stream is not None:
                left_early = self._stream._left > 0
                self._stream.close()
                self._stream.join()
                self._loader_at = -1 if left_early else self._loader_at
            epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
            if self._loader_at != epoch:
                state = json.loads(self._loader.state())
                self._loader.jump(json.dumps(state | {"epoch": epoch, "phase": 0, "consumed": 0}))
            self._loader_at = epoch + 1
            self._stream = EpochStream(self._loader, self._make, self.batches)
            return self._stream

    def iterate(self) -> Iterator[Any]:
        """The batches of an epoch. A later iteration ends this one."""
        self._runs += 1
        run = self._runs
        for made in self.stream():
            yield made
            if run != self._runs:
                raise ClosedError("a later iteration over this dataset has ended this one: only one epoch is read at a time")
        # Marks the last batch as done before the next epoch.
        self._loader.watch()

    def leave(self) -> None:
        """Counts the present epoch as done."""
        with self._lock:
            if self._stream is not None:
                self._stream.taken = None

    def stats(self) -> Any:
        """Statistics: see ``foreread.Stats``."""
        return self._loader.stats()

    def report(self) -> dict[str, Any]:
        """The report so far, as ``foreread.Loader.report``."""
        return self._loader.report()

    def close(self) -> None:
        """Ends reading. Iterating afterwards fails."""
        if self._stream is not None:
            self._stream.close()
        self._loader.close()
        if self._stream is not None:
            self._stream.join()

    def __del__(self) -> None:
        # Ends the thread, which would wait for the framework forever.
        if (stream := getattr(self, "_stream", None)) is not None:
            stream.close()


def epochs_of(epochs: int | None) -> int:
    """The `epochs` of a loader whose number of epochs may be unknown."""
    return MAX_EPOCHS if epochs is None else epochs
