"""The native module of foreread."""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn, Self, Unpack, final, overload

import pandas
import pyarrow

from ._outlook import Picture
from ._settings import Format, Path, Settings, Size, Target
from ._stats import Stats

__all__ = [
    "MAX_EPOCHS",
    "Batch",
    "BatchLender",
    "Catalog",
    "Compared",
    "Field",
    "ImagePool",
    "Loader",
    "NodeStore",
    "PageCacheReader",
    "PendingImages",
    "PixelBuffer",
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
    "node_token",
    "plan_of",
    "rank_cores",
    "render_metrics",
    "run_command",
    "set_log_level",
]

__version__: str

MAX_EPOCHS: int
"""The number of epochs that a run without `epochs` is planned for."""

@final
class Field:
    """A named part of a sample: a read-only buffer of the sample's own bytes."""

    @property
    def name(self) -> str:
        """The end of the member's name, in lower case: jpg, cls, seg.png."""
    @property
    def id(self) -> int:
        """The id of its sample."""
    def array(self) -> Any:
        """Its bytes as a NumPy array, without a copy, where the format knows type and shape."""
    def open(self) -> io.RawIOBase:
        """The part as a file for reading, without a copy of its bytes, which the file holds until it is closed.
        For ``PIL.Image.open``, ``numpy.load``, ``h5py.File``."""
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        """Pickles the bytes only, as bytes."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Sample:
    """One sample of a batch: a read-only buffer of its bytes, with its id, label and name."""

    @property
    def id(self) -> int:
        """The sample's id in its catalog."""
    @property
    def label(self) -> Any:
        """Its label: the index of its class in the order of ImageFolder, or the value of its format's column of labels."""
    @property
    def label_name(self) -> str | None:
        """The name of its class: the first directory of its path, or a label that is a text."""
    @property
    def value_names(self) -> list[str]:
        """The names of the values that the catalog has of each sample, for ``sample[name]``."""
    def values(self) -> list[str]:
        """Deprecated: ``value_names``."""
    def field_paths(self) -> dict[str, str]:
        """The names and paths of its files, if it has several. Empty for any other."""
    def __getitem__(self, name: str, /) -> Any:
        """The value of this name: a number, a text or an array, or None if this sample has none. Without such a value, the
        field of this name. Raises KeyError if there is neither."""
    def value(self, name: str) -> Any:
        """Deprecated: ``sample[name]``."""
    def array(self) -> Any:
        """Its bytes as a NumPy array, without a copy, where the format knows type and shape."""
    def arrays(self) -> dict[str, Any]:
        """Deprecated: ``array()`` of each field."""
    @property
    def key(self) -> str | None:
        """Its name in its shard (WebDataset's __key__, a zip member's name). None for files and records."""
    @property
    def path(self) -> str:
        """Its path below the dataset's URL. The path of a packed sample is its shard's, a slash, and its name there."""
    @property
    def field_names(self) -> list[str]:
        """The names of the sample's fields, in order: members of WebDataset, columns of MDS, datasets of HDF5. Empty for
        samples without any."""
    def fields(self) -> list[str]:
        """Deprecated: ``field_names``."""
    def field(self, name: str) -> Field:
        """The field `name` of the sample, without a copy, also where a value has its name. Raises KeyError if there is none."""
    def open(self) -> io.RawIOBase:
        """The sample as a file for reading, without a copy of its bytes, which the file holds until it is closed.
        For ``PIL.Image.open``, ``numpy.load``, ``h5py.File``."""
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        """Pickles the bytes only, as bytes."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Batch:
    """The samples of one step, in the order that the seed defines."""

    @property
    def epoch(self) -> int:
        """The batch's epoch, from 0."""
    @property
    def phase(self) -> str:
        """'train' or 'validation'."""
    @property
    def index(self) -> int:
        """The batch's index within its pass, from 0."""
    @property
    def ids(self) -> list[int]:
        """The samples' ids in their catalog, in order."""
    @property
    def labels(self) -> list[Any]:
        """The samples' labels, in order. None for a sample without a label."""
    @property
    def bytes(self) -> int:
        """The total length of the samples, in bytes."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sample]: ...
    @overload
    def __getitem__(self, index: int, /) -> Sample: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[Sample]: ...

@final
class Loader:
    """Batches of a dataset's samples, read ahead in the order that a seed defines."""

    def __new__(
        cls,
        target: Target,
        *,
        batch_size: int | None = None,
        epochs: int | None = None,
        seed: int | None = None,
        order_group: str | None = None,
        sampler: Literal["shuffle", "torch", "feistel", "sequential"] | None = None,
        drop_last: bool | None = None,
        deal: Literal["torch", "blocks", "locality"] | None = None,
        validate: Path | None = None,
        memory: Size | None = None,
        disk: str | Sequence[str] | Mapping[Path, Size] | None = None,
        agent: Path | None = None,
        memory_alone: Size | None = None,
        look_ahead: Size | None = None,
        format: Format | None = None,
        origin_limit: Size | None = None,
        origin_parallelism: int | Literal["auto"] | None = None,
        patience: int | Literal["auto"] | None = None,
        recall: bool | None = None,
        calibration: Path | None = None,
        on_error: Literal["fail", "skip", "substitute"] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        peers: Literal["auto", "off"] | None = None,
        resume: str | None = None,
        progress: bool = False,
    ) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...
    def try_next(self) -> Batch | None:
        """The next batch if it is ready. None if it is not, or at the end of the run."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the loader, with a short timeout if an exception ended the block."""
    def state(self) -> str:
        """The run's position as text, for `resume=`, also with another world size or batch size."""
    def watch(self) -> None:
        """Marks the last batch as done in the progress bar. Requesting another batch does this automatically."""
    def lender(self) -> BatchLender:
        """A lender of batches to worker processes."""
    def jump(self, state: str) -> None:
        """Continues at a state. Batches read ahead are dropped, caches stay."""
    def report(self) -> dict[str, Any]:
        """The report so far, as the command's JSON report. Also available after close()."""
    def stats(self) -> Stats:
        """A summary of the run. Rates and shares cover the time since the last call."""
    def plot(self, path: Path | None = None) -> Picture:
        """The run so far as a picture: bytes per second by source, and stalls, over time; also available after close().
        With `path`, it is written to a file as well."""
    def step_done(self) -> None:
        """Notifies rank 0 that this rank has completed the step of its last batch."""
    def leave(self, seconds: float = 600.0) -> dict[str, Any] | None:
        """Marks this rank as finished and serves the others. Rank 0 returns the combined report."""
    def close(self, seconds: float | None = None) -> None:
        """Ends the run: serves unfinished ranks for at most `seconds`, and flushes the disk tier."""
    def path(self, id: int) -> str:
        """A sample's path below the dataset's URL."""
    def label(self, id: int) -> Any:
        """A sample's label: the index of its class, or the value of its format's column of labels. None if it has none."""
    @property
    def has_labels(self) -> bool:
        """Whether samples have labels."""
    @property
    def samples(self) -> int:
        """The number of samples in the dataset."""
    @property
    def fingerprint(self) -> str:
        """The catalog's fingerprint, independent of the data's location."""
    @property
    def classes(self) -> list[str]:
        """The names of the classes, by index."""
    @property
    def labels(self) -> list[str]:
        """Deprecated: ``classes``."""
    @property
    def catalog(self) -> Catalog:
        """The catalog of the samples."""
    @property
    def plan(self) -> dict[str, Any]:
        """The plan of where samples are cached: levels, and the bytes read from storage."""
    @property
    def rank(self) -> int:
        """The rank of this process."""
    @property
    def world_size(self) -> int:
        """The number of ranks."""
    @property
    def closed(self) -> bool:
        """Whether the loader is closed."""

