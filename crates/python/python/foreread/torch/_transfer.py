"""Copies batches to a device, one batch ahead of the trainer.

While the trainer computes on a batch, the next one is copied from pinned memory on a stream of its own. The price is one more
batch in the device's memory.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ..errors import ConfigError
from ._threads import Outcome


class Transfer:
    """Copies batches to `device`."""

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"device={str(device)!r}: PyTorch finds no GPU; leave out device=, or install PyTorch with CUDA")
        if device.type == "cuda" and device.index is None:
            # Streams belong to one device, also when the current one changes.
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        #: Batches, and the events of their copies.
        self._queue: deque[tuple[Outcome, Any]] = deque()
        #: Seconds that requests have waited for copies that are not asynchronous.
        self.waited = 0.0

    @property
    def pins(self) -> bool:
        """Whether batches need pinned memory."""
        return self._stream is not None

    def next(self, get: Callable[[], Outcome | None]) -> Outcome | None:
        """The next outcome of `get`, with its batch on the device. None at the end. An exception of `get` is raised after the
        earlier batches."""
        while len(self._queue) < (1 if self._stream is None else 2):
            try:
                if (outcome := get()) is None:
                    break
            except Exception:
                if not self._queue:
                    raise
                break
            self._queue.append((outcome, None) if self._stream is None or outcome.made is None else self._begun(outcome))
        if not self._queue:
            return None
        outcome, event = self._queue[0]
        if outcome.made is not None:
            made = self._copied(outcome.made) if event is None else self._ready(outcome.made, event)
            outcome = outcome._replace(made=made)
        self._queue.popleft()
        return outcome

    def batches(self) -> list[Any]:
        """The batches of samples in flight."""
        return [outcome.batch for outcome, _ in self._queue]

    def clear(self) -> None:
        """Drops batches in flight."""
        self._queue.clear()

    def _copied(self, batch: Any) -> Any:
        begun = time.monotonic()
        try:
            return _each(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
        finally:
            self.waited += time.monotonic() - begun

    def _begun(self, outcome: Outcome) -> tuple[Outcome, Any]:
        with torch.cuda.stream(self._stream):
            copy = self._copied(outcome.made)
            event = torch.cuda.Event()
            event.record(self._stream)
        # PyTorch's allocator of pinned memory reuses the source after this copy only.
        return outcome._replace(made=copy), event

    def _ready(self, batch: Any, event: Any) -> Any:
        """The batch, for work on the current stream."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(event)

        def used(tensor: torch.Tensor) -> torch.Tensor:
            # Its memory was allocated on the other stream, and is not reused while this one works on it.
            tensor.record_stream(current)
            return tensor

        return _each(batch, used)


def _each(batch: Any, work: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The batch with `work` done on each tensor, as PyTorch's pin_memory walks through batches."""
    if isinstance(batch, torch.Tensor):
        return work(batch)
    if isinstance(batch, dict):
        return {name: _each(value, work) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_each(value, work) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_each(value, work) for value in batch)
    return batch
