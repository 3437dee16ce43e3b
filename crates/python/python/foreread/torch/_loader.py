"""foreread's own loader under PyTorch's names, in PyTorch's order."""

from __future__ import annotations

import json
import operator
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch.utils.data import default_collate

from .._native import MOST_EPOCHS, Batch, Loader, Sample
from .._stats import FED, Stats
from ..errors import ClosedError, ConfigError, CorruptError
from ._decode import Decode, decoder, raw
from ._epoch import Epoch
from ._threads import Pipeline

#: What PyTorch's loader is told of its worker processes, and what makes no difference where there are none.
_PYTORCHS = ("persistent_workers", "timeout", "multiprocessing_context", "in_order")

#: What decides batches in PyTorch's loader and cannot here, and what to do instead.
_REFUSED = {
    "sampler": "foreread draws the order itself; wrap(your_loader) keeps a sampler of yours",
    "batch_sampler": "foreread draws the order itself; wrap(your_loader) keeps a sampler of yours",
    "generator": "the order is drawn from seed=, as DistributedSampler draws it; wrap(your_loader) keeps a generator of yours",
    "worker_init_fn": "there are no worker processes, but threads; wrap(your_loader) keeps workers and what they begin with",
}

#: Stands for a sample that could not be decoded and is to be left out.
_BAD = object()


