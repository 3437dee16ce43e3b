"""A tf.data.Dataset over foreread equals tf.data over the same files in foreread's order."""

from __future__ import annotations

import gc
import io
import os
import tarfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest

tf = pytest.importorskip("tensorflow")
np = pytest.importorskip("numpy")

import foreread.tf

pytestmark = pytest.mark.frameworks

SAMPLES = 100


def paths(root: Path, epochs: int, batch: int, **settings: Any) -> Iterator[list[list[Path]]]:
    """The files of each batch of each epoch, in the order that foreread draws."""
    with foreread.Loader(str(root), batch_size=batch, epochs=epochs, **settings) as loader:
        drawn: list[list[list[Path]]] = [[] for _ in range(epochs)]
        for one in loader:
            drawn[one.epoch].append([root / sample.path for sample in one])
        yield from drawn


def theirs(epoch: list[list[Path]]) -> list[Any]:
    """tf.data's own batches of these files, with their labels."""
    return [
        (
            list(tf.data.Dataset.from_tensor_slices([str(path) for path in batch]).map(tf.io.read_file).as_numpy_iterator()),
            [int(path.parent.name[-1]) for path in batch],
        )
        for batch in epoch
    ]


def ours(data: Any) -> list[Any]:
    return [(images.numpy().tolist(), labels.numpy().tolist()) for images, labels in data]


@pytest.mark.parametrize("drop_last", [False, True])
def test_epochs_equal_tf_data_in_the_drawn_order(directory: Path, drop_last: bool) -> None:
    data = foreread.tf.dataset(str(directory), 8, seed=3, epochs=3, drop_last=drop_last)
    drawn = list(paths(directory, 3, 8, seed=3, drop_last=drop_last))
    assert drawn[0] != drawn[1]
    assert data.cardinality() == len(drawn[0]) == (12 if drop_last else 13)
    for epoch in drawn:
        assert ours(data) == theirs(epoch)
    # A sample that is still held for the last epoch's end need not be read again.
    used = 96 if drop_last else SAMPLES
    assert 2 * used < data.foreread.report()["origin_requests"] <= 3 * used
    for _ in range(2):
        with pytest.raises(tf.errors.OpError, match="epochs"):
            ours(data)
    data.foreread.close()


def test_order_is_that_of_distributed_sampler(directory: Path) -> None:
    torch = pytest.importorskip("torch")
    found = []
    for rank in range(2):
        data = foreread.tf.dataset(str(directory), 8, sampler="torch", seed=3, rank=rank, world_size=2, peers="off")
        sampler = torch.utils.data.DistributedSampler(range(SAMPLES), 2, rank, seed=3)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            files = sorted(directory.glob("*/*"))
            assert [one for images, _ in ours(data) for one in images] == [files[number].read_bytes() for number in sampler]
            found += list(sampler)
        data.foreread.close()
    assert sorted(found) == sorted(list(range(SAMPLES)) * 2)


def test_looking_at_the_first_batch_takes_no_epoch(directory: Path) -> None:
    data = foreread.tf.dataset(str(directory), 8, seed=3)
    first, second = paths(directory, 2, 8, seed=3)
    assert ours(data.take(1)) == theirs(first[:1])
    assert ours(data.take(3)) == theirs(first[:3])
    assert ours(data) == theirs(first)
    # An epoch that was left later counts as done.
    assert ours(data.take(6)) == theirs(second[:6])
    (third,) = list(paths(directory, 3, 8, seed=3))[2:]
    assert ours(data) == theirs(third)
    data.foreread.close()


def test_start_epoch_is_the_first(directory: Path) -> None:
    data = foreread.tf.dataset(str(directory), 8, seed=3, start_epoch=2)
    assert ours(data) == theirs(list(paths(directory, 3, 8, seed=3))[2])
    data.foreread.close()
    with pytest.raises(foreread.errors.ConfigError, match="start_epoch"):
        foreread.tf.dataset(str(directory), 8, start_epoch=-1)
    with pytest.raises(foreread.errors.ConfigError, match="start_epoch="):
        foreread.tf.dataset(str(directory), 8, resume="x")


class Pixels:
    """A stand-in for `foreread.image`: its pixels name the seed, the epoch, the id and the sample."""

    shape, dtype = (2, 3), "int64"

    def __init__(self) -> None:
        self.made: list[Any] = []

    def decode(self, samples: Any, *, seed: int, epoch: int, ids: Any) -> Any:
        pairs = zip(map(bytes, samples), ids, strict=True)
        rows = [[[seed, epoch, number], [len(sample), sample[0], 0]] for sample, number in pairs]
        # TensorFlow copies memory that does not begin at a multiple of 64.
        room = np.zeros(6 * len(rows) + 8, np.int64)
        start = -room.ctypes.data % 64 // 8
        made = room[start : start + 6 * len(rows)].reshape(-1, 2, 3)
        made[:] = rows
        self.made.append(made)
        return self.made[-1]


