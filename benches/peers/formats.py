"""Shuffled epochs over packed files: foreread, and PyTorch's DataLoader with the format's own library.

python benches/peers/formats.py [--directory DIR] [--samples N] [--cases NAME...]

Prints a table of samples/s in the first and in later epochs. Peers are the usual map-style datasets, with 0 and 4 workers.
Each loader touches every page of each sample. A directory that is given keeps its files, so that they can be read again
through a slow mount: `--before 'command'` runs before each loader, to make the first epoch cold. In the cases of chunks
and pages, 16 or more samples share a compressed unit.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import h5py
import lmdb
import numpy
import pyarrow
import pyarrow.parquet
import torch
from torch.utils.data import DataLoader, Dataset

import foreread

BATCH = 64
EPOCHS = 3


def values(samples: int) -> Iterable[bytes]:
    """Values of 20 to 180 KB, as JPEGs have."""
    generator = numpy.random.default_rng(0)
    for _ in range(samples):
        yield generator.bytes(int(generator.integers(20_000, 180_000)))


class Lmdb(Dataset[bytes]):
    """The dataset class of many tutorials: opened in each worker, read without a lock."""

    def __init__(self, path: str) -> None:
        self.path, self.environment = path, None
        with lmdb.open(path, readonly=True, lock=False) as environment:
            self.length = environment.stat()["entries"]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> bytes:
        if self.environment is None:
            self.environment = lmdb.open(self.path, readonly=True, lock=False, readahead=False, meminit=False)
        with self.environment.begin() as reading:
            return reading.get(f"{index:08}".encode())


class Hdf5(Dataset[Any]):
    def __init__(self, path: str) -> None:
        self.path, self.file = path, None
        with h5py.File(path) as file:
            self.length = len(file["images"])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path)
        return self.file["images"][index]


class Windows(Dataset[Any]):
    def __init__(self, path: str) -> None:
        self.tokens = numpy.memmap(path, "uint16", "r")

    def __len__(self) -> int:
        return (len(self.tokens) - 2049) // 2048 + 1

    def __getitem__(self, index: int) -> Any:
        return numpy.array(self.tokens[index * 2048 : index * 2048 + 2049])


class Rows(Dataset[bytes]):
    """A table of Hugging Face, with the bytes of its images undecoded."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> bytes:
        return self.table[index]["image"]["bytes"]


def make_lmdb(directory: Path, samples: int) -> tuple[str, dict[str, Any], Callable[[], Any]]:
    path = directory / "lmdb"
    if not path.exists():
        with lmdb.open(str(path), map_size=1 << 36) as environment, environment.begin(write=True) as writing:
            for number, value in enumerate(values(samples)):
                writing.put(f"{number:08}".encode(), value)
    return str(path), {}, lambda: Lmdb(str(path))


def make_hdf5(
    directory: Path, samples: int, rows: int = 1, colours: int = 256, **storage: Any
) -> tuple[str, dict[str, Any], Callable[[], Any]]:
    path = directory / "train.h5"
    if not path.exists():
        with h5py.File(path, "w") as file:
            images = file.create_dataset("images", (samples, 180, 180, 3), "uint8", chunks=(rows, 180, 180, 3), **storage)
            for number in range(samples):
                images[number] = numpy.random.default_rng(number).integers(0, colours, (180, 180, 3), "uint8")
    return str(path), {}, lambda: Hdf5(str(path))


def make_chunks(directory: Path, samples: int) -> tuple[str, dict[str, Any], Callable[[], Any]]:
    """Compressed chunks of 16 rows, to about half of their length."""
    return make_hdf5(directory, samples, rows=16, colours=16, compression="gzip")


def table(samples: int) -> Any:
    features = datasets.Features({"image": datasets.Image(decode=False)})
    rows = [{"image": {"bytes": value, "path": None}} for value in values(samples)]
    return datasets.Dataset.from_list(rows, features=features)


def make_arrow(directory: Path, samples: int) -> tuple[str, dict[str, Any], Callable[[], Any]]:
    path = directory / "arrow"
    if not path.exists():
        table(samples).save_to_disk(str(path))
    return str(path), {}, lambda: Rows(datasets.load_from_disk(str(path)))


