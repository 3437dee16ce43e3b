"""Copies batches to a device, one batch ahead of the trainer.

While the trainer computes on a batch, the next one is copied from pinned memory on a stream of its own. The price is one more
batch in the device's memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import ConfigError


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
        #: Seconds that requests have waited for copies that are not asynchronous.
        self.waited = 0.0

    @property
    def pins(self) -> bool:
        """Whether batches need pinned memory."""
        return self._stream is not None

    def ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches on the device, in order."""
        if self._stream is None:
            for batch in batches:
                yield self._copied(batch)
            return
        before: tuple[Any, Any] | None = None
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except Exception:
                # Raised after the earlier batches.
                if before is not None:
                    yield self._ready(*before)
                raise
            begun = self._begun(batch)
            if before is not None:
                yield self._ready(*before)
            before = begun
        if before is not None:
            yield self._ready(*before)

    def _copied(self, batch: Any) -> Any:
        begun = time.monotonic()
        try:
            return _each(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
        finally:
            self.waited += time.monotonic() - begun

    def _begun(self, batch: Any) -> tuple[Any, Any]:
        with torch.cuda.stream(self._stream):
            copy = self._copied(batch)
            event = torch.cuda.Event()
            event.record(self._stream)
        # PyTorch's allocator of pinned memory reuses the source after this copy only.
        return copy, event

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
