"""The native half of foreread."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, Unpack, final, overload

import pandas
import pyarrow

from ._settings import Path, Settings, Size, Target
from ._stats import Stats

__all__ = [
    "MOST_EPOCHS",
    "Batch",
    "Catalog",
    "Compared",
    "Field",
    "Loader",
    "Sample",
    "ShareClient",
    "SharedSample",
    "Source",
    "__version__",
    "calibrate",
    "catalog_of",
    "close_all",
    "compare",
    "enable_metrics",
    "hidden_file",
    "index",
    "modified",
    "plan_of",
    "render_metrics",
    "set_log_level",
]

__version__: str

MOST_EPOCHS: int
"""As many epochs as anybody trains for; a run that is not told is planned for them."""

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
    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        """To another process go the bytes alone, as bytes."""
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
    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        """To another process go the bytes alone, as bytes."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Batch:
    """The samples of one step, in the order that the seed says."""

    @property
    def epoch(self) -> int:
        """The epoch that the batch belongs to, from 0."""
    @property
    def phase(self) -> str:
        """'train' or 'validation'."""
    @property
    def index(self) -> int:
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
    """Batches of a dataset's samples, read ahead of time in an order that a seed says."""

    def __new__(
        cls,
        target: Target,
        *,
        batch_size: int | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        sampler: Literal["shuffle", "torch", "feistel", "sequential"] | None = None,
        drop_last: bool | None = None,
        deal: Literal["torch", "blocks", "locality"] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        memory: Size | None = None,
        disk: str | Sequence[str] | Mapping[Path, Size] | None = None,
        look_ahead: Size | None = None,
        origin_limit: Size | None = None,
        origin_parallelism: int | None = None,
        calibration: Path | None = None,
        validate: Path | None = None,
        format: Literal["auto", "files", "tar", "tfrecord", "zip"] | None = None,
        on_error: Literal["fail", "skip", "substitute"] | None = None,
        resume: str | None = None,
        together: Literal["auto", False] = "auto",
        progress: bool = False,
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...
    def try_next(self) -> Batch | None:
        """The next batch if it is there; None if it has to be waited for, or the run is over."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes; in haste where an exception has ended the block."""
    def state(self) -> str:
        """Where the run stands, as text: give it to `resume=` later, also with another world size or batch size."""
    def watch(self) -> None:
        """Brings the bar up to date: the batch that was taken last is done. Asking for another does that by itself."""
    def jump(self, state: str) -> None:
        """Goes on where a state says. What has been read ahead is dropped, what the caches hold stays."""
    def report(self) -> dict[str, Any]:
        """What has been delivered and read so far, as the command's JSON report says it; also after close()."""
    def stats(self) -> Stats:
        """The run in a few figures. Rates and shares are those since the last call."""
    def step_done(self) -> None:
        """Says to rank 0 that this rank has completed the step of the batch that it took last."""
    def leave(self, seconds: float = 600.0) -> dict[str, Any] | None:
        """Says that this rank is done, and goes on answering the others; on rank 0, returns all their reports as one."""
    def close(self, seconds: float | None = None) -> None:
        """Ends the run: answers ranks that are not done for `seconds` at most, and has the disk tier write what it has."""
    def path(self, id: int) -> str:
        """A sample's path below the dataset's URL."""
    def label(self, id: int) -> int | None:
        """The number of a sample's class; None where it has none."""
    @property
    def samples(self) -> int:
        """How many samples the dataset has."""
    @property
    def fingerprint(self) -> str:
        """The catalog's fingerprint: the same wherever the data lie."""
    @property
    def labels(self) -> list[str]:
        """The names of the classes, by their numbers."""
    @property
    def catalog(self) -> Catalog:
        """Which samples there are."""
    @property
    def plan(self) -> dict[str, Any]:
        """Where samples are kept, as planned: levels, and the bytes that are read from the origin."""
    @property
    def rank(self) -> int:
        """This process among the ranks."""
    @property
    def world_size(self) -> int:
        """How many ranks there are."""
    @property
    def closed(self) -> bool:
        """Whether it is closed."""

@final
class Source:
    """Samples by their numbers, in whatever order somebody else decides; read ahead as far as that is announced."""

    def __new__(cls, target: Target, **settings: Unpack[Settings]) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def announce(self, orders: Sequence[Any], *, goes_on: bool = False) -> None:
        """Says in which order samples will be asked for from now on: a list of epochs, each a buffer of 64-bit integers."""
    def get(self, id: int) -> Sample:
        """One sample, read now unless it has been read ahead."""
    def get_many(self, ids: Sequence[int]) -> list[Sample]:
        """Several samples, read side by side, in the order of `ids`."""
    def find(self, path: str) -> int | None:
        """The number of the sample at this path below the dataset's URL; None if there is none."""
    def path(self, id: int) -> str:
        """A sample's path below the dataset's URL."""
    def label(self, id: int) -> int | None:
        """The number of a sample's class; None where it has none."""
    def report(self) -> dict[str, Any]:
        """What has been delivered and read so far, as the command's JSON report says it."""
    def stats(self) -> Stats:
        """What has been done in a few figures. Rates and shares are those since the last call."""
    def share(self, *, shared_memory: Size | None = None) -> str:
        """Lets processes of this one's user on this machine ask for samples (ShareClient), and says where."""
    def shared(self) -> dict[str, Any] | None:
        """How sharing goes: how many clients there are, and how much memory they hold; None before share()."""
    def watch(self, waited: float | None = None) -> None:
        """Looks whether much of the last seconds was waited for samples, and says so in the log. `waited`: the seconds that the
        trainer has waited so far, where others ask for it and may wait when it does not."""
    def pause(self) -> None:
        """Says that an epoch is over: the time until samples are asked for again does not count in ``stats()``."""
    def close(self) -> None:
        """Ends reading, and waits until the disk tier has written what it was given."""
    @property
    def samples(self) -> int:
        """How many samples the dataset has."""
    @property
    def bytes(self) -> int:
        """Their bytes."""
    @property
    def catalog(self) -> Catalog:
        """Which samples there are."""
    @property
    def is_kernel_cached(self) -> bool:
        """Whether the kernel of this machine caches the files: they are on a file system of its own."""
    @property
    def labels(self) -> list[str]:
        """The names of the classes, by their numbers."""

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
        """Asks the source something: 'report' gives its report as JSON, 'path' the path of the sample that the payload numbers."""
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
    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        """To another process go the bytes alone, as bytes."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Catalog:
    """The samples of one dataset, numbered from 0: a table of paths, sizes and labels."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens a catalog file, as save() and `foreread index` write them."""
    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The catalog that to_bytes() gave."""
    def save(self, path: Path) -> None:
        """Writes it to a file, in one step; a catalog that is there is replaced."""
    def to_bytes(self) -> bytes:
        """The file that save() would write, copied."""
    def to_arrow(self) -> pyarrow.Table:
        """The catalog as an Arrow table. Needs pyarrow."""
    def to_pandas(self) -> pandas.DataFrame:
        """The catalog as a pandas DataFrame. Needs pyarrow and pandas."""
    def path(self, index: int) -> str:
        """A sample's path below the base URL; of a packed one its shard, and behind a slash its name there."""
    def size(self, index: int) -> int:
        """A sample's length in bytes."""
    def label(self, index: int) -> int | None:
        """The number of a sample's class; None where it has none."""
    def targets(self) -> bytes:
        """The numbers of all samples' classes, -1 where there is none: 64-bit integers in a row."""
    def first_without(self, endings: Sequence[str]) -> str | None:
        """The path of the first sample whose name does not end like one of `endings` (in lower case); None if all do."""
    @property
    def labels(self) -> list[str]:
        """The names of the classes, by their numbers."""
    @property
    def total_bytes(self) -> int:
        """The length of all samples together, in bytes."""
    @property
    def fingerprint(self) -> str:
        """Identifies the data: the same wherever they lie and whoever has indexed them."""
    @property
    def base_url(self) -> str:
        """What was indexed."""
    @property
    def format(self) -> str:
        """How samples lie in objects: files, tar, tfrecord or zip."""
    def __len__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, tuple[bytes]]: ...

