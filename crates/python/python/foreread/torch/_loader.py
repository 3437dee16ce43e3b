"""foreread's loader with PyTorch's interface and order."""

from __future__ import annotations

import inspect
import json
import operator
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch

from .._image import ImageDecoder
from .._native import MAX_EPOCHS, Batch, Loader, rank_cores
from .._outlook import Picture
from .._stats import Stats, Waits
from .._stream import raise_error
from ..errors import ClosedError, ConfigError, CorruptError
from ._decode import Decode
from ._epoch import Epoch, EpochRun
from ._frameworks import DatasetInfo, EpochBatchSampler, Sequential, Shuffled, as_is
from ._images import DecodedBatch, ImageStage
from ._maker import BatchMaker, Joined, Missing
from ._processes import ProcessPipeline, TimedOutError
from ._threads import Outcome, Pipeline, one_operator_thread
from ._transfer import Transfer

#: Arguments of PyTorch's loader about worker processes, which have no effect without them, with its defaults.
_WORKER_ARGUMENTS = {
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
    "in_order": True,
    "worker_init_fn": None,
}

#: Arguments that decide batches in PyTorch's loader and are not supported here, with the alternative.
_REFUSED = {
    "sampler": "foreread draws the order itself; wrap(your_loader) supports custom samplers",
    "batch_sampler": "foreread draws the order itself; wrap(your_loader) supports custom samplers",
    "generator": "the order is drawn from seed=, as DistributedSampler draws it; wrap(your_loader) supports custom generators",
}

#: The cores of a rank from which worker processes are the default.
_LEAST_CORES = 4

#: The worker arguments that a warning has named.
_IGNORED: set[str] = set()

#: How often the first batch of an epoch is given again before the epoch counts as left.
_MOST_LOOKS = 3

T = TypeVar("T")

#: A position of the engine that no epoch has.
_NOWHERE = (-1, -1)