@final
class Source:
    """Samples by id, in the caller's order, read ahead as far as that order is announced."""

    def __new__(cls, target: Target, **settings: Unpack[Settings]) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def announce(self, orders: Sequence[Any], *, continues: bool = False) -> None:
        """Announces the order of future requests: a list of epochs, each a buffer of 64-bit integers."""
    def get(self, id: int) -> Sample:
        """One sample, read now unless it was read ahead."""
    def get_many(self, ids: Sequence[int]) -> list[Sample]:
        """Several samples, read concurrently, in the order of `ids`."""
    def find(self, path: str) -> int | None:
        """The id of the sample at this path below the dataset's URL. None if there is none."""
    def path(self, id: int) -> str:
        """A sample's path below the dataset's URL."""
    def label(self, id: int) -> Any:
        """A sample's label: the index of its class, or the value of its format's column of labels. None if it has none."""
    @property
    def has_labels(self) -> bool:
        """Whether samples have labels."""
    def report(self) -> dict[str, Any]:
        """The report so far, as the command's JSON report."""
    def stats(self) -> Stats:
        """A summary. Rates and shares cover the time since the last call."""
    def share(self, *, shared_memory: Size | None = None) -> str:
        """Serves samples to this user's processes on this machine (ShareClient) and returns the address."""
    def shared(self) -> dict[str, Any] | None:
        """The number of clients and their use of the shared memory. None before share()."""
    def watch(self, waited: float | None = None) -> None:
        """Logs a warning if the trainer waited for samples for much of the last seconds. `waited`: the trainer's total
        stall time in seconds, if workers make the requests."""
    def pause(self) -> None:
        """Marks the end of an epoch: the time until the next request does not count in ``stats()``."""
    def close(self) -> None:
        """Stops reading and waits for the writes of the disk tier."""
    @property
    def samples(self) -> int:
        """The number of samples in the dataset."""
    @property
    def bytes(self) -> int:
        """Their total bytes."""
    @property
    def catalog(self) -> Catalog:
        """The catalog of the samples."""
    @property
    def is_kernel_cached(self) -> bool:
        """Whether this machine's kernel caches the files, because they are on a local file system."""
    @property
    def classes(self) -> list[str]:
        """The names of the classes, by index."""
    @property
    def labels(self) -> list[str]:
        """Deprecated: ``classes``."""

