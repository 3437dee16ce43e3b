"""DALI's pipeline over foreread equals its pipeline over fn.readers.file with the same files in the same order."""

from __future__ import annotations

import gc
import io
import pickle
import tarfile
import weakref
from pathlib import Path
from typing import Any

import pytest

dali = pytest.importorskip("nvidia.dali")
np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

import foreread.dali
from nvidia.dali import fn, pipeline_def

# DALI warns about the GPU that it does not find.
pytestmark = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore::UserWarning:nvidia")]

SAMPLES, BATCH = 43, 8


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of three classes, whose sizes differ."""
    root = tmp_path_factory.mktemp("images")
    draw = np.random.default_rng(1)
    for number in range(SAMPLES):
        path = root / f"class{number % 3}" / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (4 + number % 5, 6, 3), np.uint8)).save(path)
    return root


@pipeline_def(batch_size=BATCH, num_threads=2, device_id=None)
def over_foreread(source: Any, no_copy: bool = True) -> Any:
    encoded, labels = fn.external_source(source, num_outputs=2, batch=True, no_copy=no_copy)
    return fn.decoders.image(encoded, device="cpu"), labels, encoded


@pipeline_def(batch_size=BATCH, num_threads=2, device_id=None)
def over_files(files: list[str], labels: list[int]) -> Any:
    encoded, labels = fn.readers.file(files=files, labels=labels)
    return fn.decoders.image(encoded, device="cpu"), labels, encoded


def arrays(outputs: Any) -> list[Any]:
    """Copies of a batch's outputs as lists."""
    return [[np.array(output.at(at)).tolist() for at in range(len(output))] for output in outputs]


def epoch(pipeline: Any) -> list[list[Any]]:
    """The samples of an epoch: pixels, label and bytes."""
    samples: list[list[Any]] = [[], [], []]
    with pytest.raises(StopIteration):
        while True:
            for all_of, output in zip(samples, arrays(pipeline.run())):
                all_of.extend(output)
    pipeline.reset()
    return samples


def theirs(root: Path, number: int, **settings: Any) -> list[list[Any]]:
    """DALI's samples of the files in the order that foreread draws for an epoch."""
    with foreread.Loader(str(root), batch_size=BATCH, epochs=number + 1, **settings) as loader:
        drawn = [(str(root / sample.path), sample.label) for batch in loader if batch.epoch == number for sample in batch]
    pipeline = over_files([path for path, _ in drawn], [label for _, label in drawn])
    pipeline.build()
    samples: list[list[Any]] = [[], [], []]
    while len(samples[0]) < len(drawn):
        for all_of, output in zip(samples, arrays(pipeline.run())):
            all_of.extend(output)
    return [all_of[: len(drawn)] for all_of in samples]


