"""Access to a source's samples from the process that opened it and from its worker processes.

The source stays in the process that opened it. Worker processes, forked or spawned, send requests through a socket and
get samples through shared memory. So all workers share one cache and one stream of reads. The price: samples that
their own process requests of a shared source are copied once.
"""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Sequence
from typing import Any

from ._native import ShareClient, Source


class _LocalSource:
    """A source in its own process, shared by copies of its Engine."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.pid = os.getpid()
        self.last: Any = None


#: The sources of this process, and in a forked child its parent's, by address.
_LOCAL: weakref.WeakValueDictionary[str, _LocalSource] = weakref.WeakValueDictionary()


class Engine:
    """Access to samples: the source in its own process, a client of it in others.

    Args:
        source: the source. The engine closes it.
        shared: whether workers may be forked. Otherwise the source is shared when the engine is first pickled, and
            until then its own process gets samples without a copy.
    """

    #: This process. Kept here, because iterators that are dropped at exit find the module's own names gone.
    _process = staticmethod(os.getpid)

    def __init__(self, source: Source, *, shared: bool = True) -> None:
        self._local: _LocalSource | None = _LocalSource(source)
        self._client: ShareClient | None = None
        self._client_pid = -1
        self._address = ""
        if shared:
            # Before workers start, because a forked one must find the address.
            self._share()

    def _share(self) -> None:
        local = self._own()
        self._address = local.source.share()
        _LOCAL[self._address] = local

    @property
    def is_local(self) -> bool:
        """Whether this process created the engine."""
        return self._local is not None and self._local.pid == self._process()

    def _own(self) -> _LocalSource:
        if self._local is None or not self.is_local:
            raise RuntimeError("the engine belongs to another process")
        return self._local

    @property
    def source(self) -> Source:
        """The source, in the process that created it only."""
        return self._own().source

    def _access(self) -> Source | ShareClient:
        if self._local is not None and self._local.pid == self._process():
            return self._local.source
        if self._client is None or self._client_pid != self._process():
            if not self._address:
                raise RuntimeError("the engine was not shared before this process was forked: start workers with spawn")
            self._client, self._client_pid = ShareClient(self._address), self._process()
        return self._client

    @property
    def closed(self) -> bool:
        """Whether it is closed, as known in this process."""
        return self._local is not None and self._local.last is not None

    def stats(self) -> Any:
        """The statistics so far, or the final ones."""
        local = self._own()
        return local.source.stats() if local.last is None else local.last

    def close(self) -> None:
        """Closes it for all processes. In other processes, closes only their client. Closing twice is not an error."""
        if not self.is_local:
            self._client = None
            return
        local = self._own()
        if local.last is None:
            local.last = local.source.stats()
            local.source.close()

    def watch(self, waited: float | None = None) -> None:
        """Logs a warning if the trainer waits for samples. Only in the process that created the engine. `waited` is the
        trainer's total stall time in seconds, if workers make the requests."""
        if self.is_local and not self.closed:
            self._own().source.watch(waited)

    def pause(self) -> None:
        """Marks the end of an epoch: the time until the next request does not count. Only in the process that created
        the engine."""
        if self.is_local:
            self._own().source.pause()

    def path(self, number: int) -> str:
        """A sample's path below the dataset's URL."""
        access = self._access()
        return access.path(number) if isinstance(access, Source) else access.call("path", str(number).encode()).decode()

    def get(self, number: int) -> Any:
        """A sample's bytes, as a buffer."""
        return self._access().get(number)

    def get_many(self, numbers: Sequence[int]) -> list[Any]:
        """Several samples, read concurrently."""
        return self._access().get_many(list(numbers))

    def __getstate__(self) -> dict[str, Any]:
        if not self._address and self.is_local:
            self._share()
        return {"_address": self._address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._address = state["_address"]
        self._local = _LOCAL.get(self._address)
        self._client, self._client_pid = None, -1


class EngineDataset:
    """The base of map-style datasets whose samples come from an engine, for ``foreread.torch.wrap``."""

    #: The engine of the samples.
    engine: Engine
    #: The engine's id of each index. Negative for samples that it does not have.
    numbers: array[int]
