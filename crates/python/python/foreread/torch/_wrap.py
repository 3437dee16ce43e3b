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
import logging
import operator
import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.utils.data
from torch.utils.data import ConcatDataset, IterableDataset, Subset

from .._engine import Engine, EngineDataset
from .._native import PageCacheReader, Source, modified
from ..errors import ConfigError
from ._ahead import Prediction
from ._dataset import Dataset
from ._epoch import Epoch
from ._files import Serving
from ._loader import DataLoader
from ._page_cache import PageCachePart
from ._paths import SampleFiles, SamplePaths, find_files, hash_of, places_of

_log = logging.getLogger("foreread.torch")

#: The maximum of epochs predicted at once, and of their indices in total.
_EPOCHS = 8
_INDICES = 1 << 21

#: The number of samples after which a dataset that opens no files in Python is reported.
_SAMPLES_CHECKED = 64


class _Served(torch.utils.data.Dataset[Any]):
    """The user's dataset with served files. Attribute access, also writing, goes to the user's dataset."""

    _OWN = frozenset({"_dataset", "_engine", "_files", "_paths", "_unopened"})

    def __init__(self, dataset: Any, engine: Engine, files: SampleFiles, paths: SamplePaths) -> None:
        self._dataset = dataset
        self._engine = engine
        self._files = files
        self._paths = paths
        #: The number of samples made without opening their files. None after the check.
        self._unopened: int | None = 0

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

    def _opened(self, indices: Sequence[Any]) -> dict[str, Callable[[], Any]]:
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
        """A file in the state of its look-up. None if it has changed."""
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


class _ServedBatches(_Served):
    """The same for a dataset with ``__getitems__``."""

    def __getitems__(self, indices: Sequence[Any]) -> Any:
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

class Wrapped:
    """A DataLoader with read-ahead, created by ``wrap``. Other attributes are those of the loader."""

    _OWN = frozenset({"_loader", "_parts", "_dataset", "_prediction", "_announced", "_used", "_epochs", "_unknown", "_waited", "_pages"})

    def __init__(self, loader: Any, parts: Sequence[_EnginePart] | PageCachePart, dataset: Any) -> None:
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

    def __iter__(self) -> Epoch:
        self._look_ahead()
        batches = iter(self._loader)
        return Epoch(self._whole(batches), partial(len, batches))

    def _whole(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Iterates an epoch. An epoch that is left early invalidates the announcement."""
        announced, self._announced = self._announced, False
        self._used = True
        # Workers may wait for samples while the trainer does not, so the trainer measures its own wait.
        waits = self._loader.num_workers > 0
        ends = self._prediction.ends
        requested = time.monotonic()
        try:
            for number, batch in enumerate(batches):
                waited = time.monotonic() - requested
                self._waited += waited
                for part in self._parts:
                    part.engine.watch(self._waited if waits else None)
                if self._pages is not None:
                    end = _end(ends, number)
                    self._pages.advance(end - _end(ends, number - 1), end, waited if waits else None)
                yield batch
                requested = time.monotonic()
        finally:
            for part in self._parts:
                part.engine.pause()
            if self._pages is not None:
                self._pages.pause()
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
        return type(self), (self._loader, self._pages or self._parts, self._dataset)

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
        return Wrapped(loader, native.parts(), dataset)
    catalog, files, known, where = find_files(dataset, root, paths)
    source = Source(catalog, look_ahead=look_ahead, **settings)
    if (reader := PageCacheReader.of(source, where)) is not None:
        pages = PageCachePart(reader, source, files.numbers, files.width)
        source.close()
        return Wrapped(loader, pages, dataset)
    if not source.is_kernel_cached:
        files = files._replace(times=None)
    engine = Engine(source)
    served = copy.copy(loader)
    # DataLoader refuses plain assignments after iteration has begun, which it has not for this copy.
    object.__setattr__(served, "_iterator", None)
    kind = _ServedBatches if hasattr(dataset, "__getitems__") else _Served
    object.__setattr__(served, "dataset", kind(dataset, engine, files, known))
    return Wrapped(served, [_EnginePart(engine, files.numbers, files.width)], dataset)


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
