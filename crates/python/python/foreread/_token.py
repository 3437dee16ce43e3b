"""Exchanges the ranks' token through torch's store, if the user sets none.

Ranks that meet at a host and port need a common secret. If `torch.distributed` is initialised, they already share a
store. Rank 0 puts a random token there. Each rank increments a counter after reading it, and the last one deletes the
token. The price is that any client of torch's store can read the token in the meantime, because the store has no
authentication. A set `FOREREAD_TOKEN` is always used instead. The nodes of wrapped loaders get it in the background.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import multiprocessing
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from .errors import MeetingError

__all__ = ["in_background", "of_torch"]

#: Seconds that a rank waits for rank 0, the same as in a rendezvous.
TIMEOUT = 300.0

#: Seconds between two requests to the store: initially and at most.
PAUSES = (0.01, 0.5)

#: The addresses by which only processes of this machine meet.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

#: Numbers process groups: the n-th of one rank is the n-th of the others.
_NUMBERS: Iterator[int] = itertools.count()


@dataclass
class _GroupToken:
    """The token of a process group. All of its loaders share it, because later ones rendezvous through the first."""

    store: object
    number: int
    token: str | None = None


_known: _GroupToken | None = None

#: Waits for rank 0 in the background.
_thread: threading.Thread | None = None

#: Ends all waits for rank 0.
_exiting = threading.Event()


class Store(Protocol):
    """The methods of torch's stores that are used. All stores have them, in all releases."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def delete_key(self, key: str, /) -> bool: ...


def of_torch(rank: int, world_size: int, token: str) -> str | None:
    """Rank 0's token, for all ranks. None if torch has no process group of these ranks, or no store for secrets."""
    store = _of_group(rank, world_size)
    if store is None:
        return None
    if _thread is not None:
        _thread.join()
    return _of_store(store, rank, world_size, token)


def in_background(rank: int, world_size: int, use: Callable[[str | None], None]) -> None:
    """Calls `use` with that token, or with None, without a wait for rank 0."""
    store = _of_group(rank, world_size)
    if store is None:
        return use(None)

    def run() -> None:
        try:
            token = _of_store(store, rank, world_size, secrets.token_hex(16))
        except MeetingError as error:
            logging.getLogger("foreread").debug("%s", error)
            token = None
        if not _exiting.is_set():
            use(token)

    global _thread
    _thread = threading.Thread(target=run, name="foreread-token", daemon=True)
    _thread.start()


@atexit.register
def _end() -> None:
    _exiting.set()
    if _thread is not None:
        # A store whose host is gone may not answer.
        _thread.join(1.0)


def local_group() -> tuple[int, str] | None:
    """The number of ranks of torch's process group, and a name of it, if all of them are processes that one on this machine
    has started, as by ``torch.multiprocessing.spawn``."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if multiprocessing.parent_process() is None:
        return None
    base, ranks = _base(_default_store(distributed), distributed), distributed.get_world_size()
    if ranks < 2 or not isinstance(base, distributed.TCPStore) or base.host not in _LOOPBACK:
        return None
    return ranks, str(base.port)


def _of_group(rank: int, world_size: int) -> Store | None:
    """The store of torch's process group of these ranks, if it is for secrets."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if (distributed.get_rank(), distributed.get_world_size()) != (rank, world_size):
        return None
    return _store(distributed)


def _of_store(store: Store, rank: int, world_size: int, token: str) -> str:
    global _known
    if _known is None or _known.store is not store:
        _known = _GroupToken(store, next(_NUMBERS))
    if _known.token is None:
        _known.token = exchange(store, rank, world_size, token, _known.number)
    return _known.token


def _default_store(distributed: ModuleType) -> Any:
    """The default process group's store."""
    try:
        return distributed.distributed_c10d._get_default_store()
    except AttributeError:  # a private function
        return None


def _base(store: Any, distributed: ModuleType) -> Any:
    while isinstance(store, distributed.PrefixStore):
        store = store.underlying_store
    return store


def _store(distributed: ModuleType) -> Store | None:
    """The default process group's store, if it is for secrets."""
    store: Store | None = _default_store(distributed)
    # A file store keeps deleted values, and other users may be able to read its file.
    return None if isinstance(_base(store, distributed), distributed.FileStore) else store


def exchange(
    store: Store, rank: int, world_size: int, token: str, number: int, timeout: float = TIMEOUT
) -> str:
    """Distributes rank 0's token of the process group `number`."""
    key = f"foreread/token/{number}"
    # The number of ranks with the token. Above 0, the key exists.
    count = f"{key}/count"
    try:
        if rank == 0:
            store.set(key, token)
            store.add(count, 1)
            return token
        _wait(store, count, rank, timeout)
        token = store.get(key).decode()
        if store.add(count, 1) == world_size:
            # Keys that cannot be deleted end with the store.
            with contextlib.suppress(RuntimeError):
                _delete(store, key, count)
    except RuntimeError as error:
        message = f"rank {rank} cannot pass the ranks' token through torch's store: {error}; {REMEDY}"
        raise MeetingError(message) from error
    return token


REMEDY = "or put `export FOREREAD_TOKEN=$(foreread token)` into the job script, before what starts the ranks"


def _wait(store: Store, count: str, rank: int, timeout: float) -> None:
    # Polled, because Ctrl-C cannot interrupt `wait`. Adding 0 reads the counter without waiting.
    deadline = time.monotonic() + timeout
    pause, longest = PAUSES
    while store.add(count, 0) == 0:
        if time.monotonic() >= deadline:
            message = (
                f"rank {rank} got no token from rank 0 through torch's store within {timeout:.0f} s: all ranks must create the same "
                f"loaders in the same order, and FOREREAD_TOKEN must be set on all or on none; {REMEDY}"
            )
            raise MeetingError(message)
        if _exiting.wait(pause):
            raise MeetingError("the program is ending")
        pause = min(2 * pause, longest)


def _delete(store: Store, key: str, count: str) -> None:
    try:
        store.delete_key(key)
        store.delete_key(count)
    except RuntimeError:  # a store that cannot delete
        store.set(key, "")
