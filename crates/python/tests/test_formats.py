"""Packed files of real writers: every sample has the writer's bytes, label and type, by every way of reading."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
from bucket import bucket

import foreread

SAMPLES = 60


@dataclass
class Data:
    """A dataset of a real writer, and what its own library reads from it."""

    target: Path
    samples: list[bytes]
    labels: list[Any] | None = None
    arrays: list[Any] | None = None
    choices: dict[str, Any] = field(default_factory=dict)


def _rows(seed: int = 0) -> Any:
    return numpy.random.default_rng(seed).integers(0, 256, (SAMPLES, 6, 5), "uint8")


def _texts() -> list[bytes]:
    """Values of very different lengths."""
    return [numpy.random.default_rng(number).bytes(number * number * 7 % 5000) for number in range(SAMPLES)]


def hdf5(directory: Path) -> Data:
    h5py = pytest.importorskip("h5py")
    with h5py.File(directory / "train.h5", "w") as file:
        file["images"] = _rows()
        file["labels"] = numpy.arange(SAMPLES) % 7
    with h5py.File(directory / "train.h5") as file:
        images, labels = file["images"][:], file["labels"][:]
    return Data(directory / "train.h5", [row.tobytes() for row in images], labels.tolist(), list(images))


def hdf5_chunks(directory: Path) -> Data:
    h5py = pytest.importorskip("h5py")
    for part in range(2):
        with h5py.File(directory / f"{part}.h5", "w", libver="latest") as file:
            rows = _rows(part)[: SAMPLES // 2].astype("<f4")
            file.create_dataset("x", data=rows, chunks=(7, 6, 5), maxshape=(None, 6, 5))
    rows = []
    for part in range(2):
        with h5py.File(directory / f"{part}.h5") as file:
            rows += list(file["x"][:])
    return Data(directory, [row.tobytes() for row in rows], None, rows)


def hdf5_lengths(directory: Path) -> Data:
    h5py = pytest.importorskip("h5py")
    with h5py.File(directory / "texts.h5", "w") as file:
        dataset = file.create_dataset("texts", (SAMPLES,), dtype=h5py.vlen_dtype(numpy.uint8))
        for number, text in enumerate(_texts()):
            dataset[number] = numpy.frombuffer(text, "uint8")
    with h5py.File(directory / "texts.h5") as file:
        return Data(directory / "texts.h5", [row.tobytes() for row in file["texts"][:]])


def cosmoflow(directory: Path) -> Data:
    """One file has one volume and its label."""
    h5py = pytest.importorskip("h5py")
    for number, rows in enumerate(_rows()):
        with h5py.File(directory / f"universe-{number:03}.hdf5", "w") as file:
            file["full"] = rows.astype("<i2")
            file["unitPar"] = numpy.array([number, number / 2, -1, 0], "f4")
    volumes, labels = [], []
    for path in sorted(directory.iterdir()):
        with h5py.File(path) as file:
            volumes.append(file["full"][:])
            labels.append(file["unitPar"][:])
    choices = {"field": "full", "label": "unitPar", "whole": True}
    return Data(directory, [volume.tobytes() for volume in volumes], labels, volumes, choices)


def lmdb(directory: Path) -> Data:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(directory), map_size=1 << 24) as environment, environment.begin(write=True) as writing:
        for number, text in enumerate(_texts()):
            writing.put(f"{number:08}".encode(), text)
    with lmdb.open(str(directory), readonly=True) as environment, environment.begin() as reading:
        return Data(directory, [bytes(value) for _, value in reading.cursor()])


def parquet(directory: Path) -> Data:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = pyarrow.table({
        "image": pyarrow.array([{"bytes": text, "path": None} for text in _texts()]),
        "label": pyarrow.array([number % 3 for number in range(SAMPLES)]),
    })
    pyarrow.parquet.write_table(
        table, directory / "train.parquet", compression="NONE", use_dictionary=False, row_group_size=16
    )
    read = pyarrow.parquet.read_table(directory / "train.parquet").to_pylist()
    return Data(directory, [row["image"]["bytes"] for row in read], [row["label"] for row in read])


def arrow(directory: Path) -> Data:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"bytes": _texts(), "label": [f"class {number % 3}" for number in range(SAMPLES)]})
    with pyarrow.OSFile(str(directory / "data-00000-of-00001.arrow"), "wb") as sink:
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=25)
    (directory / "state.json").write_text("{}")
    with pyarrow.OSFile(str(directory / "data-00000-of-00001.arrow")) as file:
        read = pyarrow.ipc.open_stream(file).read_all().to_pylist()
    # Texts are classes, in the order of their names.
    return Data(directory, [row["bytes"] for row in read], [int(row["label"].split()[1]) for row in read])


def npy(directory: Path) -> Data:
    numpy.save(directory / "rows.npy", _rows().astype("<f8"))
    rows = numpy.load(directory / "rows.npy")
    return Data(directory / "rows.npy", [row.tobytes() for row in rows], None, list(rows))


def tokens(directory: Path) -> Data:
    numpy.random.default_rng(0).integers(0, 50_000, SAMPLES * 16 + 5, "uint16").tofile(directory / "tokens.bin")
    read = numpy.memmap(directory / "tokens.bin", "uint16", "r")
    windows = [numpy.array(read[start : start + 17]) for start in range(0, len(read) - 16, 16)]
    choices = {"window": 17, "stride": 16, "dtype": "u16"}
    return Data(directory / "tokens.bin", [window.tobytes() for window in windows], None, windows, choices)


FORMATS = [hdf5, hdf5_chunks, hdf5_lengths, cosmoflow, lmdb, parquet, arrow, npy, tokens]


@pytest.fixture(params=FORMATS, ids=lambda maker: maker.__name__)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Data:
    directory = tmp_path / "data"
    directory.mkdir()
    maker: Callable[[Path], Data] = request.param
    return maker(directory)


def _equal(one: Any, other: Any) -> bool:
    return bool(numpy.array_equal(one, other))


# semantics: FORMAT-1, FORMAT-2
def test_samples_are_what_the_writers_library_reads(data: Data, tmp_path: Path) -> None:
    catalog = foreread.index(data.target, **data.choices)
    assert len(catalog) == len(data.samples)
    catalog.save(tmp_path / "c.foreread")
    reopened = foreread.Catalog.open(tmp_path / "c.foreread")
    seen: list[int] = []
    disk = {tmp_path / "cache": "20MB"}
    with foreread.Loader(reopened, batch_size=7, epochs=3, seed=5, memory="100KB", disk=disk) as loader:
        for batch in loader:
            for sample in batch:
                seen.append(sample.id)
                assert bytes(sample) == data.samples[sample.id]
                if data.arrays is not None:
                    array = sample.array()
                    assert array.dtype == data.arrays[sample.id].dtype
                    assert _equal(array, data.arrays[sample.id])
                if data.labels is not None:
                    assert _equal(sample.label, data.labels[sample.id])
                else:
                    assert sample.label is None
    assert sorted(seen) == sorted(list(range(len(data.samples))) * 3)
    assert seen[: len(catalog)] != sorted(seen[: len(catalog)])


def _epochs(*arguments: str) -> Any:
    program = str(Path(sys.executable).parent / "foreread")
    command = [program, "load", *arguments, "--digest", "--report", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [epoch["digest"] for epoch in json.loads(done.stdout)["epochs"]]


# semantics: FORMAT-1
def test_order_and_bytes_are_those_of_files(data: Data, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number, sample in enumerate(data.samples):
        (files / f"{number:06}").write_bytes(sample)
    foreread.index(data.target, **data.choices).save(tmp_path / "c.foreread")
    settings = ["--epochs", "2", "--seed", "3", "--sampler", "torch"]
    assert _epochs(str(tmp_path / "c.foreread"), *settings) == _epochs(str(files), *settings)


# semantics: FORMAT-1
def test_ranks_read_each_sample_once(data: Data) -> None:
    catalog = foreread.index(data.target, **data.choices)
    ids: list[int] = []
    for rank in range(2):
        settings: Any = {"rank": rank, "world_size": 2, "peers": "off", "drop_last": True}
        for batch in foreread.Loader(catalog, batch_size=4, epochs=1, seed=1, **settings):
            for sample in batch:
                assert bytes(sample) == data.samples[sample.id]
                ids.append(sample.id)
    assert len(set(ids)) == len(ids) >= len(data.samples) - 8


# semantics: FORMAT-1
def test_state_resumes_in_packed_files(data: Data) -> None:
    catalog = foreread.index(data.target, **data.choices)
    with foreread.Loader(catalog, batch_size=5, epochs=1, seed=2) as whole:
        expected = [batch.ids for batch in whole]
    loader = foreread.Loader(catalog, batch_size=5, epochs=1, seed=2)
    first = [next(loader).ids for _ in range(4)]
    state = loader.state()
    loader.close()
    with foreread.Loader(catalog, batch_size=5, epochs=1, seed=2) as resumed:
        resumed.jump(state)
        assert first + [batch.ids for batch in resumed] == expected


# semantics: FORMAT-1
def test_packed_files_in_a_bucket(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = data.target if data.target.is_dir() else data.target.parent
    with bucket("my-bucket", "train", directory) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        catalog = foreread.index("s3://my-bucket/train", **data.choices)
        for batch in foreread.Loader(catalog, batch_size=6, epochs=1, seed=0):
            for sample in batch:
                assert bytes(sample) == data.samples[sample.id]


# semantics: FORMAT-2
def test_torch_gets_tensors_and_labels(data: Data) -> None:
    torch = pytest.importorskip("torch")
    import foreread.torch

    catalog = foreread.index(data.target, **data.choices)
    if data.arrays is None:
        return
    loader = foreread.torch.DataLoader(catalog, batch_size=4, seed=0)
    count = 0
    for item in loader:
        values = item[0] if data.labels is not None else item
        assert values.shape[1:] == data.arrays[0].shape
        count += len(values)
    assert count == len(data.samples)
    dataset = foreread.torch.Dataset(catalog)
    if data.labels is not None:
        (tensor, label), expected = dataset[3], data.labels[3]
        assert _equal(label, expected)
    else:
        tensor = dataset[3]
    assert _equal(tensor.numpy(), data.arrays[3])
    workers = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2)
    assert sum(len(item[0] if data.labels is not None else item) for item in workers) == len(data.samples)
    # Spawned workers get the function pickled.
    assert _equal(pickle.loads(pickle.dumps(dataset.decode))(data.samples[3]).numpy(), data.arrays[3])
    dataset.close()


#: Files of real writers.
FILES = Path(__file__).parents[2] / "formats" / "tests" / "fixtures"


def _copy(name: str, to: Path) -> Path:
    return Path(shutil.copytree(FILES / name, to / "copy"))


# semantics: FORMAT-4
def test_missing_shards_of_an_index_are_an_error(tmp_path: Path) -> None:
    directory = _copy("tables/mds/mixed", tmp_path)
    assert len(foreread.index(directory)) == 12
    (directory / "shard.00001.mds").unlink()
    with pytest.raises(foreread.Error, match=r"shard.00001.mds is missing"):
        foreread.index(directory)
    assert len(foreread.index(directory, include="*.mds")) == 8


# semantics: FORMAT-4
def test_compressed_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(foreread.ConfigError, match=r"compressed"):
        foreread.index(_copy("tables/mds/compressed", tmp_path))


# semantics: FORMAT-1
def test_chunks_are_found_by_the_index_next_to_them(tmp_path: Path) -> None:
    directory = _copy("tables/litdata/tree", tmp_path)
    (directory / "README.md").write_text("text")
    assert foreread.index(directory, include="*.bin").format == "litdata"
    assert foreread.index(directory / "chunk-0-1.bin").format == "litdata"
    (directory / "chunk-0-1.bin").unlink()
    (directory / "README.md").unlink()
    with pytest.raises(foreread.Error, match=r"chunk-0-1.bin is missing"):
        foreread.index(directory)


# semantics: FORMAT-1
def test_windows_are_cut_from_token_files_only(tmp_path: Path) -> None:
    numpy.arange(1000, dtype="<u2").tofile(tmp_path / "train.bin")
    numpy.arange(3, dtype="<u2").tofile(tmp_path / "short.bin")
    (tmp_path / "prepare.py").write_text("even")
    catalog = foreread.index(tmp_path, window=10, dtype="u16")
    assert (len(catalog), catalog.path(0)) == (100, "train.bin/0")
    with pytest.raises(foreread.Error, match="as long as the window"):
        foreread.index(tmp_path, window=1001, dtype="u16")
    megatron = _copy("tables/megatron", tmp_path)
    with pytest.raises(foreread.Error, match="<i4"):
        foreread.index(megatron / "i4.bin", window=4, dtype="u16")
    assert foreread.index(megatron / "i4.bin", window=4).array_type == ("<i4", [4])


# semantics: FORMAT-2
def test_labels_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    table = pyarrow.table({"bytes": [b"a", b"b"], "label": [1, 2]})
    options: Any = {"use_dictionary": False, "column_encoding": {"bytes": "PLAIN", "label": "DELTA_BINARY_PACKED"}}
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet", **options)
    assert foreread.index(tmp_path).label(0) is None
    with pytest.raises(foreread.Error, match="DELTA_BINARY_PACKED"):
        foreread.index(tmp_path, label="label")
    with pytest.raises(foreread.Error, match="image"):
        foreread.index(_copy("tables/mds/mixed", tmp_path), label="image")


# semantics: FORMAT-2
def test_labels_are_those_next_to_the_samples(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["images"] = numpy.zeros((4, 2, 2), "u1")
        file["labels"], file["y"], file["other/label"] = [1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]
    catalog = foreread.index(tmp_path / "x.h5")
    assert [catalog.label(number) for number in range(4)] == [1, 2, 3, 4]
    assert sorted(catalog.value_names) == ["label", "y"]
    with h5py.File(tmp_path / "z.h5", "w") as file:
        file["texts"] = ["a", "b"]
        file["labels"] = [1, 2]
    with pytest.raises(foreread.Error, match="texts"):
        foreread.index(tmp_path / "z.h5")


# semantics: FORMAT-4
def test_named_databases_next_to_values_are_a_choice(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path), max_dbs=2, map_size=1 << 20) as environment:
        images = environment.open_db(b"images")
        with environment.begin(write=True) as writing:
            writing.put(b"version", b"1")
            for number in range(5):
                writing.put(bytes([48 + number]), b"x" * number, db=images)
    with pytest.raises(foreread.Error, match=r"images \(5 entries\)"):
        foreread.index(tmp_path)
    assert len(foreread.index(tmp_path, key="images")) == 5
    assert len(foreread.index(tmp_path, key="")) == 1


def test_choices_without_effect_are_refused(tmp_path: Path) -> None:
    numpy.save(tmp_path / "x.npy", numpy.zeros((3, 2)))
    for choice in [{"label": "a"}, {"field": "a"}, {"key": "k"}, {"whole": True}, {"dtype": "u16"}, {"stride": 3}]:
        with pytest.raises(foreread.ConfigError, match="effect|need a window"):
            foreread.index(tmp_path / "x.npy", **choice)


def test_images_in_tables_are_decoded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pyarrow = pytest.importorskip("pyarrow")
    image = pytest.importorskip("PIL.Image")
    import pyarrow.parquet
    import foreread.torch

    files = []
    for number in range(4):
        file = io.BytesIO()
        image.fromarray(numpy.full((5, 7, 3), number, "u1")).save(file, "png")
        files.append(file.getvalue())
    table = pyarrow.table({"image": files, "label": [0, 1, 2, 3]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet", compression="NONE", use_dictionary=False)
    loader = foreread.torch.DataLoader(tmp_path, 2, decode="image", transform=lambda picture: numpy.array(picture))
    for pictures, labels in loader:
        assert pictures.shape == (2, 5, 7, 3)
        assert (pictures[:, 0, 0, 0] == labels).all()
    loader.close()


def test_choices_are_reported(tmp_path: Path) -> None:
    numpy.arange(100, dtype="<i4").tofile(tmp_path / "t.bin")
    with pytest.raises(foreread.Error, match="--window"):
        foreread.index(tmp_path / "t.bin", format="tokens")
    with pytest.raises(foreread.Error, match="--dtype"):
        foreread.index(tmp_path / "t.bin", window=10)
    catalog = foreread.index(tmp_path / "t.bin", window=10, stride=8, dtype="i32")
    assert catalog.array_type == ("<i4", [10])
    assert catalog.summary is not None and "100" in catalog.summary
    assert len(catalog) == 12


# semantics: FORMAT-3
def test_billion_windows_need_no_table(tmp_path: Path) -> None:
    with open(tmp_path / "tokens.bin", "wb") as file:
        try:
            file.truncate(4096 * 1_000_000_000 + 2)
        except OSError as error:
            pytest.skip(f"no sparse file of 4 TB here: {error}")
    script = """if True:
        import resource, sys, foreread
        catalog = foreread.index(sys.argv[1] + "/tokens.bin", window=2049, stride=2048, dtype="u16")
        catalog.save(sys.argv[1] + "/c.foreread")
        foreread.plan(catalog, epochs=2, sampler="feistel", memory="1GiB")
        with foreread.Loader(catalog, batch_size=8, epochs=1, seed=0, sampler="feistel", memory="0") as loader:
            assert len(next(loader)) == 8
        print(len(catalog), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    length, kilobytes = map(int, done.stdout.split())
    assert length == 1_000_000_000
    # A table of a byte per sample would take a gigabyte.
    assert kilobytes < 500_000
    assert (tmp_path / "c.foreread").stat().st_size < 1 << 20
