"""Datasets that grow: numbers, classes, parts and caches stay, against a model of a dict."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import foreread
from conftest import content

SEEDS = 1000 if "FOREREAD_SOAK" in os.environ else 12


def read(catalog: foreread.Catalog) -> dict[int, tuple[str, bytes, Any]]:
    """Each sample's number, path, bytes and label."""
    with foreread.Loader(catalog, batch_size=7, epochs=1, sampler="sequential") as loader:
        found = {sample.id: (sample.path, bytes(sample), sample.label_name) for batch in loader for sample in batch}
    assert list(found) == list(array("q", catalog.numbers())) and len(found) == len(catalog)
    return found


def check(catalog: foreread.Catalog, files: dict[str, bytes], model: dict[int, tuple[str, bytes]]) -> foreread.Catalog:
    """Updates a catalog of `files`, and compares it with the model, which is updated, too."""
    updated = catalog.updated()
    gone = [number for number, (path, data) in model.items() if files.get(path) != data]
    for number in gone:
        del model[number]
    there = {path for path, _ in model.values()}
    new = sorted(set(files) - there)
    first = max([*model, *gone]) + 1
    found = read(updated)
    # Numbers are never used again, and new ones follow all that there were.
    numbers = sorted(set(found) - set(model))
    assert len(numbers) == len(new) and all(number >= first for number in numbers)
    model |= {number: found[number][:2] for number in numbers}
    assert sorted(found[number][0] for number in numbers) == new
    assert {number: row[:2] for number, row in found.items()} == model
    assert {row[:2] for row in found.values()} == set(files.items())
    # The class of each sample is its directory, and classes keep their numbers.
    assert updated.classes[: len(catalog.classes)] == catalog.classes
    assert all(label == path.split("/")[0] for path, _, label in found.values())
    return updated


@pytest.mark.parametrize("seed", range(SEEDS))
# semantics: SAMPLE-31
def test_numbers_stay_while_files_come_and_go(tmp_path: Path, seed: int) -> None:
    draw, data = np.random.default_rng(seed), tmp_path / "data"
    files: dict[str, bytes] = {}

    def write(path: str, text: bytes) -> None:
        (data / path).parent.mkdir(parents=True, exist_ok=True)
        # A new file, as a copy of a dataset has them.
        (data / path).unlink(missing_ok=True)
        (data / path).write_bytes(text)
        files[path] = text

    for number in range(int(draw.integers(1, 30))):
        write(f"k{draw.integers(3, 6)}/{number:03}.bin", content(number))
    catalog = foreread.index(data)
    model = {number: row[:2] for number, row in read(catalog).items()}
    for step in range(4):
        for path in draw.permutation(list(files))[: draw.integers(0, 4)]:
            if len(files) > 1:
                (data / path).unlink()
                del files[path]
        for path in draw.permutation(list(files))[: draw.integers(0, 3)]:
            write(path, f"changed {step} ".encode() * int(draw.integers(1, 9)))
        for number in range(int(draw.integers(0, 6))):
            write(f"k{draw.integers(0, 9)}/{step}{number:03}.bin", f"new {step} {number}".encode())
        if step % 2:
            catalog.save(tmp_path / "saved.foreread")
            catalog = foreread.Catalog.open(tmp_path / "saved.foreread")
        catalog = check(catalog, files, model)
    assert read(catalog.updated()) == read(catalog) and catalog.updated().fingerprint == catalog.fingerprint


# semantics: SAMPLE-31
def test_parts_keep_their_samples_while_a_dataset_grows(directory: Path) -> None:
    catalog = foreread.index(directory)

    def split(one: foreread.Catalog) -> list[set[int]]:
        parts = one.random_split([0.7, 0.3], seed=4, stratify=True)
        return [set(array("q", part.numbers())) for part in parts]

    before = split(catalog)
    for number in range(100, 150):
        path = directory / f"class{number % 5}" / f"{number}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(number))
    shutil.rmtree(directory / "class1")
    grown = catalog.updated()
    gone = set(range(25, 50))
    after = split(grown)
    assert len(grown) == 115 and sum(map(len, after)) == 115
    for one, other in zip(before, after, strict=True):
        assert one - gone == {number for number in other if number < 100}
    assert abs(len(after[0]) - 80) <= 8
    part = grown.random_split([0.5, 0.5])[0]
    with pytest.raises(foreread.errors.ConfigError, match="in no part"):
        part.updated()
    assert part.whole().fingerprint == grown.fingerprint


# semantics: SAMPLE-31
def test_groups_stay_in_their_part_while_a_table_grows(directory: Path) -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        return [{"path": f"class{at // 25}/{at:03}.bin", "patient": f"p{at % 13}", "y": at} for at in range(count)]

    catalog = foreread.index(directory, table=rows(60), label="y")
    with pytest.raises(foreread.errors.ConfigError, match="in memory"):
        catalog.updated()
    before = [list(array("q", part.numbers())) for part in catalog.random_split([0.6, 0.4], group="patient")]
    grown = catalog.updated(table=rows(100))
    parts = grown.random_split([0.6, 0.4], group="patient")
    for one, part in zip(before, parts, strict=True):
        numbers = list(array("q", part.numbers()))
        assert numbers[: len(one)] == one
        assert {part.value(at, "patient") for at in range(len(one))} == {
            part.value(at, "patient") for at in range(len(part))
        }


