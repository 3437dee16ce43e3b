"""Announces a framework's order to a source, at the position where the framework reads.

A framework numbers its requests: index 0 is the first sample of the run. ``Announcer`` knows the sample of each index,
and each request reports its index. The order is announced from the first index that is requested. So a checkpoint that
the framework restores needs no further call. An index that is requested a second time begins another iteration: the
order is announced again from there. Worker processes report their indices through a socket, the first one before its
sample is requested, later ones in groups.

A long order is announced in windows, because computing it costs several microseconds per sample. A window is computed
on a thread, and announced when most of the previous one was requested, because an announcement drops what was read
ahead. The price: at each window, at most 1024 samples are read again unless a cache has them, and the trainer may wait
for one read.
"""

from __future__ import annotations

import logging
import os
import secrets
import selectors
import socket
import struct
import threading
import time
import weakref
from array import array
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Protocol

from ._engine import Engine

_log = logging.getLogger("foreread")

#: Samples in the first window, whose computation delays the first sample, and in later ones.
_FIRST_WINDOW = 1 << 15
_WINDOW = 1 << 18

#: The next window is announced when this many samples of a window are left.
_LEFT = 1024

#: Threads and workers do not request the first index first. An index below this one begins at 0.
_NEAR_START = 64

#: Requests before the announced window that belong to slower workers. More of them are another iteration.
_MAX_LATE = 256

#: A worker reports its indices in groups of this size.
_GROUP = 16

#: An index this far beyond a worker's last one is reported before its sample is requested.
_JUMP = 1 << 16

#: The kinds of a worker's messages.
_REQUESTED, _BEGIN = 0, 1


class Order(Protocol):
    """The samples of a framework's indices."""

    #: The number of indices.
    length: int
    #: The number of indices in an epoch.
    epoch_length: int
    #: The number of samples of an index.
    width: int

    def ids(self, indices: Sequence[int]) -> array[int]:
        """The ids of the samples of these indices, in order."""