def make_parquet(directory: Path, samples: int) -> tuple[str, dict[str, Any], Callable[[], Any]]:
    path = directory / "train.parquet"
    if not path.exists():
        table(samples).to_parquet(str(path))
    cache = tempfile.mkdtemp()
    return str(path), {}, lambda: Rows(datasets.load_dataset("parquet", data_files=str(path), cache_dir=cache)["train"])


def make_pages(directory: Path, samples: int) -> tuple[str, dict[str, Any], Callable[[], Any]]:
    """Pages of about a megabyte, as most programs write them."""
    path = directory / "train.parquet"
    if not path.exists():
        texts = [{"image": {"bytes": value.hex().encode(), "path": None}} for value in values(samples)]
        pyarrow.parquet.write_table(
            pyarrow.Table.from_pylist(texts), path, compression="zstd", use_dictionary=False, row_group_size=1000
        )
    cache = tempfile.mkdtemp()
    choices = {"field": "image.bytes"}
    return str(path), choices, lambda: Rows(datasets.load_dataset("parquet", data_files=str(path), cache_dir=cache)["train"])


def make_tokens(directory: Path, samples: int) -> tuple[str, dict[str, Any], Callable[[], Any]]:
    path = directory / "tokens.bin"
    if not path.exists():
        numpy.random.default_rng(0).integers(0, 50_000, samples * 20 * 2048 + 1, "uint16").tofile(path)
    return str(path), {"window": 2049, "stride": 2048, "dtype": "u16"}, lambda: Windows(str(path))


CASES = {
    "lmdb": make_lmdb,
    "hdf5": make_hdf5,
    "arrow": make_arrow,
    "parquet": make_parquet,
    "tokens": make_tokens,
    "hdf5 chunks": make_chunks,
    "parquet pages": make_pages,
}


def measured(epoch: Callable[[], int]) -> list[float]:
    """Samples per second of each epoch."""
    rates = []
    for _ in range(EPOCHS):
        start = time.perf_counter()
        count = epoch()
        rates.append(count / (time.perf_counter() - start))
    return rates


def collated(items: list[Any]) -> int:
    """Touches each page of each sample."""
    return sum(int(numpy.frombuffer(memoryview(item).cast("B"), "u1")[::4096].min()) >= 0 for item in items)


def peer(dataset: Callable[[], Any], workers: int) -> list[float]:
    # Made here: LMDB may be open only once in a process and its workers.
    data = dataset()
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(
        data, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, generator=generator, collate_fn=list
    )
    return measured(lambda: sum(collated(batch) for batch in loader))


def ours(target: str, choices: dict[str, Any], memory: str) -> list[float]:
    catalog = foreread.index(target, **choices)
    with foreread.Loader(catalog, batch_size=BATCH, epochs=EPOCHS, seed=0, memory=memory) as loader:
        batches = iter(loader)
        per_epoch = -(-len(catalog) // BATCH)
        return measured(lambda: sum(collated(list(next(batches))) for _ in range(per_epoch)))


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--directory", type=Path, help="keeps the files there")
    arguments.add_argument("--before", help="a command before each loader")
    arguments.add_argument("--samples", type=int, default=4000)
    arguments.add_argument("--memory", nargs="*", default=["0", "16GB"], help="foreread's memory")
    arguments.add_argument("--workers", type=int, nargs="*", default=[0, 4])
    arguments.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    options = arguments.parse_args()
    datasets.disable_progress_bars()
    print("| format | loader | first epoch, samples/s | later epochs, samples/s |")
    print("|---|---|--:|--:|")
    with tempfile.TemporaryDirectory() as scratch:
        for case in options.cases:
            directory = (options.directory or Path(scratch)) / case
            directory.mkdir(parents=True, exist_ok=True)
            target, choices, dataset = CASES[case](directory, options.samples)
            peers = {f"DataLoader, {workers} workers": partial(peer, dataset, workers) for workers in options.workers}
            mine = {f"foreread, memory {memory}": partial(ours, target, choices, memory) for memory in options.memory}
            for name, run in {**peers, **mine}.items():
                if options.before:
                    subprocess.run(options.before, shell=True, check=True)
                first, *later = run()
                print(f"| {case} | {name} | {first:,.0f} | {max(later):,.0f} |", flush=True)


if __name__ == "__main__":
    main()
