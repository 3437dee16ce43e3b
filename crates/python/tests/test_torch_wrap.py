"""wrap(loader) yields the same as the loader, from files that were read ahead."""

from __future__ import annotations

import builtins
import copy
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import foreread
from torch_images import SAMPLES, assert_same, batches, folder, generators, images, served, to_tensor  # noqa: F401
from foreread.torch import Dataset, wrap
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)


class Own(Sampler[int]):
    """A custom sampler that omits odd indices and draws lazily from Python's and PyTorch's global generators."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        left = list(range(0, self.length, 2))
        while left:
            shift = int(torch.randint(0, len(left), ()))
            yield left.pop((random.randrange(len(left)) + shift) % len(left))

    def __len__(self) -> int:
        return -(-self.length // 2)


def generator(seed: int = 11) -> Any:
    return torch.Generator().manual_seed(seed)


WAYS: dict[str, Callable[[Any], Any]] = {
    "sequential": lambda data: DataLoader(data, 8),
    "shuffle": lambda data: DataLoader(data, 8, shuffle=True),
    "shuffle, seeded": lambda data: DataLoader(data, 8, shuffle=True, generator=generator()),
    "drop_last": lambda data: DataLoader(data, 8, shuffle=True, drop_last=True),
    "random, own generator": lambda data: DataLoader(data, 8, sampler=RandomSampler(data, generator=generator())),
    "random, with replacement": lambda data: DataLoader(
        data, 8, sampler=RandomSampler(data, replacement=True, num_samples=70, generator=generator())
    ),
    "distributed": lambda data: DataLoader(data, 8, sampler=DistributedSampler(data, 3, 1, seed=4)),
    "weighted": lambda data: DataLoader(
        data, 8, sampler=WeightedRandomSampler([1 + n % 7 for n in range(SAMPLES)], 80, generator=generator())
    ),
    "weighted, unseeded": lambda data: DataLoader(
        data, 8, sampler=WeightedRandomSampler([1 + n % 7 for n in range(SAMPLES)], 80)
    ),
    "subset": lambda data: DataLoader(data, 8, sampler=SubsetRandomSampler(range(3, 90, 4), generator=generator())),
    "batches": lambda data: DataLoader(
        data, batch_sampler=BatchSampler(RandomSampler(data, generator=generator()), 5, True)
    ),
    "own": lambda data: DataLoader(data, 8, sampler=Own(SAMPLES)),
    "no batches": lambda data: DataLoader(data, batch_size=None, shuffle=True),
}


def epochs(loader: Any, count: int) -> list[list[tuple[Any, Any]]]:
    """Iterates like a training: calls set_epoch if available, and draws numbers between steps."""
    found = []
    for epoch in range(count):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        steps = []
        for x, y in loader:
            torch.rand(3)
            steps.append((x.clone(), torch.as_tensor(y).clone()))
        found.append(steps)
    return found


@pytest.mark.parametrize("make", [served, wrap])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
# semantics: PY-3
def test_batches_equal_the_plain_loaders(folder: Any, way: str, workers: int, make: Any) -> None:
    def seeded(make: Callable[[], list[Any]]) -> list[Any]:
        torch.manual_seed(2)
        random.seed(2)
        return make()

    def loader() -> Any:
        made = WAYS[way](folder)
        made.num_workers = workers
        if workers:
            made.prefetch_factor = 2
        return made

    theirs = seeded(lambda: epochs(loader(), 3))

    def wrapped() -> list[Any]:
        with make(loader()) as ours:
            return epochs(ours, 3)

    for mine, other in zip(seeded(wrapped), theirs, strict=True):
        assert_same(mine, other)


def announced_shares(loader: Any, count: int) -> float:
    """The share of samples that were read ahead, not on request."""
    epochs(loader, count)
    report = loader._parts[0].engine.source.report()
    direct = sum(tier.get("samples") or 0 for tier in report["direct"].values())
    ahead = sum(epoch["samples"] for epoch in report["epochs"])
    return float(ahead / (ahead + direct))


@pytest.mark.parametrize("way", [way for way in WAYS if way != "own"])
# semantics: PY-3
def test_everything_is_read_ahead(folder: Any, way: str) -> None:
    with served(WAYS[way](folder)) as ours:
        assert announced_shares(ours, 4) == 1.0
        report = ours._parts[0].engine.source.report()
        assert report["origin_requests"] <= SAMPLES, "memory holds what was read"


@pytest.mark.parametrize("make", [served, wrap])
# semantics: PY-3
def test_uncopyable_sampler_costs_time_only(folder: Any, caplog: Any, make: Any) -> None:
    class Stubborn(SequentialSampler):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("not me")

    theirs = batches(DataLoader(folder, 8))
    with make(DataLoader(folder, 8, sampler=Stubborn(folder))) as ours:
        assert_same(batches(ours), theirs)
        assert_same(batches(ours), theirs)
    assert "cannot be run ahead (TypeError: not me)" in caplog.text


# semantics: PY-14
def test_files_are_opened_by_foreread_alone(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    plain = foreread.torch._files._open

    def spy(file: Any, *args: Any, **settings: Any) -> Any:
        opened.append(str(file))
        return plain(file, *args, **settings)

    monkeypatch.setattr(foreread.torch._files, "_open", spy)
    with served(DataLoader(folder, 8)) as ours:
        batches(ours)
    assert not [name for name in opened if name.endswith(".png")]


# semantics: PY-14
def test_open_is_unchanged_elsewhere(folder: Any, tmp_path: Path) -> None:
    with served(DataLoader(folder, 8)) as ours:
        batches(ours)
    path = tmp_path / "x"
    with builtins.open(path, "w", encoding="utf-8") as file:
        file.write("äö")
    with open(path, encoding="utf-8") as file:
        assert file.read() == "äö"


def test_subsets_and_concatenations_are_supported(folder: Any) -> None:
    data = ConcatDataset([Subset(folder, range(90, 10, -3)), folder])
    theirs = batches(DataLoader(data, 8))
    with served(DataLoader(data, 8), root=folder.root) as ours:
        assert_same(batches(ours), theirs)
        report = ours._parts[0].engine.source.report()
        assert sum(epoch["samples"] for epoch in report["epochs"]) == len(data)


def test_paths_may_be_given(images: Path) -> None:
    class Numbers(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.files = sorted(images.rglob("*.png"))

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> Any:
            with open(self.files[index], "rb") as file:
                return len(file.read()), index

    data = Numbers()
    with pytest.raises(foreread.errors.ConfigError, match="paths="):
        served(DataLoader(data, 8), root=images)
    with pytest.raises(foreread.errors.ConfigError, match="root="):
        served(DataLoader(data, 8), paths=data.files)
    for workers in (0, 2):
        with served(DataLoader(data, 8, num_workers=workers), root=images, paths=data.files) as ours:
            assert_same(batches(ours), batches(DataLoader(data, 8)))
            report = ours._parts[0].engine.source.report()
            assert sum(epoch["samples"] for epoch in report["epochs"]) == SAMPLES


def test_unsupported_loaders_are_refused(folder: Any, tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            yield 1

    with pytest.raises(foreread.errors.ConfigError, match="IterableDataset"):
        served(DataLoader(Stream(), 8))
    (tmp_path / "one").write_text("1")
    with pytest.raises(foreread.errors.ConfigError, match="none of the dataset's"):
        served(DataLoader(folder, 8), root=tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
def test_foreread_dataset_works_in_a_plain_loader(images: Path, folder: Any, workers: int) -> None:
    data = Dataset(images, transform=to_tensor)
    assert len(data) == SAMPLES and data.classes == folder.classes and list(data.targets) == folder.targets
    make = lambda dataset: DataLoader(dataset, 8, shuffle=True, num_workers=workers, generator=generator())  # noqa: E731
    theirs = epochs(make(folder), 2)
    for mine, other in zip(epochs(make(data), 2), theirs, strict=True):
        assert_same(mine, other)
    with served(make(data)) as ours:
        for mine, other in zip(epochs(ours, 2), theirs, strict=True):
            assert_same(mine, other)


def test_moved_samples_are_read_at_their_new_path(folder: Any) -> None:
    """Bytes of another file under a new path and label would be the worst error."""
    data = Subset(folder, list(range(40)))
    with served(DataLoader(data, 8), root=folder.root) as ours:
        batches(ours)
        data.indices = list(range(40, 80))
        assert_same(batches(ours), batches(DataLoader(Subset(folder, range(40, 80)), 8)))
        random.shuffle(folder.samples)
        assert_same(batches(ours), batches(DataLoader(Subset(folder, range(40, 80)), 8)))


def test_attributes_are_set_on_the_original_objects(folder: Any) -> None:
    with served(DataLoader(folder, 8)) as ours:
        assert isinstance(ours, DataLoader) and isinstance(ours.dataset, type(folder))
        ours.dataset.transform = lambda image: to_tensor(image)[:, :4]
        assert next(iter(ours))[0].shape == (8, 3, 4, 16)
        ours.collate_fn = len
        assert next(iter(ours)) == 8


def test_dataset_with_getitems_makes_batches(images: Path) -> None:
    class Batched(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.samples = [(str(path), 0) for path in sorted(images.rglob("*.png"))]

        def __len__(self) -> int:
            return len(self.samples)

        def __getitems__(self, indices: list[int]) -> list[int]:
            found = []
            for index in indices:
                with open(self.samples[index][0], "rb") as file:
                    found.append(len(file.read()))
            return found

        def __getitem__(self, index: int) -> int:
            return self.__getitems__([index])[0]

    data = Batched()
    with served(DataLoader(data, 8), root=images) as ours:
        assert [x.tolist() for x in ours] == [x.tolist() for x in DataLoader(data, 8)]


def test_batch_is_requested_at_once(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch 2 requests a batch by ``__getitems__``."""
    with served(DataLoader(folder, 8)) as ours:
        data, engine = ours.dataset, ours._parts[0].engine
        requested: list[list[int]] = []
        get_many = type(engine).get_many
        monkeypatch.setattr(type(engine), "get", lambda *_: pytest.fail("a single request"))
        monkeypatch.setattr(type(engine), "get_many", lambda its, ids: requested.append(ids) or get_many(its, ids))
        indices = [3, 1, 3, *range(5, 25)]
        for (image, label), index in zip(data.__getitems__(indices), indices, strict=True):
            assert torch.equal(image, folder[index][0]) and label == folder[index][1]
        assert requested == [indices[:8], indices[8:16], indices[16:]]
        for some in ({1, 2}, {3: None, 9: None}.keys(), iter([4, 5]), map(int, "67")):
            assert len(data.__getitems__(some)) == 2
        monkeypatch.undo()
        folder.samples[4] = ("/nowhere/file.png", 0)
        with pytest.raises(FileNotFoundError):
            data.__getitems__([2, 4])
        with pytest.raises(IndexError):
            data.__getitems__([2, len(data)])
        assert data._held == {}


