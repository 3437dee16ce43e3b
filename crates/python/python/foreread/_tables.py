"""Tables of samples in memory as the bytes of a file.

A frame of pandas or polars, a table of pyarrow and a list of dicts become Arrow IPC or JSON lines, which the engine reads as it
reads files. The price is one copy of the table.
"""

import datetime
import decimal
import enum
import importlib
import io
import json
import math
import os
import uuid
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError

#: The types of missing values of pandas.
_MISSING = frozenset({"NAType", "NaTType"})


def _plain(value: Any) -> Any:
    """A value of JSON. A missing number is None, as in pandas. Raises TypeError for a value that tables do not have."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if hasattr(value, "tolist"):  # NumPy, PyTorch
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode()
    if isinstance(value, (datetime.date, datetime.time, decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if type(value).__name__ in _MISSING:
        return None
    raise TypeError(f"a {type(value).__name__} has no place in a table")


def _records(rows: Any) -> bytes:
    lines = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise TypeError(f"table: row {number} is {type(row).__name__}, and rows of a list are dicts")
        try:
            lines.append(json.dumps(_plain(row), allow_nan=False).encode() + b"\n")
        except UnicodeDecodeError as error:
            raise ConfigError(f"table: row {number} has bytes that are no UTF-8 text ({error})") from error
        except ValueError as error:
            raise ConfigError(
                f"table: row {number} has a number that is infinite, which tables do not have ({error})"
            ) from error
        except TypeError as error:
            raise ConfigError(f"table: row {number}: {error}; make it a text, a number or a list of numbers") from error
    if not lines:
        raise ConfigError("table: the list has no rows")
    return b"".join(lines)


def table_bytes(table: Any) -> tuple[str, str, bytes]:
    """A name for messages, the ending of the format, and the bytes."""
    module, kind = type(table).__module__.partition(".")[0], type(table).__name__
    name = f"the {kind} of {module}"
    if isinstance(table, (list, tuple)):
        return "the list of rows", "jsonl", _records(table)
    if module == "polars":
        file = io.BytesIO()
        (table.collect() if kind == "LazyFrame" else table).write_ipc(file, compat_level=_oldest())
        return name, "arrow", file.getvalue()
    if module == "pandas" and kind == "Series":
        raise ConfigError("table: a Series is one column: give a frame, such as series.to_frame('file')")
    if module == "pandas":
        _check_names(table.columns)
        # Columns of other types have no paths.
        objects = [name for name, kind in table.dtypes.items() if kind == object]
        table = table.assign(**{name: table[name].map(_path) for name in objects})
    try:
        arrow = importlib.import_module("pyarrow")
    except ImportError:
        if module == "pandas":
            return name, "jsonl", table.to_json(orient="records", lines=True).encode()
        raise
    try:
        made = arrow.Table.from_pandas(table, preserve_index=False) if module == "pandas" else arrow.table(table)
    except (TypeError, ValueError, arrow.ArrowException) as error:
        raise ConfigError(
            f"table: {kind} is no table: give a path or URL, a frame of pandas or polars, a table of pyarrow, "
            f"or a list of dicts ({error})"
        ) from error
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    return name, "arrow", sink.getvalue().to_pybytes()


def _path(value: Any) -> Any:
    """A path as a text."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _oldest() -> Any:
    """polars' compatibility with the first Arrow types."""
    return importlib.import_module("polars").CompatLevel.oldest()


def _check_names(columns: Any) -> None:
    if wrong := [column for column in columns if not isinstance(column, str)]:
        raise ConfigError(f"table: the name of a column is a text, and {wrong[0]!r} is none; rename it")
    if not columns.is_unique:
        raise ConfigError(f"table: two columns have the name {columns[columns.duplicated()][0]!r}; rename one")
