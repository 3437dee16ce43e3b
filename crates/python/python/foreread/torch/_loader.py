"""foreread's loader with PyTorch's interface and order."""

from __future__ import annotations

import json
import operator
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import default_collate

from .._image import ImageDecoder
from .._items import FieldLabels
from .._native import MAX_EPOCHS, Batch, Loader, Sample
from .._outlook import Picture
from .._stats import Stats, Waits
from ..errors import ClosedError, ConfigError, CorruptError
from ._decode import Decode, decoder, raw
from ._epoch import Epoch
from ._images import DecodedBatch, ImageStage
from ._threads import Pipeline, one_operator_thread
from ._transfer import Transfer

#: Arguments of PyTorch's loader about worker processes, which have no effect without them, with its defaults.
_WORKER_ARGUMENTS = {"persistent_workers": False, "timeout": 0, "multiprocessing_context": None, "in_order": True}

#: Arguments that decide batches in PyTorch's loader and are not supported here, with the alternative.
_REFUSED = {
    "sampler": "foreread draws the order itself; wrap(your_loader) supports custom samplers",
    "batch_sampler": "foreread draws the order itself; wrap(your_loader) supports custom samplers",
    "generator": "the order is drawn from seed=, as DistributedSampler draws it; wrap(your_loader) supports custom generators",
    "worker_init_fn": "there are threads instead of worker processes; wrap(your_loader) supports workers and their worker_init_fn",
}

#: The worker arguments that a warning has named.
_IGNORED: set[str] = set()

T = TypeVar("T")

#: Marks a sample that could not be decoded.
_UNDECODABLE = object()


def _ignore_worker_arguments(settings: dict[str, Any]) -> None:
    """Removes arguments about worker processes, with one warning in a process for each that is not PyTorch's default."""
    given = {name: settings.pop(name) for name in _WORKER_ARGUMENTS if name in settings}
    changed = [name for name, value in given.items() if value is not None and value != _WORKER_ARGUMENTS[name]]
    new = [name for name in changed if name not in _IGNORED]
    if new:
        _IGNORED.update(new)
        why = "foreread decodes on threads, whose order is fixed, and has no worker processes"
        warnings.warn(f"ignored, because {why}: {', '.join(new)}", stacklevel=3)


def _ranks(rank: int | None, world_size: int | None) -> tuple[int | None, int | None]:
    """Rank and world size: the arguments, or torch.distributed's if initialised, else None for the launcher's."""
    if rank is None and world_size is None and torch.distributed.is_available():
        if torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return rank, world_size