def _ranks(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """Rank and world size as given, or torch.distributed's where that has begun; else the launcher's, which Loader finds."""
    if rank is None and world_size is None and torch.distributed.is_available():
        if torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return rank, world_size


class DataLoader:
    """Batches of a directory's, bucket's or shard's samples, decoded, transformed and collated ahead of the trainer.

    The order is that of ``torch.utils.data.DataLoader`` with ``DistributedSampler(seed=seed)``, bit for bit, for any number of
    ranks; one rank is a ``DistributedSampler`` of one replica. Iterating reads one epoch. Epochs follow each other, with
    ``set_epoch`` or without it; the next one is read ahead before the last one ends.

    Args:
        source: a path or URL (``/data/train``, ``s3://bucket/train``), a catalog, a list of shards, or a dataset like
            torchvision's ImageFolder, whose root, transforms and classes are taken.
        batch_size: samples a batch, on this rank.
        shuffle: ``DistributedSampler``'s, which is on unless it is turned off (``DataLoader``'s own is off); without it samples come in the catalog's order, which is ImageFolder's.
        seed: ``DistributedSampler``'s.
        drop_last: drops what does not fill a batch on every rank, as ``DistributedSampler`` and ``DataLoader`` do.
        transform, target_transform: as ImageFolder takes them: of the decoded sample, of the class's number.
        collate_fn: as in PyTorch; of a list of ``(item, label)``, or of items where there are no labels.
        decode: what ``transform`` gets: ``"image"`` (Pillow, RGB), ``"bytes"`` (a buffer, no copy), a function of a sample, or
            ``"auto"``: images where names end like images.
        num_workers: threads that decode and transform; 0, as in PyTorch the default, does it in the caller's. Transforms that draw
            from the global generators draw otherwise on threads than PyTorch's workers do, and otherwise in each run.
        prefetch_factor: batches that are decoded ahead; more of them where batches have fewer samples than there are threads.
        pin_memory: collate into pinned memory; where there is no CUDA (or other accelerator), a warning says so, as PyTorch's does.
        memory, disk, look_ahead, origin_limit, origin_parallelism, rank, world_size, together: as ``foreread.Loader``.
        epochs: how many there will be, if you know: nothing is then read ahead for one more.
        on_error: what a sample that cannot be read or decoded does: ``"fail"``, ``"skip"`` or ``"substitute"`` (by one that was good,
            of its batch or, where none of that can be decoded, of one before; a batch of which none can even be read fails). Where
            bad ones are skipped, a batch of which nothing is left is left out, so that ranks may come to different numbers of
            batches: where they wait for each other in each step, substitute.

    A transform that raises ends the iteration with its own exception, which says in a note which sample of which epoch it was.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int = 1,
        shuffle: bool = True,
        *,
        seed: int = 0,
        drop_last: bool = False,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        decode: str | Decode | None = "auto",
        num_workers: int = 0,
        prefetch_factor: int | None = 2,
        pin_memory: bool = False,
        epochs: int | None = None,
        on_error: Literal["fail", "skip", "substitute"] = "fail",
        rank: int | None = None,
        world_size: int | None = None,
        **settings: Any,
    ) -> None:
        for name, why in _REFUSED.items():
            if settings.pop(name, None) is not None:
                raise ConfigError(f"{name}: {why}")
        for name in _PYTORCHS:
            settings.pop(name, None)
        num_workers = _number("num_workers", num_workers, 0, "of threads")
        prefetch_factor = _number("prefetch_factor", 2 if prefetch_factor is None else prefetch_factor, 1, "of batches")
        if batch_size is None:
            raise ConfigError("batch_size=None: samples come in batches; take them apart, or use foreread.Loader")
        if settings.pop("validate", None) is not None:
            raise ConfigError("validate: give the validation set a DataLoader of its own")
        pin_memory = _pins(pin_memory)
        source, taken = _of_dataset(source)
        settings = taken.get("settings", {}) | settings
        decode = taken["decode"] if decode == "auto" and "decode" in taken else decode
        transform = taken.get("transform") if transform is None else transform
        target_transform = taken.get("target_transform") if target_transform is None else target_transform
        rank, world_size = _ranks(rank, world_size)
        self._native = Loader(
            source,
            batch_size=batch_size,
            epochs=MOST_EPOCHS if epochs is None else epochs,
            seed=seed,
            sampler="torch" if shuffle else "sequential",
            deal="torch",
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            on_error=on_error,
            **settings,
        )
        taken.get("check", lambda loader: None)(self._native)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = seed
        self.dataset = _Described(self._native)
        self._transform = transform
        self._target_transform = target_transform
        self._labelled = bool(self._native.labels)
        self._decode = self._decoder(decode, source)
        self._on_error = on_error
        self._collate = default_collate if collate_fn is None else collate_fn
        self._pin = pin_memory
        self._plain = self._decode is raw and transform is None and target_transform is None
        # A batch is cut into as many parts as there are threads; small ones keep all of them busy only together.
        ahead = max(prefetch_factor, _parts(num_workers * prefetch_factor, max(1, batch_size)))
        self._pipeline: Pipeline[Batch, Any] = Pipeline(0 if self._plain else num_workers, ahead)
        self._state = json.loads(self._native.state())
        # Positions: the epoch, and how many samples of it all ranks together have consumed.
        #: What the engine gives next.
        self._engine: tuple[int, int] = (self._state["epoch"], self._state["consumed"])
        #: Behind the last batch that the trainer got.
        self._position = self._engine
        #: Where iterating begins, if nobody says which epoch it is.
        self._begin = self._engine
        #: The epoch that somebody said it is.
        self._said: int | None = None
        #: Iterations so far: a later one ends those before it.
        self._runs = 0
        self.skipped = 0
        #: At the last stats(): how long items had been waited for, and when that was, in seconds.
        self._looked = (0.0, time.monotonic())
        #: What stands in for a batch of which nothing can be decoded.
        self._good: Any = _BAD

    def _decoder(self, decode: str | Decode | None, source: Any) -> Decode:
        try:
            return decoder(decode, self._native, source)
        except Exception:
            self._native.close()
            raise

    # ---- epochs ----

    @property
    def sampler(self) -> _Epochs:
        """What scripts call ``set_epoch`` of."""
        return _Epochs(self)

    def __len__(self) -> int:
        """Batches of a whole epoch, on this rank."""
        return self._batches(0)

    def _batches(self, consumed: int) -> int:
        left = self._native.samples - consumed
        world, size = self._native.world_size, self.batch_size
        if self.drop_last:
            return left // world // size
        return _parts(_parts(left, world), size)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that is iterated next, as ``DistributedSampler.set_epoch``. Without it, the one after the last."""
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ConfigError(f"epochs are counted from 0, and {epoch} is below")
        self._said = epoch

    def _start(self) -> tuple[int, int]:
        epoch, consumed = self._begin
        return (epoch, consumed) if self._said in (None, epoch) else (self._said, 0)

    def __iter__(self) -> Epoch:
        """The batches of an epoch, which begins with the first of them: frameworks call iter() to see whether it is there.

        Beginning anew, or leaving the loop early, ends the epoch that was under way.
        """
        batches = self._batches(self._start()[1])
        return Epoch(self._next_epoch(), lambda: batches)

    def _next_epoch(self) -> Iterator[Any]:
        epoch, consumed = self._start()
        self._said = None
        if (epoch, consumed) != self._engine:
            self._jump(epoch, consumed)
        # Whoever leaves the loop has been in this epoch: the next one is the one after it.
        self._begin, self._position = (epoch + 1, 0), (epoch, consumed)
        self._runs += 1
        yield from self._epoch(self._runs, epoch, consumed)

    def _jump(self, epoch: int, consumed: int) -> None:
        self._pipeline.clear()
        self._native.jump(json.dumps(self._state | {"epoch": epoch, "phase": 0, "consumed": consumed}))
        self._engine = (epoch, consumed)

    def _epoch(self, run: int, epoch: int, consumed: int) -> Iterator[Any]:
        batches = self._batches(consumed)
        step = self.batch_size * self._native.world_size
        taken = given = 0

        def take(next_batch: Callable[[], Batch | None]) -> Batch | None:
            nonlocal taken
            self._check(run)
            if taken == batches:
                return None
            if (batch := next_batch()) is not None:
                if batch.phase != "train":
                    raise ConfigError("a validation set is set (FOREREAD_VALIDATE, foreread.toml): give it a loader of its own")
                taken += 1
                at = consumed + taken * step
                self._engine = (epoch, at) if taken < batches else (epoch + 1, 0)
            return batch

        pairs = self._pipeline.run(self._item, lambda: take(self._wait), lambda: take(self._native.try_next))
        for _, items in pairs:
            self._check(run)
            given += 1
            collated = self._collated(items)
            self._position = (epoch, consumed + given * step) if given < batches else (epoch + 1, 0)
            if collated is not None:
                yield collated
        # The last batch is done as well, which nobody else says before the next epoch.
        self._native.watch()
        if given < batches:
            raise ConfigError(f"there is no epoch {epoch}: the loader was made for fewer (epochs=), counted from 0")

    def _check(self, run: int) -> None:
        if run != self._runs:
            raise ClosedError("a later iteration over this loader has ended this one: one epoch is read at a time")

    def _wait(self) -> Batch | None:
        return next(self._native, None)

    # ---- items ----

    def _item(self, batch: Batch, at: int) -> Any:
        sample = batch[at]
        try:
            item = self._decode(sample)
        except Exception as error:
            if self._on_error == "fail":
                why = f"sample {sample.id} ({sample.path}) of epoch {batch.epoch} cannot be decoded: {error}"
                raise CorruptError(why) from error
            warnings.warn(
                f"sample {sample.id} ({sample.path}) of epoch {batch.epoch} cannot be decoded and is left out: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return _BAD
        try:
            if self._transform is not None:
                item = self._transform(item)
            if not self._labelled:
                return item
            label: Any = sample.label
            if self._target_transform is not None:
                label = self._target_transform(label)
        except Exception as error:
            error.add_note(f"foreread: in the transform of sample {sample.id} ({sample.path}) of epoch {batch.epoch}")
            raise
        return item, label

    def _collated(self, items: list[Any]) -> Any:
        bad = sum(item is _BAD for item in items)
        if bad:
            self.skipped += bad
            good = [at for at, item in enumerate(items) if item is not _BAD]
            if self._on_error == "skip":
                items = [items[at] for at in good]
            elif good:
                items = [items[min(good, key=lambda other: abs(other - at))] for at in range(len(items))]
            elif self._good is not _BAD:
                items = [self._good] * len(items)
            else:
                raise CorruptError(
                    f"none of the {len(items)} samples of a batch can be decoded, and none was before it that could stand in for "
                    'them; the warnings say which they are; on_error="skip" leaves them out'
                )
        if not items:
            return None
        if self._on_error == "substitute":
            self._good = items[-1]
        batch = self._collate([_tensor(item) for item in items] if self._plain and self._collate is default_collate else items)
        if self._pin:
            from torch.utils.data._utils.pin_memory import pin_memory

            return pin_memory(batch)
        return batch

    # ---- state ----

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer stands: behind the last batch that iterating gave. Load it with any batch size and world size."""
        epoch, consumed = self._position if self._said is None else self._start()
        return {"foreread": json.dumps(self._state | {"epoch": epoch, "phase": 0, "consumed": consumed})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken: the next iteration is the rest of that epoch."""
        try:
            text = state["foreread"]
            saved = json.loads(text)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError("this is no state of a foreread.torch.DataLoader") from error
        self._native.jump(text)
        self._runs += 1
        self._pipeline.clear()
        self._engine = self._begin = self._position = (saved["epoch"], saved["consumed"])
        self._said = None

    # ---- what happens ----

    def stats(self) -> Stats:
        """What has been delivered, from where, and what the trainer waited for: see ``foreread.Stats``."""
        stats: Stats = self._native.stats()
        made, now = self._pipeline.waited, time.monotonic()
        waited, self._looked = (made - self._looked[0]) / max(now - self._looked[1], 1e-9), (made, now)
        limiting = "transform" if stats.limiting == "trainer" and waited > FED else stats.limiting
        return replace(stats, limiting=limiting, skipped=stats.skipped + self.skipped)

    def close(self) -> None:
        """Ends reading ahead, and the threads. Iterating afterwards fails."""
        self._runs += 1
        self._pipeline.close()
        self._native.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        rank, world = self._native.rank, self._native.world_size
        return f"<foreread.torch.DataLoader of {self._native.samples} samples, rank {rank} of {world}>"


def _number(name: str, given: Any, least: int, what: str) -> int:
    """An argument that is a number, if it is one and large enough."""
    try:
        number = operator.index(given)
    except TypeError:
        raise TypeError(f"{name} is a number {what}, not {given!r}") from None
    if number < least:
        raise ConfigError(f"{name}={number}: a number {what}, at least {least}")
    return number


def _parts(whole: int, size: int) -> int:
    """How many parts of a size a whole has, the last one perhaps a smaller one."""
    return (whole + size - 1) // size


def _tensor(item: Any) -> Any:
    """Bytes as PyTorch's tensors of bytes, which collate if they are of one length."""
    if isinstance(item, tuple):
        return (_tensor(item[0]), *item[1:])
    if not isinstance(item, Sample):
        return item
    with warnings.catch_warnings():
        # The buffer is read-only, and collating copies it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(item, dtype=torch.uint8) if len(item) else torch.empty(0, dtype=torch.uint8)


def _pins(wanted: bool) -> bool:
    """Whether batches are pinned: where that is wanted and there is a device to pin them for. If there is none, it is said."""
    # PyTorch below 2.6 asks CUDA alone.
    device = getattr(torch, "accelerator", torch.cuda)
    if wanted and not device.is_available():
        # PyTorch's words, for whoever filters them.
        why = "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used."
        warnings.warn(why, UserWarning, stacklevel=3)
        return False
    return wanted


class _Described:
    """What scripts ask a loader's dataset: how many samples, which classes."""

    def __init__(self, native: Loader) -> None:
        self._samples = native.samples
        self.classes: list[str] = list(native.labels)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return self._samples


class _Epochs:
    """What scripts ask a loader's sampler: ``set_epoch``."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        world = self._loader._native.world_size
        samples = self._loader._native.samples
        return samples // world if self._loader.drop_last else _parts(samples, world)


def _of_dataset(source: Any) -> tuple[Any, dict[str, Any]]:
    """What `source` names, and what it brings along if it is a dataset like ImageFolder."""
    from ._dataset import Dataset

    if isinstance(source, Dataset):
        taken = {"transform": source.transform, "target_transform": source.target_transform}
        return source.target, taken | {"decode": source.decode, "settings": source.settings}
    samples, root = getattr(source, "samples", None), getattr(source, "root", None)
    if not isinstance(samples, Sequence) or root is None:
        return source, {}
    loader = getattr(source, "loader", None)
    makes = type(source).__getitem__
    if makes.__module__ != "torchvision.datasets.folder" or getattr(loader, "__name__", "") != "default_loader":
        raise ConfigError(f"{type(source).__name__} makes its samples in a way of its own; wrap(your_loader) keeps that")
    root = os.path.abspath(os.fspath(root))

    def check(loader: Loader) -> None:
        same = loader.samples == len(samples)
        for number, (path, label) in enumerate(samples if same else []):
            theirs = os.path.relpath(os.path.abspath(path), root)
            if theirs != loader.path(number) or label != loader.label(number):
                same = False
                break
        if not same:
            loader.close()
            raise ConfigError(
                f"{root} has other samples or classes than the dataset ({loader.samples} files, {len(samples)} samples); "
                "wrap(your_loader) serves a dataset that picks among files or numbers classes in a way of its own"
            )

    return root, {
        "transform": getattr(source, "transform", None),
        "target_transform": getattr(source, "target_transform", None),
        "check": check,
    }