@final
class ImagePool:
    """Threads that decode images, and the memory of their batches."""

    def __new__(
        cls,
        height: int,
        width: int,
        *,
        scale: tuple[float, float] | None,
        ratio: tuple[float, float],
        flip: float,
        resize: int | None,
        normalize: tuple[tuple[float, float, float], tuple[float, float, float]] | None,
        channels_last: bool,
        max_pixels: int,
        threads: int,
    ) -> Self: ...
    def begin(self, batch: Batch, seed: int, memory: Any = None) -> PendingImages:
        """Begins to decode a batch: into `memory`, a writable buffer that is not used until the batch is finished, or else
        into own memory."""
    def begin_samples(self, samples: list[Any], ids: Sequence[int], seed: int, epoch: int) -> PendingImages:
        """Begins to decode samples, or other buffers, whose bytes are copied. `ids` are their draws'."""
    def augmentation(self, width: int, height: int, seed: int, epoch: int, sample: int) -> tuple[int, int, int, int, bool]:
        """The first row and column, height and width of the region that is used of an image of this size, and whether it is
        flipped."""
    @property
    def busy(self) -> float:
        """The seconds that threads have spent decoding, summed over all."""
    @property
    def threads(self) -> int:
        """The number of threads."""

@final
class PendingImages:
    """A batch that is being decoded."""

    def is_ready(self) -> bool:
        """Whether it is decoded."""
    def finish(self) -> tuple[PixelBuffer | None, list[tuple[int, str]]]:
        """Waits for the batch. Returns its memory, unless it is the caller's, and the index and reason of each sample that could
        not be decoded, whose pixels are undefined. Only once."""

