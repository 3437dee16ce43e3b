"""Decodes a sample's bytes for transforms.

Images are decoded as in ImageFolder: by Pillow, converted to RGB. Pillow is an optional dependency, imported only for
images.
"""

from __future__ import annotations

import io
import json
import os
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from math import prod
from typing import Any

from .._image import ImageDecoder
from .._image import image as make_image_decoder
from .._native import hidden_file
from ..errors import ConfigError

#: The file name extensions of torchvision's ImageFolder.
IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

#: The name of a catalog in the directory of its data.
CATALOG = "catalog.foreread"

#: The number of names that decide whether a dataset has images.
_NAMES_CHECKED = 100

Decode = Callable[[Any], Any]


def image(sample: Any) -> Any:
    """A sample as a Pillow image in RGB, exactly as by torchvision's default loader."""
    from PIL import Image

    with Image.open(io.BytesIO(sample)) as opened:
        return opened.convert("RGB")


def raw(sample: Any) -> Any:
    """A sample unchanged: a buffer for ``memoryview``, ``numpy.frombuffer`` or ``torch.frombuffer``."""
    return sample


class Tensors:
    """Makes a sample's bytes a tensor of this shape and type. A class, because spawned workers get it pickled.

    Unsigned integers of more than 8 bits become signed ones of twice the size, at most 64 bits: few operations of PyTorch
    take unsigned ones.
    """
    def __init__(self, dtype: str, shape: list[int | None]) -> None:
        import numpy

        self._lengths = [-1 if length is None else length for length in shape]
        self._element = numpy.dtype(dtype)
        self._native = _tensor_type(self._element)

    def __call__(self, sample: Any) -> Any:
        import numpy
        import torch

        values = numpy.frombuffer(sample, self._element).reshape(self._lengths)
        # The copy is the caller's own.
        return torch.from_numpy(values.astype(self._native))


class FieldTensors:
    """Makes the fields of a sample tensors, as a dict by name. The fields follow each other without gaps."""

    def __init__(self, types: dict[str, tuple[str, list[int | None]]]) -> None:
        import numpy

        self._tensors = {name: Tensors(*kind) for name, kind in types.items()}
        # The bytes of each field, or None if they differ between samples.
        self._lengths = {
            name: None if None in shape else prod(length or 0 for length in shape) * numpy.dtype(dtype).itemsize
            for name, (dtype, shape) in types.items()
        }

    def __call__(self, sample: Any) -> dict[str, Any]:
        if list(self._lengths.values()).count(None) > 1:
            if not hasattr(sample, "field"):
                raise ConfigError(
                    "worker processes cannot separate fields of different lengths: use foreread.torch.DataLoader, or pass "
                    "decode= as a function"
                )
            return {name: tensor(sample.field(name)) for name, tensor in self._tensors.items()}
        view, start, fields = memoryview(sample), 0, {}
        rest = len(view) - sum(length for length in self._lengths.values() if length is not None)
        for name, length in self._lengths.items():
            end = start + (rest if length is None else length)
            fields[name] = self._tensors[name](view[start:end])
            start = end
        return fields


class NpyTensor:
    """Makes a tensor of a file that ``numpy.save`` wrote, whatever its type and order. A class, because spawned workers
    get it pickled."""

    def __call__(self, sample: Any) -> Any:
        import numpy
        import torch

        # Fails for objects, which are pickled: reading them would run code.
        values = numpy.load(io.BytesIO(sample), allow_pickle=False)
        if not isinstance(values, numpy.ndarray):
            raise ValueError("it has several arrays, as numpy.savez writes them")
        return torch.from_numpy(numpy.asarray(values, _tensor_type(values.dtype), order="C"))


#: Parts of the names of fields whose images have numbers instead of colours, so they keep the pixels of their files.
MASKS = ("mask", "seg", "label", "target", "depth")

#: Formats of tables, whose fields are columns.
_TABLES = ("parquet", "arrow")


class Fields:
    """Decodes a sample of several fields as a dict by their names. A class, because spawned workers get it pickled."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __call__(self, sample: Any) -> dict[str, Any]:
        if not hasattr(sample, "field_paths"):
            raise ConfigError(
                "worker processes cannot separate the fields of a sample: use foreread.torch.DataLoader, or num_workers=0"
            )
        fields = {}
        for name, data, path in self._fields(sample):
            try:
                fields[name] = _of_ending(name, path)(data)
            except ConfigError:
                raise
            except Exception as error:
                error.add_note(f"foreread: in the field {name!r} ({path})")
                raise
        return fields

    def _fields(self, sample: Any) -> Iterator[tuple[str, Any, str]]:
        """Each field's name, bytes and path, whose ending is its type."""
        raise NotImplementedError


class FileFields(Fields):
    """Samples of several files: images, arrays, texts, JSON, numbers of classes, else bytes."""

    def _fields(self, sample: Any) -> Iterator[tuple[str, Any, str]]:
        for name, path in sample.field_paths().items():
            yield name, sample.field(name), path


#: How files of images begin: JPEG, PNG, WebP, BMP, TIFF, PNM.
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"BM", b"II*\x00", b"MM\x00*", b"P5", b"P6")


