"""Files that a dataset opens, served from memory.

A dataset reads its sample by opening a file: itself, by pathlib, or through Pillow, NumPy and whatever else is written in
Python. While it makes one sample, ``open`` gives it that sample's bytes instead of the file; everything else it opens is opened
as ever. So any dataset can be served without a change to it. The price: readers that open files in C (OpenCV's imread, torchvision.io)
read them themselves, and are counted as such.
"""

from __future__ import annotations

import builtins
import io
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import Error

_log = logging.getLogger("foreread.torch")
_open = builtins.open
_serving = threading.local()


class Serving:
    """While it is entered, the thread's ``open(path, "rb")`` reads what `files` says of that path, unless that is nothing."""

    __slots__ = ("_before", "_files")

    def __init__(self, files: Mapping[str, Callable[[], Any]]) -> None:
        self._files = files
        self._before: Serving | None = None

    def __enter__(self) -> Serving:
        if not _installed:
            _install()
        self._before = getattr(_serving, "now", None)
        _serving.now = self
        return self

    def __exit__(self, *exception: object) -> None:
        _serving.now = self._before

    def opens(self, file: Any) -> io.BytesIO | None:
        """The sample, if `file` is one's."""
        if not isinstance(file, (str, os.PathLike)):
            return None
        path = os.fspath(file)
        get = self._files.get(path)
        if get is None:
            return None
        try:
            return None if (data := get()) is None else _Named(data, path)
        except Error as error:
            # The file itself says what is wrong with it, or that nothing is any longer.
            _log.warning("%s is opened as ever: %s", path, error)
            return None


class _Named(io.BytesIO):
    """A sample as a file. Whoever wants its descriptor, to read or map it in C, gets the real one's."""

    def __init__(self, data: Any, name: str) -> None:
        super().__init__(data)
        self.name = name
        self._real: Any = None

    def fileno(self) -> int:
        if self._real is None:
            self._real = _open(self.name, "rb")
            self._real.seek(self.tell())
        descriptor: int = self._real.fileno()
        return descriptor

    def close(self) -> None:
        if self._real is not None:
            self._real.close()
        super().close()


def _served(file: Any, mode: str = "r", *args: Any, **settings: Any) -> Any:
    now: Serving | None = getattr(_serving, "now", None)
    if now is not None and mode == "rb" and (found := now.opens(file)) is not None:
        return found
    return _open(file, mode, *args, **settings)


_installed = False


def _install() -> None:
    """Once in a process, and for good: while no sample is being made, it is ``open``. pathlib takes io's."""
    global _installed, _open
    _installed, _open = True, builtins.open
    builtins.open = io.open = _served
