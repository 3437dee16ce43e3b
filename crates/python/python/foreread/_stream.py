"""Batches of one epoch after another for a framework that iterates its own dataset, made ahead on a thread.

A framework begins an iteration where it expects an epoch. So each iteration is the next epoch. Frameworks also look at
the first batch (``take(1)``, Keras before it trains). An iteration that is left after a few batches does not count: the
next one gets the same batches. The price: these batches stay in memory until the iteration has passed them. An
iteration that has taken all batches counts, however few they are. One that has failed does not: the next one reads its
epoch anew.
"""

from __future__ import annotations

import json
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ._native import MAX_EPOCHS, Batch, Loader
from ._stats import Waits
from .errors import ClosedError, ConfigError, CorruptError

#: Batches that are made ahead of the framework.
_AHEAD = 2

#: An iteration that is left after at most this many batches does not count as an epoch.
_LOOKED_AT = 4


def raise_error(error: BaseException) -> NoReturn:
    """Raises the exception of a batch. StopIteration would look like the end of an epoch."""
    if isinstance(error, StopIteration):
        raise RuntimeError("a function of the loader, such as transform or collate_fn, has raised StopIteration") from error
    raise error


@dataclass(slots=True)
class Times:
    """Seconds of a dataset's iterations, for its statistics."""

    #: The thread's, in reading and in making batches.
    reading: float = 0.0
    making: float = 0.0
    #: The framework's: in waiting, and in all, without the time between iterations.
    waited: float = 0.0
    total: float = 0.0


