"""Batches of images, decoded on native threads.

Decision: the threads write into the memory of the batch's tensor, which nothing copies afterwards. It is pinned where the
loader pins. The price: samples that cannot be decoded leave a gap, which is closed by a copy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from .._image import ImageDecoder
from .._native import Batch, PendingImages
from ._threads import Ahead


class DecodedBatch:
    """The images of a batch, and why some of them could not be decoded, by index."""

    def __init__(self, batch: Batch, images: torch.Tensor, failures: dict[int, str]) -> None:
        self.batch = batch
        self.images = images
        self.failures = failures

    def __len__(self) -> int:
        return len(self.batch)


class ImageStage(Ahead):
    """Decodes batches ahead of the trainer, in their order."""

    def __init__(self, decoder: ImageDecoder, seed: int, ahead: int, pin: bool) -> None:
        super().__init__(ahead)
        self._decoder = decoder
        self._seed = seed
        self._pin = pin
        self._dtype: torch.dtype = getattr(torch, decoder.dtype)
        #: Batches, their decoding, and their memory if it is pinned.
        self._in_flight: deque[tuple[Batch, PendingImages, torch.Tensor | None]] = deque()
        #: Seconds that requests have waited for the decoding of available samples.
        self.waited = 0.0

    def _begin(self, batch: Batch) -> None:
        pinned = torch.empty(len(batch), *self._decoder.shape, dtype=self._dtype, pin_memory=True) if self._pin else None
        memory = None if pinned is None else pinned.view(torch.uint8).reshape(-1).numpy()
        self._in_flight.append((batch, self._decoder.pool.begin(batch, self._seed, memory), pinned))

    def wait(self, wait: Callable[[], Batch | None], ready: Callable[[], Batch | None]) -> DecodedBatch | None:
        """Waits for the next batch. `wait` and `ready` return the next batch of samples: see ``Pipeline.next``."""
        self._fill(ready, self._begin)
        if not self._in_flight:
            if self._failed is not None:
                raise self._failed
            if (batch := wait()) is None:
                return None
            self._begin(batch)
            self._fill(ready, self._begin)
        return self._finish()

    def try_next(self, ready: Callable[[], Batch | None]) -> DecodedBatch | None:
        """The next batch if it is decoded."""
        self._fill(ready, self._begin)
        return self._finish() if self._in_flight and self._in_flight[0][1].is_ready() else None

    def _finish(self) -> DecodedBatch:
        batch, pending, images = self._in_flight.popleft()
        begun = time.monotonic()
        try:
            memory, failures = pending.finish()
        finally:
            self.waited += time.monotonic() - begun
        if images is None:
            shape = (len(batch), *self._decoder.shape)
            flat = torch.frombuffer(memory, dtype=self._dtype) if len(batch) else torch.empty(0, dtype=self._dtype)
            images = flat.reshape(shape)
        return DecodedBatch(batch, images, dict(failures))

    def batches(self) -> list[Batch]:
        """The batches in flight."""
        return [batch for batch, _, _ in self._in_flight]

    def clear(self) -> None:
        """Cancels batches in flight."""
        self._in_flight.clear()
        self._failed = None
