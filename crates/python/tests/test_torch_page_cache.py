"""wrap() over a local file system: the files are read into the page cache, and the dataset opens them itself."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch_images import SAMPLES, assert_same, batches, folder, generators, images, served  # noqa: F401
from foreread.torch import wrap
from foreread.torch._page_cache import PageCachePart
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset
from waiting import until


class Raw(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """The bytes of files, read by descriptors as libraries in C do."""

    def __init__(self, root: Path, files: list[Path]) -> None:
        self.root = str(root)
        self.samples = [str(path) for path in files]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> bytes:
        descriptor = os.open(self.samples[index], os.O_RDONLY)
        try:
            return os.read(descriptor, 1 << 20)
        finally:
            os.close(descriptor)


def pages(wrapped: Any) -> PageCachePart:
    assert wrapped._pages is not None
    found: PageCachePart = wrapped._pages
    return found


def counts(wrapped: Any) -> dict[str, Any]:
    reader = pages(wrapped)._reader
    assert reader is not None
    return reader.counts()


# semantics: PY-4
def test_dataset_and_its_files_are_left_alone(folder: Any) -> None:
    with wrap(DataLoader(folder, 8)) as ours:
        assert ours.dataset is folder and not ours._parts
        batches(ours)
        assert open.__module__ in ("io", "_io")
    # A cache of foreread's own, or a limit, needs foreread's reads.
    for settings in ({"memory": "16MiB"}, {"origin_limit": "1GB"}):
        with wrap(DataLoader(folder, 8), **settings) as ours:
            assert ours._pages is None and ours._parts


@pytest.mark.parametrize("workers", [0, 2])
def test_all_files_of_an_epoch_are_looked_at(folder: Any, workers: int) -> None:
    with wrap(DataLoader(folder, 8, shuffle=True, num_workers=workers)) as ours:
        for epoch in range(1, 4):
            batches(ours)
            assert ours.stats().samples == epoch * SAMPLES
        if workers == 0:
            until("a file is looked at", lambda: counts(ours)["cached"] + counts(ours)["read_ahead"] > 0)
        else:
            assert counts(ours)["cached"] + counts(ours)["read_ahead"] == 0, "workers read ahead themselves"
        assert counts(ours)["cached"] + counts(ours)["read_ahead"] <= 8 * SAMPLES


def test_positions_follow_uneven_batches(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Spy:
        def announce(self, order: Any) -> None:
            self.order = order

        def advance(self, position: int) -> None:
            seen.append(position)

        def counts(self) -> dict[str, Any]:
            return {"cached": 0, "read_ahead": 0, "bytes": 0, "is_aside": False}

        def close(self) -> None:
            pass

    class Uneven(BatchSampler):
        def __iter__(self) -> Any:
            yield from ([0, 1, 2], [3], [4, 5])

        def __len__(self) -> int:
            return 3

    loader = DataLoader(folder, batch_sampler=Uneven(RandomSampler(folder), 3, False))
    with wrap(loader) as ours:
        pages(ours)._reader = Spy()  # type: ignore[assignment]
        for _ in range(3):
            batches(ours)
    # The sampler draws nothing, so its next epochs are announced with the first one.
    assert seen == [3, 4, 6, 9, 10, 12, 15, 16, 18]


def test_epoch_left_early_begins_again(folder: Any) -> None:
    loader = lambda: DataLoader(folder, 8, shuffle=True, generator=torch.Generator().manual_seed(1))  # noqa: E731
    with wrap(loader()) as ours:
        theirs = loader()
        for _ in range(3):
            assert torch.equal(next(iter(ours))[1], next(iter(theirs))[1])
        assert_same(batches(ours), batches(theirs))


def test_reader_in_c_is_not_reported(images: Path, caplog: Any) -> None:
    data = Raw(images, sorted(images.rglob("*.png")))
    with wrap(DataLoader(data, 8, collate_fn=list)) as ours:
        assert list(ours) == list(DataLoader(data, 8, collate_fn=list))
    assert not caplog.records


# semantics: PY-4
def test_cached_files_are_looked_at_rarely(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.bin" for number in range(3000)]
    for path in files:
        path.write_bytes(b"x" * 100)
    with wrap(DataLoader(Raw(tmp_path, files), 10, shuffle=True, collate_fn=len)) as ours:
        list(ours)
        until("few are looked at", lambda: counts(ours)["is_aside"])
        first = counts(ours)["cached"]
        list(ours)
        stats = ours.stats()
        assert counts(ours)["cached"] - first <= 256, "of 3,000"
    assert stats.hits["page cache"] == 1.0 and stats.origin_bytes == 0 and stats.requests == 0
    assert "page cache 100%" in str(stats)


# semantics: PY-4
def test_files_that_left_the_page_cache_are_read_ahead(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.bin" for number in range(1000)]
    for path in files:
        path.write_bytes(random.randbytes(20_000))
    with wrap(DataLoader(Raw(tmp_path, files), 10, shuffle=True, collate_fn=len)) as ours:
        list(ours)
        before = counts(ours)["read_ahead"]
        os.sync()
        for path in files:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        list(ours)
        after = counts(ours)["read_ahead"]
    with files[0].open("rb") as file:
        is_memory = os.fstatvfs(file.fileno()).f_blocks and os.statvfs(tmp_path).f_fsid == 0
    assert is_memory or after > before, "the first missing file starts it again"


def test_subsets_and_missing_files(folder: Any, tmp_path: Path, caplog: Any) -> None:
    data = ConcatDataset([Subset(folder, range(90, 10, -3)), folder])
    with wrap(DataLoader(data, 8), root=folder.root) as ours:
        assert_same(batches(ours), batches(DataLoader(data, 8)))
        assert ours.stats().samples == len(data)
    files = [tmp_path / "here", tmp_path / "missing"]
    files[0].write_bytes(b"1")
    with wrap(DataLoader(Raw(tmp_path, files), 1, collate_fn=list)) as ours:
        iterator = iter(ours)
        assert next(iterator) == [b"1"]
        with pytest.raises(FileNotFoundError):
            next(iterator)
    assert "1 of the dataset's 2 files" in caplog.text


def _in_child(loader: Any, there: Any) -> None:
    there.put(len(batches(loader)))
    loader.close()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_other_processes_iterate_without_it(folder: Any, context: str) -> None:
    start = multiprocessing.get_context(context)
    folder.transform = None
    folder.loader = _length
    with wrap(DataLoader(folder, 8, collate_fn=_pair)) as ours:
        batches(ours)
        there = start.SimpleQueue()
        child = start.Process(target=_in_child, args=(ours, there))
        child.start()
        assert there.get() == 13
        child.join(60)
        assert child.exitcode == 0
        batches(ours)
        assert pages(ours).is_open and ours.stats().samples == 2 * SAMPLES


def _length(path: str) -> int:
    return os.stat(path).st_size


def _pair(items: list[Any]) -> Any:
    return torch.tensor([size for size, _ in items]), torch.tensor([label for _, label in items])


def test_copies_and_closing(folder: Any) -> None:
    theirs = batches(DataLoader(folder, 8))
    ours = wrap(DataLoader(folder, 8))
    for made in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_same(batches(made), theirs)
    ours.close()
    ours.close()
    assert_same(batches(ours), theirs)
    assert ours.stats().samples >= SAMPLES
