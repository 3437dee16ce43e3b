"""Hugging Face datasets whose images or audio foreread reads ahead and caches.

>>> import foreread.huggingface, foreread.torch
>>> data = foreread.huggingface.wrap(dataset.with_transform(transform), memory="16GiB")  # doctest: +SKIP
>>> loader = foreread.torch.wrap(DataLoader(data, 64, shuffle=True, num_workers=8))  # doctest: +SKIP

``wrap`` finds where the bytes of one column are: in files that its ``path``s name, or in the Arrow shards of the cache.
Items are made by ``datasets`` itself, of rows whose bytes come from foreread: formats, transforms, selections and shuffles
are the dataset's. The other columns come from the dataset. The price: about 0.1 ms per item, and 25 us per item of a
batch of 64 (57 kB each, without decoding), because Arrow copies the bytes. An image of a file has no ``filename``.
"""

from __future__ import annotations

import copy
import os
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import datasets
import pyarrow
import pyarrow.compute

from ._engine import Engine, EngineDataset
from ._native import Catalog, Source, catalog_of, index, modified
from .errors import ConfigError

__all__ = ["Dataset", "wrap"]


class Dataset(EngineDataset):
    """A map-style dataset with the items of a ``datasets.Dataset``. ``wrap`` creates it.

    Other attributes, such as ``features``, are those of the dataset.
    """

    def __init__(self, dataset: Any, column: str, source: Source, numbers: array[int], times: array[int] | None) -> None:
        self._dataset = dataset
        self._column = column
        #: The rows as Arrow tables, without decoding.
        self._rows = dataset.with_format("arrow")
        self._times = times
        self.numbers = numbers
        self.engine = Engine(source)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._dataset[key]
        if isinstance(key, slice):
            return self._taken(key, range(*key.indices(len(self))), slice(None))
        if isinstance(key, Iterable):
            indices = [int(one) for one in key]
            return self._taken(indices, indices, slice(None)) if indices else self._dataset[indices]
        return self._taken(int(key), [int(key)], 0)

    def __getitems__(self, keys: Sequence[Any]) -> Any:
        """The items of a batch, whose samples are read concurrently."""
        indices = [int(key) for key in keys]
        return self._taken(indices, indices, list(range(len(indices))))

    def _taken(self, key: Any, indices: Sequence[int], wanted: Any) -> Any:
        """Items of these rows: one, a slice, or a list of items as ``__getitems__`` gives it."""
        part = self._made(key, indices)
        try:
            return part.__getitems__(wanted) if isinstance(wanted, list) else part[wanted]
        except Exception as error:
            if (named := self._undecodable(part, indices)) is not None:
                error.add_note(f"foreread: {named} cannot be decoded")
            raise

    def _undecodable(self, part: Any, indices: Sequence[int]) -> str | None:
        """The first row that cannot be decoded, without the dataset's transform."""
        plain = part.with_format(None).select_columns([self._column])
        for at, index in enumerate(indices):
            try:
                plain[at]
            except Exception:
                row = index % len(self)
                number = self.numbers[row]
                path = self.engine.path(number) if number >= 0 else part._data.column(self._column)[at]["path"].as_py()
                return f"row {row} ({path})"
        return None

    def _made(self, key: Any, indices: Sequence[int]) -> Any:
        """A dataset of these rows alone, with their bytes."""
        rows = self._rows[key]
        at = rows.schema.get_field_index(self._column)
        kind = rows.schema.field(at)
        encoded = pyarrow.array(self._bytes(rows.column(at), indices), pyarrow.binary())
        paths = pyarrow.compute.struct_field(rows.column(at), "path").combine_chunks()
        paths = paths if isinstance(paths, pyarrow.Array) else pyarrow.concat_arrays(paths.chunks)
        parts = {"bytes": encoded, "path": paths}
        names = [kind.type.field(number).name for number in range(kind.type.num_fields)]
        # A row without an image is null, and not an image without bytes.
        nulls = pyarrow.array(rows.column(at).is_null().to_pylist(), pyarrow.bool_())
        whole = pyarrow.StructArray.from_arrays([parts[name] for name in names], names, mask=nulls)
        part = copy.copy(self._dataset)
        part._data = datasets.table.InMemoryTable(rows.set_column(at, kind, whole))
        part._indices = None
        return part

    def _bytes(self, column: Any, indices: Sequence[int]) -> list[bytes | None]:
        """The samples' bytes. None for files that ``datasets`` reads itself."""
        length = len(self)
        found: list[bytes | None] = [None] * len(indices)
        wanted: list[tuple[int, int]] = []
        for at, given in enumerate(indices):
            index = given % length
            number = self.numbers[index]
            if number >= 0 and (self._times is None or self._is_unchanged(column, at, index)):
                wanted.append((at, number))
        for (at, _), sample in zip(wanted, self.engine.get_many([number for _, number in wanted])):
            found[at] = bytes(sample)
        return found

    def _is_unchanged(self, column: Any, at: int, index: int) -> bool:
        path = column[at]["path"].as_py()
        return self._times is not None and path is not None and modified(path) == self._times[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in vars(self):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __repr__(self) -> str:
        return f"foreread.huggingface.wrap({self._dataset!r})"

    def stats(self) -> Any:
        """Statistics: see ``foreread.Stats``. In the process that created the dataset only."""
        return self.engine.stats()

    def close(self) -> None:
        """Closes the engine, for workers too."""
        self.engine.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def wrap(
    dataset: Any,
    column: str | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    look_ahead: int | str = "256MiB",
    **settings: Any,
) -> Dataset:
    """A dataset with the items of `dataset`, whose images or audio are read through foreread.

    In a plain ``DataLoader`` the next sample is unknown. Each sample is read on request and cached while there is room.
    ``foreread.torch.wrap(loader)`` reads ahead.

    Args:
        dataset: a ``datasets.Dataset``, also selected, shuffled, formatted or with a transform. Later changes of its
            format are followed, and other datasets made of it are not.
        column: its column of images or audio, if it has several.
        root: the directory of its files (default: the common directory of their paths).
        look_ahead: how far reads run ahead, in bytes.
        settings: memory, disk, agent, origin_limit, origin_parallelism: as ``foreread.Loader``.

    Raises:
        ConfigError: if the dataset does not tell where its bytes are.
        TypeError: for an ``IterableDataset`` or other objects.
    """
    if not isinstance(dataset, datasets.Dataset):
        raise TypeError(
            f"wrap() expects a datasets.Dataset, not a {type(dataset).__name__}: load the dataset without streaming=True, "
            "and one split"
        )
    column = _media_column(dataset, column)
    table = dataset._data.column(column)
    rows = None if dataset._indices is None else dataset._indices.column(0).to_pylist()
    encoded = pyarrow.compute.struct_field(table, "bytes")
    times = None
    if encoded.null_count == len(encoded) and len(encoded) > 0:
        if not dataset.features[column].decode:
            raise ConfigError(
                f"the column {column!r} names files and does not decode them (decode=False): its items have no bytes; for a "
                "transform that opens the files, foreread.torch.wrap(loader, root=..., paths=...) serves them"
            )
        paths = pyarrow.compute.struct_field(table, "path").to_pylist()
        catalog, numbers, times = _files(column, paths if rows is None else [paths[row] for row in rows], root)
    elif encoded.null_count:
        raise ConfigError(f"the column {column!r} has bytes of some samples and files of others: split the dataset")
    else:
        catalog, by_row = _shards(dataset._data, column)
        numbers = by_row if rows is None else array("q", map(by_row.__getitem__, rows))
    source = Source(catalog, look_ahead=look_ahead, **settings)
    if not source.is_kernel_cached:
        times = None  # a round trip per sample
    try:
        made = Dataset(dataset, column, source, numbers, times)
        if not encoded.null_count:
            _check(made, encoded, rows)
        return made
    except Exception:
        source.close()
        raise


def _media_column(dataset: Any, column: str | None) -> str:
    media = [name for name, kind in dataset.features.items() if isinstance(kind, (datasets.Image, datasets.Audio))]
    if column is None and len(media) == 1:
        return str(media[0])
    if column is not None and column in media:
        return column
    if column is not None:
        raise ConfigError(f"column={column!r} is no column of images or audio: expected one of {media or dataset.column_names}")
    if media:
        raise ConfigError(f"the dataset has several columns of images or audio ({', '.join(media)}): pass column=")
    raise ConfigError(
        "the dataset has no column of images or audio: cast_column(name, datasets.Image()) makes one of paths or bytes"
    )


def _files(
    column: str, paths: list[str | None], root: str | os.PathLike[str] | None
) -> tuple[Catalog, array[int], array[int]]:
    """The catalog of files, and for each index its id and modification time."""
    known = [path for path in paths if path is not None]
    remote = next((path for path in known if "://" in path), None)
    if remote is not None:
        raise ConfigError(
            f"the column {column!r} names remote files ({remote}): load the dataset without streaming=True, or read its files "
            "with foreread.torch.DataLoader"
        )
    relative = next((path for path in known if not os.path.isabs(path)), None)
    if relative is not None or not known:
        raise ConfigError(
            f"the column {column!r} does not name its files with absolute paths ({relative}): cast it to absolute paths"
        )
    where = os.path.abspath(os.path.commonpath({os.path.dirname(path) for path in known}) if root is None else root)
    catalog, numbers, times = catalog_of(where, where, [path or os.path.join(where, "none") for path in paths])
    if catalog is None:
        raise ConfigError(f"none of the dataset's {len(known)} files is in {where}: set root=")
    return catalog, array("q", numbers), array("q", times)


def _blocks(table: Any, column: str) -> list[Any]:
    """The parts of a table, in the order of its rows, that have a column."""
    if not isinstance(table, datasets.table.ConcatenationTable):
        return [table]
    return [part for row in table.blocks for part in row if column in part.column_names]


def _shards(table: Any, column: str) -> tuple[Catalog, array[int]]:
    """The catalog of a table's Arrow files, and the id of each row."""
    blocks = _blocks(table, column)
    if not all(isinstance(block, datasets.table.MemoryMappedTable) for block in blocks):
        raise ConfigError(
            "the dataset is in memory, at least in part, so that there is nothing to read: for files, "
            "dataset.save_to_disk(path) and datasets.load_from_disk(path)"
        )
    names = list(dict.fromkeys(os.path.abspath(block.path) for block in blocks))
    files = {name: pyarrow.ipc.open_stream(pyarrow.memory_map(name)).read_all() for name in names}
    fields = {_field(name, file, column) for name, file in files.items()}
    if len(fields) > 1:
        raise ConfigError(
            f"the dataset's files name the column {column!r} differently: dataset.save_to_disk(path) makes new ones"
        )
    catalog = index(names if len(names) > 1 else names[0], format="arrow", field=fields.pop())
    ordered = _in_catalog_order(catalog, {name: file.num_rows for name, file in files.items()})
    numbers = array("q")
    for block in blocks:
        first = ordered[os.path.abspath(block.path)] + _first_row(block)
        numbers.extend(range(first, first + block.num_rows))
    return catalog, numbers


def _field(name: str, file: Any, column: str) -> str:
    """The column of a file that has the bytes. A column that was renamed has another name there."""
    if column in file.column_names:
        return column
    structs = [field for field in file.schema if pyarrow.types.is_struct(field.type)]
    media = [field.name for field in structs if field.type.get_field_index("bytes") >= 0]
    if len(media) != 1:
        raise ConfigError(f"{name} has no column {column!r}: dataset.save_to_disk(path) makes files that have it")
    return str(media[0])


def _first_row(block: Any) -> int:
    """The row of its file at which a block begins, which selections move."""
    first = 0
    for name, args, settings in block.replays or ():
        if name == "slice":
            first += args[0] if args else settings.get("offset", 0)
    return int(first)


def _in_catalog_order(catalog: Catalog, rows: dict[str, int]) -> dict[str, int]:
    """The first id of each file. The catalog numbers the files in the order of their paths."""
    names = sorted(rows)
    firsts = dict(zip(names, accumulate([0, *(rows[name] for name in names)])))
    if len(catalog) != sum(rows.values()) or any(
        rows[name] and os.path.basename(name) not in catalog.path(firsts[name]) + catalog.base_url for name in names
    ):
        raise ConfigError(
            "the dataset's Arrow files have other rows than the dataset: dataset.save_to_disk(path) makes new ones"
        )
    return firsts


def _check(made: Dataset, encoded: Any, rows: list[int] | None) -> None:
    """Compares the first and last sample with the dataset's, because the rows of its files are known by their number."""
    for at in {0, len(made) - 1} if len(made) else ():
        if bytes(made.engine.get(made.numbers[at])) != encoded[at if rows is None else rows[at]].as_py():
            raise ConfigError(
                "the dataset's rows are not those of its Arrow files: dataset.save_to_disk(path) makes new ones"
            )
