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

#: Bytes, or a text such as "8GiB" or "500MB".
Size: TypeAlias = Union[int, str]

#: How objects store samples.
Format: TypeAlias = Literal[
    "auto", "files", "tar", "tfrecord", "zip", "lmdb", "hdf5", "parquet", "arrow", "mds", "litdata", "npy", "tokens", "recordio"
]


class Settings(TypedDict, total=False):
    """All settings. A setting that is missing or None comes from FOREREAD_*, foreread.toml, or its default."""

    # Written by `FOREREAD_WRITE=1 cargo test -p foreread-settings --test document` from the table of settings.

    #: Samples per batch, on each rank. Default: 64.
    batch_size: int | None
    #: Passes over the dataset. Default: unlimited.
    epochs: int | None
    #: The seed of the order. Default: 0.
    seed: int | None
    #: Read in this group's order, whatever the seed. Jobs of one group read in one order, so an agent reads each sample
    #: once for all of them.
    order_group: str | None
    #: How the order is drawn; torch is the order of PyTorch's DistributedSampler. 'shuffle' (default), 'torch',
    #: 'feistel' or 'sequential'.
    sampler: Literal["shuffle", "torch", "feistel", "sequential"] | None
    #: Drop samples that do not divide evenly among ranks and batches, instead of padding.
    drop_last: bool | None
    #: How ranks share an epoch: torch (strided), blocks, or locality (each sample goes to a rank that caches it).
    #: Locality changes each rank's samples, so it is never automatic. 'torch' (default), 'blocks' or 'locality'.
    deal: Literal["torch", "blocks", "locality"] | None
    #: A second dataset, read in order after every epoch.
    validate: Path | None
    #: The memory tier of each rank. auto: the ranks of a node share half of the free memory; none if the kernel already
    #: caches the data. Default: auto.
    memory: Size | None
    #: A directory of the disk tier and its size, for all ranks of a node; may be repeated. DIR=SIZE,shared: one cache
    #: for all users, where everyone with write access is trusted. Also a list of these, or a dict of directories and
    #: sizes.
    disk: str | Sequence[str] | Mapping[Path, Size] | None
    #: The agent of the node, whose cache all jobs share; it replaces this run's memory and disks. auto: the user's own,
    #: if one runs, for data that the kernel does not cache. PATH: its socket. Default: auto.
    agent: Path | None
    #: Memory for samples while the agent, or the rank that hosts the memory of this node, is gone. Default: 0.
    memory_alone: Size | None
    #: The most bytes that are prefetched on each rank. auto: 256 MiB. Less is used if the trainer needs less. Default:
    #: auto.
    look_ahead: Size | None
    #: How objects store samples; tar is WebDataset. auto: detected from names and first bytes. 'auto' (default),
    #: 'files', 'tar', 'tfrecord', 'zip', 'lmdb', 'hdf5', 'parquet', 'arrow', 'mds', 'litdata', 'npy', 'tokens' or
    #: 'recordio'.
    format: Format | None
    #: The most bytes per second from storage.
    origin_limit: Size | None
    #: The most reads from storage at once. auto: found by measuring while it reads. Default: auto.
    origin_parallelism: int | Literal["auto"] | None
    #: How long failed reads of storage are repeated, and how long a silent file server is waited for. auto: 120 s, and
    #: 1200 s on network file systems. In seconds. Default: auto.
    patience: int | Literal["auto"] | None
    #: Restore files that the storage has moved to an archive, in the background.
    recall: bool | None
    #: The file that `foreread calibrate` wrote. auto: foreread-calibration.toml in the working directory, if there is
    #: one. Speeds of other datasets and directories are ignored. Default: auto.
    calibration: Path | None
    #: The reaction to a sample that cannot be read. 'fail' (default), 'skip' or 'substitute'.
    on_error: Literal["fail", "skip", "substitute"] | None
    #: This process among the ranks; the launcher's, or 0, if unset.
    rank: int | None
    #: The number of ranks; the launcher's, or 1, if unset.
    world_size: int | None
    #: Whether ranks that find each other share their caches. 'auto' (default) or 'off'.
    peers: Literal["auto", "off"] | None
    #: A state from Loader.state().
    resume: str | None
    #: Whether to show progress, as a bar (tqdm) or lines.
    progress: bool