@final
class PixelBuffer:
    """A decoded batch: a writable buffer. Its memory is reused when the last view is gone."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class NodeStore:
    """The cache that the ranks of a node share for loaders that are not foreread's own."""

    @staticmethod
    def of(spawned: tuple[int, str] | None, **settings: Any) -> NodeStore | None:
        """That of a rank with these settings. `spawned` has the number of ranks without a launcher, and their name."""
    def start(self) -> tuple[int, int] | None:
        """Starts it. If the job's nodes need a token to meet, returns this rank and the number of ranks."""
    def source(self, catalog: Catalog, **settings: Any) -> Source:
        """A source of the catalog, with this cache."""

@final
class PageCacheReader:
    """Reads files of an announced order into the kernel's page cache, for a program that opens them itself."""

    @staticmethod
    def of(source: Source, root: Path) -> PageCacheReader | None:
        """A reader of the files of a source below a directory. None if the source has caches or limits of its own, or the
        kernel does not cache the files."""
    def announce(self, order: Any) -> None:
        """Replaces the order of future uses: a buffer of 64-bit integers. Negative ones are other files."""
    def advance(self, position: int) -> None:
        """Notes that the uses before this position have begun."""
    def counts(self) -> dict[str, Any]:
        """Files that were cached and that were read ahead, the bytes of the latter, and whether few are looked at now."""
    def close(self) -> None:
        """Ends its threads."""

@final
class BatchLender:
    """Lends batches of a loader to worker processes, which get them by ``ShareClient.batch()``. Made by ``Loader.lender()``."""

    @property
    def address(self) -> str:
        """The address for ShareClient, including its secret."""
    def lend(self, number: int, batch: Batch) -> None:
        """Lends a batch under a number, until it is taken back."""
    def take_back(self, number: int) -> None:
        """Takes a batch back."""
    def refuse_below(self, number: int) -> None:
        """Takes all batches back, and refuses those below a number from now on."""
    def close(self) -> None:
        """Fails the requests of workers. Closing twice is not an error."""

@final
class ShareClient:
    """Samples of another process's Source, for workers. Source.share() returns the address.

    The client has no threads. It connects at its first use, once in each process.
    """

    def __new__(cls, address: str) -> Self: ...
    def get(self, id: int) -> SharedSample:
        """One sample."""
    def get_many(self, ids: Sequence[int]) -> list[SharedSample]:
        """Several samples, read concurrently, in the order of `ids`."""
    def batch(self, number: int, catalog: Catalog) -> tuple[int, list[Sample]]:
        """The epoch and the samples of a batch that a BatchLender lends under a number. Waits until it is lent. `catalog` is
        that of the loader."""
    def call(self, name: str, payload: bytes | None = None) -> bytes:
        """Sends a named request: 'report' returns the report as JSON, 'path' the path of the sample id in the payload."""
    def close(self) -> None:
        """Closes the connection. The next use connects again."""
    @property
    def address(self) -> str:
        """The address of the source, including its secret."""
    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        """Pickles the client as its address."""

