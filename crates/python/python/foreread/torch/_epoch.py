"""An epoch under way: an iterator that knows its length, as PyTorch's loaders have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Epoch(Iterator[Any]):
    """Batches, one after another; `length` is asked when somebody wants to know."""

    def __init__(self, batches: Iterator[Any], length: Callable[[], int]) -> None:
        self._batches = batches
        self._length = length

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return self._length()
