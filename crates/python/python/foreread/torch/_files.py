"""Serves the files that a dataset opens from memory.

A dataset reads a sample by opening a file, directly, by pathlib, or through Pillow, NumPy and other Python code. While
it makes a sample, ``open`` returns that sample's bytes instead of the file, in the same kind of object. Other files open
as usual. So any dataset can be served unchanged. The price: libraries that open files in C (OpenCV's imread,
torchvision.io) read the files themselves, and their read-ahead is wasted. Code that opens the file in Python and reads
it by its descriptor (NumPy's fromfile, mmap) gets a descriptor of the bytes in memory. It costs a copy, not a second read.
"""

from __future__ import annotations

import builtins
import errno
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

#: The buffer size of a sample's file, in bytes.
_BUFFER = 1 << 16

#: The supported values of `whence`.
_WHENCE = (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END)


class Serving:
    """A context in which the thread's ``open(path, "rb")`` returns the bytes that `files` has for the path, if any."""

    __slots__ = ("_before", "_last", "files", "opened")

    def __init__(self, files: Mapping[str, Callable[[], Any]]) -> None:
        self.files = files
        self._before: Serving | None = None
        #: The last opened file and its bytes, because some readers check the header and reopen the file.
        self._last: tuple[str, Any] | None = None
        #: Whether any of the files was opened.
        self.opened = False

    def __enter__(self) -> Serving:
        if not _installed:
            _install()
        self._before = getattr(_serving, "now", None)
        _serving.now = self
        return self

    def __exit__(self, *exception: object) -> None:
        _serving.now = self._before
        self._last = None

    def opens(self, file: Any) -> _SampleFile | None:
        """The sample as a file, if `file` is a sample's path."""
        if not isinstance(file, (str, os.PathLike)):
            return None
        path = os.fspath(file)
        get = self.files.get(path)
        if get is None:
            return None
        self.opened = True
        if self._last is not None and self._last[0] == path:
            return _SampleFile(self._last[1], path)
        try:
            data = get()
        except Error as error:
            # Opening the file itself reports the problem, or succeeds.
            _log.warning("%s is opened as usual: %s", path, error)
            return None
        if data is None:
            return None
        self._last = (path, data)
        return _SampleFile(data, path)


class _SampleFile(io.RawIOBase):
    """A sample as a file. Its descriptor, for reading or mapping in C, is that of an in-memory file with the same bytes.
    Once it is requested, all operations use that file."""

    mode = "rb"

    def __init__(self, data: Any, name: str) -> None:
        super().__init__()
        self.name = name
        self._data = memoryview(data)
        self._at = 0
        self._real: io.FileIO | None = None

    def buffered(self) -> io.BufferedReader:
        """The buffered reader that ``open`` returns."""
        return io.BufferedReader(self, max(io.DEFAULT_BUFFER_SIZE, min(len(self._data), _BUFFER)))

    def readable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readinto(self, buffer: Any) -> int | None:
        self._check_open()
        if self._real is not None:
            return self._real.readinto(buffer)
        room = memoryview(buffer).cast("B")
        count = max(0, min(len(room), len(self._data) - self._at))
        room[:count] = self._data[self._at : self._at + count]
        self._at += count
        return count

    def readall(self) -> bytes:
        self._check_open()
        if self._real is not None:
            return self._real.readall()
        rest = bytes(self._data[self._at :])
        self._at += len(rest)
        return rest

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        if self._real is not None or whence not in _WHENCE:
            return self._file().seek(offset, whence)
        to = offset + (0, self._at, len(self._data))[whence]
        if to < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = to
        return to

    def tell(self) -> int:
        self._check_open()
        return self._at if self._real is None else self._real.tell()

    def fileno(self) -> int:
        self._check_open()
        return self._file().fileno()

    def _file(self) -> io.FileIO:
        if self._real is None:
            self._real = _in_memory(self._data) or io.FileIO(self.name, "rb")
            self._real.seek(self._at)
        return self._real

    def close(self) -> None:
        if self._real is not None:
            self._real.close()
        self._data = memoryview(b"")
        super().close()


def _in_memory(data: memoryview) -> io.FileIO | None:
    """An in-memory file of these bytes. None if the system does not support it or has no memory."""
    try:
        file = io.FileIO(os.memfd_create("foreread-sample"), "r+")
    except (AttributeError, OSError):
        return None
    try:
        written = 0
        while written < len(data):
            written += file.write(data[written:])
    except OSError:
        file.close()
        return None
    return file


def _served(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **settings: Any) -> Any:
    now: Serving | None = getattr(_serving, "now", None)
    if now is not None and mode == "rb" and (found := now.opens(file)) is not None:
        return found if buffering == 0 else found.buffered()
    return _open(file, mode, buffering, *args, **settings)


_installed = False
#: Prevents two threads from taking each other's `open` for Python's.
_installing = threading.Lock()


def _install() -> None:
    """Replaces ``open`` once per process. Outside of samples it behaves like ``open``. pathlib uses io's."""
    global _installed, _open
    with _installing:
        if _installed:
            return
        _open = builtins.open
        # A pickled `open` becomes the `open` of the process that unpickles it.
        _served.__module__, _served.__name__, _served.__qualname__ = "io", "open", "open"
        builtins.open = io.open = _served
        _installed = True