class EpochStream:
    """The batches of one epoch, made on a thread.

    Args:
        loader: where the epoch begins.
        make: makes what the framework gets of a batch. None omits the batch.
        batches: the number of the loader's batches.
        times: to which seconds are added.
    """

    def __init__(self, loader: Loader, make: Callable[[Batch], Any], batches: int, times: Times) -> None:
        self._loader = loader
        self._make = make
        self._batches = batches
        self._times = times
        self._condition = threading.Condition(threading.RLock())
        #: What was made of the batches, with their numbers.
        self._made: deque[tuple[int, Any]] = deque()
        self._error: BaseException | None = None
        self._closed = False
        #: Whether the thread has made all batches.
        self._ended = False
        #: The present iteration. An earlier one gets no batches.
        self._run = 0
        #: Batches that were taken, for another iteration. None if the epoch counts as done.
        self._taken: list[Any] | None = []
        #: Whether all batches were taken, and whether the error was raised.
        self.done = False
        self.failed = False
        self._thread = threading.Thread(target=self._work, name="foreread-batches", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for number in range(self._batches):
                begun = time.monotonic()
                batch = next(self._loader, None)
                self._times.reading += (read := time.monotonic()) - begun
                if batch is None:
                    raise ConfigError(
                        f"the run has ended after batch {number} of {self._batches}: set epochs= to the number of epochs "
                        "that are read"
                    )
                if batch.phase != "train":
                    raise ConfigError(
                        "a validation set is set (FOREREAD_VALIDATE, foreread.toml): use a separate dataset for it"
                    )
                made = self._make(batch)
                del batch
                self._times.making += time.monotonic() - read
                with self._condition:
                    self._condition.wait_for(lambda: len(self._made) < _AHEAD or self._closed)
                    if self._closed:
                        return
                    if made is not None:
                        self._made.append((number, made))
                    self._condition.notify_all()
                del made
            with self._condition:
                self._ended = True
                self._condition.notify_all()
        except BaseException as error:
            with self._condition:
                self._error = error
                self._condition.notify_all()

    @property
    def counts(self) -> bool:
        """Whether the epoch counts as done, so that the next iteration is another epoch."""
        return self._taken is None

    def begin(self) -> int:
        """Begins an iteration from the first batch, which ends earlier ones. Possible while `counts` is false."""
        with self._condition:
            self._run += 1
            self._condition.notify_all()
            return self._run

    def take(self, run: int, at: int) -> Any:
        """The batch at an index of an iteration, which asks for one after another. None at the end."""
        with self._condition:
            # Checked under the lock that begin() holds, so that an earlier iteration takes no batch of a later one.
            if self._is_current(run) and self._taken is not None and at < len(self._taken):
                return self._taken[at]
            begun = time.monotonic()
            self._condition.wait_for(
                lambda: self._made or self._error is not None or self._ended or not self._is_current(run)
            )
            self._times.waited += time.monotonic() - begun
            if self.done and run == self._run:
                return None
            if not self._is_current(run):
                raise ClosedError(
                    "the dataset is closed, or a later iteration over this dataset has ended this one: only one epoch is "
                    "read at a time"
                )
            if self._made:
                number, made = self._made.popleft()
                self._note(made)
                self._finish(number == self._batches - 1 or (self._ended and not self._made))
                self._condition.notify_all()
                return made
            if self._error is not None:
                self.failed = True
                raise_error(self._error)
            self._finish(True)
            if at == 0 and self._batches > 0:
                raise CorruptError("no sample of the epoch can be read or decoded, and all were skipped")
            return None

    def first(self) -> Any:
        """The first batch, which is not taken. Possible before the first iteration."""
        with self._condition:
            self._condition.wait_for(lambda: self._made or self._error is not None or self._ended or self._closed)
            if self._made:
                return self._made[0][1]
            # Raises what the first iteration would raise.
            self._run += 1
            return self.take(self._run, 0)

    def _is_current(self, run: int) -> bool:
        return run == self._run and not self._closed

    def _note(self, made: Any) -> None:
        """Keeps a batch for another iteration, unless there are too many."""
        if self._taken is not None:
            self._taken.append(made)
            if len(self._taken) > _LOOKED_AT:
                self._taken = None

    def _finish(self, is_last: bool) -> None:
        if is_last:
            self.done, self._taken = True, None

    def leave(self) -> None:
        """Counts the epoch as done, also if it has failed."""
        with self._condition:
            self._taken, self.failed = None, False

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


class _Iteration(Iterator[Any]):
    """An iteration over an epoch. An exception is raised again by each further request, and an interrupt loses no batch."""

    def __init__(self, stream: EpochStream, run: int, loader: Loader, times: Times) -> None:
        self._stream, self._run = stream, run
        self._loader = loader
        self._times = times
        self._at = 0
        self._last = time.monotonic()
        self._ended = False

    def __next__(self) -> Any:
        if not self._ended:
            if (made := self._stream.take(self._run, self._at)) is not None:
                self._at += 1
                self._times.total += (now := time.monotonic()) - self._last
                self._last = now
                return made
            self._ended = True
            # Marks the last batch as done before the next epoch.
            self._loader.watch()
        raise StopIteration


class Reader:
    """The epochs of a dataset, one for each iteration. Frameworks' datasets are made of it.

    Args:
        loader: the loader. The reader closes it.
        make: makes what the framework gets of a batch. None omits the batch. Its ``skipped``, if it has one, counts the
            samples that it has omitted or replaced.
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
        self._batches = share // batch_size if drop_last else -(-share // batch_size)
        #: The epoch of the present stream, or of the first one.
        self._epoch = operator.index(start_epoch)
        if self._epoch < 0:
            raise ConfigError(f"invalid start_epoch={start_epoch}: must be at least 0")
        self._stream: EpochStream | None = None
        #: The epoch at which the loader is when no stream is being read.
        self._loader_at = 0
        self._lock = threading.Lock()
        self._times = Times()
        #: The times at the last stats().
        self._last = Times()

    @property
    def batches(self) -> int:
        """The batches of an epoch on this rank. Fewer are given if batches without samples are omitted."""
        return self._batches

    def _due(self) -> EpochStream:
        """The batches of the epoch that is due."""
        epoch = self._epoch
        if (stream := self._stream) is not None:
            if not stream.counts and not stream.failed:
                return stream
            stream.close()
            stream.join()
            if not stream.done:
                self._loader_at = -1
            if not stream.failed:
                epoch += 1
        if self._loader_at != epoch:
            state = json.loads(self._loader.state())
            self._loader.jump(json.dumps(state | {"epoch": epoch, "phase": 0, "consumed": 0}))
        self._epoch, self._loader_at = epoch, epoch + 1
        self._stream = EpochStream(self._loader, self._make, self._batches, self._times)
        return self._stream

    def first(self) -> Any:
        """The first batch, which the first iteration gets too."""
        with self._lock:
            return self._due().first()

    def iterate(self) -> Iterator[Any]:
        """The batches of an epoch. A later iteration ends this one."""
        with self._lock:
            stream = self._due()
            return _Iteration(stream, stream.begin(), self._loader, self._times)

    def leave(self) -> None:
        """Counts the present epoch as done."""
        with self._lock:
            if self._stream is not None:
                self._stream.leave()

    def stats(self) -> Any:
        """Statistics: see ``foreread.Stats``. Waits are divided as the thread has divided its time."""
        now, last = replace(self._times), self._last
        self._last = now
        reading, making = now.reading - last.reading, now.making - last.making
        waited = now.waited - last.waited
        decoding = waited * making / (reading + making) if reading + making > 0 else 0.0
        stats = self._loader.stats()
        stats = replace(stats, skipped=stats.skipped + getattr(self._make, "skipped", 0))
        return Waits(storage=waited - decoding, decode=decoding).added_to(stats, now.total - last.total)

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


def loader_of(
    target: Any,
    *,
    batch_size: int,
    shuffle: bool,
    epochs: int | None,
    seed: int,
    drop_last: bool,
    settings: dict[str, Any],
) -> Loader:
    """The loader of a framework's dataset, whose number of epochs may be unknown."""
    if not shuffle:
        if settings.get("sampler") not in (None, "sequential"):
            raise ConfigError(f"shuffle=False: contradicts sampler={settings['sampler']!r}: leave out one of them")
        settings = settings | {"sampler": "sequential"}
    epochs = MAX_EPOCHS if epochs is None else epochs
    return Loader(target, batch_size=batch_size, epochs=epochs, seed=seed, drop_last=drop_last, **settings)
