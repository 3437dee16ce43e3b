"""Unusual datasets and readers: stray images, empty classes, readers that reopen files, batches without a good sample,
meaningless settings. The result is right, or an error."""

from __future__ import annotations

import io
import mmap
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import foreread
from torch_images import SAMPLES, Image, assert_same, batches, folder, generators, images, served, to_tensor, torchvision  # noqa: F401
from foreread.torch import DataLoader, Dataset, wrap
from foreread._sample_file import SampleFile
from torch.utils.data import DataLoader as Plain
from torch.utils.data import Dataset as AnyDataset
from waiting import until


@pytest.fixture
def own(tmp_path: Path, images: Path) -> Path:
    """A copy of the images for changes."""
    return Path(shutil.copytree(images, tmp_path / "own"))


def spoil(root: Path, numbers: Any) -> None:
    """Damages files, by their positions in the order of names."""
    paths = sorted(root.rglob("*.png"))
    for number in numbers:
        paths[number].write_bytes(b"no image at all")


# ---- folders ----


@pytest.mark.parametrize("make", [lambda root: DataLoader(root, 8), Dataset])
# semantics: PY-12
def test_image_next_to_the_classes_is_named(own: Path, make: Any) -> None:
    shutil.copy(own / "class0" / "00000.png", own / "logo.png")
    with pytest.raises(foreread.errors.ConfigError, match=r"logo\.png is in no class's directory"):
        make(own)


# semantics: SAMPLE-4
def test_class_without_images_keeps_its_number(own: Path) -> None:
    (own / "class2b").mkdir()
    with DataLoader(own, 8, transform=to_tensor) as loader:
        assert set(torch.cat([labels for _, labels in loader]).tolist()) == {0, 1, 2, 4, 5}


# semantics: SAMPLE-3, SAMPLE-4
def test_list_of_images_keeps_its_order_and_classes(images: Path) -> None:
    paths = [images / "class3" / "00003.png", images / "class1" / "00001.png", images / "class3" / "00008.png"]
    for part, numbers in [(paths, [3, 1, 3]), ([paths[2], paths[0]], [3, 3])]:
        with DataLoader(part, 3, shuffle=False, transform=to_tensor) as loader:
            ((pixels, labels),) = loader
        assert labels.tolist() == numbers
        assert torch.equal(pixels, torch.stack([to_tensor(Image.open(path).convert("RGB")) for path in part]))


@pytest.mark.parametrize("made", ["f8", ">i4", "u2", "?", "f2", "c8"])
# semantics: PY-20
def test_npy_files_are_their_arrays(tmp_path: Path, made: str) -> None:
    values = [np.arange(12).reshape(3, 4).astype(made) + 0 * number for number in range(4)]
    values[1] = np.asfortranarray(values[1])
    for number, value in enumerate(values):
        np.save(tmp_path / f"{number}.npy", value)
    with DataLoader(tmp_path, 4, shuffle=False) as loader:
        (batch,) = loader
    assert batch.tolist() == [value.tolist() for value in values]
    dataset = Dataset(tmp_path)
    assert dataset[1].tolist() == values[1].tolist()


