"""An iteration over a loader, and the state of the epoch that it reads.

An iterator is an object with ``__next__``, not a generator: an exception ends a generator, and the next request would look
like the end of a whole epoch. A batch is counted by its index in the epoch, so an interrupt between two steps of the
loader's code neither loses a batch nor shifts a position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .._native import Batch


@dataclass(slots=True)
class EpochRun:
    """The epoch that a loader reads."""

    epoch: int
    #: The samples of the epoch that all ranks together have consumed before it.
    consumed: int
    #: The number of its batches.
    batches: int
    #: The loader's substitute for undecodable batches, at the beginning.
    substitute: Any
    #: The time of the last batch.
    last: float
    #: The number of the iteration that reads it.
    iteration: int = 0
    #: The index of the engine's first batch since the last jump.
    first: int = 0
    #: The number of batches taken from the engine, and the number passed to the trainer, failed or omitted.
    taken: int = 0
    given: int = 0
    #: Whether a batch was delivered, or its exception.
    delivered: bool = False
    #: Whether the trainer has got to the end.
    ended: bool = False
    #: The exception that has ended it.
    error: Exception | None = None
    #: The samples of the batches passed so far, while another iteration gets them again. None once the epoch counts as done.
    looked_at: list[Batch] | None = field(default_factory=list)
    #: The number of looks.
    looks: int = 0
    #: Batches of samples that another iteration gets again.
    again: deque[Batch] = field(default_factory=deque)

    def number(self, batch: Batch) -> int:
        """The number of a batch in this run."""
        return self.first + batch.index


class Epoch(Iterator[Any]):
    """An iteration. It begins with its first batch. `begin` returns its number, `take` its next batch."""

    def __init__(self, begin: Callable[[], int], take: Callable[[int], Any], length: int) -> None:
        self._begin = begin
        self._take = take
        self._length = length
        self._number: int | None = None

    def __next__(self) -> Any:
        if self._number is None:
            self._number = self._begin()
        return self._take(self._number)

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> Any:
        raise TypeError("an iteration cannot be pickled or copied: save the loader's state_dict()")
