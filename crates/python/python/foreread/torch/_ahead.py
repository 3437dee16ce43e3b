"""Predicts a DataLoader's sampler by running a copy of it.

The copy has the sampler's state and copies of its generators. While it runs, the global generators of PyTorch, NumPy
and Python are saved, and restored afterwards. So training is unaffected, and any sampler that can be copied is
predicted. Future epochs are predicted if their order does not depend on the global generators. As many are computed as
fit into a short time before the first batch. Each is computed again when it begins, to verify it. The price: the future
epochs of a sampler that uses the system's randomness are read ahead in vain, fewer of them each time.
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

#: The maximum of indices computed per epoch, because samplers may be endless and the first batch waits for this.
MAX_INDICES = 1 << 21

#: Seconds after which no further epoch is computed, except the next one.
_COMPUTE_LIMIT = 0.25

#: The seed of the global generators while an order is computed that should not depend on them.
_OTHER_SEED = 0x5EED


def _globals() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None


def _mark() -> bytes:
    """A fingerprint of the global generators, to detect their use."""
    pytorchs, pythons, numpys = _globals()
    # The pickle of an array is not deterministic in NumPy 1.24.
    plain = [part.tobytes() if hasattr(part, "tobytes") else part for part in numpys or ()]
    return pickle.dumps((pytorchs.tolist(), pythons, plain))


@contextmanager
def saved_generators(seed: int | None = None) -> Iterator[None]:
    """Restores the global generators at the end. Inside they continue, or start from `seed`."""
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
    """The memo for copying a sampler: datasets are not copied, generators are copied with their states."""
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
    """A copy of a generator."""
    other = torch.Generator(device=generator.device)
    other.set_state(generator.get_state())
    return other


class SamplerCopy:
    """A copy of a loader's sampler and generator, which draws the same as the loader will."""

    def __init__(self, loader: Any, dataset: Any, begun: bool) -> None:
        index_sampler = loader._index_sampler
        memo = _memo([index_sampler, loader.generator], dataset)
        self._indices = copy.deepcopy(index_sampler, memo)
        self._generator = None if loader.generator is None else memo[id(loader.generator)]
        # Persistent workers draw their seed once. Otherwise each iteration draws one.
        self._draws = not (loader.persistent_workers and loader.num_workers > 0)
        self._begun = begun
        #: Whether computing the last order used or changed the global generators.
        self.drew = False
        #: The number of indices up to the end of each batch of the last order. None if a batch has one.
        self.ends: array[int] | None = None

    def epoch(self, ahead: int) -> array[int]:
        """The indices of the next epoch. `ahead` counts from the epoch that begins now."""
        if ahead > 0:
            self._advance()
        before = _mark()
        iterator = iter(self._indices)
        self.drew = _mark() != before
        if self._draws or not self._begun:
            torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        self._begun = True
        before = _mark()
        order = self._index_order(iterator)
        self.drew = self.drew or _mark() != before
        return order

    def _index_order(self, iterator: Iterator[Any]) -> array[int]:
        first = next(iterator, None)
        if first is None:
            return array("q")
        rest = chain([first], iterator)
        if not isinstance(first, (list, tuple)):
            self.ends = None
            return array("q", islice(rest, MAX_INDICES))
        order, self.ends = array("q"), array("q")
        for batch in rest:
            order.extend(batch)
            self.ends.append(len(order))
            if len(order) >= MAX_INDICES:
                break
        return order[:MAX_INDICES]

    def _advance(self) -> None:
        """Calls ``set_epoch`` with the next epoch, as scripts do."""
        for sampler in _samplers(self._indices):
            epoch = getattr(sampler, "epoch", None)
            if isinstance(epoch, int) and callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch + 1)


def _samplers(index_sampler: Any) -> Iterator[Any]:
    while index_sampler is not None:
        yield index_sampler
        index_sampler = getattr(index_sampler, "sampler", None)


class Prediction:
    """The predicted orders of a loader's epochs, at most `most` at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        #: The orders of the current epoch and of later ones.
        self._orders: list[array[int]] = []
        #: Whether the order depends on the global generators. None until tested.
        self._depends: bool | None = None
        #: The number of indices up to the end of each batch of the current epoch. None if a batch has one.
        self.ends: array[int] | None = None

    def begin(self, loader: Any, dataset: Any, begun: bool, again: bool) -> tuple[list[array[int]], bool]:
        """The orders of the epoch that begins now and of later ones, and whether all were predicted before. `again` means
        that the previous iterator was not used, as frameworks create one only to test the loader.

        Raises the exceptions of copying and running the sampler.
        """
        started = time.monotonic()
        with saved_generators():
            mine = SamplerCopy(loader, dataset, begun)
            orders = [mine.epoch(0)]
        self.ends = mine.ends
        expected = self._orders if again else self._orders[1:]
        if expected and expected[0] == orders[0]:
            self._orders = expected
            return expected, True
        if expected and not again:
            self._most = max(1, self._most // 2)
        if orders[0] and len(orders[0]) < MAX_INDICES and self._most > 1 and self._is_own(mine, orders[0], loader, dataset, begun):
            with saved_generators(_OTHER_SEED):
                while len(orders) < self._most and (len(orders) < 2 or time.monotonic() - started < _COMPUTE_LIMIT):
                    orders.append(mine.epoch(len(orders)))
        self._orders = orders
        return orders, False

    def _is_own(self, mine: SamplerCopy, order: array[int], loader: Any, dataset: Any, begun: bool) -> bool:
        """Whether an order is independent of the global generators."""
        if not mine.drew:
            return True
        if self._depends is None:
            # The sampler may seed them itself.
            with saved_generators(_OTHER_SEED):
                self._depends = SamplerCopy(loader, dataset, begun).epoch(0) != order
        return not self._depends
