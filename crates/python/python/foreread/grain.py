"""A data source for Grain that reads ahead in the order of Grain's sampler.

>>> import foreread.grain, grain
>>> source = foreread.grain.source("s3://bucket/train", memory="16GiB")  # doctest: +SKIP
>>> sampler = source.announce(grain.samplers.IndexSampler(len(source), shuffle=True, seed=0))  # doctest: +SKIP
>>> loader = grain.DataLoader(data_source=source, sampler=sampler, worker_count=4)  # doctest: +SKIP

Grain decides the order, and its batches are those of any other data source with the same samples. ``announce`` returns
a sampler, or a ``MapDataset``, that reports each index before its sample is requested. So the source knows where Grain
reads, also in worker processes and after Grain has restored a checkpoint. The price: Grain computes each index twice.
Its shuffle takes 9 us per sample, so the first window of the order (32768 samples) delays the first sample by 0.3 s.

``MapDataset`` transformations that choose samples (shuffle, repeat, slice, batch, mix, concatenate, zip) are run on the
samples' ids. Those that only change elements (map, filter) are left out. A transformation after ``announce`` must not
reorder.

A sample's epoch, which draws its crop, is known where Grain reads the source: its datasets number the elements on
through the epochs. So it is right in any order of transformations, and after a restored checkpoint. A repeat with
``reseed_each_epoch=False`` repeats the crops too, as it repeats Grain's own random numbers.
"""

from __future__ import annotations

import copy
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grain

from ._announcer import Announcer
from ._engine import Engine
from ._items import BatchDecoder, Decode, DecodeOne, field_of, item_decoder, labels_of
from ._native import Source as NativeSource
from .errors import ConfigError, CorruptError, Error

__all__ = ["Source", "source"]

#: Grain's transformations that choose elements. Copies of them run on ids.
_CHOOSING = {
    "BatchMapDataset",
    "ConcatenateMapDataset",
    "MixedMapDataset",
    "RepeatMapDataset",
    "ShuffleMapDataset",
    "SliceMapDataset",
    "WindowShuffleMapDataset",
    "ZipMapDataset",
    "_ShardMapDataset",
}

#: Grain's transformations that only change or drop elements.
_CHANGING = {"FilterMapDataset", "MapMapDataset", "MapWithIndexMapDataset", "RandomMapMapDataset", "_WithSeedMapDataset"}

#: Indices at which a sampler's fast order is compared with the sampler itself.
_COMPARED = 64

#: The epoch of the request that this thread makes with a sampler.
_request = threading.local()


def _requested_epoch() -> int:
    """The epoch of the present request, which ends with it: the next one may be of another source."""
    epoch: int = vars(_request).pop("epoch", 0)
    return epoch


