"""foreread's data source gives what Grain reads from a plain one, and reads ahead in the sampler's order."""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

grain = pytest.importorskip("grain")
np = pytest.importorskip("numpy")

import foreread.grain
from absl import flags
from conftest import content

pytestmark = pytest.mark.frameworks

SAMPLES = 100

# Grain's worker processes need it. Programs that absl starts have done it.
flags.FLAGS.mark_as_parsed()


class Plain:
    """A data source of Grain over the same files."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.glob("*/*"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, key: Any) -> Any:
        return self.paths[key].read_bytes(), int(self.paths[key].parent.name[-1])

    def __repr__(self) -> str:
        return "files"


@pytest.fixture
def plain(directory: Path) -> Plain:
    return Plain(directory)


@pytest.fixture
def source(directory: Path) -> Iterator[Any]:
    with foreread.grain.source(str(directory), memory="16MiB") as made:
        yield made


class Lengths(grain.transforms.Map):
    """Elements that batch: a sample's length, first byte and label."""

    def map(self, element: Any) -> Any:
        data, label = element
        return np.array([len(data), data[-2], label])


def sampler(shards: int = 1, shard: int = 0, shuffle: bool = True, epochs: int | None = 2, drop: bool = False) -> Any:
    options = grain.sharding.ShardOptions(shard, shards, drop_remainder=drop)
    return grain.samplers.IndexSampler(SAMPLES, options, shuffle=shuffle, num_epochs=epochs, seed=3)


def loader(data: Any, order: Any, workers: int = 0, batch: int = 8) -> Any:
    operations = [Lengths(), grain.transforms.Batch(batch)]
    return grain.DataLoader(data_source=data, sampler=order, operations=operations, worker_count=workers)