@final
class SharedSample:
    """A sample from another process: a read-only buffer of its bytes in shared memory.

    Its shared memory is occupied until the last view is gone. Only the process that received it may read it, not a
    child forked later.
    """

    @property
    def id(self) -> int:
        """The sample's id in its catalog."""
    @property
    def is_shared(self) -> bool:
        """Whether it is in shared memory. Without room there, it is a copy in this process."""
    def open(self) -> io.RawIOBase:
        """The sample as a file for reading, without a copy of its bytes, which the file holds until it is closed.
        For ``PIL.Image.open``, ``numpy.load``, ``h5py.File``."""
    def __getitem__(self, name: str, /) -> NoReturn:
        """Refused: a worker process has the bytes alone."""
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __reduce__(self) -> tuple[type[bytes], tuple[bytes]]:
        """Pickles the bytes only, as bytes."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Catalog:
    """The samples of one dataset, numbered from 0: a table of paths, sizes and labels."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens a catalog file written by save() or `foreread index`."""
    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The catalog from the bytes of to_bytes()."""
    def save(self, path: Path) -> None:
        """Writes the catalog to a file atomically. An existing catalog is replaced."""
    def to_bytes(self) -> bytes:
        """A copy of the file that save() would write."""
    def to_arrow(self) -> pyarrow.Table:
        """The catalog as an Arrow table. Needs pyarrow."""
    def to_pandas(self) -> pandas.DataFrame:
        """The catalog as a pandas DataFrame. Needs pyarrow and pandas."""
    def path(self, index: int) -> str:
        """A sample's path below the base URL. The path of a packed sample is its shard's, a slash, and its name there."""
    def size(self, index: int) -> int:
        """A sample's length in bytes."""
    def label(self, index: int) -> Any:
        """A sample's label: the index of its class, or the value of its format's column of labels. None if it has none."""
    @property
    def value_names(self) -> list[str]:
        """The names of the values that the catalog has of each sample."""
    def value(self, index: int, name: str) -> Any:
        """A sample's value of this name: a number, a text or an array. None if it has none."""
    @property
    def array_type(self) -> tuple[str, list[int | None]] | None:
        """NumPy's type and the shape of each sample's bytes, if the format knows them. The first length of the shape is
        None if it differs between samples."""
    @property
    def field_types(self) -> dict[str, tuple[str, list[int | None]] | None]:
        """NumPy's type and the shape of each field of the first sample, by name. None for a field whose type is unknown."""
    @property
    def label_column(self) -> str | None:
        """The column of a table that has the labels."""
    def field_paths(self, index: int) -> dict[str, str]:
        """The names and paths of a sample's files, if it has several. Empty for any other."""
    @property
    def summary(self) -> str | None:
        """The findings in the first shard, in one line. None for formats without a choice."""
    def targets(self) -> bytes:
        """The labels of all samples that are integers, -1 for none: bytes for ``array("q", ...)`` or
        ``numpy.frombuffer(..., "int64")``."""
    def select(self, indices: Iterable[int]) -> Catalog:
        """The catalog of these samples, in this order: a part of the whole. Classes keep their numbers, and samples
        their caches."""
    def updated(self, *, table: Any = None, progress: Callable[[int, int], object] | None = None) -> Catalog:
        """Repeats the index that made this catalog: a catalog with the samples that there are now. New ones are at the
        end, and all others keep their number, with their parts and disk caches. Samples that are gone or have changed
        are named in a warning. A table that was in memory is given anew."""
    def whole(self) -> Catalog:
        """All samples of the catalog that this one is a part of. Itself, if it is none."""
    def numbers(self) -> bytes:
        """The number of each sample in the whole catalog: bytes, as those of targets()."""
    def filter(self, function: Callable[[dict[str, Any]], object] | Iterable[bool]) -> Catalog:
        """The samples for which `function` returns true: it gets a dict of a sample's index, path, size, label, label_name
        and values. Or a mask: a bool for each sample."""
    def random_split(
        self, lengths: Sequence[float], *, seed: int = 0, stratify: bool = False, group: str | None = None
    ) -> list[Catalog]:
        """Random parts, for training and validation, by shares or numbers of samples. With `stratify`, each has each
        label's share. `group` is the name of a value: samples with one value are in one part."""
    def first_without(self, endings: Sequence[str]) -> str | None:
        """The path of the first sample without one of `endings` (in lower case). None if there is none."""
    @property
    def classes(self) -> list[str]:
        """The names of the classes, by index."""
    @property
    def labels(self) -> list[str]:
        """Deprecated: ``classes``."""
    @property
    def total_bytes(self) -> int:
        """The total length of all samples, in bytes."""
    @property
    def fingerprint(self) -> str:
        """Identifies the data, independent of their location."""
    @property
    def base_url(self) -> str:
        """The URL or path that was indexed."""
    @property
    def format(self) -> str:
        """How objects store samples: files, tar, tfrecord, zip, lmdb, hdf5, parquet, arrow, mds, litdata, npy, tokens
        or recordio."""
    def __len__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, tuple[bytes]]: ...