class Announcer:
    """Announces an order to an engine's source as its indices are requested. Workers get it pickled.

    Args:
        engine: the engine of the samples.
        order: the samples of each index.
    """

    def __init__(self, engine: Engine, order: Order) -> None:
        self._engine = engine
        self._order = order
        self._width = max(1, order.width)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        #: The first index of the window. None before the first request.
        self._start: int | None = None
        #: Whether each index of the window was requested.
        self._seen = bytearray()
        self._left = 0
        self._late = 0
        #: Counts announcements, so that a window computed for an earlier one is dropped.
        self._announced = 0
        #: The announcement whose next window is being computed, and that window.
        self._computing = 0
        self._next: list[array[int]] | None = None
        self._next_length = 0
        self._server: _Server | None = None
        self._closed = False

    @property
    def epoch_length(self) -> int:
        """The number of indices in an epoch."""
        return self._order.epoch_length

    def note(self, index: int) -> None:
        """Reports that an index is about to be requested."""
        if self._pid == os.getpid():
            self.note_many((index,))

    def note_many(self, indices: Sequence[int]) -> None:
        """The same for several indices."""
        with self._lock:
            for index in indices:
                self._note(index)

    def _note(self, index: int) -> None:
        if self._closed or not 0 <= index < self._order.length:
            return  # the framework reports it
        if self._start is None:
            return self._begin(index)
        at = index - self._start
        if at < 0:
            self._late += 1
            return self._begin(index) if self._late > _MAX_LATE else None
        if at >= len(self._seen) or self._seen[at]:
            return self._begin(index)
        is_nearly_used = self._left * self._width <= min(_LEFT, len(self._seen) * self._width // 8)
        if self._next is not None and is_nearly_used:
            # With this index, whose sample is not requested yet.
            self._extend(self._next)
            at = index - self._start
        self._seen[at] = 1
        self._left -= 1
        stop = self._start + len(self._seen)
        if 2 * self._left <= len(self._seen) and stop < self._order.length and self._computing != self._announced:
            self._computing = self._announced
            args = (self._announced, self._window(stop, _WINDOW))
            threading.Thread(target=self._compute, args=args, name="foreread-order", daemon=True).start()
        return None

    def _begin(self, index: int) -> None:
        """Announces the order from an index."""
        start = 0 if index < _NEAR_START else index
        indices = self._window(start, _FIRST_WINDOW)
        self._announce(start, bytearray(len(indices)), [self._order.ids(part) for part in self._epochs(indices)])
        self._seen[index - start] = 1
        self._left -= 1

    def _compute(self, announced: int, indices: range) -> None:
        """Computes the window after this announcement's. Requests continue."""
        orders = [self._order.ids(part) for part in self._epochs(indices)]
        with self._lock:
            if announced == self._announced:
                self._next, self._next_length = orders, len(indices)

    def _extend(self, orders: list[array[int]]) -> None:
        """Announces the next window, after the rest of this one."""
        first = self._seen.find(0)
        first = len(self._seen) if first < 0 else first
        start = (self._start or 0) + first
        rest = [start + at for at, known in enumerate(self._seen[first:]) if not known]
        seen = self._seen[first:] + bytes(self._next_length)
        self._announce(start, seen, [self._order.ids(rest), *orders] if rest else orders)

    def _window(self, start: int, samples: int) -> range:
        return range(start, min(self._order.length, start + max(1, samples // self._width)))

    def _epochs(self, indices: range) -> Iterator[range]:
        """The parts of a range of indices that are in one epoch."""
        start = indices.start
        while start < indices.stop:
            stop = min(indices.stop, (start // self._order.epoch_length + 1) * self._order.epoch_length)
            yield range(start, stop)
            start = stop

    def _announce(self, start: int, seen: bytearray, orders: list[array[int]]) -> None:
        self._start, self._seen, self._left, self._late = start, seen, seen.count(0), 0
        self._announced += 1
        self._next = None
        # Another iteration often follows, so that cached samples stay useful.
        self._engine.source.announce(orders, continues=True)

    def close(self) -> None:
        """Ends announcements."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed, server, self._server = True, self._server, None
        if server is not None:
            server.close()

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        with self._lock:
            if self._server is None:
                self._server = _Server(self)
                _OWN[self._server.address] = self
            return _restored, (self._server.address, self._order.epoch_length)


#: The announcers of this process, by the address of their server.
_OWN: weakref.WeakValueDictionary[str, Announcer] = weakref.WeakValueDictionary()


class RemoteAnnouncer:
    """An announcer of another process."""

    def __init__(self, address: str, epoch_length: int) -> None:
        self._address = address
        self.epoch_length = epoch_length
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        #: The index of the first entry of `seen`, which marks the requested indices.
        self._start = 0
        self._seen = bytearray()
        self._pending = array("q", [_REQUESTED])

    def note(self, index: int) -> None:
        """Reports that an index is about to be requested."""
        with self._lock:
            at = index - self._start
            is_next = self._socket is not None and 0 <= at < len(self._seen) + _JUMP
            if not is_next or (at < len(self._seen) and self._seen[at]):
                return self._begin(index)
            if at >= len(self._seen):
                self._seen.extend(bytes(at + 1 + _GROUP - len(self._seen)))
            self._seen[at] = 1
            self._pending.append(index)
            if len(self._pending) > _GROUP:
                self._send(self._pending)
                del self._pending[1:]
        return None

    def note_many(self, indices: Sequence[int]) -> None:
        """The same for several indices."""
        for index in indices:
            self.note(index)

    def _begin(self, index: int) -> None:
        """Reports an index, and waits until its order is announced."""
        self._start, self._seen = max(0, index - _NEAR_START), bytearray(_NEAR_START + 1)
        self._seen[index - self._start] = 1
        del self._pending[1:]
        if self._socket is None:
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connected.connect(self._address)
            except OSError:
                connected.close()
                return  # the source is closed, as the request reports
            self._socket = connected
        self._send(array("q", [_BEGIN, index]))
        try:
            self._socket.recv(1)
        except OSError:
            pass  # as above

    def _send(self, message: array[int]) -> None:
        try:
            if self._socket is not None:
                self._socket.send(message)
        except OSError:
            pass  # as above

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            connected, self._socket = self._socket, None
        if connected is not None:
            connected.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return _restored, (self._address, self.epoch_length)


def _restored(address: str, epoch_length: int) -> Announcer | RemoteAnnouncer:
    """The announcer of an address, in any process."""
    own = _OWN.get(address)
    return own if own is not None and own._pid == os.getpid() else RemoteAnnouncer(address, epoch_length)


class _Server:
    """Receives the indices that worker processes of this user request, on a thread."""

    def __init__(self, announcer: Announcer) -> None:
        self.address = f"\0foreread-order-{os.getpid()}-{secrets.token_hex(8)}"
        # A strong reference would keep the announcer and its source until the program's end.
        self._announcer = weakref.ref(announcer)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.address)
        self._listener.listen()
        self._awake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="foreread-orders", daemon=True)
        self._thread.start()
        weakref.finalize(announcer, self.close)

    def _serve(self) -> None:
        workers: set[socket.socket] = set()
        try:
            self._serve_until_closed(workers)
        finally:
            # Workers that wait for an answer would wait forever.
            for connection in [*workers, self._listener, self._awake]:
                connection.close()

    def _serve_until_closed(self, workers: set[socket.socket]) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._awake, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._awake in ready:
                    break
                if self._listener in ready and (worker := self._accepted()) is not None:
                    workers.add(worker)
                    selector.register(worker, selectors.EVENT_READ)
                for worker in workers & ready:
                    if not self._receive(worker):
                        selector.unregister(worker)
                        workers.remove(worker)
                        worker.close()

    def _accepted(self) -> socket.socket | None:
        """A new connection of this user. None if it has none, or descriptors are used up."""
        try:
            worker, _ = self._listener.accept()
        except OSError as error:
            _log.warning("a worker process cannot announce its order: %s", error)
            # Until descriptors are free again.
            time.sleep(0.1)
            return None
        _, user, _ = struct.unpack("3i", worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user == os.getuid():
            return worker
        worker.close()
        return None

    def _receive(self, worker: socket.socket) -> bool:
        """Handles a message. False at the connection's end."""
        try:
            message = array("q", worker.recv(8 * (1 + _GROUP)))
            announcer = self._announcer()
            if not message or announcer is None:
                return False
            try:
                announcer.note_many(message[1:])
            except Exception as error:  # also of the user's own sampler
                _log.warning("the order is not announced: %s; samples are read on request", error)
            if message[0] == _BEGIN:
                worker.send(b"\1")
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Ends the thread. Closing twice is not an error."""
        if self._waker.fileno() >= 0:
            self._waker.close()
            if threading.current_thread() is not self._thread:
                self._thread.join(5.0)
