"""Files that a dataset opens, served from memory.

A dataset reads its sample by opening a file: itself, by pathlib, or through Pillow, NumPy and whatever else is written in Python. While it
makes one sample, ``open`` gives it that sample's bytes instead of the file; everything else it opens is opened as ever. So
any dataset can be served without a change to it. The price: readers that open files in C (OpenCV's imread, torchvision.io)
read them themselves, and are counted as such.
"""

from __future__ import annotations

import builtins
import io
import os
import threading
from collections.abc import Callable
from typing import Any

_open = builtins.open
_serving = threading.local()


class Serving:
    """While it is entered, the thread's ``open(path, "rb")`` reads from what `get` returns."""

    __slots__ = ("_get", "_path", "served")

    def __init__(self, path: str, get: Callable[[], Any]) -> None:
        self._path = path
        self._get = get
        #: Whether the file was opened.
        self.served = False

    def __enter__(self) -> Serving:
        if builtins.open is not _served:
            # Once in a process, and for good: while no sample is being made, it is ``open``. pathlib takes io's.
            builtins.open = io.open = _served
        _serving.now = self
        return self

    def __exit__(self, *exception: object) -> None:
        _serving.now = None

    def opens(self, file: Any) -> io.BytesIO | None:
        """The sample, if `file` is its."""
        if file != self._path and not (isinstance(file, os.PathLike) and os.fspath(file) == self._path):
            return None
        self.served = True
        return _Named(self._get(), self._path)


class _Named(io.BytesIO):
    """Some readers look at a file's name."""

    def __init__(self, data: Any, name: str) -> None:
        super().__init__(data)
        self.name = name


def _served(file: Any, mode: str = "r", *args: Any, **settings: Any) -> Any:
    now: Serving | None = getattr(_serving, "now", None)
    if now is not None and mode == "rb" and (found := now.opens(file)) is not None:
        return found
    return _open(file, mode, *args, **settings)

