"""Datasets that a table lists."""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import bucket
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import foreread
from conftest import content


def rows(count: int = 12) -> list[dict[str, Any]]:
    """Rows over the files of `directory`, not in the order of their names."""
    chosen = random.Random(7).sample(range(100), count)
    return [
        {
            "file": f"class{number // 25}/{number:03}.bin",
            "kind": ("tree", "dog", "cat")[number % 3],
            "split": "train" if number % 2 else "test",
            "caption": f'number "{number}",\nsecond line ü',
            "weight": number / 4,
            "number": number,
        }
        for number in chosen
    ]


def written(folder: Path, form: str, table: list[dict[str, Any]]) -> Path:
    """The table as a file."""
    path, frame = folder / f"train.{form}", pa.Table.from_pylist(table)
    match form:
        case "csv":
            with path.open("w", newline="", encoding="utf-8-sig") as file:
                writer = csv.DictWriter(file, table[0].keys(), lineterminator="\r\n")
                writer.writeheader()
                writer.writerows(table)
        case "tsv":
            pd.DataFrame(table).to_csv(path, sep="\t", index=False)
        case "csv.gz":
            path.write_bytes(gzip.compress(pd.DataFrame(table).to_csv(index=False).encode()))
        case "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in table))
        case "json":
            path.write_text(json.dumps(table))
        case "parquet":
            pyarrow.parquet.write_table(frame, path)
        case "feather":
            pyarrow.feather.write_feather(frame, path)
        case "arrow":
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, frame.schema) as writer:
                writer.write_table(frame)
    return path


FORMS = ("csv", "tsv", "csv.gz", "jsonl", "json", "parquet", "feather", "arrow")


def check(catalog: foreread.Catalog, table: list[dict[str, Any]]) -> None:
    """The catalog, and the samples that a loader reads, are the table's rows."""
    names = sorted({row["kind"] for row in table})
    assert len(catalog) == len(table) and catalog.classes == names
    with foreread.Loader(catalog, batch_size=5, epochs=1, sampler="sequential") as loader:
        samples = [sample for batch in loader for sample in batch]
    assert [sample.id for sample in samples] == list(range(len(table)))
    for at, (row, sample) in enumerate(zip(table, samples, strict=True)):
        assert sample.path == catalog.path(at) == row["file"]
        assert bytes(sample) == content(row["number"])
        assert sample.label == catalog.label(at) == names.index(row["kind"]) and sample.label_name == row["kind"]
        for name in ("caption", "weight", "number", "split"):
            assert sample[name] == catalog.value(at, name) == row[name]


@pytest.mark.parametrize("form", FORMS)
# semantics: SAMPLE-25
def test_rows_of_a_table_are_samples(directory: Path, tmp_path: Path, form: str) -> None:
    table = rows()
    path = written(tmp_path, form, table)
    catalog = foreread.index(directory, table=path, path="file", label="kind")
    check(catalog, table)
    catalog.save(tmp_path / "saved.foreread")
    opened = foreread.Catalog.open(tmp_path / "saved.foreread")
    check(opened, table)
    check(pickle.loads(pickle.dumps(opened)), table)
    assert opened.fingerprint == catalog.fingerprint and "12 rows" in (catalog.summary or "")


@pytest.mark.parametrize("kind", ["frame", "arrow", "dicts"])
# semantics: SAMPLE-25
def test_tables_in_memory_are_those_of_files(directory: Path, tmp_path: Path, kind: str) -> None:
    table = rows()
    made = {"frame": pd.DataFrame, "arrow": pa.Table.from_pylist, "dicts": list}[kind](table)
    catalog = foreread.index(directory, table=made, path="file", label="kind")
    check(catalog, table)
    of_file = foreread.index(directory, table=written(tmp_path, "parquet", table), path="file", label="kind")
    assert of_file.fingerprint == catalog.fingerprint


# semantics: SAMPLE-25
def test_classes_are_those_of_the_whole_table(directory: Path) -> None:
    table = rows(40)
    chosen = [row for row in table if row["split"] == "train" and row["kind"] != "cat"]
    filters = [("split", "==", "train"), ("kind", "in", ["dog", "tree"])]
    catalog = foreread.index(directory, table=table, path="file", label="kind", columns=["number"], filters=filters)
    assert [catalog.value(at, "number") for at in range(len(catalog))] == [row["number"] for row in chosen]
    assert catalog.classes == ["cat", "dog", "tree"] and catalog.value_names == ["number"]
    assert [catalog.label(at) for at in range(len(catalog))] == [catalog.classes.index(row["kind"]) for row in chosen]
    named = foreread.index(directory, table=table, path="file", label="kind", classes=["tree", "eel", "dog", "cat"])
    assert named.classes == ["tree", "eel", "dog", "cat"] and named.label(0) == named.classes.index(table[0]["kind"])
    either = foreread.index(directory, table=table, path="file", filters=[[("number", "<", 10)], [("number", ">=", 90)]])
    assert len(either) == sum(row["number"] < 10 or row["number"] >= 90 for row in table)


# semantics: SAMPLE-25
def test_labels_may_be_numbers_and_lists(directory: Path) -> None:
    files = [row["file"] for row in rows(4)]
    for values in ([3, -1, 3, 7], [0.5, 1.5, -2.0, 1e9], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]):
        table = pa.table({"path": files, "y": values})
        catalog = foreread.index(directory, table=table, label="y")
        assert np.array_equal([catalog.label(at) for at in range(4)], values)
        assert catalog.classes == []


