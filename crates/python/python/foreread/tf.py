"""A ``tf.data.Dataset`` of batches that are read ahead.

>>> import foreread.tf
>>> data = foreread.tf.dataset("s3://bucket/train", 64, seed=0, memory="16GiB")  # doctest: +SKIP
>>> model.fit(data, epochs=90)  # doctest: +SKIP

Whole batches cross into TensorFlow, each in one call of a generator that runs ahead on a thread. TensorFlow takes an
array without a copy if its memory begins at a multiple of 64, as that of ``foreread.image`` does: 0.8 ms for a batch of
9.6 MB, of 38 MB too. It copies other arrays in 2.1 ms. ``py_function`` takes 5 ms. DLPack takes 0.6 ms, but memory that
begins elsewhere aborts the process.

Encoded samples are a vector of ``tf.string``, because TensorFlow's decoders take strings: 7 ms for 64 samples of 110 kB,
where samples one by one take 24 ms. A ``RaggedTensor`` of their bytes would take 4 ms, but no operation makes strings of
it. (Measured on two cores with TensorFlow 2.21.) The price: a string is copied twice, with the GIL.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, Union

import tensorflow as tf

from ._items import (
    BatchDecoder,
    Decode,
    FieldLabels,
    Labels,
    batch_labels,
    decode_batch,
    field_of,
    item_decoder,
    labels_of,
)
from ._native import Batch, Loader
from ._stream import Reader, loader_of
from .errors import ClosedError, ConfigError, CorruptError

__all__ = ["dataset"]

#: TensorFlow takes an array without a copy if its memory begins at a multiple of this.
_ALIGNMENT = 64

AnyLabels: TypeAlias = Union[Labels, FieldLabels, None]


def dataset(
    target: Any,
    batch_size: int,
    *,
    decode: Decode = None,
    field: str | None = None,
    labels: bool | str | None = None,
    epochs: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    start_epoch: int = 0,
    drop_last: bool = False,
    on_error: Literal["fail", "skip", "substitute"] = "fail",
    **settings: Any,
) -> tf.data.Dataset:
    """A dataset of batches of a directory, a bucket or shards, in the order that the seed draws.

    Each iteration is the next epoch, as ``fit`` of Keras expects, and the cardinality is that of an epoch. An iteration
    that is left after at most four batches does not count, unless these are all. One that has failed does not count
    either. With ``on_error="skip"`` batches without samples are omitted, and the cardinality is unknown. The dataset's ``foreread`` has ``stats()``, ``report()`` and
    ``close()``.

    Args:
        target: a path or URL, a catalog, or a list of shards.
        batch_size: samples per batch on this rank.
        decode: the samples of a batch: ``"bytes"`` (default, a vector of ``tf.string``), ``foreread.image(...)`` (their
            pixels, of shape ``(batch, *shape)``), ``"array"`` (for formats that know type and shape), or a function of a
            sample whose arrays have one shape.
        field: the part of each sample that is read, if samples have several, as in WebDataset.
        labels: whether batches are ``(samples, labels)``. By default they are if the dataset has labels. Labels are
            the classes' indices, as ImageFolder numbers them, or the values of a column. A text is the field of each
            sample whose integer is its label.
        epochs: the number of epochs, if known. Nothing is then read ahead after the last one.
        shuffle: False is the catalog's order.
        seed: of the order, and of the random numbers of ``foreread.image(..., train=True)``. The order is foreread's
            ``shuffle``. ``sampler="torch"`` is PyTorch's.
        start_epoch: the epoch of the first iteration.
        drop_last: drops samples that do not fill a batch on every rank.
        on_error: the effect of a sample that cannot be read or decoded: ``"fail"``, ``"skip"`` or ``"substitute"`` (by a
            good one, of the same batch if it cannot be decoded). The last two warn of each one that cannot be decoded.
        settings: sampler, rank, world_size, memory, disk, agent, look_ahead, origin_limit and others: as
            ``foreread.Loader``. Without ``rank``, rank and world size come from the launcher.

    Raises:
        ConfigError: if a setting is invalid.

    Reading errors end the iteration with TensorFlow's exception, whose message has foreread's and names the sample.
    """
    if settings.pop("resume", None) is not None:
        raise ConfigError("resume: a tf.data.Dataset begins with a whole epoch: pass start_epoch=")
    # Always given, because a setting of the environment would not be known here.
    settings["on_error"] = on_error
    order: dict[str, Any] = {"shuffle": shuffle, "epochs": epochs, "seed": seed, "drop_last": drop_last}
    loader = loader_of(target, batch_size=batch_size, settings=settings, **order)
    try:
        known = labels_of(labels, loader)
        make = _maker(decode, field, loader, seed, known)
        make.on_error = on_error
        reader = Reader(loader, make, batch_size, drop_last, start_epoch)
        return _dataset(reader, make, _label_type(loader, known), batch_size if drop_last else None, on_error != "skip")
    except Exception:
        loader.close()
        raise


class _Samples:
    """Makes a vector of bytes of a batch, and its labels. None of a batch without samples."""

    shape: tuple[int, ...] | None = ()
    dtype: Any = tf.string
    #: The effect of a sample that cannot be decoded.
    on_error = "fail"
    #: Samples that were omitted or replaced, because they could not be decoded.
    skipped = 0

    def __init__(self, labels: AnyLabels, take: Callable[[Any], Any] | None) -> None:
        self._labels = labels
        self._take = take

    def __call__(self, batch: Batch) -> tuple[Any, Any] | None:
        if len(batch) == 0:
            return None
        samples, used = self.samples(batch)
        if len(used) == 0:
            return None
        if self._labels is None:
            return samples, None
        labels = batch_labels(batch, self._labels)
        return samples, _array([labels[at] for at in used])

    def parts(self, batch: Batch) -> list[Any]:
        """The samples of a batch, or their fields."""
        return list(batch) if self._take is None else list(map(self._take, batch))

    def samples(self, batch: Batch) -> tuple[Any, Sequence[int]]:
        """What a batch is in TensorFlow, and the indices of its samples there."""
        return list(map(bytes, self.parts(batch))), range(len(batch))

    def used(self, batch: Batch, failures: dict[int, str]) -> Sequence[int]:
        """The indices of the samples that are used of a batch: as ``foreread.torch.DataLoader`` uses them.

        Raises:
            CorruptError: if `on_error` does not permit these failures.
        """
        if not failures:
            return range(len(batch))
        for at, why in failures.items():
            what = f"sample {batch[at].id} ({batch[at].path}) of epoch {batch.epoch} cannot be decoded"
            if self.on_error == "fail":
                raise CorruptError(f"{what}: {why}")
            then = "left out" if self.on_error == "skip" else "replaced"
            warnings.warn(f"{what} and is {then}: {why}", RuntimeWarning, stacklevel=2)
        self.skipped += len(failures)
        good = [at for at in range(len(batch)) if at not in failures]
        if self.on_error == "skip":
            return good
        if not good:
            raise CorruptError(
                f"none of the {len(batch)} samples of a batch of epoch {batch.epoch} can be decoded, so that none can "
                'replace them; the warnings name them; on_error="skip" omits them'
            )
        return [min(good, key=lambda other: abs(other - at)) for at in range(len(batch))]


class _Decoded(_Samples):
    """Makes an array of a batch by a batch decoder."""

    def __init__(
        self, labels: AnyLabels, take: Callable[[Any], Any] | None, decoder: BatchDecoder, seed: int
    ) -> None:
        super().__init__(labels, take)
        self._decoder = decoder
        self._seed = seed
        self.shape, self.dtype = tuple(decoder.shape), tf.as_dtype(decoder.dtype)

    def samples(self, batch: Batch) -> tuple[Any, Sequence[int]]:
        parts = batch if self._take is None else self.parts(batch)
        pixels, failures = decode_batch(self._decoder, parts, batch.ids, self._seed, batch.epoch)
        used = self.used(batch, failures)
        if not failures or not used:
            return pixels, used
        room = _room((len(used), *pixels.shape[1:]), pixels.dtype)
        return pixels.take(used, 0, out=room, mode="clip"), used


class _Stacked(_Samples):
    """Makes an array of a batch by a function of each sample. Its type and shape are those of the first batch."""

    shape = None

    def __init__(self, labels: AnyLabels, decode: Callable[[Any], Any]) -> None:
        super().__init__(labels, None)
        self._decode = decode

    def samples(self, batch: Batch) -> tuple[Any, Sequence[int]]:
        import numpy

        arrays: dict[int, Any] = {}
        failures: dict[int, str] = {}
        for at, sample in enumerate(batch):
            try:
                arrays[at] = numpy.asarray(self._decode(sample))
            except Exception as error:
                failures[at] = f"{type(error).__name__}: {error}"
        used = self.used(batch, failures)
        if not used:
            return [], used
        first = arrays[used[0]]
        for at, array in arrays.items():
            if array.shape != first.shape:
                sample = batch[at]
                raise ConfigError(
                    f"sample {sample.id} ({sample.path}) has shape {array.shape}, and others of its batch {first.shape}: "
                    "decode to one shape"
                )
        return numpy.stack([arrays[at] for at in used], out=_room((len(used), *first.shape), first.dtype)), used


def _maker(decode: Decode, field: str | None, loader: Loader, seed: int, labels: AnyLabels) -> _Samples:
    take = field_of(field, loader.catalog)
    if isinstance(decode, BatchDecoder):
        return _Decoded(labels, take, decode, seed)
    if decode == "image":
        raise ConfigError(
            "decode='image': images of different sizes are no batch: use foreread.image(...), or the default and "
            "tf.io.decode_image in map()"
        )
    single = item_decoder(decode, loader.catalog, field)
    return _Samples(labels, take) if decode in (None, "bytes") else _Stacked(labels, single)


def _array(labels: list[Any]) -> Any:
    import numpy

    return labels if isinstance(labels[0], str) else numpy.asarray(labels)


def _label_type(loader: Loader, labels: AnyLabels) -> tf.TensorSpec | None:
    """The type of a batch's labels."""
    import numpy

    if labels is None:
        return None
    label = 0 if loader.classes or isinstance(labels, FieldLabels) else loader.label(0)
    if isinstance(label, str):
        return tf.TensorSpec((None,), tf.string)
    array = numpy.asarray(label)
    return tf.TensorSpec((None, *array.shape), tf.as_dtype(array.dtype))


