"""A sample as a file for libraries that read from files: Pillow, NumPy, h5py."""

from __future__ import annotations

import errno
import io
import os
from typing import Any

#: The largest automatic buffer of a buffered file, in bytes.
_BUFFER = 1 << 16

#: The supported values of `whence`.
_WHENCE = (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END)


class SampleFile(io.RawIOBase):
    """A sample as a file for reading, without a copy of its bytes. The file holds them until it is closed.

    Its descriptor, for reading or mapping in C, is that of an in-memory file with a copy of the bytes. Once it is
    requested, all operations use that file.
    """

    mode = "rb"

    def __init__(self, data: Any, name: str | bytes | None = None) -> None:
        super().__init__()
        if name is not None:
            self.name = name
        self._data = memoryview(data).cast("B").toreadonly()
        self._at = 0
        self._real: io.FileIO | None = None

    def buffered(self, size: int = -1) -> io.BufferedReader:
        """The buffered reader that ``open`` returns."""
        automatic = max(io.DEFAULT_BUFFER_SIZE, min(len(self._data), _BUFFER))
        return io.BufferedReader(self, size if size > 1 else automatic)

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

    def read(self, size: int | None = -1) -> bytes:
        self._check_open()
        if size is None or size < 0:
            return self.readall()
        if self._real is not None:
            return self._real.read(size) or b""
        found = bytes(self._data[self._at : self._at + size])
        self._at += len(found)
        return found

    def getbuffer(self) -> memoryview:
        """A view of all bytes, as of ``io.BytesIO``, but read-only."""
        self._check_open()
        return self._data[:]

    def readall(self) -> bytes:
        self._check_open()
        if self._real is not None:
            return self._real.readall()
        rest = bytes(self._data[self._at :])
        self._at += len(rest)
        return rest

    def write(self, data: Any) -> int:
        raise io.UnsupportedOperation("samples are not written")

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
            real = _in_memory(self._data)
            if real is None and not hasattr(self, "name"):
                raise io.UnsupportedOperation("fileno: this system has no files in memory")
            self._real = real or io.FileIO(self.name, "rb")
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
