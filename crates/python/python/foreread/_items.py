"""Makes the elements of data sources without PyTorch: bytes, NumPy arrays, or what a function makes of a sample.

Elements are a sample's own bytes unless ``decode=`` requests more, because the frameworks have fast decoders of their
own. Everything here is pickled into worker processes.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, Union, runtime_checkable

from ._image import ImageDecoder
from ._image import image as make_image_decoder
from ._native import Batch
from .errors import ConfigError, CorruptError


@runtime_checkable
class BatchDecoder(Protocol):
    """Decodes the samples of a batch into one array, on threads without the GIL. ``foreread.image`` makes one."""

    #: The shape and NumPy type of a decoded sample.
    shape: tuple[int, ...]
    dtype: str

    def decode(self, samples: Sequence[Any], *, seed: int, epoch: int, ids: Sequence[int]) -> Any:
        """The decoded samples, of shape ``(len(samples), *shape)``. A new array at each call."""


#: The values of `decode=`.
Decode: TypeAlias = Union[str, BatchDecoder, Callable[[Any], Any], None]


def as_bytes(sample: Any) -> bytes:
    """A sample's bytes."""
    return bytes(sample)


def as_image(sample: Any) -> Any:
    """An image as an array of bytes in RGB of shape (height, width, 3), decoded by Pillow."""
    import numpy
    from PIL import Image

    with Image.open(io.BytesIO(sample)) as opened:
        return numpy.asarray(opened.convert("RGB"))


class AsArray:
    """A sample's bytes as an array of a type and shape."""

    def __init__(self, dtype: str, shape: Sequence[int | None]) -> None:
        import numpy

        self._dtype = numpy.dtype(dtype)
        self._shape = [-1 if length is None else length for length in shape]

    def __call__(self, sample: Any) -> Any:
        import numpy

        # Copied, because a sample in shared memory must not outlive its process.
        return numpy.frombuffer(sample, self._dtype).reshape(self._shape).copy()


def decode_batch(
    decoder: BatchDecoder, samples: Any, ids: Sequence[int], seed: int, epoch: int
) -> tuple[Any, dict[int, str]]:
    """The decoded samples as an array, and why some could not be decoded, by index. Their pixels are undefined.

    Args:
        samples: a batch, or a list of buffers.
    """
    import numpy

    if isinstance(decoder, ImageDecoder):
        # A batch is decoded where it is. Other buffers are copied.
        is_batch = isinstance(samples, Batch)
        pool = decoder.pool
        pending = pool.begin(samples, seed) if is_batch else pool.begin_samples(list(samples), list(ids), seed, epoch)
        pixels, failures = pending.finish()
        flat = numpy.frombuffer(pixels if pixels is not None else b"", decoder.dtype)
        return flat.reshape(len(samples), *decoder.shape), dict(failures)
    samples = list(samples)
    try:
        return decoder.decode(samples, seed=seed, epoch=epoch, ids=ids), {}
    except Exception:
        made = numpy.zeros((len(samples), *decoder.shape), decoder.dtype)
        reasons: dict[int, str] = {}
        for at, (sample, number) in enumerate(zip(samples, ids)):
            try:
                made[at] = decoder.decode([sample], seed=seed, epoch=epoch, ids=[number])[0]
            except Exception as error:
                reasons[at] = f"{type(error).__name__}: {error}"
        if not reasons:
            # The decoder failed at the batch, and not at a sample.
            raise
        return made, reasons


class DecodeOne:
    """Decodes single samples with a batch's decoder."""

    def __init__(self, decoder: BatchDecoder, seed: int) -> None:
        self._decoder = decoder
        self._seed = seed

    def __call__(self, sample: Any, epoch: int, number: int) -> Any:
        """A decoded sample. Its random numbers are those of its epoch and id.

        Raises:
            CorruptError: with the reason, if it cannot be decoded.
        """
        made, failures = decode_batch(self._decoder, [sample], [number], self._seed, epoch)
        if failures:
            raise CorruptError(failures[0])
        return made[0]


