"""A source for NVIDIA DALI's ``fn.external_source`` that reads ahead.

>>> import foreread.dali
>>> source = foreread.dali.source("s3://bucket/train", 64, seed=0, memory="16GiB")  # doctest: +SKIP
>>> encoded, labels = fn.external_source(source, num_outputs=2, batch=True, no_copy=True)  # doctest: +SKIP
>>> images = fn.decoders.image(encoded, device="mixed")  # doctest: +SKIP

DALI calls the source once per batch and gets the samples as arrays of their own memory, which the reads filled. With
``no_copy=True`` DALI's decoder reads them there: DALI's tensors hold the arrays, which hold the samples, so nothing else
needs to keep them alive. The price: the batches in DALI's queues (``prefetch_queue_depth``) count against
``look_ahead``. The source cannot be sent to DALI's worker processes (``parallel=True``), which it does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy

from ._items import FieldLabels, Labels, batch_labels, field_of, item_decoder, labels_of
from ._native import Batch
from ._stream import Reader, loader_of
from .errors import ConfigError

__all__ = ["Source", "source"]


class Source:
    """A callable that returns a batch for ``fn.external_source``. ``source`` creates it.

    After an epoch's last batch it raises StopIteration, as DALI expects. The next call begins the next epoch: after
    ``Pipeline.reset()``, or ``reset()`` of DALI's iterators.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._epoch: Iterator[Any] | None = None

    def __call__(self) -> Any:
        if self._epoch is None:
            self._epoch = self._reader.iterate()
        try:
            return next(self._epoch)
        except KeyboardInterrupt:
            # The epoch continues with the batch that was waited for.
            raise
        except BaseException:
            self._epoch = None
            raise

    def __len__(self) -> int:
        """The batches of an epoch on this rank. With ``on_error="skip"`` an epoch may have fewer."""
        return self._reader.batches

    def reset(self) -> None:
        """Begins the next epoch with the next batch, if an epoch is left early."""
        self._epoch = None
        self._reader.leave()

    def stats(self) -> Any:
        """Statistics: see ``foreread.Stats``."""
        return self._reader.stats()

    def report(self) -> dict[str, Any]:
        """The report so far, as ``foreread.Loader.report``."""
        return self._reader.report()

    def close(self) -> None:
        """Ends reading. Calling it afterwards fails. Samples that DALI holds stay valid."""
        self._epoch = None
        self._reader.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise ConfigError(
            "a foreread.dali.source reads ahead on threads and is not sent to processes: leave out parallel=True"
        )


class _Arrays:
    """Makes arrays of a batch's samples, without a copy, and of its labels. None of a batch whose samples were skipped."""

    def __init__(self, labels: Labels | FieldLabels | None, take: Callable[[Any], Any] | None) -> None:
        self._labels = labels
        self._take = take

    def __call__(self, batch: Batch) -> Any:
        if len(batch) == 0:
            return None
        parts = batch if self._take is None else map(self._take, batch)
        samples = [numpy.frombuffer(part, numpy.uint8) for part in parts]
        return samples if self._labels is None else (samples, self._array(batch_labels(batch, self._labels)))

    def _array(self, labels: list[Any]) -> Any:
        array = numpy.asarray(labels)
        if array.dtype.kind not in "iufb":
            raise ConfigError(
                f"labels of type {type(labels[0]).__name__} are no numbers, and DALI takes only numbers: pass labels=False"
            )
        if array.dtype == numpy.int64:
            narrow = array.astype(numpy.int32)
            if (wrong := numpy.flatnonzero(narrow != array)).size:
                raise ConfigError(
                    f"label {array.flat[wrong[0]]} does not fit 32 bits, which is what is given to DALI: pass labels=False"
                )
            array = narrow
        return array.reshape(len(labels), -1)


def source(
    target: Any,
    batch_size: int,
    *,
    field: str | None = None,
    labels: bool | str | None = None,
    epochs: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    start_epoch: int = 0,
    drop_last: bool = False,
    **settings: Any,
) -> Source:
    """A source of encoded samples for ``fn.external_source(source, batch=True, no_copy=True)``.

    A batch is ``(samples, labels)`` (``num_outputs=2``): a list of arrays of bytes, and an array of 32-bit integers of
    shape (batch, 1), as of ``fn.readers.file``. Without labels it is the list alone (leave out ``num_outputs``).

    Args:
        target: a path or URL, a catalog, or a list of shards.
        batch_size: samples per batch on this rank: the pipeline's. An epoch's last batch may have fewer.
        field: the part of each sample that is read, if samples have several, as in WebDataset.
        labels: whether batches have labels. By default they have if the dataset has labels. A text is the field of each
            sample whose integer is its label.
        epochs: the number of epochs, if known. Nothing is then read ahead after the last one.
        shuffle: False is the catalog's order, which is that of ``fn.readers.file``.
        seed: of the order: foreread's ``shuffle``. ``sampler="torch"`` is PyTorch's order.
        start_epoch: the epoch of the first batch.
        drop_last: drops samples that do not fill a batch on every rank.
        settings: sampler, rank, world_size, memory, disk, agent, look_ahead, origin_limit, on_error and others: as
            ``foreread.Loader``. Without ``rank``, rank and world size come from the launcher: one process per GPU.

    Raises:
        ConfigError: if a setting is invalid.
    """
    if settings.pop("resume", None) is not None:
        raise ConfigError("resume: a pipeline begins with a whole epoch: pass start_epoch=")
    order: dict[str, Any] = {"shuffle": shuffle, "epochs": epochs, "seed": seed, "drop_last": drop_last}
    loader = loader_of(target, batch_size=batch_size, settings=settings, **order)
    try:
        take = field_of(field, loader.catalog)
        if take is None:
            item_decoder(None, loader.catalog)  # refuses samples of several fields
        make = _Arrays(labels_of(labels, loader), take)
        return Source(Reader(loader, make, batch_size, drop_last, start_epoch))
    except Exception:
        loader.close()
        raise
