"""The attributes of a loader that frameworks look at: ``sampler``, ``batch_sampler``, ``dataset``, ``collate_fn``.

Accelerate and Transformers build a plain DataLoader of them, to skip batches or to prepare a loader. Decision: the batches of
``batch_sampler`` are positions, and ``dataset`` returns the loader's own batch for them, read ahead and collated. So a
skip is a jump, which reads nothing. The price: the plain loader must request batches in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, DistributedSampler, SequentialSampler

from .._native import Loader
from ..errors import ConfigError

if TYPE_CHECKING:
    from ._loader import DataLoader


class DatasetInfo:
    """The properties of a loader's dataset that scripts use, and its batches for a plain DataLoader."""

    def __init__(self, native: Loader) -> None:
        self._samples = native.samples
        self.classes: list[str] = list(native.classes)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: Any) -> Any:
        raise ConfigError("this loader reads whole batches in its order: foreread.torch.Dataset has samples by index")

    def __getitems__(self, batch: Any) -> Any:
        """The batch of these positions."""
        return batch.source.take(batch.number) if isinstance(batch, _Positions) else self[batch]


class _Positions(list[int]):
    """The positions of a batch's samples in the rank's share of the epoch."""

    def __init__(self, positions: range, source: _Batches, number: int) -> None:
        super().__init__(positions)
        self.source = source
        self.number = number


class _Batches:
    """The batches of one iteration of a batch sampler."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] | None = None
        self._next = 0

    def take(self, number: int) -> Any:
        if self._iterator is None:
            self._iterator = self._loader._iter_from(number)
        elif number != self._next:
            raise ConfigError(
                f"batch {number} was requested after batch {self._next - 1}: this loader gives each rank its own batches in order; "
                "do not pass it to prepare_data_loader() on several ranks"
            )
        self._next = number + 1
        return next(self._iterator)


class EpochBatchSampler(BatchSampler):
    """The batches of the epoch that is due, as positions."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self.sampler = loader.sampler
        self.batch_size, self.drop_last = loader.batch_size, loader.drop_last

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        source = _Batches(self._loader)
        samples, batches = self._loader._share()
        for number in range(batches):
            first = number * self.batch_size
            yield _Positions(range(first, min(first + self.batch_size, samples)), source, number)

    def __len__(self) -> int:
        return len(self._loader)


class Shuffled(DistributedSampler[Any]):
    """The ids of a rank's samples in the epoch that is due. Lightning and Ray divide no loader with a sampler of this class."""

    def __init__(self, loader: DataLoader, shuffle: bool = True) -> None:
        native = loader._native
        self._loader = loader
        super().__init__(
            range(native.samples),
            native.world_size,
            native.rank,
            shuffle=shuffle,
            seed=loader.seed,
            drop_last=loader.drop_last,
        )

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        self.epoch = self._loader._start()[0]
        ids: Iterator[int] = super().__iter__()
        return ids


class Sequential(Shuffled, SequentialSampler):
    """The sampler of a loader that does not shuffle. Lightning looks for its second class."""

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader, False)
        self.data_source: Sequence[Any] = range(loader._native.samples)


def as_is(batch: Any) -> Any:
    """The collate function of a plain DataLoader over a loader's batches."""
    return batch
