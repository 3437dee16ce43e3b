"""An epoch as an iterator with a length, as in PyTorch's loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Epoch(Iterator[Any]):
    """An iterator of batches. `length` computes the length on request."""

    def __init__(self, batches: Iterator[Any], length: Callable[[], int]) -> None:
        self._batches = batches
        self._length = length

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return self._length()
