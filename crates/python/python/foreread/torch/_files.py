"""Serves the files that a dataset opens from memory.

A dataset reads a sample by opening a file, directly, by pathlib, or through Pillow, NumPy and other Python code. While
it makes a sample, ``open`` returns that sample's bytes instead of the file, in the same kind of object, as bytes or as
text. Other files open as usual. So any dataset can be served unchanged. The price: libraries that open files in C
(OpenCV's imread, torchvision.io, ``os.open``) read the files themselves, and their read-ahead is wasted. Code that opens
the file in Python and reads it by its descriptor (NumPy's fromfile, mmap) gets a descriptor of the bytes in memory. It
costs a copy, not a second read.

A path is one of the sample's files if it is the same text once it is absolute. A path with ``..`` or through a symbolic
link may be the same file although its text differs. So a path with the name of one of the files is compared by inode.
"""

from __future__ import annotations

import builtins
import io
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from .._sample_file import SampleFile
from ..errors import Error

_log = logging.getLogger("foreread.torch")
_open = builtins.open
_serving = threading.local()

#: The modes of reading bytes, and text.
_BYTES, _TEXT = ("rb", "br"), ("r", "rt", "tr")

#: Parts of a path that never change its meaning. ``..`` does after a symbolic link.
_EMPTY_PARTS = re.compile(r"/(?:\.?/)+")


def full_path(path: str, base: str | None = None) -> str:
    """An absolute path to the same file, without empty parts and ``.``. A relative path is below `base`, or in the working
    directory."""
    if not path.startswith("/"):
        path = f"{os.getcwd() if base is None else base}/{path}"
    return _EMPTY_PARTS.sub("/", path) if "//" in path or "/./" in path else path


class Serving:
    """A context in which the thread's ``open(path)`` returns the bytes that `files` has for the path, if any.

    The paths in `files` are as ``full_path`` makes them.
    """

    __slots__ = ("_before", "_last", "_names", "files", "opened")

    def __init__(self, files: Mapping[str, Callable[[], Any]]) -> None:
        self.files = files
        #: The paths by their last parts, once needed.
        self._names: dict[str, list[str]] | None = None
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

    def opens(self, file: Any) -> SampleFile | None:
        """The sample as a file, if `file` is a sample's path."""
        if not isinstance(file, (str, bytes, os.PathLike)) or (path := self._known(os.fsdecode(file))) is None:
            return None
        self.opened = True
        given = os.fspath(file)
        if self._last is not None and self._last[0] == path:
            return SampleFile(self._last[1], given)
        try:
            data = self.files[path]()
        except Error as error:
            # Opening the file itself reports the problem, or succeeds.
            _log.warning("%s is opened as usual: %s", path, error)
            return None
        if data is None:
            return None
        self._last = (path, data)
        return SampleFile(data, given)

    def _known(self, path: str) -> str | None:
        """The path in `files` of the file at `path`."""
        if path in self.files:
            return path
        try:
            path = full_path(path)
            if path in self.files:
                return path
            if self._names is None:
                self._names = {}
                for known in self.files:
                    self._names.setdefault(os.path.basename(known), []).append(known)
            for known in self._names.get(os.path.basename(path), ()):
                if os.path.samefile(known, path):
                    return known
        except (OSError, ValueError):
            pass  # opening it reports the problem
        return None


def _served(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    now: Serving | None = getattr(_serving, "now", None)
    if now is not None and closefd and opener is None:
        if mode in _BYTES and buffering != 1 and encoding is errors is newline is None:
            if (found := now.opens(file)) is not None:
                return found if buffering == 0 else found.buffered(buffering)
        elif mode in _TEXT and buffering != 0 and (found := now.opens(file)) is not None:
            text = io.TextIOWrapper(found.buffered(buffering), io.text_encoding(encoding), errors, newline, buffering == 1)
            text.mode = mode  # type: ignore[misc]
            return text
    return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)


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
