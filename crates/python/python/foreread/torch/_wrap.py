"""Your DataLoader, read ahead.

``wrap(loader)`` gives a loader that behaves as the one it was given: same batches, workers, collation, generators. Before each
epoch a copy of its sampler is run to see what it will ask for (``_ahead``); foreread reads ahead by that, keeps what it can, and
serves the files that the dataset opens (``_files``). What the sampler really says is what is delivered: a prediction that
fails costs time, and nothing else.

Only the dataset's own files are looked at. Where the file system is this machine's, each is looked at once more when the dataset opens
it, so that one which was rewritten is read as it is now: that costs two microseconds, and on a file server would cost a round trip
for every sample, so there a file that keeps its size may come as it was.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import operator
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.utils.data
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from .._native import Catalog, Source, catalog_of, modified
from ..errors import ConfigError
from ._ahead import Foresight
from ._dataset import Dataset, Engine
from ._epoch import Epoch
from ._files import Serving
from ._loader import DataLoader

_log = logging.getLogger("foreread.torch")

#: Epochs whose order is looked up at once, where it is known, and numbers of all of them together.
_EPOCHS = 8
_NUMBERS = 1 << 21

#: A file of more bytes than this that several samples name is read by each of them in part.
_SHARED = 1 << 20

#: So many samples tell whether a dataset opens its files where that can be seen.
_LOOKED_AT = 64


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


class _Files(NamedTuple):
    """A dataset's files, by its indices."""

    #: Their numbers in the catalog; -1 for those that are read as ever.
    numbers: array[int]
    #: What their paths were.
    marks: array[int]
    #: When they were modified; None where looking that up would cost too much.
    times: array[int] | None


