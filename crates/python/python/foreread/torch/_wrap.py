"""Your DataLoader, read ahead.

``wrap(loader)`` gives a loader that behaves as the one it was given: same batches, workers, collation, generators. Before each
epoch a copy of its sampler is run to see what it will ask for (``_ahead``); foreread reads ahead by that, keeps what it can, and
serves the files that the dataset opens (``_files``). What the sampler really says is what is delivered: a prediction that
fails costs time, and nothing else.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import operator
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from .._native import Source
from ..errors import ConfigError
from ._ahead import known
from ._dataset import Dataset, Engine
from ._files import Serving

_log = logging.getLogger("foreread.torch")

#: Epochs whose order is looked up at once, where it is known, and numbers of all of them together.
_EPOCHS = 8
_NUMBERS = 1 << 21


def _path(dataset: Any, index: int) -> str:
    """The file of a dataset's sample, for datasets like ImageFolder and subsets and concatenations of them."""
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
            return os.fspath(first[0] if isinstance(first, (list, tuple)) else first)
    raise ConfigError(
        f"{type(dataset).__name__} does not say which file a sample is in: it has no `samples` as ImageFolder has; "
        "pass paths=, a list of paths or a function from a sample's index to its path"
    )


def _mark(path: str) -> int:
    """What tells that a path is the one that was looked up, in eight bytes, in every process."""
    return int.from_bytes(hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")


class _Served(torch.utils.data.Dataset[Any]):
    """The user's dataset, with the files of its samples served. To whoever looks it is that dataset, for writing too."""

    _OWN = frozenset({"_dataset", "_engine", "_numbers", "_marks", "_paths"})

    def __init__(
        self, dataset: Any, engine: Engine, numbers: array[int], marks: array[int], paths: Callable[[int], str]
    ) -> None:
        self._dataset = dataset
        self._engine = engine
        self._numbers = numbers
        self._marks = marks
        self._paths = paths

    def __len__(self) -> int:
        return len(self._dataset)

    def _files(self, indices: Sequence[Any]) -> dict[str, Callable[[], Any]]:
        """The files of samples, as far as they are those that were looked up: a dataset may have changed its mind since."""
        files: dict[str, Callable[[], Any]] = {}
        if self._engine.closed:
            return files
        for index in indices:
            try:
                at = operator.index(index)
                number, path = self._numbers[at], self._paths(at)
            except (TypeError, IndexError):
                continue  # the dataset knows what it means
            if number >= 0 and _mark(path) == self._marks[at]:
                files[path] = partial(self._engine.get, number)
        return files

    def __getitem__(self, index: Any) -> Any:
        with Serving(self._files([index])):
            return self._dataset[index]

    @property
    def __class__(self) -> Any:
        return type(self._dataset)

    @__class__.setter
    def __class__(self, other: Any) -> None:
        self._dataset.__class__ = other

    def __reduce__(self) -> Any:
        return type(self), (self._dataset, self._engine, self._numbers, self._marks, self._paths)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in vars(self):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._dataset, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._dataset, name)


class _ServedMany(_Served):
    """The same for a dataset that makes whole batches."""

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        with Serving(self._files(indices)):
            return self._dataset.__getitems__(indices)


class _Paths:
    """From an index to a path, in worker processes too."""

    def __init__(self, dataset: Any, paths: Sequence[Any] | Callable[[int], Any] | None) -> None:
        self._dataset, self._paths = dataset, paths

    def __call__(self, index: int) -> str:
        if self._paths is None:
            return _path(self._dataset, index)
        path: str = os.fspath(self._paths(index) if callable(self._paths) else self._paths[index])
        return path