class DataLoader:
    """Batches of a directory's, bucket's or shard's samples, decoded, transformed and collated ahead of the trainer.

    The order is that of ``torch.utils.data.DataLoader`` with ``DistributedSampler(seed=seed)``, bit for bit, for any number of
    ranks. One rank is a ``DistributedSampler`` of one replica. Iterating reads one epoch. Epochs advance with or without
    ``set_epoch``. The next epoch is read ahead before the current one ends.

    Args:
        source: a path or URL (``/data/train``, ``s3://bucket/train``), a catalog, a list of shards, or a dataset like
            torchvision's ImageFolder, whose root, transforms and classes are used.
        batch_size: samples per batch on this rank.
        shuffle: on by default, as in ``DistributedSampler`` (off in PyTorch's ``DataLoader``). Without it the order is the
            catalog's, which is ImageFolder's.
        seed: ``DistributedSampler``'s.
        drop_last: drops samples that do not fill a batch on every rank, as ``DistributedSampler`` and ``DataLoader`` do.
        transform, target_transform: as in ImageFolder: functions of the decoded sample and the label.
        collate_fn: as in PyTorch, a function of a list of ``(item, label)``, or of items without labels.
        decode: the input of ``transform``: ``"image"`` (Pillow, RGB), ``"bytes"`` (a buffer, no copy), a function of a sample, or
            ``"auto"``: tensors if the format knows type and shape (a dict of them by name if samples have several
            fields) or files are ``.npy``, images if names have image extensions. Other files are an error. ``foreread.image(...)`` decodes, crops and normalises images
            without the GIL: then batches are tensors of images, and ``transform`` gets each image's tensor.
        labels: the field of each sample whose integer is its label, such as WebDataset's ``"cls"``. By default labels are
            the classes' directories, or the format's column of labels.
        num_workers: threads that decode and transform. With 0 (the default, as in PyTorch), the caller's thread does it.
            Transforms that use the global generators draw other numbers on threads than in PyTorch's workers, and vary
            between runs. ``foreread.image`` has its own threads.
        prefetch_factor: batches that are decoded ahead. More if batches have fewer samples than there are threads.
        pin_memory: collate into pinned memory. Without CUDA (or another accelerator) a warning is given, as in PyTorch.
        device: where batches go, such as "cuda": copied from pinned memory on a stream of their own, one batch ahead.
        order_group, memory, disk, agent, look_ahead, origin_limit, origin_parallelism, rank, world_size, peers: as
            ``foreread.Loader``.
        epochs: the number of epochs, if known. Nothing is then read ahead after the last one.
        on_error: the effect of an unreadable or undecodable sample: ``"fail"``, ``"skip"`` or ``"substitute"`` (by a good
            sample of its batch, or else of an earlier batch). With ``"substitute"``, a batch without a readable sample
            fails. ``"skip"`` omits empty batches, so ranks may get different numbers of batches. If ranks synchronise in
            each step, use ``"substitute"``.

    A transform's exception ends the iteration. A note in the exception names the sample and epoch.
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
        labels: str | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = 2,
        pin_memory: bool = False,
        device: Any = None,
        epochs: int | None = None,
        on_error: Literal["fail", "skip", "substitute"] = "fail",
        rank: int | None = None,
        world_size: int | None = None,
        **settings: Any,
    ) -> None:
        for name, why in _REFUSED.items():
            if settings.pop(name, None) is not None:
                raise ConfigError(f"{name}: {why}")
        _ignore_worker_arguments(settings)
        num_workers = _number("num_workers", num_workers, 0, "of threads")
        prefetch_factor = _number("prefetch_factor", 2 if prefetch_factor is None else prefetch_factor, 1, "of batches")
        if batch_size is None:
            raise ConfigError("batch_size=None: samples come in batches; take them apart, or use foreread.Loader")
        if settings.pop("validate", None) is not None:
            raise ConfigError("validate: use a separate DataLoader for the validation set")
        self._transfer = None if device is None else Transfer(torch.device(device))
        pin_memory = self._transfer.pins if self._transfer is not None else _pins(pin_memory)
        source, taken = _of_dataset(source)
        settings = taken.get("settings", {}) | settings
        decode = taken["decode"] if decode == "auto" and "decode" in taken else decode
        transform = taken.get("transform") if transform is None else transform
        target_transform = taken.get("target_transform") if target_transform is None else target_transform
        rank, world_size = _ranks(rank, world_size)
        self._native = Loader(
            source,
            batch_size=batch_size,
            epochs=MAX_EPOCHS if epochs is None else epochs,
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
        self.dataset = _DatasetInfo(self._native)
        self._transform = transform
        self._target_transform = target_transform
        self._field_labels = None if labels is None else self._checked(lambda: FieldLabels(labels, self._native.catalog))
        self._labelled = labels is not None or self._native.has_labels
        self._decode = self._checked(lambda: decoder(decode, self._native, source))
        self._images: ImageStage | None = None
        self._on_error = on_error
        self._collate = default_collate if collate_fn is None else collate_fn
        self._pin = pin_memory
        self._plain = self._decode is raw and transform is None and target_transform is None
        # A batch has at most one part per thread. Several small batches keep all threads busy.
        ahead = max(prefetch_factor, _parts(num_workers * prefetch_factor, max(1, batch_size)))
        self._pipeline: Pipeline[Any, Any] = Pipeline(0 if self._plain else num_workers, ahead)
        if isinstance(self._decode, ImageDecoder):
            self._images = ImageStage(self._decode, seed, prefetch_factor, pin_memory)
            #: Whether a batch is the tensor of its decoded images.
            self._whole = transform is None and collate_fn is None
        self._state = json.loads(self._native.state())
        # Positions: the epoch, and how many samples of it all ranks together have consumed.
        #: The next position of the engine.
        self._engine: tuple[int, int] = (self._state["epoch"], self._state["consumed"])
        #: The position after the last delivered batch.
        self._position = self._engine
        #: Where iteration begins, without set_epoch.
        self._begin = self._engine
        #: The epoch of set_epoch.
        self._set: int | None = None
        #: The number of iterations. A later one ends earlier ones.
        self._runs = 0
        self.skipped = 0
        #: Seconds spent waiting for samples and collating, and the waits at the last stats().
        self._reading = self._collating = 0.0
        self._last_waits = Waits()
        #: Seconds of iterations since the last stats(), without the time between epochs.
        self._seconds = 0.0
        #: Replaces the samples of a batch without any decodable sample.
        self._substitute: Any = _UNDECODABLE

    def _checked(self, make: Callable[[], T]) -> T:
        """What `make` returns. The run is closed if it raises, because no caller gets this loader."""
        try:
            return make()
        except Exception:
            self._native.close()
            raise

    # ---- epochs ----

    @property
    def sampler(self) -> _EpochSampler:
        """The object on which scripts call ``set_epoch``."""
        return _EpochSampler(self)

    def __len__(self) -> int:
        """The batches per epoch on this rank."""
        return self._batches(0)

    def _batches(self, consumed: int) -> int:
        left = self._native.samples - consumed
        world, size = self._native.world_size, self.batch_size
        if self.drop_last:
            return left // world // size
        return _parts(_parts(left, world), size)

    def set_epoch(self, epoch: int) -> None:
        """Sets the next epoch, as ``DistributedSampler.set_epoch``. The default is the epoch after the last."""
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ConfigError(f"invalid epoch {epoch}: must be at least 0")
        self._set = epoch

    def _start(self) -> tuple[int, int]:
        epoch, consumed = self._begin
        return (epoch, consumed) if self._set in (None, epoch) else (self._set, 0)

    def __iter__(self) -> Epoch:
        """The batches of an epoch. The epoch begins with its first batch, because frameworks call iter() as a test.

        A new iteration, or leaving the loop early, ends the current epoch.
        """
        batches = self._batches(self._start()[1])
        return Epoch(self._next_epoch(), lambda: batches)

    def _next_epoch(self) -> Iterator[Any]:
        epoch, consumed = self._start()
        self._set = None
        if (epoch, consumed) != self._engine:
            self._jump(epoch, consumed)
        # An epoch that is left early counts as done.
        self._begin, self._position = (epoch + 1, 0), (epoch, consumed)
        self._runs += 1
        yield from self._epoch(self._runs, epoch, consumed)

    def _clear(self) -> None:
        """Cancels what is decoded ahead."""
        self._pipeline.clear()
        if self._images is not None:
            self._images.clear()

    def _jump(self, epoch: int, consumed: int) -> None:
        self._clear()
        self._native.jump(json.dumps(self._state | {"epoch": epoch, "phase": 0, "consumed": consumed}))
        self._engine = (epoch, consumed)

    def _epoch(self, run: int, epoch: int, consumed: int) -> Iterator[Any]:
        batches = self._batches(consumed)
        step = self.batch_size * self._native.world_size
        taken = given = 0
        delivered = False

        def take(next_batch: Callable[[], Batch | None]) -> Batch | None:
            nonlocal taken
            self._check(run)
            if taken == batches:
                return None
            if (batch := next_batch()) is not None:
                if batch.phase != "train":
                    raise ConfigError("a validation set is set (FOREREAD_VALIDATE, foreread.toml): use a separate loader for it")
                taken += 1
                at = consumed + taken * step
                self._engine = (epoch, at) if taken < batches else (epoch + 1, 0)
            return batch

        def wait() -> Batch | None:
            return take(self._wait)

        def ready() -> Batch | None:
            return take(self._native.try_next)

        collated = self._made_batches(wait, ready)
        last = time.monotonic()
        for batch in collated if self._transfer is None else self._transfer.ahead(collated):
            self._seconds += (now := time.monotonic()) - last
            last = now
            self._check(run)
            given += 1
            self._position = (epoch, consumed + given * step) if given < batches else (epoch + 1, 0)
            if batch is not None:
                delivered = True
                yield batch
                # Before anything is taken that a later iteration has begun.
                self._check(run)
        if consumed == 0 < batches == given and not delivered:
            raise CorruptError(f"no sample of epoch {epoch} can be decoded, and all were skipped; the warnings name them")
        # Marks the last batch as done before the next epoch.
        self._native.watch()
        if given < batches:
            raise ConfigError(f"no epoch {epoch}: the loader has fewer (epochs=), counted from 0")

    def _check(self, run: int) -> None:
        if run != self._runs:
            raise ClosedError("a later iteration over this loader has ended this one: only one epoch is read at a time")

    def _wait(self) -> Batch | None:
        begun = time.monotonic()
        try:
            return next(self._native, None)
        finally:
            self._reading += time.monotonic() - begun

    # ---- items ----

    def _made_batches(self, wait: Callable[[], Batch | None], ready: Callable[[], Batch | None]) -> Iterator[Any]:
        """The collated batches of an epoch. None for a batch without samples that can be decoded."""
        if (images := self._images) is None:
            for _, items in self._pipeline.run(self._item, wait, ready):
                yield self._timed(self._collated, items)
            return
        images.clear()
        if self._whole:
            while (decoded := images.wait(wait, ready)) is not None:
                yield self._timed(self._image_batch, decoded)
            return
        for _, items in self._pipeline.run(self._image_item, lambda: images.wait(wait, ready), lambda: images.try_next(ready)):
            yield self._timed(self._collated, items)

    def _timed(self, collate: Callable[[Any], Any], items: Any) -> Any:
        begun = time.monotonic()
        try:
            if self._images is None:
                return collate(items)
            # Threads of PyTorch's operators would compete with those that decode: that takes up to three times as long.
            with one_operator_thread():
                return collate(items)
        finally:
            self._collating += time.monotonic() - begun

    def _item(self, batch: Batch, at: int) -> Any:
        sample = batch[at]
        try:
            item = self._decode(sample)
        except Exception as error:
            self._undecodable(batch, sample, error)
            return _UNDECODABLE
        return self._transformed(batch, sample, item)

    def _image_item(self, decoded: DecodedBatch, at: int) -> Any:
        batch = decoded.batch
        if (why := decoded.failures.get(at)) is not None:
            self._undecodable(batch, batch[at], why)
            return _UNDECODABLE
        return self._transformed(batch, batch[at], decoded.images[at])

    def _image_batch(self, decoded: DecodedBatch) -> Any:
        """The batch whose images were decoded into one tensor."""
        batch, images = decoded.batch, decoded.images
        if not len(batch):
            return None
        if decoded.failures or (self._target_transform is not None):
            return self._collated([self._image_item(decoded, at) for at in range(len(batch))])
        if self._on_error == "substitute":
            last = images[-1].clone()
            self._substitute = (last, self._label(batch[-1])) if self._labelled else last
        if not self._labelled:
            return images
        labels = default_collate([self._label(sample) for sample in batch] if self._field_labels else batch.labels)
        # A list, as of `default_collate`, which makes the batches of damaged images.
        return [images, self._pinned(labels)]

    def _undecodable(self, batch: Batch, sample: Sample, why: Exception | str) -> None:
        """Raises, or warns of, a sample that cannot be decoded."""
        what = f"sample {sample.id} ({sample.path}) of epoch {batch.epoch}"
        if self._on_error == "fail":
            raise CorruptError(f"{what} cannot be decoded: {why}") from (why if isinstance(why, Exception) else None)
        skips = self._on_error == "skip"
        effect = "cannot be decoded and is left out" if skips else "cannot be decoded and is replaced"
        warnings.warn(f"{what} {effect}: {why}", RuntimeWarning, stacklevel=3)

    def _transformed(self, batch: Batch, sample: Sample, item: Any) -> Any:
        try:
            if self._transform is not None:
                item = self._transform(item)
            if not self._labelled:
                return item
            label = self._label(sample)
            if self._target_transform is not None:
                label = self._target_transform(label)
        except Exception as error:
            error.add_note(f"foreread: in the transform of sample {sample.id} ({sample.path}) of epoch {batch.epoch}")
            raise
        return item, label

    def _collated(self, items: list[Any]) -> Any:
        bad = sum(item is _UNDECODABLE for item in items)
        if bad:
            self.skipped += bad
            good = [at for at, item in enumerate(items) if item is not _UNDECODABLE]
            if self._on_error == "skip":
                items = [items[at] for at in good]
            elif good:
                items = [items[min(good, key=lambda other: abs(other - at))] for at in range(len(items))]
            elif self._substitute is not _UNDECODABLE:
                items = [self._substitute] * len(items)
            else:
                raise CorruptError(
                    f"none of the {len(items)} samples of a batch can be decoded, and no earlier sample can replace "
                    'them; the warnings name them; on_error="skip" omits them'
                )
        if not items:
            return None
        if self._on_error == "substitute":
            self._substitute = items[-1]
        batch = self._made([_tensor(item) for item in items] if self._plain and self._collate is default_collate else items)
        return self._pinned(batch)

    def _pinned(self, batch: Any) -> Any:
        if not self._pin:
            return batch
        from torch.utils.data._utils.pin_memory import pin_memory

        return pin_memory(batch)

    def _label(self, sample: Sample) -> Any:
        return sample.label if self._field_labels is None else self._field_labels.of(sample, sample.id)

    def _made(self, items: list[Any]) -> Any:
        """The batch of `items`. PyTorch's collate function knows no images, and its error does not say what to do."""
        try:
            return self._collate(items)
        except TypeError as error:
            first = items[0][0] if self._labelled else items[0]
            if self._collate is default_collate and type(first).__module__.partition(".")[0] == "PIL":
                why = "images cannot be batched; set transform= to a function that makes tensors, such as transforms.ToTensor()"
                raise TypeError(why) from error
            raise

    # ---- state ----

    def state_dict(self) -> dict[str, Any]:
        """The position after the last delivered batch, for any batch size and world size."""
        epoch, consumed = self._position if self._set is None else self._start()
        return {"foreread": json.dumps(self._state | {"epoch": epoch, "phase": 0, "consumed": consumed})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at `state`: the next iteration is the rest of its epoch."""
        try:
            text = state["foreread"]
            saved = json.loads(text)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError("not a state of a foreread.torch.DataLoader") from error
        self._native.jump(text)
        self._runs += 1
        self._clear()
        self._engine = self._begin = self._position = (saved["epoch"], saved["consumed"])
        self._set = None

    # ---- statistics and closing ----

    def stats(self) -> Stats:
        """Statistics: see ``foreread.Stats``."""
        stats: Stats = self._native.stats()
        waits = Waits(
            storage=self._reading,
            decode=self._images.waited if self._images is not None else 0.0,
            transform=self._pipeline.waited,
            collate=self._collating,
            transfer=self._transfer.waited if self._transfer is not None else 0.0,
        )
        lately, self._last_waits = waits.since(self._last_waits), waits
        seconds, self._seconds = self._seconds, 0.0
        return lately.added_to(replace(stats, skipped=stats.skipped + self.skipped), seconds)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Picture:
        """The run so far as a picture for notebooks, optionally also written to a file: see ``foreread.Loader.plot``."""
        return self._native.plot(path)

    def close(self) -> None:
        """Ends read-ahead and the threads. Iterating afterwards fails."""
        self._runs += 1
        self._clear()
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
    """Checks an integer argument and its minimum."""
    try:
        number = operator.index(given)
    except TypeError:
        raise TypeError(f"{name} must be a number {what}, not {given!r}") from None
    if number < least:
        raise ConfigError(f"{name}={number}: a number {what}, at least {least}")
    return number


def _parts(whole: int, size: int) -> int:
    """`whole` divided by `size`, rounded up."""
    return (whole + size - 1) // size


def _tensor(item: Any) -> Any:
    """Bytes as tensors of bytes, which collate if they have equal lengths. Several fields are a dict of bytes: what lies between
    the members of a shard is no data."""
    if isinstance(item, tuple):
        return (_tensor(item[0]), *item[1:])
    if not isinstance(item, Sample):
        return item
    if len(names := item.fields()) > 1:
        return {name: bytes(item.field(name)) for name in names}
    with warnings.catch_warnings():
        # The buffer is read-only, and collating copies it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(item, dtype=torch.uint8) if len(item) else torch.empty(0, dtype=torch.uint8)


def _pins(wanted: bool) -> bool:
    """Whether to pin batches. Warns if it is requested without an accelerator."""
    # PyTorch below 2.6 supports CUDA only.
    device = getattr(torch, "accelerator", torch.cuda)
    if wanted and not device.is_available():
        # The same text as PyTorch's warning, for filters.
        why = "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used."
        warnings.warn(why, UserWarning, stacklevel=3)
        return False
    return wanted


class _DatasetInfo:
    """The properties of a loader's dataset that scripts use."""

    def __init__(self, native: Loader) -> None:
        self._samples = native.samples
        self.classes: list[str] = list(native.labels)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return self._samples


class _EpochSampler:
    """The ``set_epoch`` of a loader's sampler, for scripts."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        world = self._loader._native.world_size
        samples = self._loader._native.samples
        return samples // world if self._loader.drop_last else _parts(samples, world)


def _of_dataset(source: Any) -> tuple[Any, dict[str, Any]]:
    """The target of `source`, and its transforms and checks if it is a dataset like ImageFolder."""
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
        raise ConfigError(f"{type(source).__name__} loads its samples in a custom way; wrap(your_loader) supports that")
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
                "wrap(your_loader) supports datasets that select files or number classes in a custom way"
            )

    return root, {
        "transform": getattr(source, "transform", None),
        "target_transform": getattr(source, "target_transform", None),
        "check": check,
    }