# semantics: SAMPLE-31
def test_tables_grow_and_correct_their_labels(directory: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"

    def write(rows: list[tuple[int, str, str]]) -> None:
        frame = pd.DataFrame(rows, columns=["number", "class", "note"])
        frame["file"] = [f"class{number // 25}/{number:03}.bin" for number in frame["number"]]
        frame.to_csv(table, index=False)

    write([(5, "b", "x"), (9, "c", "y"), (5, "b", "z"), (70, "c", "w")])
    catalog = foreread.index(directory, table=table, label="class")
    # One row is gone, one has another label and another note, three are new: one of them repeats a file.
    write([(70, "d", "w!"), (3, "a", "v"), (5, "b", "z"), (5, "b", "x"), (5, "b", "u"), (99, "c", "t")])
    grown = catalog.updated()
    assert grown.classes == ["b", "c", "a", "d"]
    numbers = list(array("q", grown.numbers()))
    assert numbers == [0, 2, 3, 4, 5, 6]
    rows = [(grown.path(at)[-7:-4], grown.classes[grown.label(at)], grown.value(at, "note")) for at in range(6)]
    assert rows[2:] == [("070", "d", "w!"), ("003", "a", "v"), ("005", "b", "u"), ("099", "c", "t")]
    assert {rows[0], rows[1]} == {("005", "b", "z"), ("005", "b", "x")}
    # It comes back: its number, too. The row with the note "z" has always been number 2.
    write([(9, "c", "y"), (5, "b", "z")])
    assert list(array("q", grown.updated().numbers())) == [1, 2]
    table.unlink()
    with pytest.raises(foreread.Error, match=r"table\.csv"):
        grown.updated()


# semantics: SAMPLE-31
def test_shards_are_added_and_removed(tmp_path: Path) -> None:
    def shard(name: str, keys: range) -> None:
        with tarfile.open(tmp_path / "data" / name, "w") as archive:
            for key in keys:
                for ending, data in (("bin", content(key)), ("cls", str(key).encode())):
                    member = tarfile.TarInfo(f"{key:03}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))

    (tmp_path / "data").mkdir()
    shard("b.tar", range(10))
    shard("c.tar", range(10, 30))
    catalog = foreread.index(tmp_path / "data")
    shard("a.tar", range(30, 35))
    (tmp_path / "data" / "b.tar").unlink()
    grown = catalog.updated()
    assert list(array("q", grown.numbers())) == list(range(10, 35))
    with foreread.Loader(grown, batch_size=4, epochs=2, seed=3) as loader:
        for batch in loader:
            for sample in batch:
                assert bytes(sample["bin"]) == content(sample.id) and int(bytes(sample["cls"])) == sample.id
                assert sample.path == f"{'c' if sample.id < 30 else 'a'}.tar/{sample.id:03}"


# semantics: SAMPLE-31
def test_windows_of_arrays_grow_by_files(tmp_path: Path) -> None:
    def array_of(name: str, first: int, rows: int) -> None:
        np.save(tmp_path / "data" / name, np.arange(first, first + rows * 4, dtype="<i4").reshape(rows, 4))

    (tmp_path / "data").mkdir()
    array_of("b.npy", 0, 50)
    array_of("c.npy", 1000, 20)
    catalog = foreread.index(tmp_path / "data", format="npy")
    array_of("a.npy", 2000, 10)
    (tmp_path / "data" / "b.npy").unlink()
    grown = catalog.updated()
    assert list(array("q", grown.numbers())) == list(range(50, 80))
    with foreread.Loader(grown, batch_size=4, epochs=1, seed=3) as loader:
        for sample in (sample for batch in loader for sample in batch):
            row = sample.id - 50
            assert sample.array()[0] == (1000 + 4 * row if row < 20 else 2000 + 4 * (row - 20))


# semantics: SAMPLE-31
def test_catalog_that_lost_everything_is_an_error(directory: Path, tmp_path: Path) -> None:
    catalog = foreread.index(directory)
    shutil.rmtree(directory)
    directory.mkdir()
    with pytest.raises(foreread.Error, match="no samples"):
        catalog.updated()
    (directory / "one").write_bytes(b"x")
    assert list(array("q", catalog.updated().numbers())) == [100]


# semantics: SAMPLE-31
def test_disk_keeps_its_copies_while_a_dataset_grows(directory: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch_size": 7, "epochs": 1, "memory": 0, "disk": f"{tmp_path / 'cache'}=10MB"}

    def load(catalog: foreread.Catalog, **more: Any) -> int:
        with foreread.Loader(catalog, **settings | more) as loader:
            for sample in (sample for batch in loader for sample in batch):
                assert bytes(sample) == (directory / sample.path).read_bytes()
            requests: int = loader.report()["origin_requests"]
            return requests

    # Files of one moment prove nothing by their times.
    for number, path in enumerate(sorted(directory.rglob("*.bin"))):
        os.utime(path, (1_500_000_000 + number, 1_500_000_000 + number))
    catalog = foreread.index(directory)
    load(catalog, epochs=2)
    assert load(catalog) == 0
    for number in range(5):
        (directory / f"class0/new{number}.bin").write_bytes(content(200 + number))
    (directory / "class0/003.bin").unlink()
    (directory / "class1/030.bin").write_bytes(b"changed")
    grown = catalog.updated()
    assert 6 <= load(grown, epochs=2) <= 12
    assert load(grown) == 0
    # Another dataset that grew from the same one does not take its samples.
    for number in range(5):
        (directory / f"class0/new{number}.bin").unlink()
        (directory / f"class2/other{number}.bin").write_bytes(content(300 + number))
    other = catalog.updated()
    assert len(other) == len(grown)
    assert load(other, epochs=2) >= 5
    caches = [path for path in (tmp_path / "cache").rglob("index")]
    assert len(caches) == 1


# semantics: SAMPLE-31
def test_file_that_looks_unchanged_is_not_read_from_an_old_copy(directory: Path, tmp_path: Path) -> None:
    """Guards against this fault: an update kept the identity of a file rewritten with its old time and length."""
    settings: dict[str, Any] = {"batch_size": 7, "epochs": 2, "memory": 0, "disk": f"{tmp_path / 'cache'}=10MB"}

    def load(catalog: foreread.Catalog) -> None:
        with foreread.Loader(catalog, **settings) as loader:
            for sample in (sample for batch in loader for sample in batch):
                assert bytes(sample) == (directory / sample.path).read_bytes(), sample.path

    for number, path in enumerate(sorted(directory.rglob("*.bin"))):
        os.utime(path, (1_500_000_000 + number, 1_500_000_000 + number))
    catalog = foreread.index(directory)
    load(catalog)
    path = directory / "class0" / "003.bin"
    before = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    updated = catalog.updated()
    assert list(array("q", updated.numbers())) == list(range(100))
    load(updated)
    # Rights change the same record, and the numbers stay.
    for file in directory.rglob("*.bin"):
        file.chmod(0o600)
    (directory / "class0" / "new.bin").write_bytes(b"new")
    updated = updated.updated()
    assert list(array("q", updated.numbers())) == list(range(101))
    load(updated)


# semantics: SAMPLE-28, SAMPLE-31
def test_groups_that_come_one_by_one_keep_the_shares(tmp_path: Path) -> None:
    def rows(groups: int) -> pd.DataFrame:
        return pd.DataFrame({"path": [f"{at}" for at in range(5 * groups)], "size": 1, "who": [at // 5 for at in range(5 * groups)]})

    for shares in ([0.9, 0.1], [0.8, 0.1, 0.1]):
        catalog = foreread.index(tmp_path, table=rows(1), size="size")
        for groups in range(2, 101, 7):
            catalog = catalog.updated(table=rows(groups))
        count = len(catalog)
        parts = catalog.random_split(shares, group="who", seed=1)
        for part, share in zip(parts, shares, strict=True):
            assert abs(len(part) - share * count) <= 10, (shares, [len(part) for part in parts])


# semantics: SAMPLE-31
def test_request_of_an_index_is_repeated(directory: Path, tmp_path: Path) -> None:
    """Guards against these faults: rows were read with other columns, and new classes and directories were refused."""
    rows = [{"img": f"class0/{at:03}.bin", "other": at} for at in range(3)]
    catalog = foreread.index(directory, table=rows, path="img")
    grown = catalog.updated(table=[*rows, {"img": "class1/030.bin", "other": 9}])
    assert list(array("q", grown.numbers())) == [0, 1, 2, 3] and grown.value(3, "other") == 9
    named = foreread.index(directory, classes=["class3", "class2", "class1", "class0"])
    (directory / "a").mkdir()
    (directory / "a" / "1.bin").write_bytes(b"a")
    assert named.updated().classes == ["class3", "class2", "class1", "class0", "a"]
    files = [{"path": str(directory / "class0" / f"{at:03}.bin")} for at in range(3)]
    absolute = foreread.index(table=files)
    with pytest.raises(foreread.Error, match="class1"):
        absolute.updated(table=[*files, {"path": str(directory / "class1" / "030.bin")}])
    assert len(absolute.updated(table=[*files, {"path": str(directory / "class0" / "009.bin")}])) == 4


# semantics: SAMPLE-22
def test_frames_of_parts_of_arrays_have_a_row_for_each_sample(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "a.npy", np.zeros((3, 2), "<i4"))
    np.save(tmp_path / "data" / "b.npy", np.zeros((2, 2), "<i4"))
    catalog = foreread.index(tmp_path / "data", format="npy")
    assert catalog.select([1, 4, 3]).to_pandas()["object"].tolist() == ["a.npy", "b.npy", "b.npy"]
    np.save(tmp_path / "data" / "c.npy", np.zeros((2, 3), "<i4"))
    with pytest.raises(foreread.Error, match="lose their numbers"):
        catalog.updated()
