"""Packed files of real writers: every sample has the writer's bytes, label and type, by every way of reading."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
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
    #: The fields of each sample.
    fields: list[dict[str, Any]] | None = None


#: Files of real writers.
FILES = Path(__file__).parents[2] / "formats" / "tests" / "fixtures"


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


def hdf5_joined(directory: Path) -> Data:
    """Images, and their masks in compressed chunks."""
    h5py = pytest.importorskip("h5py")
    for part in range(2):
        with h5py.File(directory / f"{part}.h5", "w") as file:
            rows = _rows(part)[: SAMPLES // 2]
            file["images"] = rows
            file.create_dataset("masks", data=rows > 99, chunks=(1, 6, 5), compression="gzip")
            file.create_dataset("depth", data=rows[:, 0] / 7, chunks=(4, 5), maxshape=(None, 5))
            file["labels"] = numpy.arange(len(rows)) % 5 + part
    fields: list[dict[str, Any]] = []
    labels: list[int] = []
    for part in range(2):
        with h5py.File(directory / f"{part}.h5") as file:
            names = ["masks", "images", "depth"]
            read = {name: file[name][:] for name in names}
            fields += [{name: read[name][row] for name in names} for row in range(len(read["images"]))]
            labels += file["labels"][:].tolist()
    samples = [b"".join(array.tobytes() for array in row.values()) for row in fields]
    return Data(directory, samples, labels, None, {"field": ["/masks", "images", "depth"]}, fields)


def volumes(directory: Path) -> Data:
    """One file has one volume and its label map, of different lengths."""
    h5py = pytest.importorskip("h5py")
    for number, rows in enumerate(_rows()):
        with h5py.File(directory / f"{number:03}.h5", "w") as file:
            volume = rows[: number % 4 + 2].astype("<f4")
            file.create_dataset("volume", data=volume, chunks=volume.shape, compression="gzip")
            file["map"] = numpy.array([number, 1, 2], "i2")
    fields = []
    for path in sorted(directory.iterdir()):
        with h5py.File(path) as file:
            fields.append({"volume": file["volume"][:], "map": file["map"][:]})
    samples = [b"".join(array.tobytes() for array in row.values()) for row in fields]
    return Data(directory, samples, None, None, {"field": ["volume", "map"], "whole": True}, fields)


def recordio(directory: Path) -> Data:
    """Images that MXNet has packed, with a vector of labels. Some contain the magic."""
    expected = json.loads((FILES / "parts" / "expected.json").read_text())["recordio"]
    samples, labels = [], []
    # In the order of names.
    for name in ["classes.rec", "fractions.rec"]:
        shutil.copy(FILES / "parts" / name, directory / name)
        (directory / name).with_suffix(".idx").write_text("companion")
        case = next(case for case in expected if case["file"] == name and case["field"] is None)
        samples += [bytes.fromhex(sample) for sample in case["samples"]]
        labels += case["labels"]
    return Data(directory, samples, labels)


def records(directory: Path) -> Data:
    """Whole records."""
    shutil.copy(FILES / "parts" / "plain.rec", directory)
    case = json.loads((FILES / "parts" / "expected.json").read_text())["recordio"][0]
    return Data(directory / "plain.rec", [bytes.fromhex(sample) for sample in case["samples"]])


def megatron(directory: Path) -> Data:
    """What GPTDataset makes of documents in three epochs, with NumPy's own generator."""
    for suffix in [".bin", ".idx"]:
        shutil.copy(FILES / "parts" / f"stories{suffix}", directory)
    table = (directory / "stories.idx").read_bytes()
    count = int.from_bytes(table[18:26], "little")
    lengths = numpy.frombuffer(table, "<i4", count, 34)
    ends = numpy.cumsum(lengths)
    tokens = numpy.fromfile(directory / "stories.bin", "<u2")
    length, per_epoch = 200, int(lengths.sum())
    asked = 2 * per_epoch // length + 100
    # The third epoch is short, and shuffled on its own.
    before_last = (2 * per_epoch - 1) // length
    random = numpy.random.RandomState(77)
    first, last = numpy.tile(numpy.arange(count), 2), numpy.arange(count)
    random.shuffle(first)
    random.shuffle(last)
    order = [*first, *last]
    stream = numpy.concatenate([tokens[ends[document] - lengths[document] : ends[document]] for document in order])
    samples = numpy.arange((3 * per_epoch - 1) // length)
    first, last = samples[:before_last], samples[before_last:]
    random.shuffle(first)
    random.shuffle(last)
    found = [stream[number * length : (number + 1) * length + 1] for number in samples]
    choices = {"pack": length, "pack_seed": 77, "pack_samples": asked}
    return Data(directory / "stories.bin", [sample.tobytes() for sample in found], None, found, choices)


def npz(directory: Path) -> Data:
    arrays = {f"a{number:03}": row[: number % 6] for number, row in enumerate(_rows())}
    arrays["a003"] = numpy.asfortranarray(arrays["a003"].astype("<f8"))
    numpy.savez(directory / "0.npz", **arrays)
    numpy.savez_compressed(directory / "1.npz", **arrays)
    samples, found = [], []
    for path in sorted(directory.iterdir()):
        with zipfile.ZipFile(path) as archive, numpy.load(path) as loaded:
            for name in archive.namelist():
                samples.append(archive.read(name))
                found.append(loaded[name.removesuffix(".npy")])
    return Data(directory, samples, None, found, {"format": "zip"})


FORMATS = [
    hdf5, hdf5_chunks, hdf5_lengths, hdf5_joined, volumes, cosmoflow, lmdb, parquet, arrow, npy, tokens, megatron, recordio,
    records, npz,
]


@pytest.fixture(params=FORMATS, ids=lambda maker: maker.__name__)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Data:
    directory = tmp_path / "data"
    directory.mkdir()
    maker: Callable[[Path], Data] = request.param
    return maker(directory)


def test_values_of_lmdb_under_one_number_are_fields(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path), map_size=1 << 24) as environment, environment.begin(write=True) as writing:
        for number, text in enumerate(_texts()):
            writing.put(f"image-{number:08}".encode(), text)
            writing.put(f"mask-{number:08}".encode(), text[::-1] + b"m")
            writing.put(f"label-{number:08}".encode(), f"class {number % 3}".encode())
        writing.put(b"image-lonely", b"without a mask")
    catalog = foreread.index(str(tmp_path), field=["image-", "mask-"], label="label-")
    assert len(catalog) == SAMPLES
    seen = 0
    for batch in foreread.Loader(catalog, batch_size=4, sampler="sequential", epochs=1):
        for sample in batch:
            text = _texts()[seen]
            assert sample.field_names == ["image", "mask"] and sample.label_name == f"class {seen % 3}"
            assert (bytes(sample.field("image")), bytes(sample.field("mask"))) == (text, text[::-1] + b"m")
            seen += 1
    assert seen == SAMPLES