def _dataset(reader: Reader, make: _Samples, label_type: tf.TensorSpec | None, size: int | None, whole: bool) -> tf.data.Dataset:
    """The dataset of a reader. `whole` says whether batches have all of their samples."""
    size = size if whole else None
    if make.shape is None:
        # The reader keeps the batch for the first iteration.
        first, _ = reader.first()
        make.shape, make.dtype = first.shape[1:], tf.as_dtype(first.dtype)
    types = [tf.TensorSpec((size, *make.shape), make.dtype)]
    if label_type is not None:
        types.append(tf.TensorSpec((size, *label_type.shape[1:]), label_type.dtype))

    # TensorFlow keeps the generator until the program's end. The reader lives as long as the dataset.
    kept = weakref.ref(reader)

    def batches() -> Iterator[Any]:
        if (reader := kept()) is None:
            raise ClosedError("the dataset of this iteration is gone: keep it")
        for samples, labels in reader.iterate():
            yield (samples, labels) if len(types) > 1 else samples

    made = tf.data.Dataset.from_generator(batches, output_signature=tuple(types) if len(types) > 1 else types[0])
    if whole:
        made = made.apply(tf.data.experimental.assert_cardinality(reader.batches))
    made.foreread = reader
    return made


def _room(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array in memory that TensorFlow takes without a copy."""
    import numpy

    size = math.prod(shape) * dtype.itemsize
    memory = numpy.empty(size + _ALIGNMENT, numpy.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
