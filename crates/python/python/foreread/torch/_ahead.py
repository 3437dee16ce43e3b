"""What a DataLoader's sampler will say, found by running a copy of it.

The copy has the sampler's own state and copies of its generators, and runs while PyTorch's, NumPy's and Python's global
generators are put aside and put back. So nothing that the training sees is changed, and any sampler is known that can be
copied. Epochs ahead are known where an order is drawn without the global generators. Each is asked for once, as many of them as
do not hold up the first batch, and once more when it begins, to see whether it still holds. The price: the epochs of a sampler
that draws from the system's own randomness are read ahead for nothing, fewer of them each time.
"""

from __future__ import annotations

import copy
import pickle
import random
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import Dataset

#: The most numbers that are looked at in an epoch: endless samplers have to end somewhere, and the first batch waits for it.
MOST = 1 << 21

#: No further epoch is asked for when those before it have taken so many seconds, beside the one that follows.
_PATIENCE = 0.25

#: From where the global generators go on while a future is asked for that does not depend on them.
_ELSEWHERE = 0x5EED


def _globals() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None


def _mark() -> bytes:
    """What tells whether the global generators have been drawn from in between."""
    pytorchs, pythons, numpys = _globals()
    # An array's own pickle keeps a little of itself in NumPy 1.24.
    plain = [part.tobytes() if hasattr(part, "tobytes") else part for part in numpys or ()]
    return pickle.dumps((pytorchs.tolist(), pythons, plain))


@contextmanager
def aside(seed: int | None = None) -> Iterator[None]:
    """Puts the global generators aside; inside they go on from where they are, or begin from `seed`."""
    numpy = sys.modules.get("numpy")
    states = _globals()
    try:
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            if numpy:
                numpy.random.seed(seed % (1 << 32))
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy and states[2] is not None:
            numpy.random.set_state(states[2])


def _memo(root: Any, dataset: Any) -> dict[int, Any]:
    """What copying a sampler is not to copy: datasets stay, generators are copied with their states (and stay shared)."""
    memo: dict[int, Any] = {id(dataset): dataset}
    seen: set[int] = set()
    left = [root]
    while left:
        one = left.pop()
        if id(one) in seen or id(one) in memo:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Generator):
            memo[id(one)] = copied(one)
        elif isinstance(one, Dataset):
            memo[id(one)] = one
        elif isinstance(one, (list, tuple)) and len(one) < 1000:
            left.extend(one)
        elif isinstance(one, dict) and len(one) < 1000:
            left.extend(one.values())
        elif hasattr(one, "__dict__"):
            left.extend(vars(one).values())
    return memo


def copied(generator: torch.Generator) -> torch.Generator:
    """A generator that goes on as `generator` would."""
    other = torch.Generator(device=generator.device)
    other.set_state(generator.get_state())
    return other


class Copy:
    """A copy of a loader's sampler and of its generator, which draws what the loader will."""

    def __init__(self, loader: Any, dataset: Any, begun: bool) -> None:
        index_sampler = loader._index_sampler
        memo = _memo([index_sampler, loader.generator], dataset)
        self._indices = copy.deepcopy(index_sampler, memo)
        self._generator = None if loader.generator is None else memo[id(loader.generator)]
        # Workers that stay have drawn their seed once; without them each iteration draws one.
        self._draws = not (loader.persistent_workers and loader.num_workers > 0)
        self._begun = begun
        #: Whether the last epoch's order was drawn from the global generators, or has changed them.
        self.drew = False

    def epoch(self, ahead: int) -> array[int]:
        """The next epoch's numbers; `ahead` counts from the one that begins now."""
        if ahead > 0:
            self._advance()
        before = _mark()
        iterator = iter(self._indices)
        self.drew = _mark() != before
        if self._draws or not self._begun:
            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        self._begun = True
        before = _mark()
        order = self._numbers(iterator)
        self.drew = self.drew or _mark() != before
        return order

    def _numbers(self, iterator: Iterator[Any]) -> array[int]:
        first = next(iterator, None)
        if first is None:
            return array("q")
        rest = chain([first], iterator)
        numbers = chain.from_iterable(rest) if isinstance(first, (list, tuple)) else rest
        return array("q", islice(numbers, MOST))

    def _advance(self) -> None:
        """As a script does that calls ``set_epoch`` before each epoch."""
        for sampler in _samplers(self._indices):
            epoch = getattr(sampler, "epoch", None)
            if isinstance(epoch, int) and callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch + 1)


def _samplers(index_sampler: Any) -> Iterator[Any]:
    while index_sampler is not None:
        yield index_sampler
        index_sampler = getattr(index_sampler, "sampler", None)


class Foresight:
    """The orders of a loader's epochs, as far as they are known. `most` epochs are asked for at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: Of the epoch that was begun last, and of those after it.
        self._orders: list[array[int]] = []
        #: Whether what was drawn from the global generators makes a difference; None until it was tried.
        self._depends: bool | None = None

    def begin(self, loader: Any, dataset: Any, begun: bool, again: bool) -> tuple[list[array[int]], bool]:
        """The orders of the epoch that begins now and of those after it, and whether all of them were known before. `again` says
        that nothing was taken of the one before: frameworks ask for an iterator to see whether there is one.

        Raises whatever copying or running the sampler raises.
        """
        started = time.monotonic()
        with aside():
            mine = Copy(loader, dataset, begun)
            orders = [mine.epoch(0)]
        expected = self._orders if again else self._orders[1:]
        if expected and expected[0] == orders[0]:
            self._orders = expected
            return expected, True
        if expected and not again:
            self._most = max(1, self._most // 2)
        if orders[0] and len(orders[0]) < MOST and self._most > 1 and self._is_own(mine, orders[0], loader, dataset, begun):
            with aside(_ELSEWHERE):
                while len(orders) < self._most and (len(orders) < 2 or time.monotonic() - started < _PATIENCE):
                    orders.append(mine.epoch(len(orders)))
        self._orders = orders
        return orders, False

    def _is_own(self, mine: Copy, order: array[int], loader: Any, dataset: Any, begun: bool) -> bool:
        """Whether an order comes out the same whatever state the global generators are in."""
        if not mine.drew:
            return True
        if self._depends is None:
            # It may set them itself.
            with aside(_ELSEWHERE):
                self._depends = Copy(loader, dataset, begun).epoch(0) != order
        return not self._depends
