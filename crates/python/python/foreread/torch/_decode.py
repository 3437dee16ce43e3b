"""From a sample's bytes to what a transform gets.

Decoding is ImageFolder's: Pillow, converted to RGB. Pillow is imported when the first image is decoded, so that those who
decode otherwise need not have it.
"""

from __future__ import annotations

import io
import os
from array import array
from collections.abc import Callable
from itertools import islice
from typing import Any

from .._native import hidden_file
from ..errors import ConfigError

#: What torchvision's ImageFolder takes for images.
IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

#: The name of a catalog that lies beside its data.
CATALOG = "catalog.foreread"

#: So many names tell whether a dataset is one of images.
_LOOKED_AT = 100

Decode = Callable[[Any], Any]


def image(sample: Any) -> Any:
    """A sample as a Pillow image in RGB, exactly as torchvision's default loader makes it."""
    from PIL import Image

    with Image.open(io.BytesIO(sample)) as opened:
        return opened.convert("RGB")


def raw(sample: Any) -> Any:
    """A sample as it is: a buffer, for ``memoryview``, ``numpy.frombuffer`` or ``torch.frombuffer``."""
    return sample


def decoder(decode: str | Decode | None, samples: Any, target: Any) -> Decode:
    """The function that `decode` names, for the samples of a Loader or Source of `target`."""
    if callable(decode):
        return decode
    if decode in ("bytes", None):
        return raw
    if decode not in ("image", "auto"):
        raise ConfigError(f"decode is 'auto', 'image', 'bytes' or a function of a sample, not {decode!r}")
    paths = (samples.path(number).lower() for number in range(samples.samples))
    if decode == "auto" and not any(path.endswith(IMAGES) for path in islice(paths, _LOOKED_AT)):
        return raw
    made = _image()
    if (path := samples.catalog.first_without(IMAGES)) is not None:
        raise ConfigError(
            f"{path} is no image, and ImageFolder would leave it out; so that the order is ImageFolder's, make a catalog of "
            "images alone (foreread.index(..., exclude=...)) and give that, or say decode='bytes' or a function"
        )
    if samples.catalog.labels and (number := _without_class(samples)) is not None:
        raise ConfigError(
            f"{samples.path(number)} lies in no class's directory, and ImageFolder would leave it out; so that the order is "
            "ImageFolder's, move it away or make a catalog without it (foreread.index(..., exclude=...)), or say decode= as a function, "
            "whose label is then None"
        )
    directory = _listed(target)
    if directory is not None and (empty := _empty_class(directory, samples.catalog.labels)) is not None:
        raise ConfigError(
            f"{empty} has no images, and ImageFolder would not number the classes without it; so that classes have ImageFolder's "
            "numbers, remove the directory or put its images there, or wrap() a DataLoader over ImageFolder"
        )
    if directory is not None and (path := hidden_file(directory, IMAGES)) is not None:
        raise ConfigError(
            f"{path} is hidden, which makes it no sample here, and ImageFolder would take it; so that samples and classes are "
            "ImageFolder's, rename or remove what is hidden, or wrap() a DataLoader over ImageFolder"
        )
    return made


def _without_class(samples: Any) -> int | None:
    """The first sample that has no class, where others have one."""
    targets = array("q", samples.catalog.targets())
    return targets.index(-1) if -1 in targets else None


def _empty_class(directory: str, classes: list[str]) -> str | None:
    """A directory beside the classes' that has none of their samples; none where a catalog says what the classes are."""
    if not classes or os.path.exists(os.path.join(directory, CATALOG)):
        return None
    known = set(classes)
    with os.scandir(directory) as entries:
        others = sorted(entry.path for entry in entries if entry.name not in known and entry.is_dir() and entry.name[0] != ".")
    return others[0] if others else None


def _listed(target: Any) -> str | None:
    """The directory that was listed, if it was one: a catalog says itself what is in it, and of other stores there is no
    ImageFolder."""
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
            "decoding images needs Pillow: pip install pillow, or pass decode='bytes' or a function of your own"
        ) from error
    return image
