"""Decoding images without the GIL.

An ``ImageDecoder`` holds options, and can be pickled. Its threads start at the first use in each process, because a forked
process has none of its parent's.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from ._native import ImagePool
from .errors import ConfigError, CorruptError

if TYPE_CHECKING:
    import numpy

#: Means and deviations of ImageNet's channels, as torchvision's models expect them.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

#: The longest side of an output, as of a JPEG.
_MAX_SIDE = 65_535

#: Larger images are refused: Pillow's limit, above which it warns.
MAX_PIXELS = 89_478_485

Channels = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Options:
    """The arguments of ``image``, with defaults filled in."""

    height: int
    width: int
    scale: tuple[float, float] | None
    ratio: tuple[float, float]
    flip: float
    resize: int | None
    normalize: tuple[Channels, Channels] | None
    channels_last: bool
    max_pixels: int
    threads: int


class ImageDecoder:
    """Decodes JPEG, PNG and WebP into batches, on threads of its own: see ``foreread.image``."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        #: The threads of each process that has used this object: a forked child has its parent's entry, too.
        self._pools: dict[int, ImagePool] = {}
        # Wrong options fail here, and not at the first batch.
        self.pool  # noqa: B018

    @property
    def pool(self) -> ImagePool:
        """The threads of this process."""
        process = os.getpid()
        if (pool := self._pools.get(process)) is None:
            made = self._options
            # Of several threads that come here at once, all get the first one's.
            pool = self._pools.setdefault(
                process,
                ImagePool(
                    made.height,
                    made.width,
                    scale=made.scale,
                    ratio=made.ratio,
                    flip=made.flip,
                    resize=made.resize,
                    normalize=made.normalize,
                    channels_last=made.channels_last,
                    max_pixels=made.max_pixels,
                    threads=made.threads,
                ),
            )
        return pool

    @property
    def train(self) -> bool:
        """Whether crops are random."""
        return self._options.scale is not None

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a decoded image."""
        made = self._options
        return (made.height, made.width, 3) if made.channels_last else (3, made.height, made.width)

    @property
    def dtype(self) -> str:
        """The type of its values: "uint8" or "float32"."""
        return "uint8" if self._options.normalize is None else "float32"

    @property
    def bytes(self) -> int:
        """The bytes of a decoded image."""
        return prod(self.shape) * (1 if self.dtype == "uint8" else 4)

    def decode(
        self, samples: Sequence[Any], *, seed: int = 0, epoch: int = 0, ids: Sequence[int] | None = None
    ) -> numpy.ndarray[Any, Any]:
        """Samples, or buffers of encoded images, as an array of shape (len(samples), *shape). ``ids`` select the random
        numbers, together with seed and epoch. By default they are the samples' own, or else their indices.

        Raises CorruptError if a sample cannot be decoded.
        """
        import numpy

        numbers = [getattr(sample, "id", at) for at, sample in enumerate(samples)] if ids is None else list(ids)
        pixels, failures = self.pool.begin_samples(list(samples), numbers, seed, epoch).finish()
        if failures:
            at, why = failures[0]
            error = CorruptError(f"sample {numbers[at]} cannot be decoded: {why}")
            error.sample_id = numbers[at]
            raise error
        flat: numpy.ndarray[Any, Any] = numpy.frombuffer(pixels, self.dtype)
        return flat.reshape(len(samples), *self.shape)

    def augmentation(self, width: int, height: int, *, seed: int = 0, epoch: int = 0, sample: int = 0) -> tuple[int, int, int, int, bool]:
        """The region that is used of an image of this size: first row and column, height and width; and whether it is flipped.
        Without ``train``, the region is that of the resized image."""
        width, height = _least_one("width", width), _least_one("height", height)
        return self.pool.augmentation(width, height, seed, epoch, sample)

    def __call__(self, sample: Any) -> numpy.ndarray[Any, Any]:
        """One sample as an array, for datasets that decode sample by sample."""
        if self.train:
            raise ConfigError(
                "random crops are drawn by epoch, which a dataset does not know: use foreread.torch.DataLoader, or "
                "decode(samples, seed=, epoch=, ids=)"
            )
        decoded: numpy.ndarray[Any, Any] = self.decode([sample])[0]
        return decoded

    def __getstate__(self) -> _Options:
        return self._options

    def __setstate__(self, state: _Options) -> None:
        self._options, self._pools = state, {}

    def __repr__(self) -> str:
        return f"<foreread.image {'x'.join(map(str, self.shape))} {self.dtype}{', random crops' if self.train else ''}>"


def _size(size: int | Sequence[int]) -> tuple[int, int]:
    try:
        height, width = size if isinstance(size, Sequence) else (size, size)
        height, width = operator.index(height), operator.index(width)
    except (TypeError, ValueError):
        raise TypeError(f"size must be a number of pixels, or height and width, not {size!r}") from None
    if not (1 <= height <= _MAX_SIDE and 1 <= width <= _MAX_SIDE):
        raise ConfigError(f"size {size}: 1 to {_MAX_SIDE} pixels a side")
    return height, width


def _least_one(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {value!r}") from None
    if number < 1:
        raise ConfigError(f"{name}={number}: at least 1")
    return number


def _floats(name: str, values: Any, count: int) -> tuple[float, ...]:
    """`count` numbers."""
    try:
        made = tuple(map(float, values))
    except (TypeError, ValueError):
        made = ()
    if len(made) != count or isinstance(values, str):
        raise TypeError(f"{name} must be {count} numbers, not {values!r}")
    return made


def image(
    size: int | Sequence[int],
    *,
    train: bool = False,
    scale: tuple[float, float] | None = None,
    ratio: tuple[float, float] | None = None,
    flip: float | None = None,
    resize: int | Literal["stretch"] | None = None,
    dtype: Literal["uint8", "float32"] | None = None,
    mean: Channels | Literal["imagenet"] | None = None,
    std: Channels | None = None,
    layout: Literal["NCHW", "NHWC"] = "NCHW",
    max_pixels: int = MAX_PIXELS,
    threads: int | None = None,
) -> ImageDecoder:
    """Decodes JPEG, PNG and WebP without the GIL: for ``decode=`` of ``foreread.torch.DataLoader`` and others.

    The pixels are those of torchvision's transforms of a Pillow image in RGB, up to 1 of 255 where an image is resized.
    Random crops and flips depend on the seed, the epoch and the sample's id only. So they are the same with any number of
    ranks, threads and workers, and after a resume.

    Args:
        size: the output's height and width, or one length for both.
        train: random crops and flips (RandomResizedCrop, RandomHorizontalFlip). Otherwise, the shorter side is resized to
            ``resize``, and the centre is used (Resize, CenterCrop).
        scale, ratio, flip: of random crops: bounds of the share of the area (by default 0.08 and 1) and of the aspect ratio
            (3/4 and 4/3), and the probability of a flip (0.5).
        resize: the shorter side before the central crop, by default 256/224 of the size. "stretch" uses the whole image.
        dtype: "uint8" (the default), or "float32": values from 0 to 1, as from ToTensor.
        mean, std: of the channels, of values from 0 to 1, as for Normalize. They imply "float32". ``mean="imagenet"`` sets
            both for torchvision's models.
        layout: "NCHW" (PyTorch's) or "NHWC" (TensorFlow's).
        max_pixels: larger images are refused as decompression bombs.
        threads: by default as many as the process may use cores, divided by the ranks of the node.

    Raises:
        ConfigError: if an argument is out of range, or contradicts another.
    """
    given = {"scale": scale, "ratio": ratio, "flip": flip}
    if not isinstance(train, bool):
        raise TypeError(f"train must be True or False, not {train!r}")
    if train and resize is not None:
        raise ConfigError("resize: random crops (train=True) have their own scale")
    if not train and (unused := [name for name, value in given.items() if value is not None]):
        raise ConfigError(f"{', '.join(unused)}: only random crops (train=True) have it")
    if layout not in ("NCHW", "NHWC"):
        raise ConfigError(f"layout must be 'NCHW' or 'NHWC', not {layout!r}")
    if dtype not in ("uint8", "float32", None):
        raise ConfigError(f"dtype must be 'uint8' or 'float32', not {dtype!r}")
    height, width = _size(size)
    stretch = isinstance(resize, str) and resize == "stretch"
    short = round(max(height, width) * 256 / 224) if resize is None or stretch else _least_one("resize", resize)
    smallest, largest = _floats("scale", (0.08, 1.0) if scale is None else scale, 2)
    narrow, wide = _floats("ratio", (3 / 4, 4 / 3) if ratio is None else ratio, 2)
    return ImageDecoder(
        _Options(
            height=height,
            width=width,
            scale=(smallest, largest) if train else None,
            ratio=(narrow, wide),
            flip=0.5 if flip is None else float(flip),
            resize=None if stretch else min(short, _MAX_SIDE + 1),
            normalize=_normalize(dtype, mean, std),
            channels_last=layout == "NHWC",
            max_pixels=min(_least_one("max_pixels", max_pixels), 1 << 62),
            threads=0 if threads is None else _least_one("threads", threads),
        )
    )


def _normalize(dtype: str | None, mean: Any, std: Any) -> tuple[Channels, Channels] | None:
    if isinstance(mean, str):
        if mean != "imagenet":
            raise ConfigError(f"mean={mean!r}: 'imagenet', or three numbers")
        if std is not None:
            raise ConfigError('std: mean="imagenet" sets both')
        mean, std = IMAGENET
    if (mean is None) != (std is None):
        raise ConfigError("mean and std belong together")
    if mean is None:
        return ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)) if dtype == "float32" else None
    if dtype == "uint8":
        raise ConfigError("mean and std make values float32, not uint8")
    means, deviations = _floats("mean", mean, 3), _floats("std", std, 3)
    if max(means) > 1 or max(deviations) > 1:
        raise ConfigError(f"mean={mean}, std={std}: of values from 0 to 1, not to 255")
    return (means[0], means[1], means[2]), (deviations[0], deviations[1], deviations[2])
