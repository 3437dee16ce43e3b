"""The memory of samples: one copy, freed after the last view."""

from __future__ import annotations

import ctypes
import io
import subprocess
import sys
import tarfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foreread
from conftest import content


def address(view: Any) -> int:
    """The address of a buffer."""
    numpy = pytest.importorskip("numpy")
    return int(numpy.frombuffer(view, dtype=numpy.uint8).ctypes.data)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """A WebDataset shard of three samples with two fields each."""
    path = tmp_path / "train-0.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(3):
            for name, data in (("txt", content(number)), ("cls", b"%d" % number)):
                member = tarfile.TarInfo(f"{number:03}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def test_views_of_a_sample_are_at_one_address(directory: Path) -> None:
    with foreread.Loader(directory, batch_size=4, epochs=1) as loader:
        batch = next(loader)
        sample = batch[0]
        assert address(sample) == address(memoryview(sample)) == address(batch[0]) == address(list(batch)[0])
        assert address(batch[1]) != address(sample)


def test_field_is_a_part_of_its_samples_memory(shard: Path) -> None:
    with foreread.Loader(shard, batch_size=3, epochs=1, sampler="sequential") as loader:
        batch = next(loader)
        for number, sample in enumerate(batch):
            assert sample.key == f"{number:03}" and sample.field_names == ["txt", "cls"] and sample.label is None
            field = sample.field("txt")
            assert field.name == "txt" and field.id == number and len(field) == len(content(number))
            assert bytes(field) == content(number) == bytes(memoryview(field))
            inside = address(field) - address(sample)
            assert bytes(sample)[inside : inside + len(field)] == content(number)
            with pytest.raises(KeyError, match="jpg"):
                sample.field("jpg")


def test_view_outlives_batch_and_loader(directory: Path) -> None:
    loader = foreread.Loader(directory, batch_size=4, epochs=1, sampler="sequential")
    view = memoryview(next(loader)[2])
    loader.close()
    del loader
    assert bytes(view) == content(2)


def test_sample_is_read_only(directory: Path) -> None:
    with foreread.Loader(directory, epochs=1) as loader:
        sample = next(loader)[0]
    assert memoryview(sample).readonly
    with pytest.raises(TypeError, match="not writable"):
        (ctypes.c_char * len(sample)).from_buffer(sample)


def test_empty_sample_is_also_a_buffer(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with foreread.Loader(tmp_path, epochs=1) as loader:
        (sample,) = next(loader)
    assert len(sample) == 0 and bytes(sample) == b"" == bytes(memoryview(sample)) and bool(sample) is False


@pytest.mark.parametrize(
    "use",
    [
        lambda batch: list(batch),
        lambda batch: [memoryview(sample) for sample in batch],
        lambda batch: [bytes(sample) for sample in batch[1:]],
        lambda batch: (batch.ids, batch.labels, [sample.path for sample in batch]),
    ],
)
def test_viewed_memory_is_counted_and_released(directory: Path, use: Callable[[foreread.Batch], Any]) -> None:
    before = sys.getrefcount(None)
    with foreread.Loader(directory, batch_size=10, epochs=20) as loader:
        for batch in loader:
            kept = use(batch)
            del kept
    # Two hundred batches reveal a leaked reference per batch.
    assert sys.getrefcount(None) - before < 150


def test_memory_is_flat_over_hundreds_of_epochs(tmp_path: Path) -> None:
    """Buffers of rare lengths and the reports of stats() must not accumulate."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(200):
        (data / f"{number:04}").write_bytes(bytes([number % 251]) * (10_000 + 200 * number))
    script = """
        import os, sys, foreread
        def resident():
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        after = {}
        settings = dict(batch_size=16, epochs=401, memory="1MiB", look_ahead="2MiB")
        with foreread.Loader(sys.argv[1], **settings) as loader:
            for batch in loader:
                total = sum(len(memoryview(sample)) + len(bytes(sample)) for sample in batch)
                assert total == 2 * batch.bytes
                if batch.epoch not in after:
                    after[batch.epoch] = resident()
                    loader.stats()
        print(after[100], after[400])
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(data)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    early, late = map(int, ran.stdout.split())
    # 300 epochs move 1.8 GB. Only their lines in the report, of some hundred bytes, may remain. The leak was 2 MiB.
    assert late - early < 1 << 20, f"{early / 2**20:.1f} MiB after 100 epochs, {late / 2**20:.1f} MiB after 400"
