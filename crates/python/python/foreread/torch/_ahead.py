"""What a DataLoader's sampler will say, found by running a copy of it.

The copy has the sampler's own state and copies of its generators, and runs while PyTorch's, NumPy's and Python's global
generators are put aside and put back. So nothing that the training sees is changed, and any sampler is known that can be
copied. Which epochs are known follows from trying: an order that comes out the same from other global generators does not
depend on them, and neither do those after it.
"""

from __future__ import annotations

import copy
import random
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import Dataset

#: The most numbers that are looked at in an epoch: endless samplers have to end somewhere, and the first batch waits for it.
MOST = 1 << 21


@contextmanager
def aside(seed: int | None = None) -> Iterator[None]:
    """Puts the global generators aside; inside they go on from where they are, or begin from `seed`."""
    numpy = sys.modules.get("numpy")
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None
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
        if numpy:
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

    def epoch(self, ahead: int) -> array[int]:
        """The next epoch's numbers; `ahead` counts from the one that begins now."""
        if ahead > 0:
            self._advance(ahead)
        iterator = iter(self._indices)
        if self._draws or not self._begun:
            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        self._begun = True
        first = next(iterator, None)
        if first is None:
            return array("q")
        rest = chain([first], iterator)
        numbers = chain.from_iterable(rest) if isinstance(first, (list, tuple)) else rest
        return array("q", islice(numbers, MOST))

    def _advance(self, ahead: int) -> None:
        """As a script does that calls ``set_epoch`` before each epoch."""
        for sampler in _samplers(self._indices):
            epoch = getattr(sampler, "epoch", None)
            if isinstance(epoch, int) and callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch + 1)


def _samplers(index_sampler: Any) -> Iterator[Any]:
    while index_sampler is not None:
        yield index_sampler
        index_sampler = getattr(index_sampler, "sampler", None)


def known(loader: Any, dataset: Any, begun: bool, most: int) -> list[array[int]]:
    """The orders that are known: that of the epoch that begins now, and of up to `most` in all.

    Raises whatever copying or running the sampler raises.
    """
    with aside():
        mine = Copy(loader, dataset, begun)
        orders = [mine.epoch(0)]
    if most < 2 or not orders[0] or len(orders[0]) == MOST:
        return orders
    with aside(0x5EED_1):
        one = Copy(loader, dataset, begun)
        if one.epoch(0) != orders[0]:
            return orders
    with aside(0x5EED_2):
        other = Copy(loader, dataset, begun)
        other.epoch(0)
        while len(orders) < most:
            ahead = len(orders)
            following = mine.epoch(ahead)
            if other.epoch(ahead) != following:
                break
            orders.append(following)
    return orders