def _equal(one: Any, other: Any) -> bool:
    return bool(numpy.array_equal(one, other))


def _check_fields(sample: Any, expected: dict[str, Any]) -> None:
    arrays = {name: sample.field(name).array() for name in sample.field_names}
    assert list(arrays) == list(expected)
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype and _equal(arrays[name], array)
        assert bytes(sample.field(name)) == array.tobytes()


# semantics: FORMAT-1, FORMAT-2, FORMAT-5, FORMAT-6, FORMAT-7
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
                if data.fields is not None:
                    _check_fields(sample, data.fields[sample.id])
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
    if data.arrays is None or catalog.array_type is None:
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


def _copy(name: str, to: Path) -> Path:
    return Path(shutil.copytree(FILES / name, to / "copy"))


# semantics: FORMAT-8
def test_torch_gets_a_dict_of_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import foreread.torch

    data = hdf5_joined(tmp_path)
    assert data.fields is not None and data.labels is not None
    catalog = foreread.index(data.target, **data.choices)
    assert catalog.field_types == {"masks": ("|b1", [6, 5]), "images": ("|u1", [6, 5]), "depth": ("<f8", [5])}
    seen = 0
    for fields, labels in foreread.torch.DataLoader(catalog, batch_size=4, shuffle=False):
        for row, label in enumerate(labels):
            for name, tensor in fields.items():
                assert _equal(tensor[row].numpy(), data.fields[seen][name])
            assert label == data.labels[seen]
            seen += 1
    assert seen == len(data.samples)
    dataset = foreread.torch.Dataset(catalog, transform=lambda fields: fields["images"])
    assert _equal(dataset[7][0].numpy(), data.fields[7]["images"])
    dataset.close()
    dataset = foreread.torch.Dataset(catalog)
    workers = torch.utils.data.DataLoader(dataset, batch_size=6, num_workers=2)
    first, _ = next(iter(workers))
    assert _equal(first["depth"].numpy(), numpy.stack([row["depth"] for row in data.fields[:6]]))
    assert list(pickle.loads(pickle.dumps(dataset.decode))(data.samples[3])) == ["masks", "images", "depth"]
    dataset.close()