class Source:
    """A Grain ``RandomAccessDataSource`` of a directory's, bucket's or shards' samples. ``source`` creates it.

    An element is a sample, or ``(sample, label)``. Grain's checkpoints compare the ``repr`` of a source: it names the
    data, not their location.
    """

    def __init__(
        self,
        target: Any,
        *,
        decode: Decode = None,
        field: str | None = None,
        labels: bool | str | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        native = NativeSource(target, **settings)
        try:
            catalog = native.catalog
            self._labels = labels_of(labels, native)
            self._decode: Callable[[Any], Any] | None = None
            self._decode_one: DecodeOne | None = None
            if isinstance(decode, BatchDecoder):
                self._decode_one = DecodeOne(decode, seed)
                self._decode = field_of(field, catalog)
            else:
                self._decode = item_decoder(decode, catalog, field)
        except Exception:
            native.close()
            raise
        self._length = native.samples
        self._target = target if isinstance(target, str) else catalog.base_url
        self._repr = f"foreread.grain.source({native.samples} samples, {catalog.fingerprint})"
        self.classes: list[str] = list(native.classes)
        self._engine = Engine(native, shared=False)
        #: The announcers of this source, to close them.
        self._announcers: list[Announcer] = []

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return self._repr

    def __getitem__(self, record_key: Any) -> Any:
        return self._element(record_key, _requested_epoch())

    def _getitems(self, record_keys: Sequence[Any]) -> list[Any]:
        """Several elements, read concurrently: Grain calls it where it knows a batch."""
        return self._elements(record_keys, [_requested_epoch()] * len(record_keys))

    def _element(self, record_key: Any, epoch: int) -> Any:
        """An element as it is in an epoch."""
        number = self._number(record_key)
        return self._item(number, self._engine.get(number), epoch)

    def _elements(self, record_keys: Sequence[Any], epochs: Sequence[int]) -> list[Any]:
        """Several elements, each as it is in its epoch."""
        numbers = [self._number(key) for key in record_keys]
        return list(map(self._item, numbers, self._engine.get_many(numbers), epochs))

    def _number(self, record_key: Any) -> int:
        number: int = record_key.__index__()
        if not 0 <= number < self._length:
            raise IndexError(f"sample {number} of {self._length}")
        return number

    def _item(self, number: int, sample: Any, epoch: int) -> Any:
        try:
            item = sample if self._decode is None else self._decode(sample)
            if self._decode_one is not None:
                item = self._decode_one(item, epoch, number)
        except ConfigError:
            raise
        except Exception as error:
            why = str(error) if isinstance(error, CorruptError) else f"{type(error).__name__}: {error}"
            # In the message, because Grain's worker processes send no notes.
            raise CorruptError(f"{self._named(number)} cannot be decoded: {why}") from error
        try:
            return item if self._labels is None else (item, self._labels.of(sample, number))
        except Exception as error:
            error.add_note(f"foreread: {self._named(number)}")
            raise

    def _named(self, number: int) -> str:
        try:
            return f"sample {number} ({self._engine.path(number)}) of {self._target}"
        except (Error, OSError):
            return f"sample {number} of {self._target}"

    def announce(self, order: Any, *, shard_options: grain.sharding.ShardOptions | None = None) -> Any:
        """Returns a sampler or ``MapDataset`` like `order`, from whose order the source reads ahead.

        Args:
            order: a sampler, for ``grain.DataLoader``, or a ``grain.MapDataset`` over this source.
            shard_options: those of the DataLoader, if the sampler has none.

        Raises:
            ConfigError: if a transformation of the dataset is unknown, or the dataset does not read this source.
            TypeError: for other objects.
        """
        if isinstance(order, grain.MapDataset):
            announcer = self._announcer(_DatasetOrder(order, self))
            return _AnnouncedDataset(_of_epochs(order, self), announcer)
        if isinstance(order, grain.DataLoader) or not hasattr(order, "__getitem__"):
            raise TypeError(
                f"announce() expects a Grain sampler or MapDataset, not a {type(order).__name__}: announce the sampler before "
                "the loader is created"
            )
        options = shard_options or getattr(order, "_shard_options", None) or grain.sharding.NoSharding()
        return _AnnouncedSampler(order, options, self._announcer(_SamplerOrder(order, options)))

    def _announcer(self, order: Any) -> Announcer:
        announcer = Announcer(self._engine, order)
        self._announcers.append(announcer)
        return announcer

    def report(self) -> dict[str, Any]:
        """The report so far, as ``foreread.Source.report``. In the process that created the source only."""
        return self._engine.source.report()

    def stats(self) -> Any:
        """Statistics: see ``foreread.Stats``. In the process that created the source only."""
        return self._engine.stats()

    def close(self) -> None:
        """Ends reading, for workers too."""
        for announcer in self._announcers:
            announcer.close()
        self._engine.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exception: object) -> None:
        # Grain's reader threads enter and leave a source that is a context manager. It stays open.
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_announcers": []}


def source(
    target: Any,
    *,
    decode: Decode = None,
    field: str | None = None,
    labels: bool | str | None = None,
    seed: int = 0,
    **settings: Any,
) -> Source:
    """A Grain data source of a directory, a bucket or shards, in ImageFolder's order and with its classes.

    Args:
        target: a path or URL, a catalog, or a list of shards.
        decode: the sample of an element: ``"bytes"`` (default), ``"image"`` (an RGB array of shape (height, width, 3)),
            ``"array"`` (for formats that know type and shape), ``foreread.image(...)``, or a function of a sample. The
            function gets a buffer, whose memory counts against ``look_ahead`` while it is kept.
        field: the part of each sample that is read, if samples have several, as in WebDataset. Not in worker processes.
        labels: whether elements are ``(sample, label)``. By default they are if the dataset has labels. A text is the
            field of each sample whose integer is its label.
        seed: of the random numbers of ``foreread.image(..., train=True)``.
        settings: memory, disk, agent, look_ahead, origin_limit, origin_parallelism, format: as ``foreread.Loader``.

    Raises:
        ConfigError: if a setting is invalid.
    """
    return Source(target, decode=decode, field=field, labels=labels, seed=seed, **settings)