def listed(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def assert_read_ahead(source: Any, requests: int, direct: int = 0) -> None:
    """Asserts the reads from storage, and how many of them were made on request."""
    report = source.report()
    assert report["origin_requests"] == requests
    assert sum(tier.get("samples") or 0 for tier in report["direct"].values()) <= direct, report["direct"]


@pytest.mark.parametrize(("shards", "drop"), [(1, False), (2, False), (2, True), (4, False)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_shards_get_grains_batches_read_ahead(plain: Plain, directory: Path, shards: int, drop: bool, shuffle: bool) -> None:
    read = 0
    for shard in range(shards):
        theirs = listed(loader(plain, sampler(shards, shard, shuffle, drop=drop)))
        with foreread.grain.source(str(directory), memory="16MiB") as source:
            order = source.announce(sampler(shards, shard, shuffle, drop=drop))
            assert listed(loader(source, order)) == theirs
            read += source.report()["origin_requests"]
            assert_read_ahead(source, SAMPLES // shards)
    assert read == SAMPLES


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_share_one_engine(plain: Plain, source: Any, workers: int) -> None:
    theirs = listed(loader(plain, sampler(), workers))
    assert listed(loader(source, source.announce(sampler()), workers)) == theirs
    assert_read_ahead(source, SAMPLES)


def test_endless_sampler_is_announced(plain: Plain, source: Any) -> None:
    theirs = iter(loader(plain, sampler(epochs=None)))
    ours = iter(loader(source, source.announce(sampler(epochs=None))))
    for _ in range(40):
        assert next(ours).tolist() == next(theirs).tolist()
    assert_read_ahead(source, SAMPLES)


@pytest.mark.parametrize("workers", [0, 2])
def test_checkpoint_continues_in_the_middle_of_an_epoch(plain: Plain, directory: Path, workers: int) -> None:
    theirs = listed(loader(plain, sampler(), workers))
    with foreread.grain.source(str(directory), memory="16MiB") as first:
        iterator = iter(loader(first, first.announce(sampler()), workers))
        assert listed(next(iterator) for _ in range(9)) == theirs[:9]
        state = iterator.get_state()
    # A new process would have a new source.
    with foreread.grain.source(str(directory), memory="16MiB") as second:
        iterator = iter(loader(second, second.announce(sampler()), workers))
        iterator.set_state(state)
        assert listed(iterator) == theirs[9:]
        # 72 samples are done. Only threads and workers that begin after the first index read on request.
        assert_read_ahead(second, SAMPLES, direct=16 if workers == 0 else 32)


def test_checkpoint_of_a_plain_sampler_names_the_same_order(source: Any) -> None:
    state = iter(loader(source, sampler())).get_state()
    iter(loader(source, source.announce(sampler()))).set_state(state)


def test_second_iteration_is_read_ahead_again(plain: Plain, directory: Path) -> None:
    theirs = listed(loader(plain, sampler(epochs=1)))
    # Without a cache, so that each iteration reads every sample.
    with foreread.grain.source(str(directory), memory=0) as source:
        ours = loader(source, source.announce(sampler(epochs=1)))
        assert listed(ours) == theirs
        assert_read_ahead(source, SAMPLES)
        assert listed(ours) == theirs
        assert_read_ahead(source, 2 * SAMPLES)


PIPELINES = {
    "repeated": lambda data: data.seed(1).shuffle().repeat(2),
    "sliced": lambda data: data.seed(1).shuffle()[1::3].repeat(3),
    "window": lambda data: grain.experimental.WindowShuffleMapDataset(data, window_size=10, seed=4).repeat(2),
    "mapped": lambda data: data.map(lambda element: element).seed(2).shuffle().random_map(lambda element, rng: element),
    "concatenated": lambda data: grain.MapDataset.concatenate([data[:30], data[50:]]).shuffle(seed=7),
}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_map_dataset_is_read_ahead(plain: Plain, source: Any, pipeline: str) -> None:
    def batches(data: Any) -> list[Any]:
        return listed(data.map(Lengths()).to_iter_dataset().batch(8))

    theirs = PIPELINES[pipeline](grain.MapDataset.source(plain))
    ours = source.announce(PIPELINES[pipeline](grain.MapDataset.source(source)))
    assert batches(ours) == batches(theirs)
    assert_read_ahead(source, len({theirs[index][0] for index in range(len(theirs))}))


def test_batches_of_a_map_dataset_are_read_ahead(plain: Plain, source: Any) -> None:
    def batched(data: Any) -> Any:
        return grain.MapDataset.source(data).shuffle(seed=1).map(Lengths()).batch(8, drop_remainder=True).repeat(2)

    theirs, ours = batched(plain), source.announce(batched(source))
    assert listed(ours[at] for at in range(len(ours))) == listed(theirs[at] for at in range(len(theirs)))
    assert_read_ahead(source, SAMPLES)


def test_iter_dataset_resumes_in_worker_processes(plain: Plain, source: Any) -> None:
    def batches(data: Any) -> Any:
        read = data.map(Lengths()).to_iter_dataset().batch(8)
        return iter(read.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))

    theirs = batches(PIPELINES["repeated"](grain.MapDataset.source(plain)))
    ours = batches(source.announce(PIPELINES["repeated"](grain.MapDataset.source(source))))
    for _ in range(5):
        assert next(ours).tolist() == next(theirs).tolist()
    state = ours.get_state()
    rest = listed(theirs)
    assert listed(ours) == rest
    # In the same workers, back to an index that they have requested.
    ours.set_state(state)
    before = source.report()["direct"]["memory"].get("samples", 0)
    assert listed(ours) == rest
    # Only what the workers requested before all of them had gone back is read on request.
    assert source.report()["direct"]["memory"].get("samples", 0) - before <= 64 < 8 * len(rest)
    ours.close()
    theirs.close()


def test_windows_follow_each_other(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreread._announcer._FIRST_WINDOW", 150)
    monkeypatch.setattr("foreread._announcer._WINDOW", 300)
    with foreread.grain.source(str(directory), memory="16MiB") as source:
        data = source.announce(grain.MapDataset.source(source).shuffle(seed=1).repeat(20))
        assert [data[at] for at in range(len(data))] == [source[at] for at in source_order(20)]
        # Memory has the samples that windows repeat.
        assert source._announcers[0]._announced > 3
        assert source.report()["origin_requests"] == SAMPLES


def test_next_window_repeats_few_reads(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreread._announcer._FIRST_WINDOW", 80)
    monkeypatch.setattr("foreread._announcer._LEFT", 5)
    # Without a cache. The engine has read the window to its end when the next one is announced.
    with foreread.grain.source(str(directory), memory=0) as source:
        data = source.announce(grain.MapDataset.source(source).shuffle(seed=1))
        for at in range(SAMPLES):
            if at == 60:
                join_computation()
            data[at]
        assert source._announcers[0]._announced == 2
        assert_read_ahead(source, SAMPLES + 5)


def join_computation() -> None:
    """Waits until the next window is computed."""
    for thread in threading.enumerate():
        if thread.name == "foreread-order":
            thread.join()


def source_order(epochs: int) -> list[int]:
    data = grain.MapDataset.range(SAMPLES).shuffle(seed=1).repeat(epochs)
    return [data[at] for at in range(len(data))]


class Doubled:
    """A stand-in for `foreread.image`: its pixels name the seed, the epoch, the id and the sample."""

    shape, dtype = (4,), "int64"

    def decode(self, samples: Any, *, seed: int, epoch: int, ids: Any) -> Any:
        return np.array([[seed, epoch, number, len(sample)] for sample, number in zip(samples, ids, strict=True)])


@pytest.mark.parametrize("workers", [0, 1])
def test_batch_decoder_gets_seed_epoch_and_id(directory: Path, workers: int) -> None:
    with foreread.grain.source(str(directory), decode=Doubled(), labels=False, seed=11) as source:
        order = source.announce(sampler())
        operations = [grain.transforms.Batch(SAMPLES)]
        batches = list(
            grain.DataLoader(data_source=source, sampler=order, operations=operations, worker_count=workers)
        )
        for epoch, batch in enumerate(batches):
            ids = [order[epoch * SAMPLES + at].record_key for at in range(SAMPLES)]
            assert batch.tolist() == [[11, epoch, number, len(content(number))] for number in ids]
        assert len(batches) == 2


def test_elements_are_decoded(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.frombytes("RGB", (5, 3), bytes(range(45))).save(tmp_path / "one.png")
    with foreread.grain.source(str(tmp_path), decode="image") as source:
        assert source[0].tolist() == np.arange(45).reshape(3, 5, 3).tolist()
    with foreread.grain.source(str(tmp_path), decode=len) as source:
        assert source[0] == (tmp_path / "one.png").stat().st_size
    with pytest.raises(foreread.errors.ConfigError, match="invalid decode='jpeg'"):
        foreread.grain.source(str(tmp_path), decode="jpeg")
    with pytest.raises(foreread.errors.ConfigError, match="no labels"):
        foreread.grain.source(str(tmp_path), labels=True)


def test_fields_of_web_dataset(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "one.tar", "w") as tar:
        for name, data in (("1.cls", b"7"), ("1.txt", b"text")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    with foreread.grain.source(str(tmp_path), field="txt", labels="cls") as source:
        assert source[0] == (b"text", 7)
    with pytest.raises(foreread.errors.ConfigError, match=r"several fields \(cls, txt\)"):
        foreread.grain.source(str(tmp_path))


def test_failed_element_names_its_sample(directory: Path) -> None:
    with foreread.grain.source(str(directory), decode=lambda sample: 1 // 0) as source:
        with pytest.raises(foreread.errors.CorruptError, match=r"sample 30 \(class1/030.bin\).*: ZeroDivisionError") as caught:
            source[30]
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("workers", [0, 1])
def test_undecodable_image_has_its_path_in_the_message(directory: Path, workers: int) -> None:
    with foreread.grain.source(str(directory), decode=foreread.image(8)) as source:
        order = source.announce(sampler(shuffle=False))
        data = grain.DataLoader(data_source=source, sampler=order, worker_count=workers)
        with pytest.raises(Exception, match=r"sample 0 \(class0/000.bin\) of .* cannot be decoded") as caught:
            next(iter(data))
        assert str(caught.value).count("cannot be decoded") == 1


ORDERS = {
    "batched": lambda data: data.seed(1).shuffle().repeat(2).batch(4),
    "sliced": lambda data: data.seed(1).shuffle().repeat(2)[1::2],
    "sliced before": lambda data: data[1::2].repeat(2).batch(4),
    "shuffled": lambda data: data.repeat(2).seed(3).shuffle().map(lambda element: element),
    "endless": lambda data: data.seed(1).shuffle().repeat().batch(4)[:50],
}


@pytest.mark.parametrize("pipeline", ORDERS)
def test_crops_are_of_their_epoch_in_any_order(directory: Path, pipeline: str) -> None:
    with foreread.grain.source(str(directory), decode=Doubled(), labels=False) as source:
        plain = ORDERS[pipeline](grain.MapDataset.range(SAMPLES))
        ours = source.announce(ORDERS[pipeline](grain.MapDataset.source(source))).to_iter_dataset()
        found: list[tuple[int, int]] = []
        iterator = iter(ours)
        for at in range(len(plain)):
            if at == len(plain) - 5:
                # A restored checkpoint continues with the right epoch.
                state, iterator = iterator.get_state(), iter(ours)
                iterator.set_state(state)
            found += [(int(row[1]), int(row[2])) for row in next(iterator).reshape(-1, 4)]
    ids = [int(number) for at in range(len(plain)) for number in np.ravel(plain[at])]
    assert [number for _, number in found] == ids
    # Each sample is of each epoch once.
    assert len(set(found)) == len(found)
    assert {epoch for epoch, _ in found} == {0, 1}


def test_orders_that_are_unknown_are_refused(plain: Plain, source: Any) -> None:
    with pytest.raises(foreread.errors.ConfigError, match="does not read this source"):
        source.announce(grain.MapDataset.source(plain).shuffle(seed=1))

    class Odd(grain.MapDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return len(self._parent)

        def __getitem__(self, index: Any) -> Any:
            return self._parent[index]

    with pytest.raises(foreread.errors.ConfigError, match="order of a Odd"):
        source.announce(Odd(grain.MapDataset.source(source)))
    announced = source.announce(grain.MapDataset.source(source)).to_iter_dataset()
    with pytest.raises(foreread.errors.ConfigError, match="sequential_slice"):
        next(iter(announced.mp_prefetch(grain.MultiprocessingOptions(num_workers=2), sequential_slice=True)))
    with pytest.raises(TypeError, match="announce the sampler"):
        source.announce(loader(source, sampler()))


def test_closing_leaves_no_threads(directory: Path) -> None:
    with foreread.grain.source(str(directory)) as source:
        order = source.announce(sampler())
        list(loader(source, order, workers=1))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("foreread-order")]
    with pytest.raises(foreread.errors.ClosedError):
        source[0]
