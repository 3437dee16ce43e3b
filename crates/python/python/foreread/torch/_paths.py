"""The files of a dataset's samples.

A dataset names its files by paths as it opens them: absolute, relative to the working directory or to its root, through
symbolic links. They are kept as absolute paths from here on, because the working directory may change. A sample may have
several files, for example an image and its mask. Samples then have equally many places, some of them empty, so that a
file's place follows from its sample's index.
"""

from __future__ import annotations

import hashlib
import logging
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from torch.utils.data import ConcatDataset, Subset

from .._native import Catalog, catalog_of
from ..errors import ConfigError
from ._files import full_path

_log = logging.getLogger("foreread.torch")

#: Files above this size that several samples share are assumed to be read in part by each of them.
_SHARED_FILE_SIZE = 1 << 20

#: How many relative paths are tested to find the directory that they are relative to.
_RELATIVE_TESTED = 64

#: The path at an empty place.
_NO_PATH = ""


def hash_of(path: str) -> int:
    """A hash of a path, in eight bytes, equal in all processes."""
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")


def places_of(indices: Iterable[int], width: int) -> Iterable[int]:
    """The places of the files of samples, in order."""
    if width == 1:
        return indices
    return chain.from_iterable(range(index * width, (index + 1) * width) for index in indices)


class SampleFiles(NamedTuple):
    """A dataset's files, by their places: `width` places per sample."""

    #: Their ids in the catalog. -1 for files that are read as usual.
    numbers: array[int]
    #: The hashes of their paths.
    hashes: array[int]
    #: Their modification times. None where the look-up would cost too much.
    times: array[int] | None
    width: int
    #: The samples whose files are requested together.
    at_once: int = 1


class SamplePaths:
    """Maps an index to the paths of the sample's files, in worker processes too."""

    def __init__(self, dataset: Any, paths: Sequence[Any] | Callable[[int], Any] | None) -> None:
        if paths is not None and not callable(paths) and len(paths) != len(dataset):
            raise ConfigError(f"paths= names the files of {len(paths)} samples, and the dataset has {len(dataset)}")
        self._dataset, self._paths = dataset, paths
        #: The directory of relative paths.
        self.base = ""

    def named(self, index: int) -> list[str]:
        """The paths as the dataset names them, each once."""
        if self._paths is None:
            value = _path(self._dataset, index)
        else:
            value = self._paths(index) if callable(self._paths) else self._paths[index]
        try:
            return list(dict.fromkeys(map(os.fsdecode, value if isinstance(value, (list, tuple)) else (value,))))
        except TypeError:
            raise TypeError(
                f"paths: sample {index} has {value!r:.100}: expected a path, or a list or tuple of paths"
            ) from None

    def __call__(self, index: int) -> list[str]:
        """The absolute paths."""
        return [full_path(path, self.base) for path in self.named(index)]


def _path(dataset: Any, index: int) -> Any:
    """The file of a sample, for datasets like ImageFolder and their subsets and concatenations."""
    if isinstance(dataset, Subset):
        return _path(dataset.dataset, dataset.indices[index])
    if isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            if index < len(part):
                return _path(part, index)
            index -= len(part)
        raise IndexError(index)
    for name in ("samples", "imgs"):
        samples = getattr(dataset, name, None)
        if isinstance(samples, Sequence):
            first = samples[index]
            first = first[0] if isinstance(first, (list, tuple)) else first
            if isinstance(first, (str, bytes, os.PathLike)):
                return first
    raise ConfigError(
        f"{type(dataset).__name__} does not name its samples' files: it has no `samples` as ImageFolder has; "
        "pass paths=, a list of paths or a function from a sample's index to its path"
    )


def find_files(
    dataset: Any, root: str | os.PathLike[str] | None, paths: Sequence[Any] | Callable[[int], Any] | None
) -> tuple[Catalog, SampleFiles, SamplePaths, str]:
    """The catalog of a dataset's files below `root`, their places, their paths, and the directory.

    Raises:
        ConfigError: if the dataset does not name its files, or they are elsewhere.
    """
    root = os.fspath(root if root is not None else _root(dataset))
    # By text, `..` after a symbolic link would lead elsewhere.
    where = os.path.realpath(root) if ".." in root.split("/") else os.path.abspath(root)
    known = SamplePaths(dataset, paths)
    named = [known.named(index) for index in range(len(dataset))]
    known.base = _base_of(named, where)
    width = max(1, max(map(len, named), default=1))
    every = [full_path(path, known.base) if path else path for one in named for path in one + [_NO_PATH] * (width - len(one))]
    catalog, numbers, times = catalog_of(full_path(root), where, every)
    count = len(every) - every.count(_NO_PATH)
    if catalog is None:
        raise ConfigError(f"none of the dataset's {count} files is in {where}; set root=")
    found = array("q", numbers)
    files = SampleFiles(
        _without_shared_files(found, catalog, where), array("Q", map(hash_of, every)), array("q", times), width
    )
    missing = [path for path, number in zip(every, found) if number < 0 and path]
    if missing:
        _log.warning(
            "%d of the dataset's %d files are not in %s, are missing or have names that are not UTF-8: "
            "they are read as usual; the first is %r",
            len(missing),
            count,
            where,
            missing[0],
        )
    return catalog, files, known, where


def _base_of(named: Iterable[Sequence[str]], where: str) -> str:
    """The directory of relative paths: the working directory if it has such files below `where`, else `where`."""
    top = os.path.join(os.path.realpath(where), "")
    relative = (path for path in chain.from_iterable(named) if path and not path.startswith("/"))
    for path in islice(relative, _RELATIVE_TESTED):
        found = full_path(path)
        if os.path.exists(found) and os.path.join(os.path.realpath(os.path.dirname(found)), "").startswith(top):
            return os.getcwd()
    return where


def _without_shared_files(numbers: array[int], catalog: Catalog, where: str) -> array[int]:
    """The ids of files, without large files that several samples share. Each sample reads a part of these, and would be
    served the whole file."""
    uses = Counter(numbers)
    if len(catalog) == sum(uses.values()) - uses[-1]:
        return numbers  # each file has one sample
    shared = {number for number, times in uses.items() if times > 1 and number >= 0 and catalog.size(number) > _SHARED_FILE_SIZE}
    if not shared:
        return numbers
    some = catalog.path(min(shared))
    _log.warning(
        "%d files of %s contain several samples each, for instance %s: they are read as usual, because foreread "
        "would read the whole file for each sample; use one file per sample, or shards (tar), for read-ahead",
        len(shared),
        where,
        some,
    )
    return array("q", (-1 if number in shared else number for number in numbers))


def _root(dataset: Any) -> str:
    """The directory of a dataset's files: its ``root``, or the common parent of its parts' roots."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset) and dataset.datasets:
        return os.path.commonpath([os.path.abspath(_root(part)) for part in dataset.datasets])
    root = getattr(dataset, "root", None)
    if root is None:
        raise ConfigError(f"{type(dataset).__name__} has no `root`: set root= to the directory of its files")
    return str(os.fspath(root))