class _AnnouncedSampler:
    """A sampler that reports each index. Its ``repr`` is the sampler's, as Grain's checkpoints need."""

    def __init__(self, sampler: Any, options: grain.sharding.ShardOptions, announcer: Any) -> None:
        self._sampler = sampler
        self._shard_options = options
        self._announcer = announcer

    def __getitem__(self, index: int) -> Any:
        metadata = self._sampler[index]
        own, shard = divmod(index, self._shard_options.shard_count)
        if shard == self._shard_options.shard_index:
            self._announcer.note(own)
        _request.epoch = own // self._announcer.epoch_length
        return metadata

    def __len__(self) -> int:
        return len(self._sampler)

    def __repr__(self) -> str:
        return repr(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_sampler" not in vars(self):
            raise AttributeError(name)
        return getattr(self._sampler, name)


class _AnnouncedDataset(grain.MapDataset[Any]):
    """A dataset that reports each index."""

    _MUTATES_ELEMENT_SPEC = False

    def __init__(self, parent: Any, announcer: Any) -> None:
        super().__init__(parent)
        self._announcer = announcer

    def __len__(self) -> int:
        return len(self._parent)

    def __str__(self) -> str:
        return "AnnouncedMapDataset"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        self._announcer.note(index)
        return self._parent[index]

    def _getitems(self, indices: Sequence[int]) -> Sequence[Any]:
        self._announcer.note_many(indices)
        elements: Sequence[Any] = self._parent._getitems(indices)
        return elements

    def set_slice(self, part: slice, sequential_slice: bool = False) -> None:
        raise ConfigError("mp_prefetch(sequential_slice=True) gives each worker another order than announced: leave it out")

    @property
    def _element_spec(self) -> Any:
        return grain.experimental.get_element_spec(self._parent)


class _Ids(grain.MapDataset[Any]):
    """A dataset whose elements are the ids of a source, in order. Those of another source are None."""

    def __init__(self, length: int, own: bool) -> None:
        super().__init__()
        self._length = length
        self._own = own

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return index % self._length if self._own else None

    def _getitems(self, indices: Sequence[int]) -> list[int | None]:
        length = self._length
        return [index % length for index in indices] if self._own else [None] * len(indices)


class _Elements(grain.MapDataset[Any]):
    """The elements of a source. Grain numbers them on through the epochs, and its own dataset drops the epoch."""

    def __init__(self, plain: Any) -> None:
        super().__init__()
        #: Grain's dataset of the source.
        self._plain = plain
        self._length = len(plain)

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        return str(self._plain)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        epoch, number = divmod(index, self._length)
        return self._stats.record_output_spec(self._plain._source._element(number, epoch))

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        parts = [divmod(index, self._length) for index in indices]
        elements = self._plain._source._elements([number for _, number in parts], [epoch for epoch, _ in parts])
        recorded: list[Any] = self._stats.record_output_spec_for_batch(elements)
        return recorded

    @property
    def _element_spec(self) -> Any:
        return grain.experimental.get_element_spec(self._plain)


def _of_epochs(dataset: Any, given: Source) -> Any:
    """A copy of a dataset whose order is known, that asks the source for each element as it is in its epoch."""
    if type(dataset).__name__ == "SourceMapDataset":
        if dataset._source is given:
            return _Elements(dataset)
        return _of_epochs(dataset._source, given) if isinstance(dataset._source, grain.MapDataset) else dataset
    if not dataset.parents:
        return dataset
    made = _copied(dataset)
    made._parents = tuple(_of_epochs(parent, given) for parent in dataset.parents)
    return made


def _copied(dataset: Any) -> Any:
    """A copy without what the dataset has computed of its parents, such as its statistics."""
    made = copy.copy(dataset)
    for cached in ("_stats", "_get_parent_items_fn"):
        vars(made).pop(cached, None)
    return made


def _on_ids(dataset: Any, given: Source | None) -> tuple[Any, bool]:
    """A copy of a dataset whose elements are the ids of a source's samples, and whether it reads that source. Without a
    source, its ranges are the ids."""
    name = type(dataset).__name__
    if isinstance(dataset, _AnnouncedDataset) or (name in _CHANGING and _is_grains(dataset)):
        return _on_ids(dataset._parent, given)
    if name == "RangeMapDataset" and _is_grains(dataset):
        is_plain = given is None and dataset.start == 0 and dataset.step == 1
        return (_Ids(len(dataset), True), True) if is_plain else (dataset, given is None)
    if name == "SourceMapDataset" and _is_grains(dataset):
        inner = dataset._source
        if isinstance(inner, grain.MapDataset):
            return _on_ids(inner, given)
        return _Ids(len(dataset), inner is given), inner is given
    if name in _CHOOSING and _is_grains(dataset):
        made = _copied(dataset)
        parents = [_on_ids(parent, given) for parent in dataset.parents]
        made._parents = tuple(parent for parent, _ in parents)
        if name == "BatchMapDataset":
            made._batch_fn = list
        return made, any(reads for _, reads in parents)
    raise ConfigError(
        f"announce() does not know the order of a {name}: announce the dataset before it, or a sampler instead"
    )


def _is_grains(dataset: Any) -> bool:
    return type(dataset).__module__.startswith("grain.")


def _flat(elements: Any) -> Iterator[int]:
    """The ids in elements, which batches and zipped datasets nest."""
    for element in elements:
        if isinstance(element, (list, tuple)):
            yield from _flat(element)
        elif element is not None:
            yield element


def _epoch_length(dataset: Any) -> int:
    """The length of an epoch of a dataset, which a repeated dataset does not reveal. Batches and slices divide it."""
    repeat = dataset
    while type(repeat).__name__ != "RepeatMapDataset":
        if len(repeat.parents) != 1:
            return len(dataset)
        repeat = repeat.parents[0]
    # Rounded, because the length of an endless repeat is no multiple.
    return (len(dataset) * len(repeat.parents[0]) + len(repeat) // 2) // max(1, len(repeat))


class _DatasetOrder:
    """The samples of a dataset's indices."""

    def __init__(self, dataset: Any, given: Source) -> None:
        self._ids, reads = _on_ids(dataset, given)
        if not reads:
            raise ConfigError("the dataset does not read this source: announce() it to the source that it reads")
        self.length = len(dataset)
        self.epoch_length = max(1, _epoch_length(dataset))
        self.width: int = max(1, len(self.ids(range(min(1, self.length)))))

    def ids(self, indices: Sequence[int]) -> array[int]:
        return array("q", _flat(self._ids._getitems(indices)))


class _SamplerOrder:
    """The samples of a shard's indices, counted within the shard as Grain's loader does."""

    width: int = 1

    def __init__(self, sampler: Any, options: grain.sharding.ShardOptions) -> None:
        self._sampler = sampler
        self._count, self._index = options.shard_count, options.shard_index
        self.length = _sampler_length(sampler) // options.shard_count
        self._keys = self._fast()
        epoch = len(sampler._record_keys) if self._keys is not None else self.length
        self.epoch_length = max(1, min(epoch, self.length))

    def _key(self, index: int) -> int:
        return int(self._sampler[index * self._count + self._index].record_key)

    def _fast(self) -> Any:
        """The keys of Grain's IndexSampler as a dataset, which computes no random generators. None if they differ."""
        keys = getattr(self._sampler, "_record_keys", None)
        if type(self._sampler) is not grain.samplers.IndexSampler or not isinstance(keys, grain.MapDataset):
            return None
        try:
            made, _ = _on_ids(keys, None)
            compared = range(0, min(self.length, 4 * len(keys)), max(1, min(self.length, 4 * len(keys)) // _COMPARED))
            return made if list(made._getitems(compared)) == [self._key(index) for index in compared] else None
        except (AttributeError, ConfigError):
            return None

    def ids(self, indices: Sequence[int]) -> array[int]:
        if self._keys is not None:
            return array("q", self._keys._getitems(indices))
        return array("q", map(self._key, indices))


def _sampler_length(sampler: Any) -> int:
    """The number of a sampler's indices. Grain does not require a length."""
    if hasattr(sampler, "__len__"):
        return len(sampler)
    low, high = 0, 1 << 62
    while low < high:
        middle = (low + high) // 2
        try:
            sampler[middle]
            low = middle + 1
        except IndexError:
            high = middle
    return low
