"""Read-ahead for an existing DataLoader.

``wrap(loader)`` returns a loader that behaves like the original: same batches, workers, collation, generators. Before
each epoch a copy of its sampler runs to predict the order (``_ahead``). foreread reads ahead in that order, caches
samples, and serves the files that the dataset opens (``_files``). The original sampler still decides the batches, so a
wrong prediction costs time only. On a local file system, and without caches of foreread, the files are read into the
kernel's page cache instead (``_page_cache``), and the dataset opens them as usual.

Only the dataset's files are looked up. On a local file system, each is checked again when the dataset opens it, so that
a rewritten file is read again. That costs 2 us per sample. On a file server it would cost a round trip per sample. So
a file that was rewritten there with the same size may be served in its old state.
"""

from __future__ import annotations

import copy
import functools
import logging
import operator
import os
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.utils.data
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from .._engine import Engine, EngineDataset
from .._native import PageCacheReader, modified
from ..errors import ClosedError, ConfigError, Error
from ._ahead import Prediction
from ._dataset import Dataset
from ._files import Serving
from ._loader import DataLoader
from ._node import open_source
from ._page_cache import PageCachePart
from ._paths import SampleFiles, SamplePaths, find_files, hash_of, places_of

_log = logging.getLogger("foreread.torch")

#: The maximum of epochs predicted at once, and of their indices in total.
_EPOCHS = 8
_INDICES = 1 << 21

#: The files that are requested at once, in number and in bytes. Each request costs as much as opening a file.
_REQUESTED = 8
_REQUESTED_BYTES = 4 << 20

#: The number of samples after which a dataset that opens no files in Python is reported.
_SAMPLES_CHECKED = 64


