"""The native half of foreread."""

import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, final, overload

__all__ = ["Batch", "Field", "Loader", "Sample", "ShareClient", "SharedSample", "__version__", "close_all", "set_log_level"]

__version__: str

@final
class Field:
    """A named part of a WebDataset sample: a read-only buffer of the sample's own bytes."""

    @property
    def name(self) -> str:
        """What the member's name ends in, in lower case: jpg, cls, seg.png."""
    @property
    def id(self) -> int:
        """The number of the sample that it is of."""
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Sample:
    """One sample of a batch: a read-only buffer of its bytes, with its number, label and name."""

    @property
    def id(self) -> int:
        """The sample's number in its catalog."""
    @property
    def label(self) -> int | None:
        """The number of its class, as ImageFolder counts them; None where its path has no directory, and in shards."""
    @property
    def label_name(self) -> str | None:
        """The name of its class: the first directory of its path."""
    @property
    def key(self) -> str | None:
        """What its shard calls it (WebDataset's __key__, a zip member's name); None for files and records."""
    @property
    def path(self) -> str:
        """Its path below the dataset's URL; of a packed one its shard, and behind a slash its name there."""
    def fields(self) -> list[str]:
        """The names of a WebDataset sample's parts, in their order; none of any other."""
    def field(self, name: str) -> Field:
        """The part of a WebDataset sample that is called `name`, without a copy. KeyError if it has none."""
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Batch(Sequence[Sample]):
    """The samples of one step, in the order that the seed says."""

    @property
    def epoch(self) -> int:
        """The epoch that the batch belongs to, from 0."""
    @property
    def phase(self) -> str:
        """'train' or 'validation'."""
    @property
    def index(self) -> int:  # type: ignore[override]
        """The batch's number within its pass, from 0."""
    @property
    def ids(self) -> list[int]:
        """The samples' numbers in their catalog, in order."""
    @property
    def labels(self) -> list[int | None]:
        """The samples' classes by number, in order; None where a sample has none."""
    @property
    def bytes(self) -> int:
        """The samples' lengths together, in bytes."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sample]: ...
    @overload
    def __getitem__(self, index: int, /) -> Sample: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[Sample]: ...

@final
class Loader:
    def __new__(
        cls,
        target: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        batch_size: int | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        sampler: Literal["shuffle", "torch", "feistel", "sequential"] | None = None,
        drop_last: bool | None = None,
        deal: Literal["torch", "blocks", "locality"] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        memory: int | str | None = None,
        disk: str | Sequence[str] | Mapping[str | os.PathLike[str], int | str] | None = None,
        look_ahead: int | str | None = None,
        origin_limit: int | str | None = None,
        origin_parallelism: int | None = None,
        calibration: str | os.PathLike[str] | None = None,
        validate: str | os.PathLike[str] | None = None,
        format: Literal["auto", "files", "tar", "tfrecord", "zip"] | None = None,
        on_error: Literal["fail", "skip", "substitute"] | None = None,
        resume: str | None = None,
        together: Literal["auto", False] = "auto",
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def state(self) -> str: ...
    def report(self) -> dict[str, Any]: ...
    def step_done(self) -> None: ...
    def leave(self, seconds: float = 600.0) -> dict[str, Any] | None: ...
    def close(self, seconds: float | None = None) -> None: ...
    @property
    def samples(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def labels(self) -> list[str]: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def closed(self) -> bool: ...

@final
class ShareClient:
    """A worker's way to the samples of another process's Source, which Source.share() gives the address of.

    It has no threads, connects when it is first used, and once for each process that uses it.
    """

    def __new__(cls, address: str) -> Self: ...
    def get(self, id: int) -> SharedSample:
        """One sample."""
    def get_many(self, ids: Sequence[int]) -> list[SharedSample]:
        """Several samples, read side by side, in the order of `ids`."""
    def call(self, name: str, payload: bytes | None = None) -> bytes:
        """Asks the source something: 'report' gives its report as JSON."""
    def close(self) -> None:
        """Lets go of the connection. The client connects anew when it is used again."""
    @property
    def address(self) -> str:
        """Where the source is."""
    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        """A client goes to another process by its address."""

@final
class SharedSample:
    """A sample that came from another process: a read-only buffer of its bytes, where they lie in shared memory.

    Its place there is taken until the last view of it is gone. It is of the process that got it: a process that is forked
    later may not read it.
    """

    @property
    def id(self) -> int:
        """The sample's number in its catalog."""
    @property
    def is_shared(self) -> bool:
        """Whether it lies in shared memory; else there was no room, and it is this process's own copy."""
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def set_log_level(level: int) -> None: ...
def close_all(seconds: float) -> None: ...