@final
class Compared:
    """What policies make of a scenario: Simulation keeps it."""

    def json(self) -> str: ...
    def bars(self) -> str: ...
    def against_cache(self) -> str | None: ...

def index(
    target: Path | Sequence[Path],
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    format: Literal["auto", "files", "tar", "tfrecord", "zip"] | None = None,
    name: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Catalog:
    """Lists a dataset into a catalog, reading no more than shards' heads.

    `include` and `exclude` are globs of paths below `target`: `*` stops at `/`, `**/` is any number of directories.
    `name` stands for the place of the data: caches are kept when the data are moved, and you vouch that they are the same.
    `progress` is called now and then with the samples and bytes found so far; what it raises ends the index.
    """

def calibrate(
    target: Path | None = None, *, disks: Sequence[Path] | None = None, seconds: float = 30.0, output: Path | None = None
) -> dict[str, Any]:
    """Measures a dataset's origin and directories for a disk tier, and returns what was found.

    With `output` it is also written to a file, which `calibration=` reads.
    """

def catalog_of(root: Path, base: Path, paths: Sequence[Path]) -> tuple[Catalog | None, bytes, bytes]:
    """The catalog of files below `base`, with their numbers and modification times."""

def hidden_file(root: Path, endings: Sequence[str]) -> str | None:
    """A file that ImageFolder would take and a listing leaves out, because it is hidden."""

def modified(path: Path) -> int | None:
    """When a file was modified, in nanoseconds; None if it is not there."""

def plan_of(target: Target, **settings: Unpack[Settings]) -> tuple[str, str]: ...
def compare(scenario: Path, *, policies: Sequence[str] | None = None, seeds: int = 1) -> Compared: ...
def enable_metrics() -> None: ...
def render_metrics() -> str: ...
def set_log_level(level: int) -> None:
    """Lines of the library below `level` (logging's numbers) are not made."""

def close_all(seconds: float) -> None: ...