class Wrapped:
    """A DataLoader whose files are read ahead; made by ``wrap``. Everything that it lacks, it takes from the loader."""

    _OWN = frozenset({"_loader", "_engine", "_dataset", "_numbers", "_announced", "_epochs", "_unknown"})

    def __init__(self, loader: Any, engine: Engine, dataset: Any, numbers: array[int] | None) -> None:
        self._loader = loader
        self._engine = engine
        self._dataset = dataset
        self._numbers = numbers
        #: Orders that were announced, from the next epoch's on.
        self._announced: list[array[int]] = []
        self._epochs = 0
        self._unknown = False

    def __iter__(self) -> Iterator[Any]:
        self._look_ahead()
        return self._whole(iter(self._loader))

    def _whole(self, batches: Iterator[Any]) -> Iterator[Any]:
        """An epoch that is left early is one that nobody reads on ahead from."""
        announced, self._announced = self._announced, []
        yield from batches
        self._announced = announced

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if "_loader" not in vars(self):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._loader, name, value)

    @property
    def __class__(self) -> Any:
        return type(self._loader)

    @__class__.setter
    def __class__(self, other: Any) -> None:
        self._loader.__class__ = other

    def _look_ahead(self) -> None:
        """Announces what the epoch that begins now will ask for, unless that was announced before."""
        begun = self._epochs > 0
        self._epochs += 1
        if self._unknown or self._engine.closed:
            return
        try:
            if self._announced:
                now = known(self._loader, self._dataset, begun, 1)[0]
                if self._announced.pop(0) == now:
                    return
            most = max(1, min(_EPOCHS, _NUMBERS // max(1, len(self._loader.dataset))))
            orders = known(self._loader, self._dataset, begun, most)
            self._engine.source.announce([self._ids(order) for order in orders], goes_on=True)
        except Exception as error:
            self._unknown = True
            _log.warning(
                "the sampler cannot be run ahead (%s: %s); samples are read when they are asked for, and kept",
                type(error).__name__,
                error,
            )
            return
        self._announced = orders[1:]

    def _ids(self, order: array[int]) -> Any:
        if self._numbers is None:
            length = len(self._dataset)
            return array("q", (index % length for index in order)) if order and min(order) < 0 else order
        if not order:
            return order
        ids = torch.frombuffer(self._numbers, dtype=torch.int64)[torch.frombuffer(order, dtype=torch.int64)]
        return array("q", ids[ids >= 0].tolist())

    def stats(self) -> Any:
        """What has been delivered, from where, and what was waited for: see ``foreread.Stats``."""
        return self._engine.stats()

    def close(self) -> None:
        """Ends reading ahead. The loader goes on without, where it has files of its own."""
        self._engine.close()

    def __enter__(self) -> Wrapped:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def wrap(
    loader: torch.utils.data.DataLoader[Any],
    root: str | os.PathLike[str] | None = None,
    *,
    paths: Sequence[Any] | Callable[[int], Any] | None = None,
    look_ahead: int | str = "256MiB",
    **settings: Any,
) -> Wrapped:
    """A loader like `loader` whose files are read ahead and kept by foreread.

    Args:
        loader: a ``DataLoader`` over a dataset like ImageFolder, or over a ``foreread.torch.Dataset``.
        root: the directory that all its files lie in; the dataset's own ``root``, if it has one.
        paths: the files of a dataset that does not say: a list of paths, or a function of an index.
        look_ahead: how far reads run ahead, in bytes; twice what the loader's workers have under way should fit.
        settings: memory, disk, origin_limit, origin_parallelism: as ``foreread.Loader``.
    """
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ConfigError("an IterableDataset has no order to look ahead in; give foreread.torch.DataLoader its data")
    if (ours := _ours(dataset)) is not None:
        return Wrapped(loader, ours[0].engine, dataset, ours[1])
    root = root if root is not None else _root(dataset)
    where = os.path.abspath(os.fspath(root))
    source = Source(where, look_ahead=look_ahead, **settings)
    known_paths = _Paths(dataset, paths)
    numbers, marks = array("q"), array("Q")
    for index in range(len(dataset)):
        path = known_paths(index)
        numbers.append(_number(source, where, path))
        marks.append(_mark(path))
    missing = sum(number < 0 for number in numbers)
    if missing == len(numbers):
        source.close()
        raise ConfigError(f"none of the dataset's {len(numbers)} files lies in {where}; say root=")
    if missing:
        _log.warning("%d of the dataset's %d files do not lie in %s: they are read as ever", missing, len(numbers), where)
    engine = Engine(source)
    served = copy.copy(loader)
    # DataLoader refuses a plain assignment, for a loader whose iteration has begun; this one's has not.
    object.__setattr__(served, "_iterator", None)
    kind = _ServedMany if hasattr(dataset, "__getitems__") else _Served
    object.__setattr__(served, "dataset", kind(dataset, engine, numbers, marks, known_paths))
    return Wrapped(served, engine, dataset, numbers)


def _ours(dataset: Any) -> tuple[Dataset, array[int] | None] | None:
    """The Dataset of foreread's that a dataset is, or is a part of, with its samples' numbers there."""
    if isinstance(dataset, Dataset):
        return dataset, None
    if isinstance(dataset, Subset) and (inner := _ours(dataset.dataset)) is not None:
        ours, numbers = inner
        return ours, array("q", (index if numbers is None else numbers[index] for index in dataset.indices))
    return None


def _root(dataset: Any) -> Any:
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    root = getattr(dataset, "root", None)
    if root is None:
        raise ConfigError(f"{type(dataset).__name__} has no `root`: say root=, the directory that its files lie in")
    return root


def _number(source: Source, root: str, path: str) -> int:
    below = root.rstrip("/") + "/"
    inside = path[len(below) :] if path.startswith(below) else os.path.relpath(os.path.abspath(path), root)
    found = source.find(inside)
    return -1 if found is None else found