@pytest.mark.parametrize("no_copy", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_equal_the_file_reader(images: Path, no_copy: bool, drop_last: bool) -> None:
    with foreread.dali.source(str(images), BATCH, seed=3, drop_last=drop_last) as source:
        assert len(source) == (5 if drop_last else 6)
        pipeline = over_foreread(source, no_copy)
        pipeline.build()
        found = [epoch(pipeline) for _ in range(2)]
        del pipeline
    assert found[0] != found[1]
    for number in range(2):
        assert len(found[number][0]) == (40 if drop_last else SAMPLES)
        assert found[number] == theirs(images, number, seed=3, drop_last=drop_last)


def test_ranks_share_an_epoch(images: Path) -> None:
    for rank in range(2):
        job = {"seed": 3, "rank": rank, "world_size": 2, "peers": "off"}
        with foreread.dali.source(str(images), BATCH, **job) as source:
            pipeline = over_foreread(source)
            pipeline.build()
            assert epoch(pipeline) == theirs(images, 0, **job)
            del pipeline


@pipeline_def(batch_size=BATCH, num_threads=2, device_id=None, exec_async=False, exec_pipelined=False)
def watched(source: Any, no_copy: bool, watch: Any) -> Any:
    encoded = fn.external_source(source, batch=True, no_copy=no_copy)
    return fn.python_function(encoded, function=watch)


@pytest.mark.parametrize("no_copy", [False, True])
def test_samples_live_until_dali_has_used_them(images: Path, no_copy: bool) -> None:
    given: dict[int, weakref.ref[Any]] = {}
    in_place = 0

    def recorded() -> Any:
        samples = source()
        given.update((sample.ctypes.data, weakref.ref(sample)) for sample in samples)
        return samples

    def watch(array: Any) -> Any:
        nonlocal in_place
        gc.collect()
        one = given.get(array.__array_interface__["data"][0])
        in_place += one is not None and one() is not None
        return array

    source = foreread.dali.source(str(images), BATCH, labels=False, seed=3)
    pipeline = watched(recorded, no_copy, watch)
    pipeline.build()
    found = [arrays(pipeline.run())[0] for _ in range(6)]
    # DALI's operators read the memory that foreread has read into.
    assert in_place == (SAMPLES if no_copy else 0)
    assert [sample for batch in found for sample in batch] == theirs(images, 0, seed=3)[2]
    source.close()
    del pipeline
    gc.collect()
    assert not any(one() is not None for one in given.values())


def test_iterator_of_pytorch_resets_it(images: Path) -> None:
    pytest.importorskip("torch")
    plugin = pytest.importorskip("nvidia.dali.plugin.pytorch")
    with foreread.dali.source(str(images), BATCH, seed=3) as source:
        iterator = plugin.DALIGenericIterator(
            [resized(source)], ["images", "labels"], auto_reset=True, last_batch_policy=plugin.LastBatchPolicy.PARTIAL
        )
        for number in range(2):
            labels = [label for batch in iterator for label in batch[0]["labels"].flatten().tolist()]
            assert labels == [label for (label,) in theirs(images, number, seed=3)[1]]
        del iterator


@pipeline_def(batch_size=BATCH, num_threads=2, device_id=None)
def resized(source: Any) -> Any:
    encoded, labels = fn.external_source(source, num_outputs=2, batch=True, no_copy=True)
    return fn.resize(fn.decoders.image(encoded, device="cpu"), size=(4, 4)), labels


def test_reset_begins_the_next_epoch(images: Path) -> None:
    with foreread.dali.source(str(images), BATCH, seed=3) as source:
        first = source()[1].tolist()
        source.reset()
        second = source()[1].tolist()
    assert [first, second] == [theirs(images, number, seed=3)[1][:BATCH] for number in range(2)]


def test_batches_without_labels_are_samples(images: Path) -> None:
    with foreread.dali.source(str(images), BATCH, labels=False, sampler="sequential") as source:
        assert [bytes(sample) for sample in source()] == [path.read_bytes() for path in sorted(images.glob("*/*"))[:BATCH]]


def test_fields_of_web_dataset(tmp_path: Path) -> None:
    def write(label: bytes) -> None:
        with tarfile.open(tmp_path / "one.tar", "w") as tar:
            for name, data in (("1.cls", label), ("1.jpg", b"image")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))

    write(b"7")
    with foreread.dali.source(str(tmp_path), 1, field="jpg", labels="cls") as source:
        samples, labels = source()
        assert [bytes(sample) for sample in samples] == [b"image"]
        assert (labels.tolist(), labels.dtype) == ([[7]], np.int32)
    write(b"2147483648")
    with (
        foreread.dali.source(str(tmp_path), 1, field="jpg", labels="cls") as source,
        pytest.raises(foreread.errors.ConfigError, match="label 2147483648 does not fit 32 bits"),
    ):
        source()
    with pytest.raises(foreread.errors.ConfigError, match=r"several fields \(cls, jpg\)"):
        foreread.dali.source(str(tmp_path), 1)


def test_missing_file_is_named(images: Path, tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes(2000))
    with foreread.dali.source(str(tmp_path), 4, sampler="sequential", look_ahead="1KiB") as source:
        (tmp_path / "19.bin").unlink()
        with pytest.raises(foreread.errors.NotFoundError, match="19.bin"):
            while True:
                source()


def test_failed_epoch_is_read_anew(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes([number]))
    catalog = foreread.index(str(tmp_path))
    (tmp_path / "03.bin").rename(tmp_path / "away")
    with foreread.dali.source(catalog, 2, shuffle=False) as source:
        for _ in range(2):
            source()
            with pytest.raises(foreread.errors.NotFoundError, match="03.bin"):
                source()
        (tmp_path / "away").rename(tmp_path / "03.bin")
        assert [sample[0] for _ in range(10) for sample in source()] == list(range(20))
        with pytest.raises(StopIteration):
            source()


@pytest.mark.parametrize("labels", [False, None])
def test_batches_without_samples_are_omitted(tmp_path: Path, labels: bool | None) -> None:
    for number in range(6):
        (tmp_path / f"class{number}").mkdir()
        (tmp_path / f"class{number}" / "one.bin").write_bytes(bytes([number]))
    catalog = foreread.index(str(tmp_path))
    (tmp_path / "class3" / "one.bin").unlink()
    with foreread.dali.source(catalog, 1, shuffle=False, labels=labels, on_error="skip") as source:
        for _ in range(2):
            batches = [source() for _ in range(5)]
            samples = batches if labels is False else [samples for samples, _ in batches]
            assert [bytes(sample) for (sample,) in samples] == [bytes([number]) for number in (0, 1, 2, 4, 5)]
            with pytest.raises(StopIteration):
                source()


def test_mistakes_are_named(images: Path) -> None:
    with foreread.dali.source(str(images), BATCH) as source:
        with pytest.raises(foreread.errors.ConfigError, match="parallel=True"):
            pickle.dumps(source)
    with pytest.raises(foreread.errors.ClosedError):
        source()
    with pytest.raises(foreread.errors.ConfigError, match="start_epoch="):
        foreread.dali.source(str(images), BATCH, resume="x")
