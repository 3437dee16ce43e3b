"""Makes batches of samples: decodes, transforms and collates them.

A maker knows no engine. So it is pickled into worker processes, which make batches as threads do.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch.utils.data import default_collate

from .._image import ImageDecoder
from .._items import FieldLabels
from .._native import Batch, Catalog, Loader, Sample
from ..errors import ConfigError, CorruptError
from ._decode import Decode, Fields, decoder, raw
from ._images import DecodedBatch


class Missing(enum.Enum):
    """Marks a sample that could not be decoded. It is the same one in all processes."""

    UNDECODABLE = 0


class Joined(NamedTuple):
    """What was made of the items of a batch."""

    #: None for a batch without samples that can be decoded.
    made: Any
    #: The number of samples that could not be decoded.
    bad: int = 0
    #: The number of samples that only one of an earlier batch can replace.
    missing: int = 0
    #: An item that may replace those of a later batch.
    last: Any = Missing.UNDECODABLE


class LentSamples(list[Sample]):
    """The samples of a batch in a worker process."""

    def __init__(self, epoch: int, samples: list[Sample]) -> None:
        super().__init__(samples)
        self.epoch = epoch


class BatchMaker:
    """The functions that make batches. The arguments are those of ``DataLoader``, and the loader of the samples."""

    def __init__(
        self,
        native: Loader,
        source: Any,
        *,
        decode: str | Decode | None,
        transform: Callable[[Any], Any] | None,
        target_transform: Callable[[Any], Any] | None,
        collate_fn: Callable[[list[Any]], Any] | None,
        labels: str | None,
        columns: Sequence[str] | None,
        on_error: Literal["fail", "skip", "substitute"],
    ) -> None:
        self.transform = transform
        self._target_transform = target_transform
        self._field_labels = None if labels is None else FieldLabels(labels, native.catalog)
        self._labelled = labels is not None or native.has_labels
        self.decode = decoder(decode, native, source)
        self._columns = _columns(columns, native.catalog)
        self._named = columns is not None or isinstance(self.decode, Fields)
        self._key = "bytes" if self.decode is raw else "image"
        self._check_names()
        self._on_error = on_error
        self._collate = default_collate if collate_fn is None else collate_fn
        self._plain = self.decode is raw and transform is None and target_transform is None
        #: Whether a batch is the tensor of its decoded images.
        self.whole = isinstance(self.decode, ImageDecoder) and transform is None and collate_fn is None and not self._named
        #: The device whose context pins batches, which threads do not inherit. None: they are not pinned here.
        self.pin: int | None = None
        #: Collects warnings, in worker processes.
        self.noted: list[str] | None = None

    def item(self, batch: Batch | LentSamples, at: int) -> Any:
        """An item of a sample of a batch."""
        sample = batch[at]
        try:
            item = self.decode(sample)
        except Exception as error:
            self._undecodable(batch, sample, error)
            return Missing.UNDECODABLE
        return self._transformed(batch, sample, item)

    def image_item(self, decoded: DecodedBatch, at: int) -> Any:
        """An item of a decoded image of a batch."""
        batch = decoded.batch
        if (why := decoded.failures.get(at)) is not None:
            self._undecodable(batch, batch[at], why)
            return Missing.UNDECODABLE
        return self._transformed(batch, batch[at], decoded.images[at])

    def image_batch(self, decoded: DecodedBatch, items: list[None]) -> Joined:
        """The batch whose images were decoded into one tensor."""
        batch, images = decoded.batch, decoded.images
        if not len(batch):
            return Joined(None)
        if decoded.failures or (self._target_transform is not None):
            return self.joined(decoded, [self.image_item(decoded, at) for at in range(len(batch))])
        last: Any = Missing.UNDECODABLE
        if self._on_error == "substitute":
            last = (images[-1].clone(), self._label(batch[-1])) if self._labelled else images[-1].clone()
        if not self._labelled:
            return Joined(images, last=last)
        labels = default_collate([self._label(sample) for sample in batch] if self._field_labels else batch.labels)
        # A list, as of `default_collate`, which makes the batches of damaged images.
        return Joined([images, self.pinned(labels)], last=last)

    def _undecodable(self, batch: Batch | LentSamples, sample: Sample, why: Exception | str) -> None:
        """Raises, or warns of, a sample that cannot be decoded."""
        what = f"sample {sample.id} ({sample.path}) of epoch {batch.epoch}"
        if self._on_error == "fail":
            raise CorruptError(f"{what} cannot be decoded: {why}") from (why if isinstance(why, Exception) else None)
        skips = self._on_error == "skip"
        effect = "cannot be decoded and is left out" if skips else "cannot be decoded and is replaced"
        if self.noted is None:
            warnings.warn(f"{what} {effect}: {why}", RuntimeWarning, stacklevel=3)
        else:
            self.noted.append(f"{what} {effect}: {why}")

    def _transformed(self, batch: Batch | LentSamples, sample: Sample, item: Any) -> Any:
        try:
            if self.transform is not None:
                item = self.transform(item)
            label = self._label(sample) if self._labelled else None
            if self._labelled and self._target_transform is not None:
                label = self._target_transform(label)
            if self._labelled and label is None and self._collate is default_collate:
                raise ConfigError(
                    f"sample {sample.id} ({sample.path}) has no label: leave it out by catalog.filter(lambda row: row['label'] is "
                    "not None), replace it by target_transform=, or set collate_fn="
                )
            if self._named:
                return self._by_names(sample, item, label)
            if not self._labelled:
                return item
        except Exception as error:
            error.add_note(f"foreread: in the transform of sample {sample.id} ({sample.path}) of epoch {batch.epoch}")
            raise
        return item, label

    def _check_names(self) -> None:
        """Checks that no two parts of a batch have one name."""
        if not self._named:
            return
        names = list(self.decode.names) if isinstance(self.decode, Fields) else [self._key]
        names += (["label"] if self._labelled else []) + self._columns
        if twice := [name for at, name in enumerate(names) if name in names[:at]]:
            raise ConfigError(
                f"two parts of a sample have the name {twice[0]!r}: name fields otherwise (path={{'mask': ...}}), leave labels out by "
                "foreread.index(classes=[]), or choose other columns="
            )

    def _by_names(self, sample: Sample, item: Any, label: Any) -> dict[str, Any]:
        """A sample as a dict. Missing values are an error, unless a function of the user's makes the batches."""
        named = dict(item) if isinstance(item, dict) else {self._key: _tensor(item)}
        named |= {"label": label} if self._labelled else {}
        for name in self._columns:
            value = sample[name]
            if value is None and self._collate is default_collate:
                raise ConfigError(
                    f"sample {sample.id} ({sample.path}) has no value {name!r}: choose rows by foreread.index(filters=), or set "
                    "collate_fn="
                )
            named[name] = torch.tensor(value, dtype=torch.float32) if isinstance(value, float) else value
        return named

    def joined(self, batch: Any, items: list[Any]) -> Joined:
        """The collated items of a batch."""
        bad = sum(item is Missing.UNDECODABLE for item in items)
        if bad:
            good = [at for at, item in enumerate(items) if item is not Missing.UNDECODABLE]
            if self._on_error == "skip":
                items = [items[at] for at in good]
            elif good:
                items = [items[min(good, key=lambda other: abs(other - at))] for at in range(len(items))]
            else:
                return Joined(None, bad, missing=len(items))
        if not items:
            return Joined(None, bad)
        last = items[-1] if self._on_error == "substitute" else Missing.UNDECODABLE
        return Joined(self.pinned(self.collated(items)), bad, last=last)

    def pinned(self, batch: Any) -> Any:
        """A batch in pinned memory, where batches are pinned here."""
        if self.pin is None:
            return batch
        from torch.utils.data._utils.pin_memory import pin_memory

        with torch.cuda.device(self.pin) if self.pin >= 0 else nullcontext():
            return pin_memory(batch)

    def _label(self, sample: Sample) -> Any:
        return sample.label if self._field_labels is None else self._field_labels.of(sample, sample.id)

    def collated(self, items: list[Any]) -> Any:
        """The batch of `items`. PyTorch's collate function knows no images, and its error does not say what to do."""
        try:
            return self._collate([_tensor(item) for item in items] if self._plain and self._collate is default_collate else items)
        except RuntimeError as error:
            if self._collate is default_collate and "equal size" in str(error):
                why = "samples of a batch have several shapes or lengths: set collate_fn= to a function that pads or lists them"
                raise RuntimeError(f"{why} ({error})") from error
            raise
        except TypeError as error:
            first = items[0]
            if self._named:
                first = next(iter(first.values()))
            elif self._labelled:
                first = first[0]
            if self._collate is default_collate and type(first).__module__.partition(".")[0] == "PIL":
                why = "images cannot be batched; set transform= to a function that makes tensors, such as transforms.ToTensor()"
                raise TypeError(why) from error
            raise


def _columns(names: Sequence[str] | None, catalog: Catalog) -> list[str]:
    """Checks the names of values."""
    if isinstance(names, str):
        raise TypeError(f"columns must be a list of names, not {names!r}")
    known = [*catalog.value_names, *([catalog.label_column] if catalog.label_column else [])]
    if unknown := [name for name in names or () if name not in known]:
        raise ConfigError(f"columns: samples have no value {unknown[0]!r}, but {', '.join(catalog.value_names) or 'none'}")
    return list(names or ())


def _tensor(item: Any) -> Any:
    """Bytes as tensors of bytes, which collate if they have equal lengths. Several fields are a dict of bytes: what lies between
    the members of a shard is no data."""
    if isinstance(item, tuple):
        return (_tensor(item[0]), *item[1:])
    if not isinstance(item, Sample):
        return item
    if len(names := item.field_names) > 1:
        return {name: bytes(item.field(name)) for name in names}
    with warnings.catch_warnings():
        # The buffer is read-only, and collating copies it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(item, dtype=torch.uint8) if len(item) else torch.empty(0, dtype=torch.uint8)
