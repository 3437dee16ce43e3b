"""Files that a dataset opens, served from memory.

A dataset reads its sample by opening a file: itself, by pathlib, or through Pillow, NumPy and whatever else is written in
Python. While it makes one sample, ``open`` gives it that sample's bytes instead of the file, in the same kind of object; everything
else it opens is opened as ever. So any dataset can be served without a change to it. The price: readers that open files in C (OpenCV's
imread, torchvision.io) read them themselves, and what was read ahead for them is of no use. Whoever has the file opened by Python and reads
it by its descriptor (NumPy's fromfile, mmap) gets a descriptor of the same bytes in memory: a copy more, and no second read.
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

#: What a sample's file reads at a time, in bytes, if it is not asked for more.
_BUFFER = 1 << 16

#: From where a position is counted.
_FROM = (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END)


class Serving:
    """While it is entered, the thread's ``open(path, "rb")`` reads what `files` says of that path, unless that is nothing."""

    __slots__ = ("_before", "_last", "files", "opened")

    def __init__(self, files: Mapping[str, Callable[[], Any]]) -> None:
        self.files = files
        self._before: Serving | None = None
        #: The file that was opened last, and what it holds: some look at a file's head and open it once more.
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

    def opens(self, file: Any) -> _Sample | None:
        """The sample as a file, if `file` is one's."""
        if not isinstance(file, (str, os.PathLike)):
            return None
        path = os.fspath(file)
        get = self.files.get(path)
        if get is None:
            return None
        self.opened = True
        if self._last is not None and self._last[0] == path:
            return _Sample(self._last[1], path)
        try:
            data = get()
        except Error as error:
            # The file itself says what is wrong with it, or that nothing is any longer.
            _log.warning("%s is opened as ever: %s", path, error)
            return None
        if data is None:
            return None
        self._last = (path, data)
        return _Sample(data, path)


class _Sample(io.RawIOBase):
    """A sample as the file that it is. Whoever asks for its descriptor, to read or map it in C, gets that of a file in memory with the
    same bytes, and from then on it is that file."""

    mode = "rb"

    def __init__(self, data: Any, name: str) -> None:
        super().__init__()
        self.name = name
        self._data = memoryview(data)
        self._at = 0
        self._real: io.FileIO | None = None

    def buffered(self) -> io.BufferedReader:
        """What ``open`` gives for it."""
        return io.BufferedReader(self, max(io.DEFAULT_BUFFER_SIZE, min(len(self._data), _BUFFER)))

    def readable(self) -> bool:
        self._checked()
        return True

    def seekable(self) -> bool:
        self._checked()
        return True

    def _checked(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readinto(self, buffer: Any) -> int | None:
        self._checked()
        if self._real is not None:
            return self._real.readinto(buffer)
        room = memoryview(buffer).cast("B")
        count = max(0, min(len(room), len(self._data) - self._at))
        room[:count] = self._data[self._at : self._at + count]
        self._at += count
        return count

    def readall(self) -> bytes:
        self._checked()
        if self._real is not None:
            return self._real.readall()
        rest = bytes(self._data[self._at :])
        self._at += len(rest)
        return rest

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._checked()
        if self._real is not None or whence not in _FROM:
            return self._file().seek(offset, whence)
        to = offset + (0, self._at, len(self._data))[whence]
        if to < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._at = to
        return to

    def tell(self) -> int:
        self._checked()
        return self._at if self._real is None else self._real.tell()

    def fileno(self) -> int:
        self._checked()
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
    """A file of these bytes that lies nowhere; None where the system has no such files, or no room."""
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
#: Two threads that make their first samples at once would each take the other's `open` for Python's.
_installing = threading.Lock()


def _install() -> None:
    """Once in a process, and for good: while no sample is being made, it is ``open``. pathlib takes io's."""
    global _installed, _open
    with _installing:
        if _installed:
            return
        _open = builtins.open
        # Who pickles `open` gets that of the process that unpickles it.
        _served.__module__, _served.__name__, _served.__qualname__ = "io", "open", "open"
        builtins.open = io.open = _served
        _installed = True
