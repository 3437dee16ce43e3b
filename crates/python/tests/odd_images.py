"""Images of odd kinds, as bytes by name."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def picture(draw: random.Random, width: int, height: int) -> Any:
    """Smooth colours with noise and hard edges, so that any misplaced pixel shows."""
    values = np.random.default_rng(draw.randrange(1 << 32))
    small = Image.fromarray(values.integers(0, 256, (5, 7, 3), "uint8"))
    pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), "int16")
    pixels = pixels + values.integers(-12, 13, pixels.shape)
    pixels[height // 3 : height // 3 + 2, :, draw.randrange(3)] = 255
    pixels[:, width // 2 : width // 2 + 1, draw.randrange(3)] = 0
    return Image.fromarray(np.clip(pixels, 0, 255).astype("uint8"))


def saved(image: Any, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(pixels: Any, depth: int, color: int, interlaced: bool = False) -> bytes:
    """A PNG of 16 bits or with interlacing, which Pillow does not write. Rows are not filtered."""
    height, width = pixels.shape[:2]

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b""
    for left, top, across, down in passes if interlaced else [(0, 0, 1, 1)]:
        part = pixels[top::down, left::across]
        if part.size:
            rows += b"".join(b"\0" + row.astype(">u2" if depth == 16 else "u1").tobytes() for row in part)
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, int(interlaced))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def exif(orientation: int) -> bytes:
    data = Image.Exif()
    data[0x0112] = orientation
    return bytes(data.tobytes())


def odd(number: int) -> tuple[str, bytes]:
    """The `number`-th image: its kind and bytes. Sizes are odd, too."""
    draw = random.Random(number)
    width, height = draw.randrange(1, 200), draw.randrange(1, 200)
    image = picture(draw, width, height)
    quality = draw.choice((10, 50, 75, 90, 100))
    wide = np.asarray(image).astype("u2") * 257 - draw.randrange(200)
    kinds: list[Any] = [
        ("JPEG", lambda: saved(image, "JPEG", quality=quality)),
        ("JPEG 4:4:4", lambda: saved(image, "JPEG", quality=quality, subsampling=0)),
        ("JPEG 4:2:2", lambda: saved(image, "JPEG", quality=quality, subsampling=1)),
        ("JPEG 4:2:0", lambda: saved(image, "JPEG", quality=quality, subsampling=2)),
        ("JPEG progressive", lambda: saved(image, "JPEG", quality=quality, progressive=True)),
        ("JPEG progressive 4:4:4", lambda: saved(image, "JPEG", quality=quality, progressive=True, subsampling=0)),
        ("JPEG optimised", lambda: saved(image, "JPEG", quality=quality, optimize=True)),
        ("JPEG grey", lambda: saved(image.convert("L"), "JPEG", quality=quality)),
        ("JPEG CMYK", lambda: saved(image.convert("CMYK"), "JPEG", quality=quality)),
        ("JPEG rotated", lambda: saved(image, "JPEG", quality=quality, exif=exif(draw.randrange(1, 9)))),
        ("JPEG with a trailer", lambda: saved(image, "JPEG", quality=quality) + draw.randbytes(500)),
        ("PNG", lambda: saved(image, "PNG")),
        ("PNG palette", lambda: saved(image.quantize(draw.choice((2, 4, 16, 200))), "PNG")),
        ("PNG palette with transparency", lambda: saved(image.quantize(16), "PNG", transparency=draw.randrange(16))),
        ("PNG bits", lambda: saved(image.convert("1"), "PNG")),
        ("PNG grey", lambda: saved(image.convert("L"), "PNG")),
        ("PNG grey with alpha", lambda: saved(image.convert("LA"), "PNG")),
        ("PNG alpha", lambda: saved(alpha(image, draw), "PNG")),
        ("PNG colour of 16 bits", lambda: png(wide, 16, 2)),
        ("PNG grey of 16 bits", lambda: png(wide[:, :, 0] >> draw.choice((0, 8)), 16, 0)),
        ("PNG interlaced", lambda: png(np.asarray(image), 8, 2, True)),
        ("WebP", lambda: saved(image, "WEBP", quality=quality)),
        ("WebP lossless", lambda: saved(image, "WEBP", lossless=True)),
        ("WebP alpha", lambda: saved(alpha(image, draw), "WEBP", quality=quality)),
        ("WebP lossless alpha", lambda: saved(alpha(image, draw), "WEBP", lossless=True, exact=True)),
    ]
    kind, make = kinds[number % len(kinds)]
    return kind, make()


def alpha(image: Any, draw: random.Random) -> Any:
    """The image, transparent in part."""
    other = image.convert("RGBA")
    other.putalpha(Image.linear_gradient("L").resize(image.size).rotate(90 * draw.randrange(4)).resize(image.size))
    return other