class TakeField:
    """The field of a sample."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, sample: Any) -> Any:
        if not hasattr(sample, "field"):
            raise ConfigError(
                f"worker processes cannot take the field {self._name!r} of a sample: use no worker processes (worker_count=0)"
            )
        return sample.field(self._name)


class Chain:
    """A function of what another function makes of a sample."""

    def __init__(self, first: Callable[[Any], Any], then: Callable[[Any], Any]) -> None:
        self._first = first
        self._then = then

    def __call__(self, sample: Any) -> Any:
        return self._then(self._first(sample))


def field_of(field: str | None, catalog: Any) -> TakeField | None:
    """The function that takes the named field of a sample. None for whole samples.

    Raises:
        ConfigError: if samples have no such field.
    """
    if field is None:
        return None
    if field not in catalog.field_types:
        raise ConfigError(f"field={field!r}: samples have the fields {', '.join(catalog.field_types) or 'none'}")
    return TakeField(field)


def item_decoder(decode: Decode, catalog: Any, field: str | None = None) -> Callable[[Any], Any]:
    """The function of a sample, or of its field, that `decode` names: not for batch decoders.

    Raises:
        ConfigError: if it names none, or a sample has several fields, whose bytes together are no element.
    """
    take = field_of(field, catalog)
    if take is None and not callable(decode) and len(catalog.field_types) > 1:
        names = ", ".join(catalog.field_types)
        raise ConfigError(f"samples have several fields ({names}): pass field=, or a function of a sample as decode=")
    made = _decoder(decode, catalog, field)
    return made if take is None else Chain(take, made)


def _decoder(decode: Decode, catalog: Any, field: str | None) -> Callable[[Any], Any]:
    if decode is make_image_decoder:
        raise ConfigError("decode=foreread.image is the function that makes a decoder: call it, such as foreread.image(224)")
    if callable(decode):
        return decode
    if decode not in (None, "bytes", "image", "array"):
        raise ConfigError(
            f"invalid decode={decode!r}: expected 'bytes', 'image', 'array', foreread.image(...) or a function of a sample"
        )
    if decode == "image":
        try:
            import PIL.Image  # noqa: F401
        except ImportError as error:
            raise ConfigError("decode='image' needs Pillow: pip install pillow, or pass a function of a sample") from error
        return as_image
    if decode == "array":
        kind = catalog.array_type if field is None else catalog.field_types[field]
        if kind is None:
            raise ConfigError(
                f"decode='array': the format {catalog.format} does not know the samples' type: pass a function of a sample"
            )
        return AsArray(*kind)
    return as_bytes


class FieldLabels:
    """Labels that are the integers in a field of each sample, as in WebDataset's ``cls``."""

    def __init__(self, name: str, catalog: Any) -> None:
        self._name = name
        take = field_of(name, catalog)
        assert take is not None
        self._take = take

    def of(self, sample: Any, number: int) -> int:
        """The label of a sample."""
        text = bytes(self._take(sample))
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"labels={self._name!r}: sample {number} has {text[:20]!r}, which is no integer") from None


class Labels:
    """The labels that the catalog has."""

    def __init__(self, catalog: Any) -> None:
        #: The classes' indices, or the catalog, if the labels are values of a column.
        self._known: array[int] | Any = array("q", catalog.targets()) if catalog.classes else catalog

    def of(self, sample: Any, number: int) -> Any:
        """The label of a sample."""
        return self._known[number] if isinstance(self._known, array) else self._known.label(number)


def labels_of(wanted: bool | str | None, source: Any) -> Labels | FieldLabels | None:
    """The labels of a source, by the value of `labels=`. By default those that there are. None without labels.

    Raises:
        ConfigError: if they are wanted and there are none.
    """
    if isinstance(wanted, str):
        return FieldLabels(wanted, source.catalog)
    if wanted and not source.has_labels:
        raise ConfigError(
            "labels=True: the dataset has no labels: use one directory per class, name a column (foreread.index(..., "
            "label=)), or name a field of each sample (labels='cls')"
        )
    return Labels(source.catalog) if source.has_labels and wanted is not False else None


def batch_labels(batch: Any, labels: Labels | FieldLabels) -> list[Any]:
    """The labels of a batch.

    Raises:
        ConfigError: if a sample has none.
    """
    if isinstance(labels, FieldLabels):
        return [labels.of(sample, sample.id) for sample in batch]
    found: list[Any] = batch.labels
    if None in found:
        sample = batch[found.index(None)]
        raise ConfigError(
            f"sample {sample.id} ({sample.path}) has no label: pass labels=False, or a catalog without it "
            "(foreread.index(..., exclude=...))"
        )
    return found
