"""What Loader, Source and plan take beside the dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, Union

if TYPE_CHECKING:
    from ._native import Catalog

__all__ = ["Path", "Settings", "Size", "Target"]

#: A path, or a URL.
Path: TypeAlias = Union[str, "os.PathLike[str]"]

#: The URL or path of a dataset, of a catalog or of a shard; a catalog that is at hand; a list of shards.
Target: TypeAlias = Union[Path, "Catalog", Sequence[Path]]

#: Bytes, or a text such as "8GiB" or "500MB".
Size: TypeAlias = Union[int, str]


class Settings(TypedDict, total=False):
    """Every setting, by its name; what is left out, or None, comes from FOREREAD_*, foreread.toml, or a default."""

    #: Samples a batch, on this rank; 64.
    batch_size: int | None
    #: How often the dataset is read; as often as one asks.
    epochs: int | None
    #: What the order is drawn from; 0.
    seed: int | None
    #: How the order is drawn; shuffle. torch is DistributedSampler's, bit for bit.
    sampler: Literal["shuffle", "torch", "feistel", "sequential"] | None
    #: Drop what does not divide evenly, instead of padding.
    drop_last: bool | None
    #: How ranks share an epoch: strided as PyTorch does, in blocks, or by who keeps what.
    deal: Literal["torch", "blocks", "locality"] | None
    #: This process among the ranks, and how many there are; the launcher's (torchrun, SLURM, MPI).
    rank: int | None
    world_size: int | None
    #: The memory tier of this rank; "auto": half of what is free, and none where the kernel caches the data already.
    memory: Size | None
    #: Directories of the disk tier of this node with their sizes: "DIR=SIZE", a list of such, or a dict.
    disk: str | Sequence[str] | Mapping[Path, Size] | None
    #: How far reads run ahead of the trainer, in bytes; 256 MiB.
    look_ahead: Size | None
    #: The most bytes a second that are read from the origin.
    origin_limit: Size | None
    #: The most reads from the origin at once.
    origin_parallelism: int | None
    #: What the tiers can do, as `foreread calibrate` wrote it.
    calibration: Path | None
    #: A second dataset, read in order after every epoch.
    validate: Path | None
    #: How samples lie in objects; told from their names.
    format: Literal["auto", "files", "tar", "tfrecord", "zip"] | None
    #: What a sample that cannot be read does; fail.
    on_error: Literal["fail", "skip", "substitute"] | None
    #: What Loader.state() gave.
    resume: str | None
    #: Whether ranks that find each other share their caches.
    together: Literal["auto", False]
    #: Whether a bar is shown (tqdm), or lines.
    progress: bool