# semantics: FORMAT-8
def test_volumes_of_several_lengths_are_tensors(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import foreread.torch

    (tmp_path / "data").mkdir()
    data = volumes(tmp_path / "data")
    assert data.fields is not None
    catalog = foreread.index(data.target, **data.choices)
    assert catalog.field_types == {"volume": ("<f4", [None, 5]), "map": ("<i2", [3])}
    for number, fields in enumerate(foreread.torch.DataLoader(catalog, batch_size=1, shuffle=False)):
        for name, array in data.fields[number].items():
            assert _equal(fields[name][0].numpy(), array)
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "two.h5"
    with h5py.File(path, "w") as file:
        for name in "ab":
            dataset = file.create_dataset(name, (4,), dtype=h5py.vlen_dtype(numpy.uint8))
            for row in range(4):
                dataset[row] = numpy.arange(row + (name == "b"), dtype="u1")
    catalog = foreread.index(path, field=["a", "b"])
    for number, fields in enumerate(foreread.torch.DataLoader(catalog, batch_size=1, shuffle=False)):
        assert (len(fields["a"][0]), len(fields["b"][0])) == (number, number + 1)


# semantics: FORMAT-4
def test_datasets_that_cannot_be_joined_are_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["images"], file["masks"] = numpy.zeros((5, 2), "u1"), numpy.zeros((4, 2), "u1")
    with pytest.raises(foreread.Error, match="it has 4 rows, and images has 5: a sample needs a row of each"):
        foreread.index(tmp_path / "x.h5", field=["images", "masks"])
    with pytest.raises(foreread.Error, match="none is missing; there are: images, masks"):
        foreread.index(tmp_path / "x.h5", field=["images", "none"])
    with pytest.raises(TypeError, match="field must be a name, or a list of names, not int"):
        foreread.index(tmp_path / "x.h5", field=3)  # type: ignore[arg-type]
    sample = next(foreread.Loader(foreread.index(tmp_path / "x.h5", field="images"), batch_size=1))[0]
    assert sample.field_names == []


# semantics: FORMAT-9
def test_order_of_megatron_is_read_in_sequence(tmp_path: Path) -> None:
    data = megatron(tmp_path)
    catalog = foreread.index(data.target, **data.choices)
    assert catalog.array_type == ("<u2", [201])
    assert catalog.summary is not None and "3 epochs" in catalog.summary
    with foreread.Loader(catalog, batch_size=9, epochs=1, sampler="sequential") as loader:
        assert [bytes(sample) for batch in loader for sample in batch] == data.samples
    settings = ["--epochs", "1", "--sampler", "sequential"]
    catalog.save(tmp_path / "c.foreread")
    program = [str(Path(sys.executable).parent / "foreread"), "index", str(data.target), "--output", str(tmp_path / "d.foreread")]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in data.choices.items()]
    subprocess.run([*program, *options], check=True, capture_output=True)
    assert _epochs(str(tmp_path / "c.foreread"), *settings) == _epochs(str(tmp_path / "d.foreread"), *settings)
    # Another split, and its parts.
    parts = [foreread.index(data.target, pack=50, pack_split=f"{part}:80,15,5") for part in ["train", "valid", "test"]]
    assert [len(part) > 0 for part in parts] == [True] * 3
    assert len({part.fingerprint for part in parts}) == 3


