"""From a sample's bytes to what a transform gets.

Decoding is ImageFolder's: Pillow, converted to RGB. Pillow is imported when the first image is decoded, so that those who
decode otherwise need not have it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from ..errors import ConfigError

#: What torchvision's ImageFolder takes for images.
IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

Decode = Callable[[Any], Any]


def image(sample: Any) -> Any:
    """A sample as a Pillow image in RGB, exactly as torchvision's default loader makes it."""
    from PIL import Image

    with Image.open(io.BytesIO(sample)) as opened:
        return opened.convert("RGB")


def raw(sample: Any) -> Any:
    """A sample as it is: a buffer, for ``memoryview``, ``numpy.frombuffer`` or ``torch.frombuffer``."""
    return sample


def decoder(decode: str | Decode | None, path: str | None) -> Decode:
    """The function that `decode` names, for a dataset whose first sample lies at `path`."""
    if callable(decode):
        return decode
    if decode in ("bytes", None):
        return raw
    if decode == "image":
        return _image()
    if decode == "auto":
        is_image = path is not None and path.lower().endswith(IMAGES)
        return _image() if is_image else raw
    raise ConfigError(f"decode is 'auto', 'image', 'bytes' or a function of a sample, not {decode!r}")


def _image() -> Decode:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "decoding images needs Pillow: pip install pillow, or pass decode='bytes' or a function of your own"
        ) from error
    return image