def test_descriptor_is_that_of_the_file(folder: Any) -> None:
    import numpy

    class Raw(type(folder)):  # type: ignore[misc]
        def __getitem__(self, index: int) -> int:
            return int(numpy.fromfile(self.samples[index][0], numpy.uint8).sum())

    data = Raw(folder.root)
    with served(DataLoader(data, 8)) as ours:
        assert [x.tolist() for x in ours] == [x.tolist() for x in DataLoader(data, 8)]


def test_endless_sampler_gives_its_first_batch(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Sampler[int]):
        def __init__(self) -> None:
            self.drawn = 0

        def __iter__(self) -> Iterator[int]:
            while True:
                yield from range(SAMPLES)

        def __len__(self) -> int:
            return 1 << 30

    monkeypatch.setattr(foreread.torch._ahead, "MAX_INDICES", 5 * SAMPLES)
    with served(DataLoader(folder, 8, sampler=Endless())) as ours:
        for step, _ in enumerate(ours):
            if step == 100:
                break


def test_loader_continues_after_close(folder: Any) -> None:
    theirs = batches(DataLoader(folder, 8))
    ours = served(DataLoader(folder, 8))
    assert_same(batches(ours), theirs)
    ours.close()
    ours.close()
    assert_same(batches(ours), theirs)
    assert ours.stats().samples == SAMPLES