class _Served(torch.utils.data.Dataset[Any]):
    """The user's dataset with served files. Attribute access, also writing, goes to the user's dataset."""

    _OWN = frozenset({"_dataset", "_engine", "_files", "_held", "_paths", "_unopened"})

    def __init__(self, dataset: Any, engine: Engine, files: SampleFiles, paths: SamplePaths) -> None:
        self._dataset = dataset
        self._engine = engine
        self._files = files
        self._paths = paths
        #: The number of samples made without opening their files. None after the check.
        self._unopened: int | None = 0
        #: Files that were requested together, by their numbers.
        self._held: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def _note(self, samples: int, serving: Serving) -> None:
        """Warns once if the dataset does not open its files in Python."""
        if self._unopened is None or not serving.files:
            return
        unopened, self._unopened = self._unopened + samples, None
        if serving.opened:
            return
        if unopened < _SAMPLES_CHECKED:
            self._unopened = unopened
        elif (worker := torch.utils.data.get_worker_info()) is None or worker.id == 0:
            _log.warning(
                "%d samples were made and none of their files was opened by Python's open(path), for instance %s: libraries that "
                "read files in C (OpenCV, torchvision.io) are not served, and read-ahead is wasted; decode from bytes "
                "(cv2.imdecode, torchvision.io.decode_image), name the files that are opened (paths=), or do not use wrap()",
                unopened,
                next(iter(serving.files)),
            )

    def settle(self) -> None:
        """Disables the check in workers started from now on, because those of the first epoch have done it."""
        self._unopened = None

    def _opened(self, indices: Iterable[Any]) -> dict[str, Callable[[], Any]]:
        """The files of samples that are still the ones looked up, because a dataset may change its paths."""
        opened: dict[str, Callable[[], Any]] = {}
        if self._engine.closed:
            return opened
        files = self._files
        for index in indices:
            try:
                at = operator.index(index)
                for place, path in zip(places_of([at], files.width), self._paths(at)):
                    number = files.numbers[place]
                    if number >= 0 and hash_of(path) == files.hashes[place]:
                        opened[path] = partial(self._read, number, path, files.times[place] if files.times else None)
            except (TypeError, IndexError, ConfigError):
                continue  # the dataset handles such indices and samples
        return opened

    def _read(self, number: int, path: str, time: int | None) -> Any:
        """A file in the state of its look-up. None if it has changed, or if the engine was closed meanwhile."""
        # Workers prefetch while the loader is closed. The dataset then opens its files, as documented.
        with suppress(ClosedError):
            if time is None or modified(path) == time:
                # Another thread may end its batch meanwhile.
                return held[number] if number in (held := self._held) else self._engine.get(number)
        return None

    def _request(self, indices: Sequence[Any]) -> None:
        """Requests the files of samples together. Opening a file names the problem, if there is one."""
        self._held = {}
        with suppress(TypeError, IndexError, Error):
            places = places_of(map(operator.index, indices), self._files.width)
            numbers = [number for number in map(self._files.numbers.__getitem__, places) if number >= 0]
            if len(numbers) > 1 and not self._engine.closed:
                self._held = dict(zip(numbers, self._engine.get_many(numbers)))

    def __getitem__(self, index: Any) -> Any:
        with Serving(self._opened([index])) as serving:
            item = self._dataset[index]
        self._note(1, serving)
        return item

    def __getitems__(self, batch: Iterable[Any]) -> list[Any]:
        """A whole batch. Newer releases of PyTorch call it."""
        indices, size = list(batch), self._files.at_once
        items: list[Any] = []
        try:
            for at in range(0, len(indices), size):
                self._request(some := indices[at : at + size])
                items.extend(map(self.__getitem__, some))
        finally:
            self._held = {}
        return items

    @property
    def __class__(self) -> Any:
        return type(self._dataset)

    @__class__.setter
    def __class__(self, other: Any) -> None:
        self._dataset.__class__ = other

    def __reduce__(self) -> Any:
        return type(self), (self._dataset, self._engine, self._files, self._paths), {"_unopened": self._unopened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._unopened, self._held = state["_unopened"], {}

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


class _ServedBatches(_Served):
    """The same for a dataset with a ``__getitems__`` of its own."""

    def __getitems__(self, batch: Iterable[Any]) -> Any:
        # An iterator gives its indices once.
        indices = batch if isinstance(batch, Collection) else list(batch)
        with Serving(self._opened(indices)) as serving:
            items = self._dataset.__getitems__(indices)
        self._note(len(indices), serving)
        return items


class _EnginePart(NamedTuple):
    """The part of a dataset that one engine serves."""

    engine: Engine
    #: For each place of the dataset, the engine's id, or a negative number for samples of other engines.
    numbers: array[int]
    #: The number of places for each index.
    width: int = 1

    @property
    def is_open(self) -> bool:
        """Whether the engine can read ahead."""
        return self.engine.is_local and not self.engine.closed

    def announce(self, orders: Sequence[array[int]]) -> None:
        """Replaces the order of the current epoch and later ones."""
        self.engine.source.announce([self._ids(order) for order in orders], continues=True)

    def _ids(self, order: array[int]) -> array[int]:
        """The engine's part of an order, as ids."""
        # PyTorch would do it in threads, which then spin for a tenth of a second.
        return array("q", filter((0).__le__, map(self.numbers.__getitem__, places_of(order, self.width))))

    def next_epoch(self) -> None:
        """The engine itself knows where announced epochs begin."""


class _WrappedEpoch(Iterator[Any]):
    """An iteration over a wrapped loader. Exceptions leave it as they leave the loader's own iterator, which continues."""

    def __init__(self, wrapped: Wrapped, batches: Iterator[Any]) -> None:
        self._wrapped = wrapped
        self._batches = batches
        self._waits = wrapped.num_workers > 0
        self._ends = wrapped._prediction.ends
        self._number = 0
        #: Whether the epoch was announced, and whether all of it was requested. None before the first batch.
        self._announced: bool | None = None
        self._ended = False

    def __next__(self) -> Any:
        wrapped = self._wrapped
        if self._announced is None:
            # An epoch that is left early invalidates the announcement.
            self._announced, wrapped._announced = wrapped._announced, False
            wrapped._used = True
        requested = time.monotonic()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end()
            raise
        except BaseException:
            # Not all samples of the batch were requested, so the engines are not at the beginning of the next epoch at the end.
            self._announced = False
            self._number += 1
            raise
        self._note(time.monotonic() - requested)
        return batch

    def _note(self, waited: float) -> None:
        """Reports a batch to the engines."""
        wrapped, number = self._wrapped, self._number
        self._number += 1
        wrapped._waited += waited
        for part in wrapped._parts:
            # Workers may wait for samples while the trainer does not, so the trainer measures its own wait.
            part.engine.watch(wrapped._waited if self._waits else None)
        if wrapped._pages is not None:
            end = _end(self._ends, number)
            wrapped._pages.advance(end - _end(self._ends, number - 1), end, waited if self._waits else None)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._wrapped._pause()
            self._wrapped._announced = bool(self._announced)

    def __del__(self) -> None:
        if self._announced is not None and not self._ended:
            # The interpreter may be ending.
            with suppress(Exception):
                self._wrapped._pause()

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __reduce__(self) -> Any:
        raise NotImplementedError("an iteration cannot be pickled")


class Wrapped:
    """A DataLoader with read-ahead, created by ``wrap``. Other attributes are those of the loader.

    Each has a class of its own, with the arguments of its loader's class. Frameworks make a loader anew from its class and
    attributes to exchange the sampler, and get one with the same engine.
    """

    __slots__ = (
        "__weakref__",
        "_announced",
        "_dataset",
        "_epochs",
        "_loader",
        "_pages",
        "_parts",
        "_prediction",
        "_unknown",
        "_used",
        "_waited",
    )

    def _set_up(self, loader: Any, parts: Sequence[_EnginePart] | PageCachePart, dataset: Any) -> None:
        self._loader = loader
        #: The engines that serve its files, or the reader of the page cache.
        self._parts: Sequence[_EnginePart] = () if isinstance(parts, PageCachePart) else parts
        self._pages = parts if isinstance(parts, PageCachePart) else None
        self._dataset = dataset
        # Where workers read ahead, an order tells only how many samples a batch has.
        most = 1 if self._pages is not None and loader.num_workers > 0 else _INDICES // max(1, len(dataset))
        self._prediction = Prediction(max(1, min(_EPOCHS, most)))
        #: Whether the engines are at the beginning of an announced epoch.
        self._announced = False
        #: Whether the last iterator was used.
        self._used = True
        self._epochs = 0
        self._unknown = False
        #: Seconds waited for batches.
        self._waited = 0.0

    def __iter__(self) -> Iterator[Any]:
        self._look_ahead()
        return _WrappedEpoch(self, iter(self._loader))

    def _pause(self) -> None:
        """Marks the end of an epoch."""
        for part in self._parts:
            part.engine.pause()
        if self._pages is not None:
            self._pages.pause()

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name in Wrapped.__slots__:
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Wrapped.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._loader, name, value)

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        return vars(self._loader)

    @property
    def __class__(self) -> Any:
        return type(self._loader)

    @__class__.setter
    def __class__(self, other: Any) -> None:
        self._loader.__class__ = other

    def __reduce__(self) -> Any:
        return _wrapped, (self._loader, self._pages or self._parts, self._dataset)

    def _look_ahead(self) -> None:
        """Announces the order of the epoch that begins now, unless it was announced before."""
        begun, again = self._epochs > 0, not self._used
        self._epochs, self._used = self._epochs + 1, False
        served = self._loader.dataset
        # isinstance() would see the user's dataset.
        if begun and self._loader.num_workers > 0 and issubclass(type(served), _Served):
            served.settle()
        parts: Sequence[_EnginePart | PageCachePart] = self._parts if self._pages is None else [self._pages]
        if self._unknown or not all(part.is_open for part in parts):
            return
        try:
            orders, held = self._prediction.begin(self._loader, self._dataset, begun, again)
            # Workers read ahead of the trainer themselves. Further reads of the same disk would delay theirs.
            is_left_alone = self._pages is not None and self._loader.num_workers > 0
            for part in () if is_left_alone else parts:
                if not (held and self._announced):
                    part.announce(orders)
                elif not again:
                    part.next_epoch()
        except Exception as error:
            self._unknown = True
            _log.warning(
                "the sampler cannot be run ahead (%s: %s); samples are read on request and cached",
                type(error).__name__,
                error,
            )
            return
        # A single announced order leaves the engines without a following epoch.
        self._announced = len(orders) > 1

    def stats(self) -> Any:
        """Statistics: see ``foreread.Stats``. A list for several datasets of foreread in one loader."""
        if self._pages is not None:
            return self._pages.stats()
        stats = [part.engine.stats() for part in self._parts]
        return stats[0] if len(stats) == 1 else stats

    def close(self) -> None:
        """Ends read-ahead. A loader over files continues without it."""
        for part in self._parts:
            part.engine.close()
        if self._pages is not None:
            self._pages.close()

    def __enter__(self) -> Wrapped:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _wrapped(loader: Any, parts: Sequence[_EnginePart] | PageCachePart, dataset: Any) -> Wrapped:
    """Wraps a loader over `dataset`, or over it with served files."""
    kind, made_of = type(loader), loader.dataset

    @functools.wraps(kind.__init__)
    def again(self: Wrapped, *args: Any, **settings: Any) -> None:
        other = kind(*args, **settings)
        if other.dataset is dataset and made_of is not dataset:
            object.__setattr__(other, "dataset", made_of)
        self._set_up(other, parts, dataset)

    own = type(Wrapped.__name__, (Wrapped,), {"__slots__": (), "__init__": again, "__module__": Wrapped.__module__})
    made: Wrapped = object.__new__(own)
    made._set_up(loader, parts, dataset)
    return made