# semantics: SAMPLE-25
def test_rows_may_repeat_files_and_be_parts_of_them(directory: Path) -> None:
    files = ["class0/003.bin", "class0/003.bin", "class0/001.bin", "class0/003.bin"]
    table = pd.DataFrame({"path": files, "from": [0, 7, 2, 3], "count": [5, 20, 4, 1], "n": [0, 1, 2, 3]})
    catalog = foreread.index(directory, table=table, start="from", length="count")
    with foreread.Loader(catalog, batch_size=4, epochs=2, seed=1) as loader:
        for batch in loader:
            assert sorted(batch.ids) == [0, 1, 2, 3]
            for sample in batch:
                start, count = table["from"][sample.id], table["count"][sample.id]
                whole = content(3 if "003" in sample.path else 1)
                assert bytes(sample) == whole[start : start + count] and sample["n"] == sample.id
    whole = foreread.index(directory, table=table, columns=[])
    assert [whole.size(at) for at in range(4)] == [len(content(3)), len(content(3)), len(content(1)), len(content(3))]


# semantics: SAMPLE-26
def test_missing_files_are_counted_and_named(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = rows(6)
    table[1]["file"], table[4]["file"] = "class0/none.bin", "nowhere/x.bin"
    with pytest.raises(foreread.errors.ConfigError, match=r"2 of 6 rows .*: row 2 \(class0/none.bin\), row 5 .*on_missing='skip'"):
        foreread.index(directory, table=table, path="file", label="kind")
    catalog = foreread.index(directory, table=table, path="file", label="kind", on_missing="skip")
    assert [catalog.path(at) for at in range(len(catalog))] == [table[at]["file"] for at in (0, 2, 3, 5)]
    assert [catalog.value(at, "number") for at in range(4)] == [table[at]["number"] for at in (0, 2, 3, 5)]
    assert "2 of 6 rows" in caplog.text


@pytest.mark.parametrize(
    ("text", "arguments", "why"),
    [
        ("file,y\n", {}, "there are no rows"),
        ("", {}, "names of the columns"),
        ("file,y\na,1\n", {"path": "name"}, "no column \"name\", which path= names; it has \"file\", \"y\""),
        ("a,y\nb,1\n", {}, "set path= to the column with the files"),
        ("file,y,y\na,1,2\n", {}, "two columns have the name \"y\""),
        ("file,y\n,1\n", {}, "1 of 1 rows have no path"),
        ("file,y\n/etc/passwd,1\n", {}, "not below"),
        ("file,y\ns3://other/a,1\n", {}, "not below"),
        ("file,y\n../a,1\n", {}, "cannot be read"),
        ("file,y\na,\n", {"label": "y"}, "1 of 1 rows have no label in the column \"y\": row 1"),
        ("file,y\na,1\nb,nan\n", {"label": "y"}, "1 of 2 rows have no label"),
        ("file,y\na,cat\n", {"label": "y", "classes": ["dog"]}, "classes= lacks 1 of the labels: cat"),
        ("file,y\na,1.5\n", {"filters": [("y", "==", "x")]}, "compares the column \"y\" of numbers"),
        ("file,y\na,1\n", {"filters": [("z", "==", 1)]}, "no column \"z\", which filters= names"),
        ("file,y\na,1,2\n", {}, "line"),
        ("file,y\na,-1\n", {"size": "y"}, "cannot be used"),
        ("file,y\na,1.5\n", {"size": "y"}, "instead of counts of bytes"),
        ("file,y\na,1\na,2\n", {"size": "y"}, "two sizes"),
        ("file,y\na,1\n", {"include": "*"}, "no effect with a table"),
        ("file,y\na,1\n", {"window": 3}, "no effect with table="),
        ("file,y\na,1\n", {"filters": ("y", "==", 1)}, "filters"),
        ("file,y\na,1\n", {"on_missing": "ignore"}, "'fail' or 'skip'"),
    ],
)
# semantics: SAMPLE-26
def test_bad_tables_are_named_errors(tmp_path: Path, text: str, arguments: dict[str, Any], why: str) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    (tmp_path / "b").write_bytes(b"x")
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises((foreread.Error, TypeError)) as raised:
        foreread.index(tmp_path, table=path, **arguments)
    assert why in str(raised.value)


# semantics: SAMPLE-26
def test_bad_values_in_memory_are_named_errors(directory: Path) -> None:
    files = [row["file"] for row in rows(2)]
    for table, arguments, why in (
        (pa.table({"path": files, "y": [[1], [2, 3]]}), {"label": "y"}, "several lengths"),
        (pa.table({"path": files, "y": [{"a": 1}, {"a": 2}]}), {}, "structs or lists of lists; .*; choose others with columns="),
        ([{"path": files[0], "y": 1}, {"path": files[1], "y": "a"}], {"label": "y"}, "the list of rows"),
        ([files], {}, "rows of a list are dicts"),
        (3, {}, "is no table"),
        (pd.DataFrame({"path": files, 3: [1, 2]}), {}, "name of a column is a text"),
        (pa.table({"path": files, "start": [0, 10**6]}), {"start": "start"}, "1 rows end beyond their file"),
    ):
        with pytest.raises((foreread.Error, TypeError), match="(?s)" + why.replace("(", r"\(")):
            foreread.index(directory, table=table, **arguments)


# semantics: SAMPLE-25
def test_location_may_be_left_out(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows(3)
    of_table = written(directory, "csv", table)
    check(foreread.index(table=of_table, path="file", label="kind"), table)
    absolute = [row | {"file": str(directory / row["file"])} for row in table]
    catalog = foreread.index(table=absolute, path="file", label="kind")
    assert [str(Path(catalog.base_url) / catalog.path(at)) for at in range(3)] == [row["file"] for row in absolute]
    with pytest.raises(foreread.errors.ConfigError, match="no location in common"):
        foreread.index(table=table, path="file")
    with pytest.raises(foreread.errors.ConfigError, match="train.csv is a table .* table="):
        foreread.index(of_table)


# semantics: SAMPLE-27
def test_files_of_a_bucket_are_listed_once_or_not_at_all(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows(80)
    for row in table:
        row["bytes"], row["tag"] = len(content(row["number"])), str(len(content(row["number"])))
    requests: list[tuple[str, str]] = []
    with bucket.bucket("my-bucket", "train", directory) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        answer = bucket._Handler.do_GET

        def counted(handler: bucket._Handler) -> None:
            requests.append((handler.command, handler.path))
            answer(handler)

        monkeypatch.setattr(bucket._Handler, "do_GET", counted)
        monkeypatch.setattr(bucket._Handler, "do_HEAD", counted)
        url = "s3://my-bucket/train"
        catalog = foreread.index(url, table=table, path="file", label="kind", columns=["number"])
        # Pages of 50 keys.
        assert [kind for kind, _ in requests] == ["GET", "GET"] and all("list-type" in path for _, path in requests)
        requests.clear()
        sized = foreread.index(url, table=table, path="file", label="kind", columns=["number"], size="bytes", etag="tag")
        assert requests == []
        urls = [row | {"file": f"{url}/{row['file']}"} for row in table]
        assert [sized.size(at) for at in range(80)] == [catalog.size(at) for at in range(80)]
        assert foreread.index(table=urls, path="file", label="kind", columns=["number"]).classes == catalog.classes
        for one in (catalog, sized):
            with foreread.Loader(one, batch_size=16, epochs=1, seed=3) as loader:
                for batch in loader:
                    for sample in batch:
                        assert bytes(sample) == content(sample["number"])
        with pytest.raises(foreread.errors.ConfigError, match=r"1 of 81 rows .*row 81 \(class9/1.bin\)"):
            foreread.index(url, table=[*table, table[0] | {"file": "class9/1.bin"}], path="file")


@pytest.mark.parametrize("seed", range(20))
# semantics: SAMPLE-25
def test_orders_of_tables_are_those_of_numpy(directory: Path, seed: int) -> None:
    """Rows with repeated files, filters and values, over ranks: against a model of a few lines."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 60))
    numbers = draw.integers(0, 100, count)
    frame = pd.DataFrame(
        {
            "path": [f"class{number // 25}/{number:03}.bin" for number in numbers],
            "y": draw.integers(-3, 3, count) if seed % 2 else [f"k{draw.integers(0, 4)}" for _ in range(count)],
            "note": [f"note {at}" * int(draw.integers(0, 3)) or "-" for at in range(count)],
            "x": draw.normal(size=count),
            "part": draw.integers(0, 2, count),
        }
    )
    frame.loc[0, "part"] = 1
    model = frame[frame["part"] == 1].reset_index(drop=True)
    names = sorted(frame["y"].unique()) if seed % 2 == 0 else []
    catalog = foreread.index(directory, table=frame, label="y", filters=[("part", "==", 1)])
    assert len(catalog) == len(model) and catalog.classes == names
    world = int(draw.choice([1, 2, 4]))
    found: list[int] = []
    for rank in range(world):
        options = {"batch_size": 3, "epochs": 1, "seed": seed, "rank": rank, "world_size": world, "peers": "off"}
        with foreread.Loader(catalog, **options) as loader:
            for batch in loader:
                for sample in batch:
                    row = model.iloc[sample.id]
                    found.append(sample.id)
                    assert sample.path == row["path"] and bytes(sample) == content(int(row["path"][-7:-4]))
                    assert sample.label == (names.index(row["y"]) if names else row["y"])
                    assert (sample["note"], sample["x"]) == (row["note"], row["x"])
    assert set(found) == set(range(len(model)))


@pytest.mark.parametrize("how", ["table", "directories", "stem"])
# semantics: SAMPLE-29
def test_samples_of_several_files_have_fields(tmp_path: Path, how: str) -> None:
    numbers = random.Random(1).sample(range(100), 20)
    table = []
    for number in numbers:
        stem = f"k{number % 3}/{number:02}"
        names = {"image": f"images/{stem}.jpg", "mask": f"masks/{stem}.png"}
        if how == "stem":
            names = {"image": f"{stem}.image", "mask": f"{stem}.MASK"}
        for name, path in names.items():
            file = tmp_path / "data" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"" if (name, number) == ("mask", numbers[3]) else f"{name} {number}".encode() * 3)
        table.append({"img": names["image"], "msk": names["mask"], "class": f"k{number % 3}", "n": number})
    arguments: dict[str, Any] = {
        "table": {"table": table, "label": "class", "path": {"image": "img", "mask": "msk"}},
        "directories": {"path": {"image": "images/", "mask": "masks"}},
        "stem": {"group": "stem"},
    }[how]
    catalog = foreread.index(tmp_path / "data", **arguments)
    catalog.save(tmp_path / "c.foreread")
    for one in (catalog, foreread.Catalog.open(tmp_path / "c.foreread")):
        assert len(one) == 20 and one.classes == ["k0", "k1", "k2"]
        with foreread.Loader(one, batch_size=6, epochs=2, seed=5) as loader:
            for batch in loader:
                for sample in batch:
                    number = int(Path(sample.path).stem)
                    assert sample.field_names == ["image", "mask"] and sample.label == number % 3
                    assert bytes(sample["image"]) == f"image {number}".encode() * 3
                    assert bytes(sample["mask"]) == (b"" if number == numbers[3] else f"mask {number}".encode() * 3)
                    assert how != "table" or sample["n"] == number
    if how == "table":
        assert [catalog.value(at, "n") for at in range(20)] == numbers
    gone = tmp_path / "data" / (table[5]["msk"])
    gone.unlink()
    with pytest.raises(foreread.errors.ConfigError, match=r"1 of 20 .*on_missing='skip'"):
        foreread.index(tmp_path / "data", **arguments)
    assert len(foreread.index(tmp_path / "data", **arguments, on_missing="skip")) == 19


@pytest.mark.parametrize("kind", ["files", "table", "rows", "zip"])
# semantics: SAMPLE-28
def test_parts_of_a_dataset_are_its_samples(directory: Path, tmp_path: Path, kind: str) -> None:
    if kind == "rows":
        np.save(tmp_path / "all.npy", np.arange(600, dtype="<i8").reshape(100, 6))
        catalog = foreread.index(tmp_path / "all.npy")
    elif kind == "zip":
        import zipfile

        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            for number in range(100):
                archive.writestr(f"class{number // 25}/{number:03}.bin", content(number))
        catalog = foreread.index(tmp_path / "all.zip")
    elif kind == "table":
        catalog = foreread.index(directory, table=rows(100), path="file", label="kind")
    else:
        catalog = foreread.index(directory)

    def read(one: foreread.Catalog) -> list[tuple[Any, ...]]:
        with foreread.Loader(one, batch_size=7, epochs=1, sampler="sequential") as loader:
            return [(sample.path, bytes(sample), sample.label) for batch in loader for sample in batch]

    whole = read(catalog)
    chosen = random.Random(2).sample(range(100), 30)
    part = catalog.select(chosen)
    assert read(part) == [whole[at] for at in chosen] and part.classes == catalog.classes
    assert read(part.select([3, -1, 3])) == [whole[chosen[at]] for at in (3, 29, 3)]
    even = catalog.filter(lambda row: row["index"] % 2 == 0)
    assert read(even) == whole[::2]
    assert catalog.filter(np.arange(100) % 2 == 0).fingerprint == even.fingerprint
    assert catalog.filter([at % 2 == 0 for at in range(100)]).fingerprint == even.fingerprint
    parts = catalog.random_split([0.8, 0.1, 0.1], seed=3)
    assert [len(one) for one in parts] == [80, 10, 10]
    assert sorted(row for one in parts for row in read(one)) == sorted(whole)
    assert [len(one) for one in catalog.random_split([90, 10])] == [90, 10]
    part.save(tmp_path / "part.foreread")
    assert read(foreread.Catalog.open(tmp_path / "part.foreread")) == [whole[at] for at in chosen]
    for wrong, why in (([100], "no sample 100"), ([], "no samples"), ([True], "mask"), (["a"], "integers")):
        with pytest.raises((foreread.Error, IndexError, TypeError), match=why):
            catalog.select(wrong)
    with pytest.raises(foreread.errors.ConfigError, match="3 values for 100"):
        catalog.filter([True, False, True])
    with pytest.raises(TypeError, match="select"):
        catalog.filter([0, 1])


# semantics: SAMPLE-28
def test_groups_stay_together_and_labels_keep_their_shares(directory: Path) -> None:
    table = [row | {"patient": f"p{row['number'] // 5}"} for row in rows(100)]
    catalog = foreread.index(directory, table=table, path="file", label="kind")
    parts = catalog.random_split([0.7, 0.3], seed=1, group="patient")
    patients = [{part.value(at, "patient") for at in range(len(part))} for part in parts]
    assert not patients[0] & patients[1] and len(parts[0]) + len(parts[1]) == 100 and 60 <= len(parts[0]) <= 80
    parts = catalog.random_split([0.7, 0.3], seed=1, stratify=True)
    for kind in range(3):
        counts = [sum(part.label(at) == kind for at in range(len(part))) for part in parts]
        assert abs(counts[0] - 0.7 * sum(counts)) <= 0.5
    with pytest.raises(foreread.errors.ConfigError, match="group= names the value 'none'|group= names the value \"none\""):
        catalog.random_split([0.5, 0.5], group="none")


def images(folder: Path, count: int = 12) -> list[dict[str, Any]]:
    """Images of one colour, and their rows."""
    image = pytest.importorskip("PIL.Image")
    table = []
    for number in range(count):
        row = {"file": f"{number:02}.png", "kind": f"k{number % 3}", "caption": f"number {number}", "age": number / 2, "n": number}
        image.new("RGB", (6, 4), (number, 2 * number, 3)).save(folder / row["file"])
        image.new("L", (6, 4), number).save(folder / f"{number:02}.mask.png")
        table.append(row)
    return table


def tensor(picture: Any) -> Any:
    import torch

    return torch.from_numpy(np.asarray(picture).copy())


# semantics: PY-21
def test_batches_of_tables_are_images_and_labels_or_dicts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from foreread.torch import DataLoader

    table = images(tmp_path)
    catalog = foreread.index(tmp_path, table=table, path="file", label="kind")
    order: list[int] = []
    for pictures, labels in DataLoader(catalog, 4, seed=2, transform=tensor, epochs=1):
        assert pictures.shape == (4, 4, 6, 3) and labels.dtype == torch.int64
        order += pictures[:, 0, 0, 0].tolist()
        assert labels.tolist() == [number % 3 for number in pictures[:, 0, 0, 0].tolist()]
    assert sorted(order) == list(range(12)) != order
    named = DataLoader(catalog, 4, seed=2, transform=tensor, columns=["caption", "age", "n"], epochs=1)
    found = []
    for batch in named:
        assert list(batch) == ["image", "label", "caption", "age", "n"] and batch["age"].dtype == torch.float32
        assert batch["caption"] == [f"number {number}" for number in batch["n"].tolist()]
        assert batch["label"].tolist() == [number % 3 for number in batch["n"].tolist()]
        assert batch["image"][:, 0, 0, 0].tolist() == batch["n"].tolist() and batch["age"].tolist() == [n / 2 for n in batch["n"].tolist()]
        found += batch["n"].tolist()
    assert found == order
    with pytest.raises(foreread.errors.ConfigError, match="no value 'none', but age, caption, n"):
        DataLoader(catalog, columns=["none"])
    table[3]["age"] = None
    missing = foreread.index(tmp_path, table=table, path="file")
    with pytest.raises(foreread.errors.ConfigError, match=r"sample 3 \(03.png\) has no value 'age': choose rows"):
        list(DataLoader(missing, 12, transform=tensor, columns=["age"], epochs=1))


@pytest.mark.parametrize("workers", [0, 3])
# semantics: PY-21
def test_batches_of_several_files_are_dicts(tmp_path: Path, workers: int) -> None:
    pytest.importorskip("torch")
    from foreread.torch import DataLoader

    table = [row | {"mask": row["file"].replace(".png", ".mask.png")} for row in images(tmp_path)]
    catalog = foreread.index(tmp_path, table=table, path={"image": "file", "mask": "mask"}, label="kind")

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        assert sample["image"].size == sample["mask"].size == (6, 4)
        return {name: tensor(picture) for name, picture in sample.items()}

    for batch in DataLoader(catalog, 4, seed=2, transform=transform, columns=["n"], num_workers=workers, epochs=1):
        assert list(batch) == ["image", "mask", "label", "n"]
        numbers = batch["n"].tolist()
        # A mask keeps its numbers.
        assert batch["image"][:, 0, 0, 0].tolist() == batch["mask"][:, 0, 0].tolist() == numbers
        assert batch["label"].tolist() == [number % 3 for number in numbers]
    for sample in foreread.Loader(catalog, batch_size=1, epochs=1):
        paths = catalog.field_paths(sample[0].id)
        assert bytes(sample[0].field("mask")) == (tmp_path / paths["mask"]).read_bytes()


# semantics: SAMPLE-25
def test_lists_of_files_are_tables(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "val.txt").write_text("class1/030.bin\nclass0/001.bin\n\n")
    plain = foreread.index(directory, table=tmp_path / "val.txt")
    assert [plain.path(at) for at in range(2)] == ["class1/030.bin", "class0/001.bin"] and plain.label(0) is None
    (tmp_path / "train.txt").write_text("class1/030.bin 7\nclass0/001.bin\t-1\n")
    labelled = foreread.index(directory, table=tmp_path / "train.txt", label="label")
    assert [(labelled.path(at), labelled.label(at)) for at in range(2)] == [("class1/030.bin", 7), ("class0/001.bin", -1)]


# semantics: PY-21
def test_two_parts_of_a_batch_with_one_name_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from foreread.torch import DataLoader

    for row in images(tmp_path, 2):
        for folder in ("images/aachen", "labels/aachen"):
            (tmp_path / "d" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "d" / folder / row["file"]).write_bytes((tmp_path / row["file"]).read_bytes())
    paths = {"image": "./images", "label": "labels/"}
    with pytest.raises(foreread.errors.ConfigError, match="two parts of a sample have the name 'label'"):
        DataLoader(foreread.index(tmp_path / "d", path=paths))
    catalog = foreread.index(tmp_path / "d", path=paths, classes=[])
    (batch,) = DataLoader(catalog, 2, shuffle=False, epochs=1, transform=lambda one: {name: tensor(one[name]) for name in one})
    assert list(batch) == ["image", "label"] and batch["label"].shape == (2, 4, 6, 3)


# semantics: SAMPLE-25
def test_values_keep_their_types(directory: Path) -> None:
    files = [row["file"] for row in rows(4)]
    categories = foreread.index(directory, table=pd.DataFrame({"file": files, "y": pd.Categorical([2, 10, 2, 3])}), label="y")
    assert [categories.label(at) for at in range(4)] == [2, 10, 2, 3] and categories.classes == []
    long = "file,id\n" + "".join(f"{file},1234567890123456789{at}\n" for at, file in enumerate(files))
    (directory / "long.csv").write_text(long)
    ids = foreread.index(directory, table=directory / "long.csv")
    assert [ids.value(at, "id") for at in range(4)] == [f"1234567890123456789{at}" for at in range(4)]
    with pytest.raises(foreread.errors.ConfigError, match="12345678901234567890 is longer than 64 bits"):
        foreread.index(directory, table=[{"file": files[0], "id": 12345678901234567890}, {"file": files[1], "id": 0.5}])
    draw = random.Random(5)
    floats = [{"file": files[at % 4], "x": draw.random()} for at in range(500)]
    (directory / "x.json").write_text(json.dumps(floats))
    exact = foreread.index(directory, table=directory / "x.json")
    assert [exact.value(at, "x") for at in range(500)] == [row["x"] for row in floats]
    (directory / "na.csv").write_text(f"file,n\n{files[0]},1\n{files[1]},NA\n")
    missing = foreread.index(directory, table=directory / "na.csv")
    assert [missing.value(at, "n") for at in range(2)] == [1, None]
    frame = pd.DataFrame({"file": [Path(file) for file in files], "n": [1, 2, 3, 4]})
    chosen = foreread.index(directory, table=frame, filters=[("n", ">", np.int64(2))])
    assert [chosen.path(at) for at in range(2)] == files[2:]


# semantics: SAMPLE-26
def test_ambiguous_tables_are_named_errors(directory: Path) -> None:
    files = [row["file"] for row in rows(2)]
    (directory / "open.csv").write_text(f'file,cap\n{files[0]},"unclosed\n{files[1]},x\n')
    twice = pa.Table.from_arrays([pa.array(files), pa.array([1, 2]), pa.array([3, 4])], names=["file", "a", "a"])
    for table, arguments, why in (
        (directory / "open.csv", {}, "line 2: a value begins with a quote and does not end"),
        (twice, {}, "two columns have the name \"a\""),
        (pa.table({"file": files, "label": ["a", "b"], "score": [1, 2]}), {"label": "score"}, "is a value, and label="),
        (pa.table({"file": files, "": [1, 2]}), {}, "a column has no name"),
        (pa.table({"file": files, "s": [3, 0], "n": [0, 2]}), {"start": "s", "length": "n"}, "or have no bytes"),
        ([{"file": files[0], "x": float("inf")}], {}, "infinite"),
    ):
        with pytest.raises(foreread.errors.ConfigError) as raised:
            foreread.index(directory, table=table, **arguments)
        assert why in str(raised.value)


# semantics: SAMPLE-28
def test_parts_are_exact_or_named_errors(directory: Path) -> None:
    table = [row | {"patient": row["number"] // 20} for row in rows(100)]
    catalog = foreread.index(directory, table=table, path="file", label="kind")
    assert [len(part) for part in catalog.random_split([33, 67], stratify=True)] == [33, 67]
    assert [len(part) for part in catalog.random_split([0.8, 0.1, 0.1], group="patient")] == [60, 20, 20]
    for lengths, arguments, why in (
        ([1.0, 0.0], {}, "part 2 of the split, with a share of 0, has no sample of 100 in 100 groups"),
        ([0.2] * 4 + [0.1, 0.1], {"group": "patient"}, "has no sample of 100 in 5 groups"),
    ):
        with pytest.raises(foreread.errors.ConfigError, match=why):
            catalog.random_split(lengths, **arguments)


# semantics: SAMPLE-29
def test_files_of_rare_fields_are_named(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(b"x")
        (tmp_path / f"{number}.cls").write_bytes(b"1")
    (tmp_path / "0.json").write_bytes(b"{}")
    with pytest.raises(foreread.errors.ConfigError, match=r"1 files are of fields that most samples lack: 0.json; .*exclude="):
        foreread.index(tmp_path, group="stem")
    assert len(foreread.index(tmp_path, group="stem", exclude="*.json")) == 4
    assert len(foreread.index(tmp_path, group="stem", on_missing="skip")) == 4


@pytest.mark.parametrize("form", ["parquet", "snappy", "dictionary", "stream", "file"])
# semantics: SAMPLE-32
def test_columns_of_a_packed_table_are_fields_and_values(tmp_path: Path, form: str) -> None:
    from PIL import Image

    def picture(mode: str, number: int) -> bytes:
        out = io.BytesIO()
        Image.new(mode, (16, 16), number if mode == "L" else (number, 0, 0)).save(out, "PNG")
        return out.getvalue()

    count = 40
    lacks_image, lacks_mask = {3, 17}, {4, 17, 39}
    table = pa.table(
        {
            "image": pa.array(
                [{"bytes": None if at in lacks_image else picture("RGB", at), "path": f"{at}.png"} for at in range(count)],
                pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
            ),
            "mask": pa.array([None if at in lacks_mask else picture("L", at) for at in range(count)], pa.binary()),
            "label": pa.array([at % 3 for at in range(count)], pa.int64()),
            "caption": pa.array([None if at == 9 else f"caption {at % 7}" for at in range(count)], pa.string()),
            "weight": pa.array([at / 4 for at in range(count)], pa.float32()),
            "pairs": pa.array([[at, at] for at in range(count)], pa.list_(pa.int64())),
            "meta": pa.array(
                [None if at == 11 else {"author": {"name": f"author {at % 5}"}, "year": at} for at in range(count)],
                pa.struct([("author", pa.struct([("name", pa.string())])), ("year", pa.int16())]),
            ),
        }
    )
    path = tmp_path / ("t.parquet" if form in ("parquet", "snappy", "dictionary") else "t.arrow")
    match form:
        case "parquet":
            pyarrow.parquet.write_table(table, path, compression="none", use_dictionary=False, row_group_size=7)
        case "snappy" | "dictionary":
            pyarrow.parquet.write_table(table, path, row_group_size=11, use_dictionary=form == "dictionary")
        case "stream":
            with pa.ipc.new_stream(path, table.schema) as out:
                out.write_table(table, max_chunksize=9)
        case "file":
            with pa.ipc.new_file(path, table.schema) as out:
                out.write_table(table, max_chunksize=9)
    values = ["caption", "weight"]
    catalog = foreread.index(path, field=["image", "mask"], columns=values)
    rows = [at for at in range(count) if at not in lacks_image | lacks_mask]
    assert len(catalog) == len(rows) and sorted(catalog.value_names) == ["caption", "label", "weight"]
    with foreread.Loader(catalog, batch_size=6, epochs=2, seed=2) as loader:
        for sample in (sample for batch in loader for sample in batch):
            at = rows[sample.id]
            assert sample.field_names == ["image", "mask"] and sample.label == at % 3
            assert (bytes(sample["image"]), bytes(sample["mask"])) == (picture("RGB", at), picture("L", at))
            assert (sample["caption"], sample["weight"]) == (None if at == 9 else f"caption {at % 7}", at / 4)
    # Parts of structs have the names of their paths.
    nested = foreread.index(path, field="image", columns=["meta.author.name", "image.path"], label="meta.year")
    rows = [at for at in range(count) if at not in lacks_image]
    with foreread.Loader(nested, batch_size=6, epochs=1) as loader:
        for sample in (sample for batch in loader for sample in batch):
            at = rows[sample.id]
            assert sample["image.path"] == f"{at}.png" and sample.label == (None if at == 11 else at)
            assert sample["meta.author.name"] == (None if at == 11 else f"author {at % 5}")
    twice = foreread.index(path, field=["image", "mask"], columns=["weight", "weight"], label="weight")
    assert twice.value_names == ["label", "weight"] and twice.label(0) == twice.value(0, "weight") == 0.0
    # One column of bytes is the sample itself.
    one = foreread.index(path, field="image", columns=["caption"])
    assert len(one) == count - len(lacks_image)
    rows = [at for at in range(count) if at not in lacks_image]
    with foreread.Loader(one.filter(lambda row: row["caption"] is not None), batch_size=6, epochs=1) as loader:
        for sample in (sample for batch in loader for sample in batch):
            at = rows[sample.id]
            assert bytes(sample) == picture("RGB", at) and sample["caption"] == f"caption {at % 7}"
    for wrong, why in (({"columns": ["none"]}, "no column"), ({"columns": ["pairs"]}, "neither numbers nor texts"), ({"field": ["mask", "mask"]}, "each once")):
        with pytest.raises(foreread.Error, match=why):
            foreread.index(path, **{"field": "image", **wrong})
    with pytest.raises(foreread.errors.ConfigError, match="columns"):
        foreread.index(tmp_path, format="files", columns=["caption"])


@pytest.mark.parametrize("form", ["parquet", "arrow"])
# semantics: SAMPLE-32, PY-21
def test_batches_of_columns_are_dicts(tmp_path: Path, form: str) -> None:
    import torch
    from PIL import Image

    from foreread.torch import DataLoader

    def picture(mode: str, number: int) -> bytes:
        out = io.BytesIO()
        Image.new(mode, (16, 16), number if mode == "L" else (number, 0, 0)).save(out, "PNG")
        return out.getvalue()

    table = pa.table(
        {
            "image": [picture("RGB", at) for at in range(12)],
            "mask": [picture("L", at) for at in range(12)],
            "caption": [f"caption {at}" for at in range(12)],
            "target": list(range(12)),
        }
    )
    path = tmp_path / f"t.{form}"
    if form == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as out:
            out.write_table(table)
    catalog = foreread.index(path, field=["image", "mask"], columns=["caption"])

    def tensors(sample: dict[str, Any]) -> dict[str, Any]:
        return {name: tensor(picture) for name, picture in sample.items()}

    seen = []
    for batch in DataLoader(catalog, batch_size=5, transform=tensors, columns=["caption"], epochs=1):
        assert list(batch) == ["image", "mask", "label", "caption"]
        for at, label in enumerate(batch["label"].tolist()):
            assert batch["image"][at, 0, 0, 0] == label and batch["caption"][at] == f"caption {label}"
            assert torch.all(batch["mask"][at] == label)
            seen.append(label)
    assert sorted(seen) == list(range(12))


@pytest.mark.parametrize("form", ["CSV", "Parquet", "table"])
# semantics: SAMPLE-33
def test_inventory_stands_for_a_listing(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    root, odd = tmp_path / "root", "class0/a b+c%.bin"
    directory.rename(tmp_path / "moved")
    (root / "inv").mkdir(parents=True)
    (tmp_path / "moved").rename(root / "train")
    (root / "train" / odd).write_bytes(b"odd")
    files = sorted(path for path in (root / "train").rglob("*") if path.is_file())
    # Rows of old versions, deleted objects, directories, other prefixes and hidden files are no samples.
    listed = [(f"data/train/{path.relative_to(root / 'train')}", path.stat().st_size, True, False) for path in files]
    listed += [(listed[0][0], 9, False, False), ("data/train/gone.bin", 1, True, True), ("data/train/class0/", 0, True, False)]
    listed += [("data/other/1.bin", 1, True, False), ("data/train/.hidden/1.bin", 1, True, False)]
    random.Random(3).shuffle(listed)
    parts = [listed[:40], listed[40:]]
    names = [f"inv/{number}.{'csv.gz' if form == 'CSV' else 'parquet'}" for number in range(2)]
    if form == "CSV":
        for name, part in zip(names, parts, strict=True):
            lines = [
                f'"my-bucket","{quote_plus(key, safe="/")}","v","{str(latest).lower()}","{str(deleted).lower()}","{size}","{size}"\n'
                for key, size, latest, deleted in part
            ]
            (root / name).write_bytes(gzip.compress("".join(lines).encode()))
    else:
        for name, part in zip(names, parts, strict=True):
            keys, sizes, latest, deleted = zip(*part, strict=True)
            columns = {"bucket": ["my-bucket"] * len(part), "key": keys, "size": sizes, "e_tag": [f'"{size}"' for size in sizes]}
            columns |= {"is_latest": latest, "is_delete_marker": deleted}
            pyarrow.parquet.write_table(pa.table(columns), root / name)
    manifest = {
        "sourceBucket": "my-bucket",
        "destinationBucket": "arn:aws:s3:::my-bucket",
        "fileFormat": form,
        "fileSchema": "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, ETag",
        "files": [{"key": f"data/{name}", "size": 1, "MD5checksum": "x"} for name in names],
    }
    (root / "inv" / "manifest.json").write_text(json.dumps(manifest))
    requests: list[str] = []
    with bucket.bucket("my-bucket", "data", root) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        answer = bucket._Handler.do_GET

        def counted(handler: bucket._Handler) -> None:
            requests.append(handler.path)
            answer(handler)

        url, place = "s3://my-bucket/data/train", "s3://my-bucket/data/inv/manifest.json"
        plain = foreread.index(url)
        if form == "table":
            place = str(tmp_path / "list.csv")
            sizes = [(key, size) for key, size, latest, deleted in listed if latest and not deleted]
            pd.DataFrame({"Key": [key for key, _ in sizes], "Size": [size for _, size in sizes], "ETag": [size for _, size in sizes]}).to_csv(
                place, index=False
            )
        monkeypatch.setattr(bucket._Handler, "do_GET", counted)
        monkeypatch.setattr(bucket._Handler, "do_HEAD", counted)
        catalog = foreread.index(url, inventory=place)
        assert not [path for path in requests if "prefix=data%2Ftrain" in path] and len(requests) <= 8
        rows = [[(one.path(at), one.size(at), one.label(at)) for at in range(len(one))] for one in (plain, catalog)]
        assert rows[0] == rows[1] and len(rows[0]) == 101
        assert catalog.fingerprint == plain.fingerprint
        some = foreread.index(url, inventory=place, include="class2/*")
        assert len(some) == 25 and some.classes == [f"class{number}" for number in range(4)]
        with foreread.Loader(catalog, batch_size=16, epochs=1) as loader:
            for sample in (sample for batch in loader for sample in batch):
                assert bytes(sample) == (root / "train" / sample.path).read_bytes()
        with pytest.raises(foreread.Error, match="none of its .* objects is below"):
            foreread.index("s3://my-bucket/data/nothing", inventory=place)
        if form != "table":
            with pytest.raises(foreread.Error, match="of the bucket my-bucket, and not of"):
                foreread.index("s3://other-bucket/data", inventory=place)
        (root / "train" / odd).unlink()
        assert catalog.updated().fingerprint == catalog.fingerprint


# semantics: FORMAT-2
def test_partitions_are_columns_and_labels(tmp_path: Path) -> None:
    parts = [("2024-01-01", 3), ("2024-01-01", 4), ("a b/c", 3)]
    for day, kind in parts:
        frame = pd.DataFrame({"data": [b"%d" % at for at in range(4)], "day": [day] * 4, "kind": [kind] * 4})
        frame.to_parquet(tmp_path, partition_cols=["day", "kind"], use_dictionary=False)
    catalog = foreread.index(tmp_path, columns=["day"], label="kind")
    with foreread.Loader(catalog, batch_size=5, epochs=1) as loader:
        found = sorted((bytes(sample), sample["day"], sample.label) for batch in loader for sample in batch)
    assert found == sorted((b"%d" % at, day, kind) for day, kind in parts for at in range(4))
    assert foreread.index(tmp_path, columns=["day", "kind"]).value_names == ["day", "kind"]
    with pytest.raises(foreread.Error, match='there is no column "week"'):
        foreread.index(tmp_path, columns=["week"])


# semantics: FORMAT-2
def test_named_partition_precedes_columns_of_other_names(tmp_path: Path) -> None:
    for kind in (3, 4):
        (tmp_path / "all" / f"kind={kind}").mkdir(parents=True)
        frame = pd.DataFrame({"data": [b"a", b"b"], "label": [100, 101]})
        frame.to_parquet(tmp_path / "all" / f"kind={kind}" / "a.parquet")
    for options, labels in (({"label": "kind"}, [3, 3, 4, 4]), ({"columns": ["kind"]}, [100, 101, 100, 101])):
        with foreread.Loader(foreread.index(tmp_path / "all", **options), batch_size=4, epochs=1) as loader:
            (batch,) = loader
            assert sorted((sample.id, sample.label) for sample in batch) == list(enumerate(labels))
    # Where some shards are in no partition, all have the column in the file.
    (tmp_path / "some" / "day=3").mkdir(parents=True)
    for name, days in (("day=3/a", [1, 2]), ("b", [5, 6])):
        pd.DataFrame({"data": [b"a", b"b"], "day": days}).to_parquet(tmp_path / "some" / f"{name}.parquet")
    for options in ({"columns": ["day"]}, {"label": "day"}):
        with foreread.Loader(foreread.index(tmp_path / "some", **options), batch_size=4, epochs=1) as loader:
            (batch,) = loader
            assert sorted(sample.label if "label" in options else sample["day"] for sample in batch) == [1, 2, 5, 6]


def test_frame_of_polars_is_a_table(directory: Path) -> None:
    import polars

    rows = {"file": [f"class{at // 25}/{at:03}.bin" for at in range(100)], "kind": [f"k{at % 3}" for at in range(100)]}
    frame = polars.DataFrame({**rows, "x": [[at, -at] for at in range(100)]}, schema_overrides={"kind": polars.Categorical})
    catalog = foreread.index(directory, table=frame, path="file", label="kind")
    assert catalog.classes == ["k0", "k1", "k2"]
    with foreread.Loader(catalog.select([7, 90]), batch_size=2, epochs=1, sampler="sequential") as loader:
        (batch,) = loader
        assert [(bytes(sample), sample.label, list(sample["x"])) for sample in batch] == [
            (content(7), 1, [7, -7]),
            (content(90), 0, [90, -90]),
        ]
    lazy = frame.lazy().filter(polars.col("kind") == "k1")
    assert len(foreread.index(directory, table=lazy, path="file")) == 33