def test_closing_with_busy_workers_prints_nothing(folder: Any, capfd: Any) -> None:
    theirs = batches(DataLoader(folder, 4))
    ours = served(DataLoader(folder, 4, num_workers=2, prefetch_factor=6))
    iterator = iter(ours)
    first = [next(iterator)]
    ours.close()
    assert_same(first + list(iterator), theirs)
    assert "opened as usual" not in capfd.readouterr().err


def test_subset_of_a_foreread_dataset_is_supported(images: Path, folder: Any) -> None:
    data = Dataset(images, transform=to_tensor)
    part = Subset(Subset(data, range(100, 0, -2)), range(5, 45))
    theirs = batches(DataLoader(Subset(Subset(folder, range(100, 0, -2)), range(5, 45)), 8))
    with served(DataLoader(part, 8)) as ours:
        assert_same(batches(ours), theirs)
        report = data.engine.source.report()
        assert sum(epoch["samples"] for epoch in report["epochs"]) == 40


class Counted(Sampler[int]):
    """A custom sampler that counts its runs, including those of copies."""

    runs = 0

    def __init__(self, draw: Callable[[int], list[int]]) -> None:
        self.draw = draw
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        Counted.runs += 1
        return iter(self.draw(self.epoch))

    def __len__(self) -> int:
        return SAMPLES


def own_shuffle(epoch: int) -> list[int]:
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()  # type: ignore[no-any-return]


def set_by_itself(epoch: int) -> list[int]:
    torch.manual_seed(epoch)
    return torch.randperm(SAMPLES).tolist()  # type: ignore[no-any-return]