# semantics: FORMAT-4
def test_packs_without_their_files_are_refused(tmp_path: Path) -> None:
    shutil.copytree(FILES / "parts", tmp_path / "parts")
    directory = tmp_path / "parts"
    with pytest.raises(foreread.errors.ConfigError, match="one pair of Megatron's files, and there are 2"):
        foreread.index(directory, include="*.bin", pack=20)
    with pytest.raises(foreread.errors.ConfigError, match="pack_seed, pack_samples and pack_split need pack"):
        foreread.index(directory / "stories.bin", pack_seed=3, format="tokens")
    with pytest.raises(foreread.errors.ConfigError, match="pack excludes window"):
        foreread.index(directory / "stories.bin", pack=20, window=3)
    with pytest.raises(foreread.Error, match="invalid split '?.?9,x"):
        foreread.index(directory / "stories.bin", pack=20, pack_split="9,x")
    with pytest.raises(foreread.Error, match="set a shorter pack="):
        foreread.index(directory / "stories.bin", pack=1_000_000)
    (directory / "stories.idx").unlink()
    with pytest.raises(foreread.Error, match="documents are listed in an .idx file"):
        foreread.index(directory / "stories.bin", pack=20)


# semantics: FORMAT-2
def test_labels_of_records_have_their_types(tmp_path: Path) -> None:
    for name in ["classes", "fractions", "vectors", "boxes", "arrays"]:
        shutil.copy(FILES / "parts" / f"{name}.rec", tmp_path)
    label = lambda name, **choices: foreread.index(tmp_path / f"{name}.rec", **choices).label(1)  # noqa: E731
    assert label("classes") == 1 and isinstance(label("classes"), int)
    assert label("fractions") == 0.125
    vector = label("vectors")
    assert vector.dtype == "<f4" and vector.tolist() == [1.0, 0.5, -1.0]
    assert label("boxes") is None and label("arrays") is None and label("classes", field="record") is None
    assert label("arrays", field="data") == 1
    with pytest.raises(foreread.Error, match="expected data or record"):
        foreread.index(tmp_path / "classes.rec", field="image")


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
    with pytest.raises(foreread.errors.ConfigError, match=r"compressed"):
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
    assert foreread.index(tmp_path).label(0) == 1
    options["column_encoding"]["label"] = "BYTE_STREAM_SPLIT"
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet", **options)
    assert foreread.index(tmp_path).label(0) is None
    with pytest.raises(foreread.Error, match="BYTE_STREAM_SPLIT"):
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
    choices: list[dict[str, Any]] = [
        {"label": "a"}, {"field": "a"}, {"field": ["a", "b"]}, {"key": "k"}, {"whole": True}, {"dtype": "u16"}, {"stride": 3},
        {"pack_seed": 1}, {"pack_samples": 1}, {"pack_split": "1"},
    ]
    for choice in choices:
        with pytest.raises(foreread.errors.ConfigError, match="effect|need a window"):
            foreread.index(tmp_path / "x.npy", **choice)
    shutil.copy(FILES / "parts" / "classes.rec", tmp_path)
    with pytest.raises(foreread.errors.ConfigError, match="a second field has no effect for the format recordio"):
        foreread.index(tmp_path / "classes.rec", field=["data", "record"])


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
    with pytest.raises(foreread.Error, match="window="):
        foreread.index(tmp_path / "t.bin", format="tokens")
    with pytest.raises(foreread.Error, match="dtype="):
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
        import sys, foreread
        catalog = foreread.index(sys.argv[1] + "/tokens.bin", window=2049, stride=2048, dtype="u16")
        catalog.save(sys.argv[1] + "/c.foreread")
        foreread.plan(catalog, epochs=2, sampler="feistel", memory="1GiB")
        with foreread.Loader(catalog, batch_size=8, epochs=1, seed=0, sampler="feistel", memory="0") as loader:
            assert len(next(loader)) == 8
        # Not ru_maxrss, which begins with the peak of the process that started this one.
        peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
        print(len(catalog), peak.split()[1])
    """
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    length, kilobytes = map(int, done.stdout.split())
    assert length == 1_000_000_000
    # A table of a byte per sample would take a gigabyte.
    assert kilobytes < 500_000
    assert (tmp_path / "c.foreread").stat().st_size < 1 << 20