class _Served(torch.utils.data.Dataset[Any]):
    """The user's dataset, with the files of its samples served. To whoever looks it is that dataset, for writing too."""

    _OWN = frozenset({"_dataset", "_engine", "_files", "_paths", "_unopened"})

    def __init__(self, dataset: Any, engine: Engine, files: _Files, paths: Callable[[int], str]) -> None:
        self._dataset = dataset
        self._engine = engine
        self._files = files
        self._paths = paths
        #: How many samples were made without opening their files; None when that is settled.
        self._unopened: int | None = 0

    def __len__(self) -> int:
        return len(self._dataset)

    def _note(self, samples: int, serving: Serving) -> None:
        """Says once if the dataset reads its files where nobody sees it."""
        if self._unopened is None or not serving.files:
            return
        unopened, self._unopened = self._unopened + samples, None
        if serving.opened:
            return
        if unopened < _LOOKED_AT:
            self._unopened = unopened
        elif (worker := torch.utils.data.get_worker_info()) is None or worker.id == 0:
            _log.warning(
                "%d samples were made and none of their files was opened by Python's open(path, 'rb'): what reads files in C (OpenCV, "
                "torchvision.io) or keeps them is not served, and what is read ahead for it is of no use; decode from bytes "
                "(cv2.imdecode, torchvision.io.decode_image), or do without wrap()",
                unopened,
            )

    def settle(self) -> None:
        """Workers that are started from now on have nothing to say about that: those of the first epoch have."""
        self._unopened = None

    def _opened(self, indices: Sequence[Any]) -> dict[str, Callable[[], Any]]:
        """The files of samples, as far as they are those that were looked up: a dataset may have changed its mind since."""
        opened: dict[str, Callable[[], Any]] = {}
        if self._engine.closed:
            return opened
        files = self._files
        for index in indices:
            try:
                at = operator.index(index)
                number, path = files.numbers[at], self._paths(at)
            except (TypeError, IndexError):
                continue  # the dataset knows what it means
            if number >= 0 and _mark(path) == files.marks[at]:
                opened[path] = partial(self._read, number, path, files.times[at] if files.times else None)
        return opened

    def _read(self, number: int, path: str, time: int | None) -> Any:
        """A file as it was when it was looked up; None if it is another by now."""
        return self._engine.get(number) if time is None or modified(path) == time else None

    def __getitem__(self, index: Any) -> Any:
        with Serving(self._opened([index])) as serving:
            item = self._dataset[index]
        self._note(1, serving)
        return item

    @property
    def __class__(self) -> Any:
        return type(self._dataset)

    @__class__.setter
    def __class__(self, other: Any) -> None:
        self._dataset.__class__ = other

    def __reduce__(self) -> Any:
        return type(self), (self._dataset, self._engine, self._files, self._paths), {"_unopened": self._unopened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._unopened = state["_unopened"]

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
        with Serving(self._opened(indices)) as serving:
            items = self._dataset.__getitems__(indices)
        self._note(len(indices), serving)
        return items


class _Paths:
    """From an index to a path, in worker processes too."""

    def __init__(self, dataset: Any, paths: Sequence[Any] | Callable[[int], Any] | None) -> None:
        self._dataset, self._paths = dataset, paths

    def __call__(self, index: int) -> str:
        if self._paths is None:
            return _path(self._dataset, index)
        path: str = os.fspath(self._paths(index) if callable(self._paths) else self._paths[index])
        return path


class _Part(NamedTuple):
    """What of a dataset one engine serves."""

    engine: Engine
    #: By the dataset's indices: the engine's numbers, or less than 0 for what is not its own.
    numbers: array[int]

    def ids(self, order: array[int]) -> array[int]:
        """What of an order it serves, in its numbers."""
        if not order:
            return order
        ids = torch.frombuffer(self.numbers, dtype=torch.int64)[torch.frombuffer(order, dtype=torch.int64)]
        return array("q", ids[ids >= 0].tolist())


class Wrapped:
    """A DataLoader whose files are read ahead; made by ``wrap``. Everything that it lacks, it takes from the loader."""

    _OWN = frozenset({"_loader", "_parts", "_dataset", "_foresight", "_announced", "_used", "_epochs", "_unknown", "_waited"})

    def __init__(self, loader: Any, parts: Sequence[_Part], dataset: Any) -> None:
        self._loader = loader
        self._parts = parts
        self._dataset = dataset
        self._foresight = Foresight(max(1, min(_EPOCHS, _NUMBERS // max(1, len(dataset)))))
        #: Whether the engines stand at an epoch's beginning, which they were told of.
        self._announced = False
        #: Whether anything was taken of the epoch that was begun last.
        self._used = True
        self._epochs = 0
        self._unknown = False
        #: How long batches were waited for, in seconds.
        self._waited = 0.0

    def __iter__(self) -> Epoch:
        self._look_ahead()
        batches = iter(self._loader)
        return Epoch(self._whole(batches), partial(len, batches))

    def _whole(self, batches: Iterator[Any]) -> Iterator[Any]:
        """An epoch that is left early is one that nobody reads on ahead from."""
        announced, self._announced = self._announced, False
        self._used = True
        # What workers wait for may well be there when the trainer asks: only it knows for how long it waits.
        waits = self._loader.num_workers > 0
        asked = time.monotonic()
        try:
            for batch in batches:
                self._waited += time.monotonic() - asked
                for part in self._parts:
                    part.engine.watch(self._waited if waits else None)
                yield batch
                asked = time.monotonic()
        finally:
            for part in self._parts:
                part.engine.pause()
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

    def __reduce__(self) -> Any:
        return type(self), (self._loader, self._parts, self._dataset)

    def _look_ahead(self) -> None:
        """Announces what the epoch that begins now will ask for, unless that was announced before."""
        begun, again = self._epochs > 0, not self._used
        self._epochs, self._used = self._epochs + 1, False
        served = self._loader.dataset
        # Not isinstance(): to whoever looks it is the user's dataset.
        if begun and self._loader.num_workers > 0 and issubclass(type(served), _Served):
            served.settle()
        if self._unknown or not all(part.engine.is_here and not part.engine.closed for part in self._parts):
            return
        try:
            orders, held = self._foresight.begin(self._loader, self._dataset, begun, again)
            if not (held and self._announced):
                for part in self._parts:
                    part.engine.source.announce([part.ids(order) for order in orders], goes_on=True)
        except Exception as error:
            self._unknown = True
            _log.warning(
                "the sampler cannot be run ahead (%s: %s); samples are read when they are asked for, and kept",
                type(error).__name__,
                error,
            )
            return
        # With the last order that was announced the engines come to an end.
        self._announced = len(orders) > 1

    def stats(self) -> Any:
        """What has been delivered, from where, and what was waited for: see ``foreread.Stats``. Of several datasets of
        foreread's in one loader, theirs in a list."""
        stats = [part.engine.stats() for part in self._parts]
        return stats[0] if len(stats) == 1 else stats

    def close(self) -> None:
        """Ends reading ahead. The loader goes on without, where it has files of its own."""
        for part in self._parts:
            part.engine.close()

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
        loader: a ``DataLoader`` over a dataset like ImageFolder, over a ``foreread.torch.Dataset``, or over parts or concatenations
            of such.
        root: the directory that all its files lie in; the dataset's own ``root``, if it has one.
        paths: the files of a dataset that does not say: a list of paths, or a function of an index.
        look_ahead: how far reads run ahead, in bytes; twice what the loader's workers have under way should fit.
        settings: memory, disk, origin_limit, origin_parallelism: as ``foreread.Loader``.
    """
    dataset = _dataset_of(loader)
    if isinstance(dataset, IterableDataset):
        raise ConfigError("an IterableDataset has no order to look ahead in; give foreread.torch.DataLoader its data")
    if (ours := _ours(dataset)) is not None:
        return Wrapped(loader, ours.parts(), dataset)
    root = os.fspath(root if root is not None else _root(dataset))
    where = os.path.abspath(root)
    known = _Paths(dataset, paths)
    every = [known(index) for index in range(len(dataset))]
    catalog, numbers, times = catalog_of(root, where, every)
    if catalog is None:
        raise ConfigError(f"none of the dataset's {len(every)} files lies in {where}; say root=")
    found = array("q", numbers)
    files = _Files(_of_its_own(found, catalog, where), array("Q", map(_mark, every)), array("q", times))
    missing = [path for path, number in zip(every, found) if number < 0]
    if missing:
        _log.warning(
            "%d of the dataset's %d files do not lie in %s, are not there or have names that are no UTF-8: "
            "they are read as ever; the first is %r",
            len(missing),
            len(every),
            where,
            missing[0],
        )
    source = Source(catalog, look_ahead=look_ahead, **settings)
    if not source.is_kernel_cached:
        files = files._replace(times=None)
    engine = Engine(source)
    served = copy.copy(loader)
    # DataLoader refuses a plain assignment, for a loader whose iteration has begun; this one's has not.
    object.__setattr__(served, "_iterator", None)
    kind = _ServedMany if hasattr(dataset, "__getitems__") else _Served
    object.__setattr__(served, "dataset", kind(dataset, engine, files, known))
    return Wrapped(served, [_Part(engine, files.numbers)], dataset)


def _dataset_of(loader: Any) -> Any:
    if isinstance(loader, DataLoader):
        raise ConfigError("this is foreread's own DataLoader, which reads ahead by itself: use it as it is")
    if not hasattr(loader, "dataset") or isinstance(loader, torch.utils.data.Dataset):
        raise TypeError(f"wrap() takes a torch.utils.data.DataLoader, not a {type(loader).__name__}")
    return loader.dataset


def _of_its_own(numbers: array[int], catalog: Catalog, where: str) -> array[int]:
    """The files' numbers without those of large files that several samples share: each of these reads a part of it, and is
    served the whole."""
    if len(catalog) + numbers.count(-1) == len(numbers):
        return numbers  # each has one sample
    uses = Counter(numbers)
    shared = {number for number, count in uses.items() if count > 1 and number >= 0 and catalog.size(number) > _SHARED}
    if not shared:
        return numbers
    some = catalog.path(min(shared))
    _log.warning(
        "several samples lie in one file each time, in %d of the files of %s, for instance %s: they are read as ever, because foreread "
        "would read all of such a file for each of them; one file for each sample, or shards (tar), can be read ahead",
        len(shared),
        where,
        some,
    )
    return array("q", (-1 if number in shared else number for number in numbers))


class _Ours(NamedTuple):
    """A dataset that is made of foreread's: which one a sample is of, by the dataset's indices, and its number there."""

    datasets: list[Dataset]
    of: array[int]
    numbers: array[int]

    def parts(self) -> list[_Part]:
        if len(self.datasets) == 1:
            return [_Part(self.datasets[0].engine, self.numbers)]
        numbers = torch.frombuffer(self.numbers, dtype=torch.int64)
        of = torch.frombuffer(self.of, dtype=torch.int64)
        own = [torch.where(of == at, numbers, -1).tolist() for at in range(len(self.datasets))]
        return [_Part(one.engine, array("q", its)) for one, its in zip(self.datasets, own)]


def _ours(dataset: Any) -> _Ours | None:
    """What a dataset is of foreread's datasets; None if it is of none."""
    if isinstance(dataset, Dataset):
        count = len(dataset)
        return _Ours([dataset], array("q", bytes(8 * count)), array("q", range(count)))
    if isinstance(dataset, Subset) and (inner := _ours(dataset.dataset)) is not None:
        of, numbers = (array("q", (all_of[index] for index in dataset.indices)) for all_of in (inner.of, inner.numbers))
        return _Ours(inner.datasets, of, numbers)
    if isinstance(dataset, ConcatDataset):
        inside = [_ours(part) for part in dataset.datasets]
        parts = [part for part in inside if part is not None]
        if not parts:
            return None
        if len(parts) < len(inside):
            raise ConfigError(
                "of the datasets in this ConcatDataset some are foreread.torch.Dataset and some are not: make all of them so, or "
                "none (wrap serves an ImageFolder's files)"
            )
        whole = _Ours([], array("q"), array("q"))
        for part in parts:
            at = [_place(whole.datasets, one) for one in part.datasets]
            whole.of.extend(at[of] for of in part.of)
            whole.numbers.extend(part.numbers)
        return whole
    return None


def _place(datasets: list[Dataset], one: Dataset) -> int:
    """Where a dataset stands in a list, at whose end it is put if it is not there."""
    for at, other in enumerate(datasets):
        if other is one:
            return at
    datasets.append(one)
    return len(datasets) - 1


def _root(dataset: Any) -> str:
    """The directory that a dataset's files lie in: its own, or the one that holds those of its parts."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset) and dataset.datasets:
        return os.path.commonpath([os.path.abspath(_root(part)) for part in dataset.datasets])
    root = getattr(dataset, "root", None)
    if root is None:
        raise ConfigError(f"{type(dataset).__name__} has no `root`: say root=, the directory that its files lie in")
    return str(os.fspath(root))