def of_the_globals(epoch: int) -> list[int]:
    return torch.randperm(SAMPLES).tolist()  # type: ignore[no-any-return]


def of_the_system(epoch: int) -> list[int]:
    return random.SystemRandom().sample(range(SAMPLES), SAMPLES)


@pytest.mark.parametrize(
    "draw, foreseen, tried",
    [
        # Each epoch once in advance, once when it begins, and the original sampler.
        (own_shuffle, 7, 0),
        # The dependency on global generators is tested once.
        (set_by_itself, 7, 1),
        (of_the_globals, 0, 1),
    ],
)
def test_sampler_runs_once_per_predicted_epoch(
    folder: Any, draw: Any, foreseen: int, tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counted, "runs", 0)
    monkeypatch.setattr(foreread.torch._ahead, "_COMPUTE_LIMIT", 1000)
    sampler = Counted(draw)
    with served(DataLoader(folder, 8, sampler=sampler)) as ours:
        runs = []
        for epoch in range(8):
            sampler.set_epoch(epoch)
            batches(ours)
            runs.append(Counted.runs)
        direct = ours._parts[0].engine.source.report()["direct"]
    assert runs == [2 + foreseen + tried + 2 * epoch for epoch in range(8)]
    assert not any(tier.get("samples") for tier in direct.values())


def test_slow_sampler_does_not_delay_the_first_batch(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "runs", 0)
    monkeypatch.setattr(foreread.torch._ahead, "_COMPUTE_LIMIT", 0)
    with served(DataLoader(folder, 8, sampler=Counted(own_shuffle))) as ours:
        next(iter(ours))
    assert Counted.runs == 3, "this epoch, the one after it, and the real one"


def test_unpredictable_sampler_is_predicted_less(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "runs", 0)
    monkeypatch.setattr(foreread.torch._ahead, "_COMPUTE_LIMIT", 1000)
    with served(DataLoader(folder, 8, sampler=Counted(of_the_system))) as ours:
        runs = []
        for _ in range(6):
            assert sorted(y for _, batch in ours for y in batch.tolist()) == sorted(folder.targets)
            runs.append(Counted.runs)
    assert [after - before for before, after in zip([0, *runs], runs)] == [9, 5, 3, 2, 2, 2]


def test_epochs_left_early_are_not_predicted_again(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "runs", 0)
    monkeypatch.setattr(foreread.torch._ahead, "_COMPUTE_LIMIT", 1000)
    sampler = Counted(own_shuffle)
    with served(DataLoader(folder, 8, sampler=sampler)) as ours:
        for epoch in range(4):
            sampler.set_epoch(epoch)
            next(iter(ours))
        assert Counted.runs == 8 + 1 + 3 * 2
        sampler.set_epoch(4)
        assert_same(batches(ours), batches(DataLoader(folder, 8, sampler=sampler)))


def test_unused_iterator_keeps_the_prediction(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "runs", 0)
    monkeypatch.setattr(foreread.torch._ahead, "_COMPUTE_LIMIT", 1000)
    sampler = Counted(own_shuffle)
    with served(DataLoader(folder, 8, sampler=sampler)) as ours:
        for epoch in range(6):
            sampler.set_epoch(epoch)
            iter(ours)
            assert_same(batches(ours), batches(DataLoader(folder, 8, sampler=sampler)))
        direct = ours._parts[0].engine.source.report()["direct"]
    assert Counted.runs == 8 + 6 * 3 + 6 - 1, "ahead; twice when it begins and really; the other loader's"
    assert not any(tier.get("samples") for tier in direct.values())


@pytest.mark.parametrize("workers", [0, 2])
def test_iterator_has_its_loaders_length(folder: Any, workers: int) -> None:
    with served(DataLoader(folder, 8, num_workers=workers)) as ours:
        iterator = iter(ours)
        assert iter(iterator) is iterator and len(iterator) == 13
        next(iterator)
        assert len(iterator) == 13


@pytest.mark.parametrize("ours", [True, False])
def test_copies_in_one_process_have_one_engine(images: Path, folder: Any, ours: bool) -> None:
    data = Dataset(images, transform=to_tensor) if ours else folder
    theirs = batches(DataLoader(folder, 8))
    wrapped = served(DataLoader(data, 8))
    for made in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert_same(batches(made), theirs)
        assert made.stats().samples > 0
    if ours:
        with served(DataLoader(copy.deepcopy(data), 8)) as again:
            assert_same(batches(again), theirs)
        assert data.engine.closed, "one engine"
    else:
        made.close()
        assert wrapped._parts[0].engine.closed
        assert len(batches(wrapped)) == 13