@final
class Compared:
    """A comparison of policies, held by Simulation."""

    def json(self) -> str: ...
    def bars(self) -> str: ...
    def against_cache(self) -> str | None: ...

def index(
    target: Path | Sequence[Path] | None = None,
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    format: Format | None = None,
    name: str | None = None,
    progress: Callable[[int, int], object] | None = None,
    field: str | Sequence[str] | None = None,
    label: str | None = None,
    key: str | None = None,
    whole: bool = False,
    window: int | None = None,
    stride: int | None = None,
    dtype: str | None = None,
    document: bool = False,
    pack: int | None = None,
    pack_seed: int | None = None,
    pack_samples: int | None = None,
    pack_split: str | None = None,
    table: Any = None,
    path: str | Mapping[str, str] | None = None,
    columns: str | Sequence[str] | None = None,
    filters: Sequence[Any] | None = None,
    on_missing: Literal["fail", "skip"] = "fail",
    size: str | None = None,
    etag: str | None = None,
    start: str | None = None,
    length: str | None = None,
    group: Literal["stem"] | None = None,
    inventory: Path | None = None,
) -> Catalog:
    """Lists a dataset into a catalog, reading only the headers of shards.

    `include` and `exclude` are globs of paths below `target`, or paths: `*` stops at `/`, `**/` is any number of
    directories. A glob in `include` that matches nothing is an error. A list of files as `target` keeps its order.
    `classes` are the names of all classes in the order of their numbers. Without it, these are the directories below
    `target`, whichever files are included. An empty list means samples without labels. `name` replaces the location of the data: caches stay valid when the data are moved, and the caller guarantees that
    the data are the same. `progress` is called periodically with the samples and bytes found so far. An exception that
    it raises ends the index. With `inventory`, `target` is not listed, but the `manifest.json` of an inventory of S3, or a
    table with the columns `key`, `size` and `etag`.

    The rest chooses within packed formats. `field` is the HDF5 dataset, or the column of Parquet and Arrow files,
    and `label` the one with the labels. With a list of datasets or columns, a sample has a row of each, as its fields.
    `columns` are columns of Parquet and Arrow files whose numbers and texts samples have as values. `key` is the named
    database of LMDB, where `field` and `label` are beginnings of keys. With `whole`, an HDF5 dataset is one sample. `window` and `stride` are the samples of token files in tokens,
    and `dtype` is the type of a token. With `document`, a document of Megatron's files is one sample. `pack` makes the
    samples of its GPTDataset with this sequence length, from `pack_seed`, `pack_samples` and `pack_split`.
    """

def calibrate(
    target: Path | None = None, *, disks: Sequence[Path] | None = None, seconds: float = 30.0, output: Path | None = None
) -> dict[str, Any]:
    """Measures a dataset's storage and directories for a disk tier, and returns the results.

    With `output` they are also written to a file for `calibration=`.
    """

def node_token(token: str | None) -> None:
    """Lets the caches of the job's nodes meet with this token. Without one, a warning has the remedy."""

def catalog_of(root: Path, base: Path, paths: Sequence[Path]) -> tuple[Catalog | None, bytes, bytes]:
    """The catalog of files below `base`, with their ids and modification times."""

def hidden_file(root: Path, endings: Sequence[str]) -> str | None:
    """A hidden file that ImageFolder includes and a listing omits."""

def modified(path: Path) -> int | None:
    """The modification time of a file in nanoseconds. None for a missing file."""

def plan_of(target: Target, **settings: Unpack[Settings]) -> tuple[str, str]: ...
def compare(scenario: Path, *, policies: Sequence[str] | None = None, seeds: int = 1) -> Compared: ...
def enable_metrics() -> None: ...
def rank_cores() -> int:
    """This rank's part of the cores of its node."""
def render_metrics() -> str: ...
def run_command(words: Sequence[str]) -> int:
    """Runs the `foreread` command with these words, the program's name first, and returns the exit code."""

def set_log_level(level: int) -> None:
    """Disables log lines of the library below `level` (one of logging's numbers)."""

def close_all(seconds: float) -> None: ...