def _warn_of_worker_arguments(given: dict[str, Any]) -> None:
    """Warns of arguments about worker processes, once in a process of each that is not PyTorch's default."""
    changed = [name for name, value in given.items() if value is not None and value != _WORKER_ARGUMENTS[name]]
    new = [name for name in changed if name not in _IGNORED]
    if new:
        _IGNORED.update(new)
        why = "the order is fixed, and threads make the batches unless workers='processes'"
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
        columns: the names of values of each sample (``foreread.index(table=...)``). Then a sample is a dict: ``"image"``
            (``"bytes"`` without images, or its fields), ``"label"`` and these. Batches are dicts, too: texts are lists,
            numbers with a fraction float32. So it is for samples of several files.
        num_workers: threads or processes that decode and transform. With 0 (the default, as in PyTorch), the caller's thread
            does it. Transforms that use the global generators draw other numbers on threads than in PyTorch's workers, and
            vary between runs. ``foreread.image`` has its own threads.
        workers: ``"threads"``, or ``"processes"``: PyTorch's worker processes, with its seeds, ``worker_init_fn``,
            ``persistent_workers``, ``multiprocessing_context`` and ``timeout``. They get samples where they were read, without
            a copy. By default processes if ``transform`` or ``decode`` is a Python function, Python has a global lock,
            and this rank has at least four cores and two workers, or if there is a ``worker_init_fn``. Otherwise threads.
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

    After a transform's exception, the iterator continues with the next batch, as PyTorch's does. A note in the exception names
    the sample and epoch. A read error ends the iteration: each further request raises it again.
    """

    #: What a plain DataLoader over ``dataset`` and ``batch_sampler`` needs, which frameworks make.
    collate_fn = staticmethod(as_is)
    prefetch_factor = None

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
        columns: Sequence[str] | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = 2,
        pin_memory: bool = False,
        device: Any = None,
        workers: Literal["threads", "processes"] | None = None,
        epochs: int | None = None,
        on_error: Literal["fail", "skip", "substitute"] = "fail",
        rank: int | None = None,
        world_size: int | None = None,
        **settings: Any,
    ) -> None:
        for name, why in _REFUSED.items():
            if settings.pop(name, None) is not None:
                raise ConfigError(f"{name}: {why}")
        of_workers = {name: settings.pop(name) for name in _WORKER_ARGUMENTS if name in settings}
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
        if of_workers.get("worker_init_fn") is not None and workers is None and num_workers > 0:
            workers = "processes"
        lends = _uses_processes(workers, num_workers, decode, transform)
        if not lends and of_workers.get("worker_init_fn") is not None:
            raise ConfigError("worker_init_fn: it needs workers='processes' and num_workers=; so does wrap(your_loader)")
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
            **(settings | {"lends": lends}),
        )
        taken.get("check", lambda loader: None)(self._native)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = seed
        self.dataset = DatasetInfo(self._native)
        self._shuffle = shuffle
        self._maker = self._checked(
            lambda: BatchMaker(
                self._native,
                source,
                decode=decode,
                transform=transform,
                target_transform=target_transform,
                collate_fn=collate_fn,
                labels=labels,
                columns=columns,
                on_error=on_error,
            )
        )
        self._images: ImageStage | None = None
        # A batch has at most one part per thread. Several small batches keep all threads busy.
        ahead = max(prefetch_factor, _parts(num_workers * prefetch_factor, max(1, batch_size)))
        if pin_memory:
            self._maker.pin = torch.cuda.current_device() if torch.cuda.is_available() else -1
        if isinstance(self._maker.decode, ImageDecoder):
            self._images = ImageStage(self._maker.decode, seed, prefetch_factor, pin_memory)
        self._pipeline: Pipeline[Any, Any, Joined] | ProcessPipeline
        if lends:
            if of_workers.pop("in_order", True) is False:
                _warn_of_worker_arguments({"in_order": False})
            given = {name: value for name, value in of_workers.items() if value is not None}
            given |= {"num_workers": num_workers, "prefetch_factor": prefetch_factor, "pin_memory": pin_memory}
            self._pipeline = self._checked(lambda: ProcessPipeline(self._native, self._maker, given))
        else:
            _warn_of_worker_arguments(of_workers)
            self._pipeline = Pipeline(0 if self._maker.whole else num_workers, ahead)
        self._state = json.loads(self._native.state())
        # Positions: the epoch, and how many samples of it all ranks together have consumed.
        #: The next position of the engine.
        self._engine: tuple[int, int] = (self._state["epoch"], self._state["consumed"])
        #: The position after the last delivered batch.
        self._position = self._engine
        #: Where iteration begins, without set_epoch.
        self._due = self._engine
        #: The epoch of set_epoch.
        self._set: int | None = None
        self._run: EpochRun | None = None
        #: The number of iterations. A later one ends earlier ones.
        self._iterations = 0
        self._closed = False
        self.skipped = 0
        #: Seconds spent waiting for samples, and the waits at the last stats().
        self._reading = 0.0
        self._last_waits = Waits()
        #: Seconds of iterations since the last stats(), without the time between epochs.
        self._seconds = 0.0
        #: Replaces the samples of a batch without any decodable sample.
        self._substitute: Any = Missing.UNDECODABLE
        self._fixed = True

    #: Whether the attributes of which the engine has copies are set for good.
    _fixed = False

    def __setattr__(self, name: str, value: Any) -> None:
        if self._fixed and name in _ARGUMENTS:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized: create another one")
        super().__setattr__(name, value)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a foreread.torch.DataLoader has an engine and threads of its process and cannot be pickled or copied: create it "
            "where it is used; state_dict() is its position"
        )

    def _checked(self, make: Callable[[], T]) -> T:
        """What `make` returns. The run is closed if it raises, because no caller gets this loader."""
        try:
            return make()
        except Exception:
            self._native.close()
            raise

    # ---- epochs ----

    @property
    def sampler(self) -> Any:
        """The object on which scripts call ``set_epoch``. It iterates over the ids of this rank's samples."""
        return Shuffled(self) if self._shuffle else Sequential(self)

    @property
    def batch_sampler(self) -> EpochBatchSampler:
        """The batches of a plain ``DataLoader`` over ``dataset`` that frameworks make of this loader."""
        return EpochBatchSampler(self)

    def __len__(self) -> int:
        """The batches per epoch on this rank."""
        return self._batches(0)

    def _batches(self, consumed: int) -> int:
        return self._count(consumed)[1]

    def _share(self) -> tuple[int, int]:
        """The numbers of samples and batches of the iteration that is due, on this rank."""
        return self._count(self._start()[1])

    def _count(self, consumed: int) -> tuple[int, int]:
        left = self._native.samples - consumed
        world, size = self._native.world_size, self.batch_size
        if self.drop_last:
            return left // world // size * size, left // world // size
        return _parts(left, world), _parts(_parts(left, world), size)

    def set_epoch(self, epoch: int) -> None:
        """Sets the next epoch, as ``DistributedSampler.set_epoch``. The default is the epoch after the last."""
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ConfigError(f"invalid epoch {epoch}: must be at least 0")
        self._set = epoch

    def _start(self) -> tuple[int, int]:
        epoch, consumed = self._due
        return (epoch, consumed) if self._set in (None, epoch) else (self._set, 0)

    def __iter__(self) -> Epoch:
        """The batches of an epoch. The epoch begins with its first batch, because frameworks call iter() as a test.

        An iteration that is left after its first batch was a look: the next one gets that batch again. One that is left
        later ends the epoch. A new iteration ends earlier ones.
        """
        return Epoch(self._begin, self._next, self._batches(self._start()[1]))

    def _iter_from(self, number: int) -> Epoch:
        """The iteration that is due, without its first batches."""
        epoch, consumed = self._start()
        self._due, self._set = (epoch, self._after(consumed, number)), None
        return iter(self)

    def _after(self, consumed: int, batches: int) -> int:
        return consumed + batches * self.batch_size * self._native.world_size

    def _begin(self) -> int:
        """Begins an iteration, and returns its number."""
        run = self._run
        if run is not None and run.looked_at is not None and run.looks >= _MOST_LOOKS:
            # A loop that is left after each first batch wants other batches.
            self._finish_look(run)
        epoch, consumed = self._start()
        self._iterations += 1
        if run is not None and run.looked_at is not None and run.error is None and (run.epoch, run.consumed) == (epoch, consumed):
            # No jump, which cooperating ranks would have to make together. Batches are made anew, because the caller may
            # have changed those it has got.
            run.again = deque(run.looked_at + self._in_flight() + list(run.again))
            self._clear()
            run.looked_at, run.given, run.delivered = [], 0, False
            run.looks += 1
            self._substitute = run.substitute
        else:
            self._clear()
            if (epoch, consumed) != self._engine:
                self._jump(epoch, consumed)
            run = EpochRun(epoch, consumed, self._batches(consumed), self._substitute, time.monotonic())
        run.iteration, run.last = self._iterations, time.monotonic()
        self._run, self._set = run, None
        self._due = self._position = (epoch, consumed)
        return run.iteration

    def _in_flight(self) -> list[Batch]:
        """The batches of samples that were taken from the engine and not given."""
        later = [] if self._transfer is None else self._transfer.batches()
        later += self._pipeline.batches()
        samples = [batch.batch if isinstance(batch, DecodedBatch) else batch for batch in later]
        return samples if self._images is None else samples + self._images.batches()

    def _clear(self) -> None:
        """Cancels what is decoded ahead."""
        if self._transfer is not None:
            self._transfer.clear()
        self._pipeline.clear()
        if self._images is not None:
            self._images.clear()

    def _jump(self, epoch: int, consumed: int) -> None:
        self._clear()
        self._engine = _NOWHERE
        self._native.jump(json.dumps(self._state | {"epoch": epoch, "phase": 0, "consumed": consumed}))
        self._engine = (epoch, consumed)

    def _next(self, iteration: int) -> Any:
        """The next batch of an iteration."""
        run = self._run
        if run is None or run.iteration != iteration or iteration != self._iterations:
            if self._closed:
                raise ClosedError("the loader is closed; create a new one")
            raise ClosedError("a later iteration over this loader has ended this one: only one epoch is read at a time")
        if run.delivered:
            # More than a look.
            self._finish_look(run)
        while (outcome := self._outcome(run)) is not None or run.given < run.taken:
            if outcome is None or run.number(_samples(outcome)) != run.given:
                # An interrupt has lost a batch on its way.
                self._return(run)
                continue
            run.given += 1
            self._seconds += (now := time.monotonic()) - run.last
            run.last = now
            if run.looked_at is not None:
                run.looked_at.append(_samples(outcome))
            if outcome.error is None:
                left = run.given < run.batches
                self._position = (run.epoch, self._after(run.consumed, run.given)) if left else (run.epoch + 1, 0)
                if outcome.made is None:
                    continue
            run.delivered = True
            if run.given == run.batches:
                self._finish_look(run)
            if outcome.error is None:
                return outcome.made
            try:
                raise_error(outcome.error)
            finally:
                # Its traceback holds this frame.
                del outcome
        self._end(run)
        raise StopIteration

    def _finish_look(self, run: EpochRun) -> None:
        """Counts the epoch as done, also if it is left early."""
        run.looked_at = None
        self._due = (run.epoch + 1, 0)

    def _return(self, run: EpochRun) -> None:
        """Continues after the last batch that was given."""
        run.again.clear()
        self._jump(run.epoch, self._after(run.consumed, run.given))
        run.taken = run.first = run.given

    def _end(self, run: EpochRun) -> None:
        """Notes the end of an epoch. Raises if it has ended early."""
        if run.taken < run.batches:
            raise ConfigError(f"no epoch {run.epoch}: the loader has fewer (epochs=), counted from 0")
        if run.consumed == 0 < run.batches and not run.delivered:
            self._finish_look(run)
            raise CorruptError(f"no sample of epoch {run.epoch} can be decoded, and all were skipped; the warnings name them")
        if not run.ended:
            run.ended = True
            self._finish_look(run)
            if self._position[0] == run.epoch:
                # The last batch has failed.
                self._position = (run.epoch + 1, 0)
            # Marks the last batch as done before the next epoch.
            self._native.watch()

    def _outcome(self, run: EpochRun) -> Outcome | None:
        return self._resolved(run) if self._transfer is None else self._transfer.next(lambda: self._resolved(run))

    def _resolved(self, run: EpochRun) -> Outcome | None:
        """The next batch, collated, or its exception. None at the end."""
        if run.error is not None:
            raise run.error
        try:
            outcome = self._made(lambda: self._take(run, self._wait), lambda: self._take(run, self._native.try_next))
        except TimedOutError as late:
            # As in PyTorch, the next request waits for the same batch.
            raise late.__cause__ or late from None
        except Exception as error:
            run.error, self._engine = error, _NOWHERE
            raise
        if outcome is None or outcome.error is not None:
            return outcome
        joined: Joined = outcome.made
        self.skipped += joined.bad
        made = joined.made
        if joined.missing:
            if self._substitute is Missing.UNDECODABLE:
                return outcome._replace(
                    made=None,
                    error=CorruptError(
                        f"none of the {joined.missing} samples of a batch can be decoded, and no earlier sample can replace "
                        'them; the warnings name them; on_error="skip" omits them'
                    ),
                )
            with one_operator_thread():
                made = self._maker.pinned(self._maker.collated([self._substitute] * joined.missing))
        elif joined.last is not Missing.UNDECODABLE:
            self._substitute = joined.last
        return outcome._replace(made=made)

    def _take(self, run: EpochRun, take: Callable[[], Batch | None]) -> Batch | None:
        """The next batch of samples, from the engine by `take`. None at the end, or if `take` has none."""
        if run.again:
            return run.again.popleft()
        if run.taken == run.batches or (batch := take()) is None:
            return None
        if batch.phase != "train":
            raise ConfigError("a validation set is set (FOREREAD_VALIDATE, foreread.toml): use a separate loader for it")
        run.taken = run.number(batch) + 1
        left = run.taken < run.batches
        self._engine = (run.epoch, self._after(run.consumed, run.taken)) if left else (run.epoch + 1, 0)
        return batch

    def _wait(self) -> Batch | None:
        begun = time.monotonic()
        try:
            return next(self._native, None)
        finally:
            self._reading += time.monotonic() - begun

    # ---- items ----

    def _made(self, wait: Callable[[], Batch | None], ready: Callable[[], Batch | None]) -> Outcome | None:
        """The next batch and what was made of it, in the caller's thread or ahead. None at the end."""
        if (images := self._images) is None:
            return self._pipeline.next(self._maker.item, self._maker.joined, wait, ready)
        item, join = (_nothing, self._maker.image_batch) if self._maker.whole else (self._maker.image_item, self._maker.joined)
        return self._pipeline.next(item, join, lambda: images.wait(wait, ready), lambda: images.try_next(ready))

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
        self._iterations += 1
        self._clear()
        self._engine = self._due = self._position = (saved["epoch"], saved["consumed"])
        self._run = self._set = None

    # ---- statistics and closing ----

    def stats(self) -> Stats:
        """Statistics: see ``foreread.Stats``."""
        stats: Stats = self._native.stats()
        waits = Waits(
            storage=self._reading,
            decode=self._images.waited if self._images is not None else 0.0,
            transform=self._pipeline.waited,
            collate=self._pipeline.joined,
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
        self._iterations += 1
        self._closed, self._run = True, None
        self._clear()
        self._pipeline.close()
        self._native.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        rank, world = self._native.rank, self._native.world_size
        return f"<foreread.torch.DataLoader of {self._native.samples} samples, shuffle={self._shuffle}, rank {rank} of {world}>"


#: The attributes of a loader that decide what its engine reads.
_ARGUMENTS = frozenset(inspect.signature(DataLoader.__init__).parameters) | frozenset(inspect.signature(Loader).parameters)
_ARGUMENTS |= {"dataset", "sampler", "batch_sampler", *_WORKER_ARGUMENTS, *_REFUSED}


def _nothing(batch: Any, at: int) -> None:
    """The items of a batch that is one tensor."""


def _samples(outcome: Outcome) -> Batch:
    """The samples of which a batch was made."""
    batch: Batch = outcome.batch.batch if isinstance(outcome.batch, DecodedBatch) else outcome.batch
    return batch


def _uses_processes(workers: str | None, num_workers: int, decode: Any, transform: Any) -> bool:
    """Whether batches are made in worker processes."""
    if workers not in (None, "threads", "processes"):
        raise ConfigError(f"workers must be 'threads' or 'processes', not {workers!r}")
    if isinstance(decode, ImageDecoder):
        if workers == "processes":
            raise ConfigError("workers='processes': foreread.image decodes on native threads: leave workers= out")
        return False
    if workers is not None or num_workers < 2 or (transform is None and not callable(decode)):
        return workers == "processes" and num_workers > 0
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    # Unless processes are forked, functions are pickled, which those of a notebook or a closure cannot be.
    return has_lock and rank_cores() >= _LEAST_CORES and torch.multiprocessing.get_start_method() == "fork"


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


def custom_dataset(source: Any) -> str:
    """Why a dataset or loader of PyTorch is no source of files, and the remedy."""
    kind = "wrap(your_loader)" if isinstance(source, torch.utils.data.DataLoader) else "wrap(DataLoader(your_dataset, ...))"
    why = f"{type(source).__name__} chooses and makes samples in Python"
    return f"{why}: {kind} reads its files ahead; here, pass a path, URL or catalog"


def _of_dataset(source: Any) -> tuple[Any, dict[str, Any]]:
    """The target of `source`, and its transforms and checks if it is a dataset like ImageFolder."""
    from ._dataset import Dataset

    if isinstance(source, Dataset):
        taken = {"transform": source.transform, "target_transform": source.target_transform}
        return source.target, taken | {"decode": source.decode, "settings": source.settings}
    samples, root = getattr(source, "samples", None), getattr(source, "root", None)
    if not isinstance(samples, Sequence) or root is None:
        if isinstance(source, (torch.utils.data.Dataset, torch.utils.data.DataLoader)):
            raise ConfigError(custom_dataset(source))
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
