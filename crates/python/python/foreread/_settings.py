"""The settings of Loader, Source and plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, Union

if TYPE_CHECKING:
    from ._native import Catalog

__all__ = ["Format", "Path", "Settings", "Size", "Target"]

#: A path, or a URL.
Path: TypeAlias = Union[str, "os.PathLike[str]"]

#: The URL or path of a dataset, catalog or shard, a Catalog, or a list of shards.
Target: TypeAlias = Union[Path, "Catalog", Sequence[Path]]

#: How objects store samples.
Format: TypeAlias = Literal[
    "auto", "files", "tar", "tfrecord", "zip", "lmdb", "hdf5", "parquet", "arrow", "mds", "litdata", "npy", "tokens", "recordio"
]

#: Bytes, or a text such as "8GiB" or "500MB".
Size: TypeAlias = Union[int, str]


class Settings(TypedDict, total=False):
    """All settings. A setting that is missing or None comes from FOREREAD_*, foreread.toml, or its default."""

    #: Samples per batch on this rank (default: 64).
    batch_size: int | None
    #: The number of epochs (default: unlimited).
    epochs: int | None
    #: The seed of the order (default: 0).
    seed: int | None
    #: The order of a group of jobs, in place of the seed's: an agent reads each sample once for all of them.
    order_group: str | None
    #: The sampler (default: shuffle). torch is DistributedSampler's order, bit for bit.
    sampler: Literal["shuffle", "torch", "feistel", "sequential"] | None
    #: Drop an uneven remainder instead of padding.
    drop_last: bool | None
    #: How ranks share an epoch: strided as in PyTorch, in blocks, or by cache owner. Locality is never automatic: it
    #: changes each rank's samples.
    deal: Literal["torch", "blocks", "locality"] | None
    #: Rank and number of ranks. Default: from the launcher (torchrun, SLURM, MPI).
    rank: int | None
    world_size: int | None
    #: The memory tier of this rank. "auto" is half of the free memory, or none if the kernel already caches the data.
    memory: Size | None
    #: Directories of the disk tier of this node with their sizes: "DIR=SIZE", a list of these, or a dict.
    disk: str | Sequence[str] | Mapping[Path, Size] | None
    #: The agent of the node, whose cache all jobs share: "auto" (default) is the user's own if one runs, "off" none, or
    #: the path of its socket. It replaces memory and disk.
    agent: Path | None
    #: Memory for samples while the agent is gone, or the rank that hosts the memory of this node (default: 0).
    memory_alone: Size | None
    #: How far reads run ahead of the trainer, in bytes. "auto" (default) is at most 256 MiB.
    look_ahead: Size | None
    #: The maximum bytes per second read from storage.
    origin_limit: Size | None
    #: The maximum concurrent reads from storage; "auto" (default): found while reading.
    origin_parallelism: int | Literal["auto"] | None
    #: How many seconds failed reads are repeated and a silent file server is waited for; "auto" (default): 120, and
    #: 1200 on network file systems.
    patience: int | Literal["auto"] | None
    #: Whether to restore files that the storage has moved to an archive, in the background. Only an argument sets it.
    recall: bool | None
    #: The file of measured speeds from `foreread calibrate`; "auto" (default): foreread-calibration.toml in the working
    #: directory, if there is one; "off": none.
    calibration: Path | None
    #: A second dataset, read in order after every epoch.
    validate: Path | None
    #: How objects store samples (default: detected from their names).
    format: Format | None
    #: The effect of an unreadable sample (default: fail).
    on_error: Literal["fail", "skip", "substitute"] | None
    #: A state from Loader.state().
    resume: str | None
    #: Whether ranks that find each other share their caches: "auto" (default) or "off".
    peers: Literal["auto", "off"] | None
    #: Whether to show progress, as a bar (tqdm) or lines.
    progress: bool