class ColumnFields(Fields):
    """Samples of several columns: images, else bytes."""

    def _fields(self, sample: Any) -> Iterator[tuple[str, Any, str]]:
        for name in self.names:
            data = sample.field(name)
            yield name, data, "column.jpg" if bytes(memoryview(data)[:4]).startswith(_BEGINNINGS) else "column"


def text(data: Any) -> str:
    """Bytes as a text."""
    return str(data, "utf-8")


def pixels(sample: Any) -> Any:
    """A sample as a Pillow image with the pixels of its file."""
    from PIL import Image

    with Image.open(io.BytesIO(sample)) as opened:
        opened.load()
        return opened


def _of_ending(name: str, path: str) -> Decode:
    path = path.lower()
    if path.endswith(IMAGES):
        with_colours = _image()
        return pixels if any(part in name.lower() for part in MASKS) else with_colours
    others: dict[str, Decode] = {".npy": NpyTensor(), ".txt": text, ".json": json.loads, ".cls": int}
    return next((decode for ending, decode in others.items() if path.endswith(ending)), bytes)


def _tensor_type(element: Any) -> Any:
    """The NumPy type of a tensor of these elements, in native byte order."""
    import numpy

    wide = numpy.dtype(f"i{min(8, 2 * element.itemsize)}") if element.kind == "u" and element.itemsize > 1 else element
    return wide.newbyteorder("=")


def _is_number(kind: tuple[str, list[int | None]] | None) -> bool:
    """Whether PyTorch has tensors of this type."""
    return kind is not None and kind[0].lstrip("<>|=")[0] in "biuf"


def decoder(decode: str | Decode | None, samples: Any, target: Any) -> Decode:
    """The function that `decode` names, for the samples of a Loader or Source of `target`."""
    if decode is make_image_decoder:
        raise ConfigError("decode=foreread.image is the function that makes a decoder: call it, such as foreread.image(224)")
    if callable(decode) and not isinstance(decode, ImageDecoder):
        return decode
    if decode in ("bytes", None):
        return raw
    if decode not in ("image", "auto") and not isinstance(decode, ImageDecoder):
        raise ConfigError(f"decode must be 'auto', 'image', 'bytes' or a function of a sample, not {decode!r}")
    if decode == "auto" and (files := samples.catalog.field_paths(0)):
        return FileFields(list(files))
    if decode == "auto" and samples.catalog.format in _TABLES and len(names := list(samples.catalog.field_types)) > 1:
        return ColumnFields(names)
    if decode == "auto" and _is_number(kind := samples.catalog.array_type):
        return Tensors(*kind)
    if decode == "auto" and (fields := samples.catalog.field_types) and all(map(_is_number, fields.values())):
        return FieldTensors(fields)
    paths = (samples.catalog.path(number).lower() for number in range(samples.samples))
    if decode == "auto" and not any(path.endswith(IMAGES) for path in islice(paths, _NAMES_CHECKED)):
        return _without_images(samples)
    made = decode if isinstance(decode, ImageDecoder) else _image()
    if samples.catalog.format not in ("files", "tar", "tfrecord", "zip") or samples.catalog.field_types:
        # The classes are not directories, so ImageFolder has no say in them.
        return made
    if (path := samples.catalog.first_without(IMAGES)) is not None:
        raise ConfigError(
            f"{path} is not an image, and ImageFolder would omit it; for ImageFolder's order, use a catalog of images only "
            f"(foreread.index(..., exclude=['**/*{os.path.splitext(path)[1]}'])), or set decode='bytes' or a function"
        )
    if samples.catalog.classes and (number := _without_class(samples)) is not None:
        raise ConfigError(
            f"{samples.catalog.path(number)} is in no class's directory, and ImageFolder would omit it; for ImageFolder's order, move it or "
            "use a catalog without it (foreread.index(..., exclude=...)), or set decode= to a function, whose label is then None"
        )
    directory = _listed(target)
    if directory is not None and (path := hidden_file(directory, IMAGES)) is not None:
        raise ConfigError(
            f"{path} is hidden and therefore not a sample, but ImageFolder would include it; for ImageFolder's samples and "
            "classes, rename or remove hidden files, or wrap() a DataLoader over ImageFolder"
        )
    return made


def _without_images(samples: Any) -> Decode:
    """The decoder of samples whose names are of no images. Records of shards are bytes, but files have a type."""
    if samples.catalog.format not in ("files", "zip"):
        return raw
    if (path := samples.catalog.first_without((".npy",))) is None:
        return NpyTensor()
    raise ConfigError(
        f"{path}: no decoder is known for such files; set decode='bytes' for their bytes, 'image' for images, or a function "
        "of a sample, or leave them out (foreread.index(..., include=...))"
    )


def _without_class(samples: Any) -> int | None:
    """The first sample without a class."""
    targets = array("q", samples.catalog.targets())
    return targets.index(-1) if -1 in targets else None


def _listed(target: Any) -> str | None:
    """The listed directory. None for catalogs and other stores, which have no ImageFolder."""
    if not isinstance(target, (str, os.PathLike)):
        return None
    path = os.fspath(target)
    path = path.removeprefix("file://") if isinstance(path, str) else os.fsdecode(path)
    return path if os.path.isdir(path) else None


def _image() -> Decode:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "decoding images needs Pillow: pip install pillow, or pass decode='bytes' or a custom function"
        ) from error
    return image
