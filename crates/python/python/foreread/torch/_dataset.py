"""A map-style dataset for PyTorch's DataLoader, workers included.

The engine is in the process that created the dataset. Worker processes, forked or spawned, send requests through a
socket and get samples through shared memory. So all workers share one cache and one stream of reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.utils.data

from .._engine import Engine
from ..errors import ConfigError, Error
from ._decode import Decode, decoder
from ._loader import custom_dataset
from ._node import open_source

#: The attributes that the engine was created with.
_FIXED = frozenset({"target", "settings"})


class Dataset(torch.utils.data.Dataset[Any]):
    """Samples of a directory, a bucket or shards by index, in ImageFolder's order and with its classes.

    Without a transform, samples are tensors of bytes.

    In a plain ``DataLoader`` the next sample is unknown. Each sample is read on request and cached while there is room.
    ``foreread.torch.wrap(loader)`` reads ahead.

    Args:
        target: a path or URL, a catalog, or a list of shards.
        transform, target_transform: as in ImageFolder.
        decode: the input of ``transform``: see ``DataLoader``.
        settings: memory, disk, agent, look_ahead, origin_limit, origin_parallelism, format: as ``foreread.Loader``.
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
        if isinstance(target, (torch.utils.data.Dataset, torch.utils.data.DataLoader)):
            raise ConfigError(custom_dataset(target))
        source = open_source(target, settings)
        self.target = target
        self.transform = transform
        self.target_transform = target_transform
        self.classes: list[str] = list(source.classes)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        self._length = source.samples
        #: The class index of each sample. Empty without classes.
        self.targets = array("q", source.catalog.targets() if self.classes else b"")
        #: The catalog, if its format has a column of labels.
        self._labels = source.catalog if source.has_labels and not self.classes else None
        self.decode = decoder(decode, source, target)
        self.engine = Engine(source)
        #: The settings of its engine.
        self.settings = settings

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "settings" in vars(self):
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized: create another one")
        super().__setattr__(name, value)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._item(index, self.engine.get(self._number(index)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """A whole batch, read concurrently. Newer releases of PyTorch call it."""
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
                # Copied, because its memory belongs to the engine and cannot be sent to other processes.
                item = torch.frombuffer(bytearray(sample) or bytearray(1), dtype=torch.uint8)[: len(sample)]
            if not self.classes and self._labels is None:
                return item
            number = self._number(index)
            label: Any = self.targets[number] if self._labels is None else self._labels.label(number)
            if self.target_transform is not None:
                label = self.target_transform(label)
        except Exception as error:
            number = self._number(index)
            with suppress(Error):
                error.add_note(f"foreread: sample {number} ({self.engine.path(number)}) of {self.target}")
            raise
        return item, label

    def stats(self) -> Any:
        """Statistics: see ``foreread.Stats``. In the process that created the dataset only."""
        return self.engine.stats()

    def close(self) -> None:
        """Closes the engine, for workers too."""
        self.engine.close()