def _copied(loader: Any) -> Any:
    """A copy of a loader whose dataset can be replaced."""
    made = copy.copy(loader)
    if not hasattr(loader, "_initial_iter_for_state_dict"):
        # Persistent workers have the dataset itself. DataLoader refuses plain assignments.
        object.__setattr__(made, "_iterator", None)
    elif loader._initial_iter_for_state_dict:
        # torchdata's loader has made an iterator for its state, which has the dataset itself. The copy begins at that state.
        made.load_state_dict(loader.state_dict())
    return made


def _end(ends: array[int] | None, batch: int) -> int:
    """The number of indices up to the end of a batch, from 0."""
    if ends is None or batch < 0:
        return batch + 1
    return ends[min(batch, len(ends) - 1)] if ends else 0


def wrap(
    loader: torch.utils.data.DataLoader[Any],
    root: str | os.PathLike[str] | None = None,
    *,
    paths: Sequence[Any] | Callable[[int], Any] | None = None,
    look_ahead: int | str = "256MiB",
    **settings: Any,
) -> Wrapped:
    """A loader like `loader` whose files foreread reads ahead and caches.

    Args:
        loader: a ``DataLoader`` over a dataset like ImageFolder, over a ``foreread.torch.Dataset``, or over subsets or
            concatenations of these.
        root: the directory of all its files (default: the dataset's ``root``).
        paths: the files of a dataset without ``samples``: a list with a path, or a list of paths, for each index, or a
            function of an index. Relative paths are looked for in the working directory and in `root`.
        look_ahead: how far reads run ahead, in bytes. At least twice the bytes that the workers process at once.
        settings: memory, disk, agent, origin_limit, origin_parallelism: as ``foreread.Loader``.
    """
    dataset = _dataset_of(loader)
    if isinstance(dataset, IterableDataset):
        raise ConfigError("an IterableDataset has no order to read ahead; use foreread.torch.DataLoader for its data")
    if (native := _foreread_parts(dataset)) is not None:
        return _wrapped(loader, native.parts(), dataset)
    catalog, files, known, where = find_files(dataset, root, paths)
    source = open_source(catalog, settings | {"look_ahead": look_ahead})
    if (reader := PageCacheReader.of(source, where)) is not None:
        pages = PageCachePart(reader, source, files.numbers, files.width)
        source.close()
        return _wrapped(loader, pages, dataset)
    mean = max(1, source.bytes // max(1, source.samples))
    files = files._replace(at_once=max(1, min(_REQUESTED, _REQUESTED_BYTES // mean) // files.width))
    if not source.is_kernel_cached:
        files = files._replace(times=None)
    engine = Engine(source)
    served = _copied(loader)
    kind = _ServedBatches if hasattr(dataset, "__getitems__") else _Served
    object.__setattr__(served, "dataset", kind(dataset, engine, files, known))
    return _wrapped(served, [_EnginePart(engine, files.numbers, files.width)], dataset)


def _dataset_of(loader: Any) -> Any:
    if isinstance(loader, DataLoader):
        raise ConfigError("this is foreread's own DataLoader, which reads ahead already: use it directly")
    if not hasattr(loader, "dataset") or isinstance(loader, torch.utils.data.Dataset):
        raise TypeError(f"wrap() expects a torch.utils.data.DataLoader, not a {type(loader).__name__}")
    return loader.dataset


class _ForereadParts(NamedTuple):
    """A dataset composed of foreread's datasets: for each index, its dataset and the id there."""

    datasets: list[Dataset | EngineDataset]
    of: array[int]
    numbers: array[int]

    def parts(self) -> list[_EnginePart]:
        if len(self.datasets) == 1:
            return [_EnginePart(self.datasets[0].engine, self.numbers)]
        numbers = torch.frombuffer(self.numbers, dtype=torch.int64)
        of = torch.frombuffer(self.of, dtype=torch.int64)
        own = [torch.where(of == at, numbers, -1).tolist() for at in range(len(self.datasets))]
        return [_EnginePart(one.engine, array("q", its)) for one, its in zip(self.datasets, own)]


def _foreread_parts(dataset: Any) -> _ForereadParts | None:
    """The foreread datasets of which a dataset is composed. None if there are none."""
    if isinstance(dataset, EngineDataset):
        return _ForereadParts([dataset], array("q", bytes(8 * len(dataset.numbers))), dataset.numbers)
    if isinstance(dataset, Dataset):
        count = len(dataset)
        return _ForereadParts([dataset], array("q", bytes(8 * count)), array("q", range(count)))
    if isinstance(dataset, Subset) and (inner := _foreread_parts(dataset.dataset)) is not None:
        of, numbers = (array("q", (all_of[index] for index in dataset.indices)) for all_of in (inner.of, inner.numbers))
        return _ForereadParts(inner.datasets, of, numbers)
    if isinstance(dataset, ConcatDataset):
        inside = [_foreread_parts(part) for part in dataset.datasets]
        parts = [part for part in inside if part is not None]
        if not parts:
            return None
        if len(parts) < len(inside):
            raise ConfigError(
                "some datasets in this ConcatDataset are foreread.torch.Dataset and some are not: use it for all of them, or "
                "for none (wrap serves an ImageFolder's files)"
            )
        whole = _ForereadParts([], array("q"), array("q"))
        for part in parts:
            at = [_index_of(whole.datasets, one) for one in part.datasets]
            whole.of.extend(at[of] for of in part.of)
            whole.numbers.extend(part.numbers)
        return whole
    return None


def _index_of(datasets: list[Dataset | EngineDataset], one: Dataset | EngineDataset) -> int:
    """The index of a dataset in a list, appended if missing."""
    for at, other in enumerate(datasets):
        if other is one:
            return at
    datasets.append(one)
    return len(datasets) - 1
