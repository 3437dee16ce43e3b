"""Makes the elements of data sources without PyTorch: bytes, NumPy arrays, or what a function makes of a sample.

Elements are a sample's own bytes unless ``decode=`` requests more, because the frameworks have fast decoders of their
own. Everything here is pickled into worker processes.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, Union, runtime_checkable

from .errors import ConfigError


@runtime_checkable
class BatchDecoder(Protocol):
    """Decodes the samples of a batch into one array, on threads without the GIL. ``foreread.image`` makes one."""

    #: The shape and NumPy type of a decoded sample.
    shape: tuple[int, ...]
    dtype: str

    def decode(self, samples: Sequence[Any], *, seed: int, epoch: int, ids: Sequence[int]) -> Any:
        """The decoded samples, of shape ``(len(samples), *shape)``."""


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


class DecodeOne:
    """Decodes single samples with a batch's decoder."""

    def __init__(self, decoder: BatchDecoder, seed: int) -> None:
        self._decoder = decoder
        self._seed = seed

    def __call__(self, sample: Any, epoch: int, number: int) -> Any:
        """A decoded sample. Its random numbers are those of its epoch and id."""
        return self._decoder.decode([sample], seed=self._seed, epoch=epoch, ids=[number])[0]


def item_decoder(decode: Decode, catalog: Any) -> Callable[[Any], Any]:
    """The function of a sample that `decode` names: not for batch decoders.

    Raises:
        ConfigError: if it names none, or a sample has several fields, whose bytes together are no element.
    """
    if callable(decode):
        return decode
    if decode not in (None, "bytes", "image", "array"):
        raise ConfigError(f"invalid decode={decode!r}: expected 'bytes', 'image', 'array', foreread.image(...) or a function of a sample")
    if decode == "image":
        try:
            import PIL.Image  # noqa: F401
        except ImportError as error:
            raise ConfigError("decode='image' needs Pillow: pip install pillow, or pass a function of a sample") from error
        return as_image
    if decode == "array":
        if catalog.array_type is None:
            raise ConfigError(f"decode='array': the format {catalog.format} does not know the samples' type: pass a function of a sample")
        return AsArray(*catalog.array_type)
    return as_bytes


class Labels:
    """The labels of a source's samples. None in place of it: the dataset has none, or they are not wanted."""

    def __init__(self, catalog: Any) -> None:
        #: The classes' indices. Empty if the labels are values of a column.
        self._targets = array("q", catalog.targets()) if catalog.labels else None
        self._catalog = catalog if self._targets is None else None

    def __getitem__(self, number: int) -> Any:
        return self._catalog.label(number) if self._targets is None else self._targets[number]


def labels_of(wanted: bool | None, source: Any) -> Labels | None:
    """The labels of a source, by the value of `labels=`. By default those that there are.

    Raises:
        ConfigError: if they are wanted and there are none.
    """
    if wanted and not source.has_labels:
        raise ConfigError(
            "labels=True: the dataset has no labels: use one directory per class, or name a column (foreread.index(..., label=))"
        )
    return Labels(source.catalog) if source.has_labels and wanted is not False else None
