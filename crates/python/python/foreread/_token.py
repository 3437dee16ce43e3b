"""The ranks' token by torch's own store, where the user gives none.

A job whose ranks meet at a host and port needs a secret that all ranks have. Where `torch.distributed` is initialised they have
a store in common already, so rank 0 puts a random token there. Each rank counts up after it has read the token, and the last
one deletes it. The price is that whoever reaches torch's store within these moments can read the token: torch's store
has no authentication. `FOREREAD_TOKEN` does without it, and is always used where it is set.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from .errors import MeetingError

__all__ = ["of_torch"]

#: Seconds that a rank waits for rank 0, as ranks wait for each other when they meet.
TIMEOUT = 300.0

#: Seconds between two requests to the store: the first, and at most.
PAUSES = (0.01, 0.5)

#: The n-th process group of one rank is the n-th of the others.
_NUMBERS: Iterator[int] = itertools.count()


class _Known(NamedTuple):
    """The token of a process group: all of its loaders have one, because later ones are found through the first."""

    store: object
    token: str


_known: _Known | None = None


class Store(Protocol):
    """What of torch's stores is used; all of them have it, in all releases."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def delete_key(self, key: str, /) -> bool: ...


def of_torch(rank: int, world_size: int, token: str) -> str | None:
    """The token that all ranks have: rank 0's. None where torch has no process group of these ranks, or no store for a secret."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if (distributed.get_rank(), distributed.get_world_size()) != (rank, world_size):
        return None
    store = _store(distributed)
    if store is None:
        return None
    global _known
    if _known is None or _known.store is not store:
        _known = _Known(store, exchange(store, rank, world_size, token, next(_NUMBERS)))
    return _known.token


def _store(distributed: ModuleType) -> Store | None:
    """The default process group's store."""
    try:
        store: Any = distributed.distributed_c10d._get_default_store()
    except AttributeError:  # it is not public
        return None
    base = store
    while isinstance(base, distributed.PrefixStore):
        base = base.underlying_store
    # Its file keeps what was deleted, and others may be able to read it.
    return None if isinstance(base, distributed.FileStore) else store


def exchange(
    store: Store, rank: int, world_size: int, token: str, number: int, timeout: float = TIMEOUT
) -> str:
    """Passes rank 0's token of the process group of this number to the others."""
    key = f"foreread/token/{number}"
    # How many ranks have the token; the key is there once it is not 0.
    count = f"{key}/count"
    try:
        if rank == 0:
            store.set(key, token)
            store.add(count, 1)
            return token
        _wait(store, count, rank, timeout)
        token = store.get(key).decode()
        if store.add(count, 1) == world_size:
            # What cannot be deleted ends with the store.
            with contextlib.suppress(RuntimeError):
                _delete(store, key, count)
    except RuntimeError as error:
        message = f"rank {rank} cannot pass the ranks' token by torch's store: {error}; {REMEDY}"
        raise MeetingError(message) from error
    return token


REMEDY = "or put `export FOREREAD_TOKEN=$(foreread token)` into the job script, before what starts the ranks"


def _wait(store: Store, count: str, rank: int, timeout: float) -> None:
    # Polled, because `wait` cannot be interrupted by Ctrl-C. Adding 0 asks without waiting.
    deadline = time.monotonic() + timeout
    pause, longest = PAUSES
    while store.add(count, 0) == 0:
        if time.monotonic() >= deadline:
            message = (
                f"rank {rank} got no token from rank 0 by torch's store within {timeout:.0f} s: all ranks must make the same loaders "
                f"in the same order, and FOREREAD_TOKEN must be set on all or on none; {REMEDY}"
            )
            raise MeetingError(message)
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _delete(store: Store, key: str, count: str) -> None:
    try:
        store.delete_key(key)
        store.delete_key(count)
    except RuntimeError:  # a store that cannot delete
        store.set(key, "")
