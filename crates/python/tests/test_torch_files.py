"""Unusual directories: dangling links, names outside UTF-8, hidden and rewritten files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import foreread
from foreread._native import catalog_of
from foreread.torch import Dataset
from foreread.torch import DataLoader as Ours
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torch_images import SAMPLES, assert_same, batches, folder, generators, images, served, to_tensor, torchvision  # noqa: F401


@pytest.fixture
def own(tmp_path: Path, images: Path) -> Path:
    """A copy of the images for changes."""
    return Path(shutil.copytree(images, tmp_path / "own"))


def image_folder(root: Path) -> Any:
    return torchvision.datasets.ImageFolder(str(root), transform=to_tensor)


def read_ahead(wrapped: Any) -> int:
    """The number of samples that were read ahead."""
    report = wrapped._parts[0].engine.source.report()
    return sum(epoch["samples"] for epoch in report["epochs"])


def test_dangling_link_does_not_refuse_the_dataset(own: Path, caplog: Any) -> None:
    (own / "elsewhere").mkdir()
    (own / "elsewhere" / "link").symlink_to(own / "nothing")
    (own / "class0" / "loop.txt").symlink_to(own / "class0" / "loop.txt")
    data = image_folder_without_empty(own)
    with served(DataLoader(data, 8)) as ours:
        assert_same(batches(ours), batches(DataLoader(data, 8)))
        assert read_ahead(ours) == SAMPLES
    assert not caplog.records
    (own / "class4" / "zzzzz.png").symlink_to(own / "nothing.png")
    drawn = Subset(image_folder_without_empty(own), range(SAMPLES + 1))
    with served(DataLoader(drawn, 8)) as ours:
        batch = None
        with pytest.raises(FileNotFoundError):
            for batch in ours:
                pass
        assert batch is not None
    (line,) = [record.message for record in caplog.records]
    assert "1 of the dataset's 104 files" in line and "zzzzz.png" in line


def image_folder_without_empty(root: Path) -> Any:
    """ImageFolder refuses a class without images."""
    if (other := root / "elsewhere").exists():
        shutil.copy(next((root / "class0").glob("*.png")), other / "more.png")
        data = image_folder(root)
        data.samples = [(path, label) for path, label in data.samples if "elsewhere" not in path]
        return data
    return image_folder(root)


def test_names_outside_utf_8_are_read_as_usual(own: Path, caplog: Any) -> None:
    first = sorted((own / "class1").iterdir())[0]
    odd = os.fsencode(first.parent) + b"/\xff\xfe.png"
    shutil.copy(first, odd)
    data = image_folder(own)
    assert len(data) == SAMPLES + 1
    for workers in (0, 2):
        with served(DataLoader(data, 8, num_workers=workers)) as ours:
            assert_same(batches(ours), batches(DataLoader(data, 8)))
            assert read_ahead(ours) == SAMPLES
    assert "names that are not UTF-8" in caplog.text and "udcff" in caplog.text


def test_hidden_files_are_served_by_wrap(own: Path) -> None:
    shutil.copytree(own / "class0", own / ".class")
    shutil.copy(next((own / "class0").iterdir()), own / "class1" / ".h.png")
    data = image_folder(own)
    with served(DataLoader(data, 8)) as ours:
        assert_same(batches(ours), batches(DataLoader(data, 8)))
        assert read_ahead(ours) == len(data) > SAMPLES


@pytest.mark.parametrize("make", [Dataset, lambda root: Ours(root, 8)])
def test_hidden_image_of_image_folder_is_named(own: Path, make: Any) -> None:
    def made() -> None:
        make(own).close()

    # Files that ImageFolder ignores are ignored.
    (own / ".git").mkdir()
    (own / ".git" / "config").write_text("x")
    (own / ".top.png").write_bytes(b"x")
    (own / "class0" / ".DS_Store").write_bytes(b"x")
    made()
    shutil.copy(next((own / "class0").glob("*.png")), own / "class1" / "._a.PNG")
    with pytest.raises(foreread.errors.ConfigError, match=r"class1/\._a\.PNG is hidden.*ImageFolder would include it"):
        made()
    (own / "class1" / "._a.PNG").unlink()
    shutil.copytree(own / "class0", own / ".class", ignore=shutil.ignore_patterns(".*"))
    with pytest.raises(foreread.errors.ConfigError, match=r"/\.class/\d+\.png is hidden"):
        make(own)
    with foreread.Source(own) as source:
        Dataset(source.catalog).close()


@pytest.mark.parametrize("workers", [0, 2])
def test_file_rewritten_with_equal_size_is_read_again(own: Path, workers: int) -> None:
    class Raw(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.root = own
            self.samples = [str(path) for path in sorted(own.rglob("*.png"))]

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, index: int) -> bytes:
            with open(self.samples[index], "rb") as file:
                return file.read()

    data = Raw()
    loader = DataLoader(data, 8, num_workers=workers, collate_fn=list)
    with served(loader, memory="16MiB") as ours:
        list(ours)
        changed = Path(data.samples[50])
        changed.write_bytes(bytes(reversed(changed.read_bytes())))
        Path(data.samples[51]).unlink()
        Path(data.samples[51]).symlink_to(data.samples[0])
        assert list(ours) == list(loader)


def test_unnormalized_paths_reach_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "data"
    (root / "a" / "b").mkdir(parents=True)
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (root / "link").symlink_to(tmp_path / "other" / "deep")
    for path in (root / "x", root / "a" / "x", tmp_path / "other" / "x"):
        path.write_text(str(path))
    monkeypatch.chdir(root / "a")
    paths = [f"{root}/x", f"{root}//x", f"{root}/a/../x", f"{root}/link/../x", "../x", "x", "b/../../x", "../nothing", f"{root}/a"]
    catalog, numbers, times = catalog_of("..", str(root), paths)
    assert catalog is not None and [catalog.path(number) for number in range(len(catalog))] == ["x", "a/x"]
    assert list(memoryview(numbers).cast("q")) == [0, 0, 0, -1, 0, 1, 0, -1, -1]
    assert memoryview(times).cast("q")[0] == (root / "x").stat().st_mtime_ns


def test_concatenated_foreread_datasets_are_wrapped(tmp_path: Path, images: Path) -> None:
    root = tmp_path / "second"
    shutil.copytree(images / "class0", root / "other")
    theirs = ConcatDataset([image_folder(images), Subset(image_folder(root), range(20, 3, -1)), image_folder(images)])
    one, two = Dataset(images, transform=to_tensor, memory="16MiB"), Dataset(root, transform=to_tensor, memory="16MiB")
    data = ConcatDataset([one, Subset(two, range(20, 3, -1)), one])
    make = lambda data: DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(2))  # noqa: E731
    plain = make(theirs)
    with served(make(data)) as ours:
        for _ in range(3):
            assert_same(batches(ours), batches(plain))
        assert [stats.samples for stats in ours.stats()] == [3 * 2 * SAMPLES, 3 * 17]
        for dataset in (one, two):
            direct = dataset.engine.source.report()["direct"]
            assert not any(tier.get("samples") for tier in direct.values())
    with pytest.raises(foreread.errors.ConfigError, match="use it for all of them"):
        served(make(ConcatDataset([Dataset(images), image_folder(root)])))


def test_sibling_folders_are_wrapped_by_their_parent_directory(tmp_path: Path, images: Path) -> None:
    shutil.copytree(images, tmp_path / "one")
    shutil.copytree(images / "class0", tmp_path / "two" / "other")
    data = ConcatDataset([image_folder(tmp_path / "one"), image_folder(tmp_path / "two")])
    with served(DataLoader(data, 8)) as ours:
        assert_same(batches(ours), batches(DataLoader(data, 8)))
        assert read_ahead(ours) == len(data)