# semantics: PY-20
def test_files_without_a_decoder_need_a_choice(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    for make in (lambda **more: DataLoader(tmp_path, 1, **more), lambda **more: Dataset(tmp_path, **more)):
        with pytest.raises(foreread.errors.ConfigError, match=r"a\.wav: no decoder is known.*decode='bytes'"):
            make()
        make(decode="bytes")


def test_images_without_classes_need_none(tmp_path: Path, images: Path) -> None:
    for path in images.rglob("*.png"):
        shutil.copy(path, tmp_path)
    with DataLoader(tmp_path, 8, transform=to_tensor, seed=1) as loader:
        assert sum(len(x) for x in loader) == SAMPLES


# ---- undecodable samples ----


# semantics: PY-13
def test_undecodable_batch_is_replaced_by_an_earlier_sample(own: Path) -> None:
    spoil(own, [8, 9, 10, 11])
    with DataLoader(own, 4, shuffle=False, transform=to_tensor, on_error="substitute") as loader:
        with pytest.warns(RuntimeWarning, match="cannot be decoded"):
            found = batches(loader)
        assert len(found) == len(loader)
        x, y = found[2]
        assert len(x) == 4 and all(torch.equal(one, found[1][0][-1]) for one in x) and y.tolist() == [found[1][1][-1]] * 4
        assert loader.skipped == loader.stats().skipped == 4


# semantics: PY-13
def test_missing_substitute_is_an_error(own: Path) -> None:
    spoil(own, range(4))
    with DataLoader(own, 4, shuffle=False, transform=to_tensor, on_error="substitute") as loader:
        with pytest.warns(RuntimeWarning), pytest.raises(foreread.errors.CorruptError, match="none of the 4 samples of a batch"):
            list(loader)
    with DataLoader(own, 4, shuffle=False, transform=to_tensor, on_error="skip") as loader:
        with pytest.warns(RuntimeWarning):
            assert len(list(loader)) == len(loader) - 1


@pytest.mark.parametrize("workers", [0, 1])
def test_corrupt_image_of_a_dataset_is_named(own: Path, workers: int) -> None:
    spoil(own, [5])
    with pytest.raises(Exception) as caught:
        list(Plain(Dataset(own, to_tensor), 8, num_workers=workers))
    # A worker's exception has its traceback as text.
    message = str(caught.value) + " ".join(getattr(caught.value, "__notes__", []))
    assert "sample 5 (class0/" in message, message


def test_substituted_unreadable_sample_is_counted(own: Path) -> None:
    with DataLoader(own, 4, shuffle=False, transform=to_tensor, memory=0, look_ahead="1KiB", on_error="substitute") as loader:
        sorted(own.rglob("*.png"))[-1].unlink()
        assert len(batches(loader)) == len(loader)
        assert loader.stats().skipped == 1


# ---- files served by wrap() ----


def test_descriptor_of_a_served_file_reads_the_read_ahead_bytes() -> None:
    array = np.arange(100_000, dtype=np.int64)
    file = io.BytesIO()
    np.save(file, array)
    held = file.getvalue()
    # The file does not exist, so a second read is impossible.
    gone = SampleFile(held, "/nowhere/sample.npy")
    assert (np.load(gone.buffered()) == array).all()
    with SampleFile(held, "/nowhere/sample.npy").buffered() as opened:
        head = opened.read(10)
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        assert os.fstat(opened.fileno()).st_size == len(held) == len(mapped)
        assert head + opened.read() == held == mapped[:]


def test_concurrent_first_samples_install_open_once() -> None:
    code = """if True:
        import builtins, threading
        from foreread.torch import _files

        class Slow:  # switches threads between the check and the installation
            def __init__(self, lock): self.lock = lock
            def __enter__(self): start.wait(); self.lock.acquire()
            def __exit__(self, *exception): self.lock.release()

        start = threading.Barrier(2)
        _files._installing = Slow(_files._installing)
        threads = [threading.Thread(target=_files._install) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert _files._open is not _files._served and builtins.open is _files._served
        open(__import__("os").devnull).close()
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def output_of(script: Path, images: Path, body: str) -> str:
    """The stderr of a separate program with `images(read)`, a dataset of these images."""
    script.write_text(
        f"""
import sys
sys.path[:0] = {sys.path!r}
from functools import partial
from pathlib import Path
from test_torch_odd import Plain, Reader, in_c
from torch_images import served
images = partial(Reader, Path({str(images)!r}))
if __name__ == "__main__":
{textwrap.indent(textwrap.dedent(body), "    ")}"""
    )
    done = subprocess.run([sys.executable, str(script)], check=True, timeout=120, capture_output=True, text=True)
    return done.stderr


def test_iterator_dropped_at_exit_prints_nothing(images: Path, tmp_path: Path) -> None:
    body = """
        left = iter(served(Plain(images(lambda path, _: len(open(path, "rb").read())), 8)))
        next(left)
    """
    assert output_of(tmp_path / "left.py", images, body) == ""


@pytest.mark.parametrize("workers", [0, 2])
def test_time_between_epochs_does_not_count(own: Path, workers: int) -> None:
    samples = Reader(own, lambda path, _: Path(path).read_bytes())
    plain = Plain(samples, 4, shuffle=True, generator=torch.Generator().manual_seed(0), num_workers=workers, collate_fn=list)
    loader, begun, slept = served(plain), time.monotonic(), 0.0
    for epoch in range(3):
        for _ in loader:
            if epoch == 1:
                break  # left early
        before = time.monotonic()
        time.sleep(1.0)
        slept += time.monotonic() - before
    counted = loader.stats().report["asked"]["seconds"]
    assert counted <= time.monotonic() - begun - slept
    loader.close()


class Reader(AnyDataset):  # type: ignore[misc, type-arg]
    """A dataset that reads its files with a given function."""

    def __init__(self, root: Path, read: Any, files: list[str] | None = None) -> None:
        self.root, self.read = str(root), read
        self.samples = files or [str(path) for path in sorted(root.rglob("*.png"))]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.read(self.samples[index], index)


def pieces(path: str, index: int) -> Any:
    with open(path, "rb") as file:
        head = file.peek(4)[:4], file.read(3), file.tell()
        file.seek(-5, io.SEEK_END)
        tail = file.read(), file.read(1)
        file.seek(1)
        into = bytearray(7)
        middle = file.readinto(into), bytes(into), file.readline(), file.seekable(), file.readable(), file.writable()
        kinds = isinstance(file, io.BufferedReader), file.mode, file.name, file.raw.tell() >= file.tell()
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    with pytest.raises(ValueError):
        file.read()
    with open(path, "rb", buffering=0) as file:
        raw = file.read(2), file.readall(), file.read(), file.seek(3), file.tell()
    with open(path, "rb") as file:
        file.read(10)
        descriptor = file.fileno() > 2, file.read(5), file.seek(2), file.read(2)
    return head, tail, middle, kinds, raw, descriptor


# semantics: PY-14
def test_served_file_behaves_like_the_file(images: Path) -> None:
    data = Reader(images, pieces)
    theirs = list(Plain(data, 8, collate_fn=list))
    with served(Plain(data, 8, collate_fn=list)) as ours:
        assert list(ours) == theirs
        assert ours.stats().samples > 0


# semantics: PY-14
def test_unreadable_served_file_is_named(own: Path) -> None:
    spoil(own, [5])
    data = torchvision.datasets.ImageFolder(str(own), to_tensor)
    with served(Plain(data, 8)) as ours, pytest.raises(Exception) as caught:
        list(ours)
    assert data.samples[5][0] in str(caught.value)


# semantics: PY-14
def test_file_opened_twice_by_a_sample_is_read_once(images: Path) -> None:
    def twice(path: str, index: int) -> bool:
        with open(path, "rb") as one, open(path, "rb") as other:
            return one.read() == other.read()

    with served(Plain(Reader(images, twice), 8)) as ours:
        assert all(same.all() for same in ours)
        assert sum(ours.stats().report["direct"][tier].get("samples", 0) for tier in ("origin", "memory")) == 0


# semantics: PY-14
def test_large_file_of_many_samples_is_read_as_usual(tmp_path: Path, caplog: Any) -> None:
    video = tmp_path / "video.bin"
    video.write_bytes(bytes(range(256)) * 8192)
    (tmp_path / "small.bin").write_bytes(b"s" * 100)

    def part(path: str, index: int) -> int:
        with open(path, "rb") as file:
            file.seek(index)
            return file.read(1)[0]

    data = Reader(tmp_path, part, [str(video)] * 60 + [str(tmp_path / "small.bin")] * 4)
    with served(Plain(data, 8)) as ours:
        assert [x.tolist() for x in ours] == [x.tolist() for x in Plain(data, 8)]
        # A small file that occurs several times is served, as lists may weight samples in this way.
        assert ours.stats().report["origin_bytes"] <= 100 * 2 * 4 * 9
    (message,) = [record.message for record in caplog.records]
    assert "contain several samples each" in message and "video.bin" in message


def in_c(path: str, index: int) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return len(os.read(descriptor, 1 << 20))
    finally:
        os.close(descriptor)


def test_reader_in_c_is_reported(images: Path, caplog: Any) -> None:
    with served(Plain(Reader(images, in_c), 8)) as ours:
        list(ours)
    (message,) = [record.message for record in caplog.records]
    assert message.startswith("64 samples were made and none of their files was opened by Python's open")


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_of_later_epochs_do_not_repeat_the_warning(images: Path, tmp_path: Path, how: str) -> None:
    body = f"""
        with served(Plain(images(in_c), 8, num_workers=1, multiprocessing_context={how!r})) as ours:
            for _ in range(3):
                list(ours)
    """
    message = output_of(tmp_path / "epochs.py", images, body)
    assert message.count("samples were made and none of their files was opened") == 1, message


# ---- settings ----


def test_settings_of_an_order_are_refused(images: Path, folder: Any) -> None:
    for name, value in (("generator", torch.Generator()), ("worker_init_fn", print)):
        with pytest.raises(foreread.errors.ConfigError, match=f"{name}: .*wrap"):
            DataLoader(images, 8, **{name: value})
        DataLoader(images, 8, **{name: None}).close()
    for name, setting in (("progress", True), ("on_error", "skip"), ("epochs", 3), ("seed", 1), ("batch_size", 8), ("recall", True)):
        with pytest.raises(foreread.errors.ConfigError, match=f"{name}: samples are read on request"):
            wrap(Plain(folder, 8), **{name: setting})
        with pytest.raises(foreread.errors.ConfigError, match=name):
            Dataset(images, **{name: setting})


def test_arguments_of_the_wrong_kind_are_named(images: Path, folder: Any) -> None:
    for name, value in (("num_workers", 2.5), ("num_workers", "2"), ("prefetch_factor", 2.5)):
        with pytest.raises(TypeError, match=f"{name} must be a number"):
            DataLoader(images, 8, **{name: value})
    for name, value in (("num_workers", -1), ("prefetch_factor", 0)):
        with pytest.raises(foreread.errors.ConfigError, match=f"{name}={value}"):
            DataLoader(images, 8, **{name: value})
    for what in (None, folder, 3):
        with pytest.raises(TypeError, match="wrap.. expects a torch.utils.data.DataLoader"):
            wrap(what)  # type: ignore[arg-type]
    with DataLoader(images, 8) as loader, pytest.raises(foreread.errors.ConfigError, match="reads ahead already"):
        wrap(loader)  # type: ignore[arg-type]


# ---- costs and statistics ----


def test_small_batches_keep_all_threads_busy(images: Path) -> None:
    busy, most, lock = 0, 0, threading.Lock()

    def transform(image: Any) -> int:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        time.sleep(0.05)
        with lock:
            busy -= 1
        return 1

    with DataLoader(images, 1, transform=transform, num_workers=8, workers="threads") as loader:
        for _, _ in zip(range(24), loader):
            pass
    assert most == 8, most


# semantics: PY-15
def test_epoch_of_few_samples_reads_at_most_two_epochs(images: Path) -> None:
    with DataLoader(images, 8, memory=0, transform=to_tensor) as loader:
        batches(loader)
        report = loader.stats().report
    assert SAMPLES <= report["origin_requests"] <= 2 * SAMPLES, report["origin_requests"]


# semantics: PY-15
def test_samples_on_disk_are_not_read_each_epoch(images: Path, tmp_path: Path) -> None:
    with DataLoader(images, 8, memory=0, disk=f"{tmp_path / 'cache'}=50MB", transform=to_tensor, epochs=4) as loader:
        batches(loader)
        until("samples are written", lambda: loader.stats().report["disk"]["written"] >= SAMPLES)
        for _ in range(3):
            batches(loader)
        report = loader.stats().report
    # Once each, and once more those of the second epoch that were read ahead. Each epoch's would be four times that.
    assert report["origin_requests"] <= 2 * SAMPLES, report["origin_requests"]


# semantics: PY-16
def test_slow_transform_is_named_as_bottleneck(images: Path) -> None:
    def slow(image: Any) -> int:
        # Longer in all than the first read takes on a busy machine: the largest wait is named.
        time.sleep(0.01)
        return 1

    for workers in (0, 1):
        with DataLoader(images, 8, transform=slow, num_workers=workers) as loader:
            list(loader)
            # A first read on a busy machine may take as long.
            loader.stats()
            list(loader)
            assert loader.stats().limiting == "transform"


# semantics: PY-16
def test_unannounced_reads_count_as_stalls(images: Path) -> None:
    data = Dataset(images, to_tensor, memory=0, origin_limit="40KB")
    list(Plain(data, 8, sampler=range(40)))
    stats = data.stats()
    assert stats.samples == 40 and stats.stall_share > 0.8 and stats.limiting == "origin", stats
    assert 0 < stats.samples_per_second < 1000
    data.close()


@pytest.mark.parametrize("workers", [0, 2])
# semantics: PY-16
def test_wrapped_loader_warns_of_starvation(folder: Any, caplog: Any, workers: int) -> None:
    # About 800 bytes per sample: a hundred samples take a minute.
    with wrap(Plain(folder, 1, num_workers=workers), memory=0, origin_limit=1500, look_ahead="4KB") as loader:
        for _ in loader:
            if any("the trainer has waited" in record.getMessage() for record in caplog.records):
                break
        else:
            pytest.fail("the run ended before anything was printed")
    (message,) = [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]
    assert "limited by origin" in message