def test_pixels_of_a_batch_decoder_cross_without_a_copy(directory: Path) -> None:
    decoder = Pixels()
    data = foreread.tf.dataset(str(directory), 8, seed=3, decode=decoder)
    assert data.element_spec[0].shape.as_list() == [None, 2, 3]
    for epoch, drawn in enumerate(paths(directory, 2, 8, seed=3)):
        for at, (pixels, labels) in enumerate(data):
            made = decoder.made[epoch * 13 + at]
            assert pixels.numpy().tolist() == made.tolist()
            assert np.asarray(memoryview(pixels)).ctypes.data == made.ctypes.data
            names = [path.read_bytes() for path in drawn[at]]
            assert made[:, 0, 0].tolist() == [3] * len(names) and made[:, 0, 1].tolist() == [epoch] * len(names)
            assert made[:, 1, 0].tolist() == list(map(len, names))
            assert labels.numpy().tolist() == [int(path.parent.name[-1]) for path in drawn[at]]
    data.foreread.close()


def test_images_are_decoded_in_batches(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(10):
        pixels = np.random.default_rng(number).integers(0, 255, (9, 11, 3), np.uint8)
        image.fromarray(pixels).save(tmp_path / f"{number}.png")
    decoder = foreread.image((8, 10), layout="NHWC", resize="stretch")
    data = foreread.tf.dataset(str(tmp_path), 4, sampler="sequential", decode=decoder)
    made = list(data)
    with foreread.Loader(str(tmp_path), batch_size=4, epochs=1, sampler="sequential") as loader:
        assert [batch.numpy().tolist() for batch in made] == [decoder.decode(list(batch)).tolist() for batch in loader]
    data.foreread.close()
    (tmp_path / "3.png").write_bytes(b"no image")
    data = foreread.tf.dataset(str(tmp_path), 4, sampler="sequential", decode=decoder)
    with pytest.raises(tf.errors.OpError, match=r"sample 3 \(3.png\)") as caught:
        list(data)
    # Said once, as is the exception's type in TensorFlow's message.
    line = next(line for line in str(caught.value).splitlines() if "CorruptError: " in line)
    assert line.count("sample 3") == line.count("CorruptError") == 1
    data.foreread.close()


def test_function_of_a_sample_makes_arrays(directory: Path) -> None:
    data = foreread.tf.dataset(str(directory), 8, seed=3, labels=False, decode=lambda sample: np.float32([len(sample), 1]))
    (drawn,) = paths(directory, 1, 8, seed=3)
    assert data.element_spec == tf.TensorSpec((None, 2), tf.float32)
    assert [batch.numpy().tolist() for batch in data] == [
        [[float(path.stat().st_size), 1.0] for path in batch] for batch in drawn
    ]
    data.foreread.close()
    with pytest.raises(foreread.errors.ConfigError, match="decode to one shape"):
        foreread.tf.dataset(str(directory), 8, decode=lambda sample: np.frombuffer(sample, np.uint8))
    with pytest.raises(foreread.errors.ConfigError, match="no batch"):
        foreread.tf.dataset(str(directory), 8, decode="image")


def test_arrays_keep_their_type_and_shape(tmp_path: Path) -> None:
    np.save(tmp_path / "all.npy", np.arange(60, dtype=np.float32).reshape(10, 2, 3))
    data = foreread.tf.dataset(str(tmp_path / "all.npy"), 4, decode="array", sampler="sequential", format="npy")
    assert np.concatenate(list(data.as_numpy_iterator())).tolist() == np.arange(60).reshape(10, 2, 3).tolist()
    data.foreread.close()


def test_keras_trains_on_every_epoch_in_order(directory: Path) -> None:
    keras = pytest.importorskip("keras")
    decoder = Pixels()
    data = foreread.tf.dataset(str(directory), 8, seed=3, epochs=3, decode=decoder)
    seen: list[int] = []

    def pixels(images: Any, labels: Any) -> Any:
        tf.py_function(lambda epoch: seen.append(int(epoch)), [images[0, 0, 1]], [])
        return tf.cast(images, tf.float32), labels

    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(data.map(pixels), epochs=3, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 3
    # Keras looks at the first batch before it trains.
    assert seen[-39:] == [0] * 13 + [1] * 13 + [2] * 13
    data.foreread.close()


def test_missing_file_is_named(directory: Path) -> None:
    data = foreread.tf.dataset(str(directory), 8, sampler="sequential", look_ahead="1KiB")
    (directory / "class3" / "099.bin").unlink()
    with pytest.raises(tf.errors.OpError, match="class3/099.bin"):
        ours(data)
    data.foreread.close()


def test_undecodable_sample_is_named(directory: Path) -> None:
    decode = lambda sample: np.ones(1 // (bytes(sample)[7:9] != b"90"))
    data = foreread.tf.dataset(str(directory), 8, sampler="sequential", decode=decode)
    with pytest.raises(tf.errors.OpError, match=r"sample 90 \(class3/090.bin\)"):
        ours(data)
    data.foreread.close()


def test_later_iteration_and_closing_end_an_iteration(directory: Path) -> None:
    data = foreread.tf.dataset(str(directory), 8, seed=3)
    first = iter(data)
    next(first)
    second = iter(data)
    next(second)
    # TensorFlow has fetched further batches by itself.
    with pytest.raises(tf.errors.OpError, match="later iteration"):
        list(first)
    data.foreread.close()
    with pytest.raises(tf.errors.OpError, match="closed"):
        list(second)
    assert not [thread for thread in threading.enumerate() if thread.name == "foreread-batches"]


def test_earlier_iterator_takes_no_batch_of_a_later_one(directory: Path) -> None:
    class Slow(Pixels):
        def decode(self, samples: Any, **settings: Any) -> Any:
            time.sleep(0.02)
            return super().decode(samples, **settings)

    for _ in range(4):
        data = foreread.tf.dataset(str(directory), 8, sampler="sequential", labels=False, decode=Slow())
        # Its threads ask for batches ahead.
        first = iter(data.prefetch(2))
        next(first)
        assert [int(row[0, 2]) for batch in data.prefetch(2) for row in batch] == list(range(SAMPLES))
        del first
        data.foreread.close()


def test_failed_epoch_is_read_anew(directory: Path) -> None:
    catalog = foreread.index(str(directory))
    path = directory / "class0" / "010.bin"
    path.rename(directory / "away")
    data = foreread.tf.dataset(catalog, 8, shuffle=False)
    for _ in range(2):
        with pytest.raises(tf.errors.OpError, match="class0/010.bin"):
            ours(data)
    (directory / "away").rename(path)
    first, second = paths(directory, 2, 8, sampler="sequential")
    assert ours(data) == theirs(first)
    assert ours(data) == theirs(second)
    data.foreread.close()


@pytest.mark.parametrize("batch", [40, 100])
def test_few_batches_that_are_all_are_an_epoch(directory: Path, batch: int) -> None:
    data = foreread.tf.dataset(str(directory), batch, seed=3, decode=Pixels(), labels=False)
    for epoch in range(3):
        assert [int(pixels[0, 0, 1]) for pixels in data.take(len(data))] == [epoch] * len(data)
    data.foreread.close()
    # Looking at the first batch for its type takes none.
    data = foreread.tf.dataset(str(directory), 100, seed=3, labels=False, decode=lambda sample: np.int64([sample.id]))
    assert [number for (number,) in list(data)[0].numpy().tolist()] == foreread_ids(directory, seed=3)
    data.foreread.close()


def foreread_ids(root: Path, **settings: Any) -> list[int]:
    with foreread.Loader(str(root), batch_size=100, epochs=1, **settings) as loader:
        return [number for batch in loader for number in batch.ids]


@pytest.mark.parametrize("kind", ["bytes", "function", "decoder"])
def test_batches_without_samples_are_omitted(directory: Path, kind: str) -> None:
    decode = {"bytes": None, "function": lambda sample: np.ones(2), "decoder": Pixels()}[kind]
    catalog = foreread.index(str(directory))
    (directory / "class0" / "003.bin").unlink()
    data = foreread.tf.dataset(catalog, 1, shuffle=False, on_error="skip", decode=decode)
    assert data.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert [len(samples) for samples, _ in data] == [1] * (SAMPLES - 1)
    data.foreread.close()


@pytest.mark.parametrize("kind", ["image", "function", "decoder"])
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_undecodable_samples_are_skipped_or_replaced(tmp_path: Path, kind: str, on_error: str) -> None:
    image = pytest.importorskip("PIL.Image")
    for number in range(8):
        (tmp_path / f"class{number}").mkdir()
        image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / f"class{number}" / "one.png")
    for number in (2, 4, 5):
        (tmp_path / f"class{number}" / "one.png").write_bytes(b"")

    class Decoder:
        shape, dtype = (4, 4, 3), "uint8"

        def decode(self, samples: Any, *, seed: int, epoch: int, ids: Any) -> Any:
            return np.stack([np.asarray(image.open(io.BytesIO(sample))) for sample in samples])

    one = lambda sample: np.asarray(image.open(io.BytesIO(sample)))
    whole = foreread.image(4, layout="NHWC", resize="stretch")
    decode: Any = {"image": whole, "function": one, "decoder": Decoder()}[kind]
    with pytest.warns(RuntimeWarning, match=r"sample . \(class./one.png\) of epoch 0 cannot be decoded"):
        data = foreread.tf.dataset(str(tmp_path), 4, shuffle=False, on_error=on_error, decode=decode)
        found = [(pixels.numpy()[:, 0, 0, 0].tolist(), labels.numpy().tolist()) for pixels, labels in data]
    kept = [[0, 1, 3], [6, 7]] if on_error == "skip" else [[0, 1, 1, 3], [6, 6, 6, 7]]
    assert found == [(numbers, numbers) for numbers in kept]
    assert data.foreread.stats().skipped >= 3
    data.foreread.close()


def test_epoch_without_any_sample_is_an_error(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(b"no image")
    data = foreread.tf.dataset(str(tmp_path), 2, on_error="skip", decode=foreread.image(4))
    with pytest.warns(RuntimeWarning), pytest.raises(tf.errors.OpError, match="no sample of the epoch"):
        list(data)
    data.foreread.close()
    data = foreread.tf.dataset(str(tmp_path), 2, on_error="substitute", decode=foreread.image(4))
    with pytest.warns(RuntimeWarning), pytest.raises(tf.errors.OpError, match="none of the 2 samples"):
        list(data)
    data.foreread.close()


def test_stats_name_a_slow_decoder(directory: Path) -> None:
    def slow(sample: Any) -> Any:
        time.sleep(0.002)
        return np.ones(2)

    data = foreread.tf.dataset(str(directory), 8, seed=3, decode=slow)
    list(data)
    stats = data.foreread.stats()
    assert stats.limiting == "decode"
    assert stats.waits["decode"] > 0.5 > stats.waits["storage"]
    data.foreread.close()


def test_shuffle_off_is_the_order_of_the_catalog(directory: Path) -> None:
    data = foreread.tf.dataset(str(directory), 8, shuffle=False, labels=False)
    files = [path.read_bytes() for path in sorted(directory.glob("*/*"))]
    assert [one for batch in data.as_numpy_iterator() for one in batch] == files
    data.foreread.close()
    with pytest.raises(foreread.errors.ConfigError, match="contradicts sampler='torch'"):
        foreread.tf.dataset(str(directory), 8, shuffle=False, sampler="torch")


def test_dropped_dataset_ends_its_threads(directory: Path) -> None:
    data = foreread.tf.dataset(str(directory), 8, seed=3)
    mapped = data.map(lambda images, labels: labels)
    reader = weakref.ref(data.foreread)
    del data
    # Datasets made of it keep it.
    assert len(list(mapped.take(6))) == 6
    assert len(list(mapped)) == 13
    assert len(list(mapped.take(6))) == 6
    del mapped
    gc.collect()
    assert reader() is None
    for thread in threading.enumerate():
        if thread.name == "foreread-batches":
            thread.join()


def test_fields_of_web_dataset(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "one.tar", "w") as tar:
        for number in range(10):
            for name, data in (("cls", str(number % 3).encode()), ("txt", b"text %d" % number)):
                member = tarfile.TarInfo(f"{number}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    data = foreread.tf.dataset(str(tmp_path), 4, sampler="sequential", field="txt", labels="cls")
    found = [(text, label) for texts, labels in data.as_numpy_iterator() for text, label in zip(texts, labels)]
    assert found == [(b"text %d" % number, number % 3) for number in range(10)]
    data.foreread.close()
    with pytest.raises(foreread.errors.ConfigError, match=r"several fields \(cls, txt\)"):
        foreread.tf.dataset(str(tmp_path), 4)
    with pytest.raises(foreread.errors.ConfigError, match="fields cls, txt"):
        foreread.tf.dataset(str(tmp_path), 4, field="jpg")
    data = foreread.tf.dataset(str(tmp_path), 4, field="cls", labels="txt")
    with pytest.raises(tf.errors.OpError, match="no integer"):
        list(data)
    data.foreread.close()


def test_dataset_without_labels_refuses_them(tmp_path: Path) -> None:
    (tmp_path / "one.bin").write_bytes(b"one")
    with pytest.raises(foreread.errors.ConfigError, match="no labels"):
        foreread.tf.dataset(str(tmp_path), 8, labels=True)
    data = foreread.tf.dataset(str(tmp_path), 8)
    assert list(data.as_numpy_iterator())[0].tolist() == [b"one"]
    data.foreread.close()
