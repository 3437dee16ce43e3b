"""Tables and files with which labels or samples went wrong without a word, and arguments that had no effect."""

from __future__ import annotations

import datetime
import logging
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import foreread
from foreread.torch import DataLoader, Dataset, wrap


@pytest.fixture
def files(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(12):
        (data / f"{number}.bin").write_bytes(bytes([number]) * 10)
    return data


def paths(count: int) -> list[dict[str, Any]]:
    return [{"file": f"{number}.bin"} for number in range(count)]


# semantics: SAMPLE-28
def test_mask_is_no_list_of_indices(files: Path) -> None:
    catalog = foreread.index(files, table=paths(6))
    with pytest.raises(TypeError, match=r"filter\(\) takes a mask"):
        catalog.select(np.arange(6) >= 4)
    assert list(array("q", catalog.filter(np.arange(6) >= 4).numbers())) == [4, 5]
    assert len(catalog.select(np.array([5, 4]))) == 2


# semantics: SAMPLE-25
def test_integers_and_texts_in_labels_of_a_csv_are_an_error(files: Path) -> None:
    table = files.parent / "t.csv"
    table.write_text("file,label\n" + "".join(f"{at}.bin,{at}\n" for at in range(11)))
    catalog = foreread.index(files, table=table)
    assert [catalog.label(at) for at in range(11)] == list(range(11)) and catalog.classes == []
    table.write_text(table.read_text() + "11.bin,l1\n")
    for read in (catalog.updated, lambda: foreread.index(files, table=table, label="label")):
        with pytest.raises(foreread.Error, match='integers in 11 of 12 rows, and "l1" in row 12; correct'):
            read()
    names = [str(at) for at in range(11)] + ["l1"]
    assert foreread.index(files, table=table, label="label", classes=names).label(11) == 11


# semantics: SAMPLE-31
def test_rows_of_one_file_are_known_by_their_values(files: Path) -> None:
    rows = [{"file": f"{at // 4}.bin", "first": at} for at in range(12)]
    catalog = foreread.index(files, table=rows)
    for table, gone in ((rows[1:], [0]), (rows[:5] + rows[6:], [5])):
        updated = catalog.updated(table=table)
        numbers = [number for number in range(12) if number not in gone]
        assert list(array("q", updated.numbers())) == numbers
        assert [updated.value(at, "first") for at in range(11)] == numbers
        parts = [catalog.random_split([0.5, 0.5], seed=0), updated.random_split([0.5, 0.5], seed=0)]
        train, grown = (set(array("q", split[0].numbers())) for split in parts)
        assert grown == train - set(gone)
    # A value of one row was corrected, and one row is new.
    table = [row | {"first": 100} if row["first"] == 7 else row for row in rows] + [{"file": "0.bin", "first": 12}]
    updated = catalog.updated(table=table)
    assert [updated.value(at, "first") for at in range(13)] == [*range(7), 100, *range(8, 13)]
    # One of two rows is gone, and the value of the other one was corrected later.
    catalog = foreread.index(files, table=[{"file": "0.bin", "first": 1}, {"file": "0.bin", "first": 2}])
    catalog = catalog.updated(table=[{"file": "0.bin", "first": 2}]).updated(table=[{"file": "0.bin", "first": 3}])
    assert (list(array("q", catalog.numbers())), catalog.value(0, "first")) == ([1], 3)
    with pytest.raises(foreread.Error, match='column "first" is not there any more'):
        catalog.updated(table=paths(12))


# semantics: SAMPLE-26
def test_values_without_a_place_in_tables_are_errors(files: Path) -> None:
    def read(value: Any) -> Any:
        return foreread.index(files, table=[{"file": "0.bin", "x": value}]).value(0, "x")

    assert (read(b"text"), read(np.int64(3)), read(datetime.date(2026, 1, 2)), read(pd.NA)) == ("text", 3, "2026-01-02", None)
    for value, why in ((b"\xff\x00", "row 1 has bytes that are no UTF-8"), (object(), "a object has no place"), ({1, 2}, "a set has")):
        with pytest.raises(foreread.errors.ConfigError, match=why):
            read(value)
    for table, why in (([], "has no rows"), (pd.Series(["0.bin"]), "a Series is one column")):
        with pytest.raises(foreread.errors.ConfigError, match=why):
            foreread.index(files, table=table)
    lines = files.parent / "t.jsonl"
    for text, why in (
        ('{"file": "0.bin", "y": "a"}\n{"file": "1.bin", "y": 1}\n', '"y" is a text in line 1, and a number in line 2'),
        ('{"file": "0.bin"}\n{"file": \n', "line 2 is no JSON"),
    ):
        lines.write_text(text)
        with pytest.raises(foreread.Error, match=why):
            foreread.index(files, table=lines)
    with pytest.raises(foreread.Error, match="none.csv is not there; paths of tables are relative to the working directory"):
        foreread.index(files, table="none.csv")
    with pytest.raises(foreread.Error, match="etag= is of objects in a bucket"):
        foreread.index(files, table=[{"file": "0.bin", "n": 10, "e": "x"}], size="n", etag="e")


# semantics: SAMPLE-25
def test_column_of_the_name_label_has_the_labels(files: Path) -> None:
    table = [{"file": "0.bin", "label": "a"}, {"file": "1.bin", "label": "b"}]
    catalog = foreread.index(files, table=table, classes=["b", "a"])
    assert (catalog.classes, catalog.label(0), catalog.label(1)) == (["b", "a"], 1, 0)
    assert foreread.index(files, table=table).classes == ["a", "b"]
    none = foreread.index(files, table=table, classes=[])
    assert (none.classes, none.label(0), none.value_names) == ([], None, [])
    with pytest.raises(foreread.Error, match="1 of 2 rows have no label"):
        foreread.index(files, table=[table[0], {"file": "1.bin", "label": None}])
    with pytest.raises(foreread.Error, match="classes= needs label="):
        foreread.index(files, table=paths(2), classes=["a"])


# semantics: SAMPLE-32
def test_missing_labels_and_skipped_rows_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = tmp_path / "data"
    data.mkdir()
    table = pa.table({"image": [b"a", b"b", None], "label": pa.array([0, None, 1]), "none": pa.array([None] * 3, pa.int64())})
    pyarrow.parquet.write_table(table, data / "t.parquet", compression="NONE", use_dictionary=False)
    with caplog.at_level(logging.WARNING):
        catalog = foreread.index(data, field="image", label="label")
    assert "1 rows lack a value, and are left out: t.parquet" in caplog.text
    assert '1 of 2 samples have no label by "label": t.parquet' in caplog.text
    with pytest.raises(foreread.Error, match='no sample has a label by "none": correct or leave out label='):
        foreread.index(data, field="image", label="none")
    with pytest.raises(foreread.Error, match='column "label" is a value, and the labels are another one'):
        foreread.index(data, field="image", label="none", columns=["label"])
    # The first sample of this part has no label, and others have.
    parts = catalog.select([1, 0]).random_split([0.5, 0.5], stratify=True)
    assert sorted(len(part) for part in parts) == [1, 1]
    with pytest.raises(foreread.errors.ConfigError, match=r"sample 1 \(.*\) has no label"):
        list(DataLoader(catalog, batch_size=2, shuffle=False, decode=lambda _: 1))


def test_arguments_without_effect_are_errors(tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        for name in "xy":
            (tmp_path / part / name).write_bytes(b"1")
    with pytest.raises(foreread.Error, match="label has no effect"):
        foreread.index(tmp_path, path={"a": "a/", "b": "b/"}, label="x")
    (tmp_path / "a" / "z").write_bytes(b"1")
    with pytest.raises(foreread.Error, match=r"lack one of the files a, b: z \(no b\)"):
        foreread.index(tmp_path, path={"a": "a/", "b": "b/"})
    catalog = foreread.index(tmp_path, path={"a": "a/", "b": "b/"}, on_missing="skip")
    with pytest.raises(foreread.Error, match="stratify= needs labels"):
        catalog.random_split([0.5, 0.5], stratify=True)


# semantics: SAMPLE-29
def test_missing_file_of_several_is_named(files: Path) -> None:
    table = [{"image": "0.bin", "mask": "1.bin"}, {"image": "2.bin", "mask": "m.bin"}]
    with pytest.raises(foreread.Error, match=r"row 2 \(m.bin\)"):
        foreread.index(files, table=table, path={"image": "image", "mask": "mask"})


def test_lists_in_packed_tables_are_named(tmp_path: Path) -> None:
    table = pa.table({"image": [b"a", b"b"], "rag": [[1], [2, 3]]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", compression="NONE", use_dictionary=False)
    choices: list[dict[str, Any]] = [{"columns": "rag"}, {"label": "rag"}]
    for arguments in choices:
        with pytest.raises(foreread.Error, match='"rag" has neither numbers nor texts.*collate_fn'):
            foreread.index(tmp_path, field="image", **arguments)


def test_batches_of_several_shapes_are_named(tmp_path: Path) -> None:
    for number in range(2):
        np.save(tmp_path / f"{number}.npy", np.zeros(3 + number, "f4"))
    with pytest.raises(RuntimeError, match="several shapes or lengths: set collate_fn="):
        list(DataLoader(foreread.index(tmp_path, include="*.npy", format="files"), batch_size=2))
    batches = list(DataLoader(foreread.index(tmp_path, include="*.npy", format="files"), batch_size=2, collate_fn=list))
    assert sorted(len(item) for item in batches[0]) == [3, 4]


def _value(sample: Any) -> Any:
    return sample["g"]


def test_values_in_worker_processes_are_a_named_error(files: Path) -> None:
    catalog = foreread.index(files, table=[row | {"g": at} for at, row in enumerate(paths(4))])
    dataset = Dataset(catalog, decode=_value)
    try:
        loader = wrap(torch.utils.data.DataLoader(dataset, num_workers=1))
        with pytest.raises(foreread.errors.ConfigError, match="without its values and fields"):
            next(iter(loader))
    finally:
        dataset.close()
