"""A map-style dataset: for people who keep their DataLoader, workers included.

The engine is in the process that made the dataset. Worker processes, forked or spawned, ask it by a socket and get samples
through shared memory, so that there is one cache and one stream of reads however many workers there are.
"""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.utils.data

from .._native import ShareClient, Source
from ..errors import Error
from ._decode import Decode, decoder


class _Here:
    """An engine in the process that made it; copies of what holds it hold the same one."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.pid = os.getpid()
        self.last: Any = None


#: The engines of this process, and in a forked child its parent's, by their addresses.
_HERE: weakref.WeakValueDictionary[str, _Here] = weakref.WeakValueDictionary()


class Engine:
    """The way to samples: the engine itself in its own process, a client of it in any other."""

    def __init__(self, source: Source) -> None:
        self._here: _Here | None = _Here(source)
        self._client: ShareClient | None = None
        self._client_pid = -1
        # Before any worker is made, for a forked one must find it.
        self._address = source.share()
        _HERE[self._address] = self._here

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made the engine."""
        return self._here is not None and self._here.pid == os.getpid()

    def _held(self) -> _Here:
        if self._here is None or not self.is_here:
            raise RuntimeError("the engine is in the process that made it; this is another one")
        return self._here

    @property
    def source(self) -> Source:
        """The engine; only in the process that made it."""
        return self._held().source

    def _way(self) -> Source | ShareClient:
        if self._here is not None and self._here.pid == os.getpid():
            return self._here.source
        if self._client is None or self._client_pid != os.getpid():
            self._client, self._client_pid = ShareClient(self._address), os.getpid()
        return self._client

    @property
    def closed(self) -> bool:
        """Whether it was ended, as far as this process knows."""
        return self._here is not None and self._here.last is not None

    def stats(self) -> Any:
        """What has been done so far, or in all."""
        here = self._held()
        return here.source.stats() if here.last is None else here.last

    def close(self) -> None:
        """Ends it for all processes; in another than its own, lets go of the way there. Twice is no error."""
        if not self.is_here:
            self._client = None
            return
        here = self._held()
        if here.last is None:
            here.last = here.source.stats()
            here.source.close()

    def watch(self, waited: float | None = None) -> None:
        """Says in the log if samples are waited for, where workers ask for them; only in the process that made it. `waited` is how
        long the trainer has waited so far, in seconds, where that is not when samples are waited for."""
        if self.is_here and not self.closed:
            self._held().source.watch(waited)

    def pause(self) -> None:
        """An epoch is over: the time until samples are asked for again is nobody's; only in the process that made it."""
        if self.is_here:
            self._held().source.pause()

    def path(self, number: int) -> str:
        """A sample's path below the dataset's URL."""
        way = self._way()
        return way.path(number) if isinstance(way, Source) else way.call("path", str(number).encode()).decode()

    def get(self, number: int) -> Any:
        """A sample's bytes, as a buffer."""
        return self._way().get(number)

    def get_many(self, numbers: Sequence[int]) -> list[Any]:
        """Several, read side by side."""
        return self._way().get_many(list(numbers))

    def __getstate__(self) -> dict[str, Any]:
        return {"_address": self._address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._address = state["_address"]
        self._here = _HERE.get(self._address)
        self._client, self._client_pid = None, -1


class Dataset(torch.utils.data.Dataset[Any]):
    """Samples of a directory, a bucket or shards by their number, in ImageFolder's order and with its classes.

    Without a transform, bytes come as tensors of bytes.

    In a plain ``DataLoader`` nobody knows which sample comes next: each is read when it is asked for, and kept as far as
    memory and disk go. ``foreread.torch.wrap(loader)`` looks ahead.

    Args:
        target: a path or URL, a catalog, or a list of shards.
        transform, target_transform: as ImageFolder takes them.
        decode: what ``transform`` gets: see ``DataLoader``.
        settings: memory, disk, look_ahead, origin_limit, origin_parallelism, format: as ``foreread.Loader``.
    """

    def __init__(
        self,
        target: Any,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        decode: str | Decode | None = "auto",
        **settings: Any,
    ) -> None:
        source = Source(target, **settings)
        self.target = target
        self.transform = transform
        self.target_transform = target_transform
        self.classes: list[str] = list(source.labels)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self._length = source.samples
        #: The classes' numbers, by sample; empty where samples have none.
        self.targets = array("q", source.catalog.targets() if self.classes else b"")
        self.decode = decoder(decode, source, target)
        #: What its engine was made with.
        self.settings = settings
        self.engine = Engine(source)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._item(index, self.engine.get(self._number(index)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """What PyTorch's workers ask for a whole batch with, where they know it: the batch is read side by side."""
        samples = self.engine.get_many([self._number(index) for index in indices])
        return [self._item(index, sample) for index, sample in zip(indices, samples)]

    def _number(self, index: int) -> int:
        number = int(index)
        if not -self._length <= number < self._length:
            raise IndexError(f"sample {number} of {self._length}")
        return number % self._length

    def _item(self, index: int, sample: Any) -> Any:
        try:
            item = self.decode(sample)
            if self.transform is not None:
                item = self.transform(item)
            elif item is sample:
                # Its memory is the engine's, and other processes cannot have it.
                item = torch.frombuffer(bytearray(sample) or bytearray(1), dtype=torch.uint8)[: len(sample)]
            if not self.classes:
                return item
            label: Any = self.targets[self._number(index)]
            if self.target_transform is not None:
                label = self.target_transform(label)
        except Exception as error:
            number = self._number(index)
            with suppress(Error):
                error.add_note(f"foreread: sample {number} ({self.engine.path(number)}) of {self.target}")
            raise
        return item, label

    def stats(self) -> Any:
        """What has been delivered, and from where: see ``foreread.Stats``. In the process that made the dataset."""
        return self.engine.stats()

    def close(self) -> None:
        """Ends the engine, for workers too."""
        self.engine.close()
