"""Loaders and their iterators behave as PyTorch's after an exception, an assignment, a copy and a look at one batch."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import foreread
from torch_images import SAMPLES, Image, assert_same, batches, folder, generators, images, served, to_tensor, torchvision  # noqa: F401
from foreread.torch import DataLoader, Dataset, wrap
from torch.utils.data import DataLoader as Plain
from torch.utils.data import DistributedSampler, Subset, TensorDataset
from waiting import until

#: The sample whose transform raises, by its number in the order of names.
FAILS = 20


class Failing:
    """A transform that raises an exception for one image."""

    def __init__(self, root: Path, error: BaseException) -> None:
        with Image.open(sorted(root.rglob("*.png"))[FAILS]) as image:
            self.pixels = image.tobytes()
        self.error = error

    def __call__(self, image: Any) -> Any:
        if image.convert("RGB").tobytes() == self.pixels:
            raise self.error
        return to_tensor(image)


class Once:
    """Raises an interrupt at one call, and counts the calls."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def __call__(self, image: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return to_tensor(image)


def labels_despite(iterator: Iterator[Any], error: type[BaseException]) -> tuple[list[int], int]:
    """The labels of all batches and the number of exceptions, as scripts that skip bad batches loop."""
    found: list[int] = []
    raised = 0
    while True:
        try:
            found += next(iterator)[1].tolist()
        except StopIteration:
            return found, raised
        except error:
            raised += 1
            assert raised < 100


WAYS: dict[str, Any] = {
    "page cache": lambda root, transform, workers: wrap(plain(root, transform, workers)),
    "memory": lambda root, transform, workers: served(plain(root, transform, workers)),
    "dataset": lambda root, transform, workers: wrap(Plain(Dataset(root, transform, memory="8MiB"), 10, num_workers=workers)),
    "loader": lambda root, transform, workers: DataLoader(
        root, 10, shuffle=False, transform=transform, num_workers=workers, memory="8MiB"
    ),
}


def plain(root: Path, transform: Any, workers: int = 0) -> Any:
    return Plain(torchvision.datasets.ImageFolder(str(root), transform), 10, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", WAYS)
# semantics: PY-18
def test_exception_loses_one_batch(images: Path, way: str, workers: int) -> None:
    transform = Failing(images, ValueError("bad"))
    theirs = labels_despite(iter(plain(images, transform, workers)), ValueError)
    assert theirs[1] == 1 and len(theirs[0]) == SAMPLES - 10
    with WAYS[way](images, transform, workers) as ours:
        for _ in range(2):
            iterator = iter(ours)
            assert labels_despite(iterator, ValueError) == theirs
            assert next(iterator, None) is None


@pytest.mark.parametrize("workers", [0, 2])
# semantics: PY-18
def test_stop_iteration_of_a_transform_is_no_end(images: Path, workers: int) -> None:
    with WAYS["loader"](images, Failing(images, StopIteration()), workers) as loader:
        found, raised = labels_despite(iter(loader), RuntimeError)
    assert raised == 1 and len(found) == SAMPLES - 10


@pytest.mark.parametrize("way", WAYS)
# semantics: PY-18
def test_interrupt_leaves_the_iterator_usable(images: Path, way: str) -> None:
    found, raised = labels_despite(iter(WAYS[way](images, Once(25), 0)), KeyboardInterrupt)
    # PyTorch's iterator has taken the indices of the interrupted batch. foreread's loader makes the batch again.
    assert raised == 1 and len(found) == (SAMPLES if way == "loader" else SAMPLES - 10)


def position(loader: Any) -> tuple[int, int]:
    state = json.loads(loader.state_dict()["foreread"])
    return state["epoch"], state["consumed"]


@pytest.mark.parametrize("workers", [0, 2])
# semantics: PY-2
def test_state_after_an_exception_counts_delivered_batches(images: Path, workers: int) -> None:
    transform = Failing(images, ValueError("bad"))
    with DataLoader(images, 10, shuffle=False, transform=transform, num_workers=workers) as loader:
        iterator = iter(loader)
        positions = []
        for _ in range(4):
            try:
                next(iterator)
            except ValueError:
                pass
            positions.append(position(loader))
        # The state at the exception is that of the failed batch, which a resumed run tries again.
        assert positions == [(0, 10), (0, 20), (0, 20), (0, 40)]


# semantics: PY-18
def test_batch_lost_by_an_interrupt_is_delivered(images: Path, folder: Any) -> None:
    theirs = batches(Plain(folder, 8))
    with DataLoader(images, 8, shuffle=False, transform=to_tensor, num_workers=1, prefetch_factor=2) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        # An interrupt can arrive between the engine and the caller.
        loader._native.__next__()
        found += [next(iterator) for _ in range(10)]
        loader._native.__next__()
        assert_same(found + list(iterator), theirs)
        assert position(loader) == (1, 0)


@pytest.mark.parametrize("workers", [0, 2])
# semantics: PY-18
def test_read_error_stays_an_error(images: Path, tmp_path: Path, workers: int) -> None:
    root = Path(shutil.copytree(images, tmp_path / "less"))
    catalog = foreread.index(root)
    sorted(root.rglob("*.png"))[30].unlink()
    with DataLoader(catalog, 4, shuffle=False, transform=to_tensor, num_workers=workers) as loader:
        iterator = iter(loader)
        assert len([next(iterator) for _ in range(7)]) == 7
        for _ in range(3):
            with pytest.raises(foreread.errors.NotFoundError):
                next(iterator)
        assert position(loader) == (0, 28)


# semantics: PY-18
def test_nested_loops_resume_after_an_interrupt(images: Path, folder: Any) -> None:
    with DataLoader(images, 8, shuffle=False, transform=Once(30)) as loader:
        outer = iter(loader)
        next(outer)
        inner = iter(loader)
        found = [next(inner) for _ in range(2)]
        with pytest.raises(KeyboardInterrupt):
            for batch in inner:
                found.append(batch)
        with pytest.raises(foreread.errors.ClosedError, match="one epoch is read at a time"):
            next(outer)
        assert_same(found + list(inner), batches(Plain(folder, 8)))


@pytest.mark.parametrize(
    "name, value",
    [("batch_size", 5), ("drop_last", True), ("dataset", None), ("shuffle", False), ("seed", 1), ("num_workers", 4), ("memory", 1)],
)
# semantics: PY-19
def test_attribute_of_a_loader_is_read_only_as_pytorchs(images: Path, folder: Any, name: str, value: Any) -> None:
    with DataLoader(images, 10, transform=to_tensor) as loader:
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
            setattr(loader, name, value)
        # A script's own attributes are its own.
        loader.purpose = "training"
        assert sum(len(x) for x, _ in loader) == SAMPLES
    if name in ("batch_size", "drop_last", "dataset"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader is initialized"):
            setattr(served(Plain(folder, 10)), name, value)


# semantics: PY-19
def test_settings_of_a_dataset_are_read_only(images: Path) -> None:
    data = Dataset(images, to_tensor)
    for name in ("target", "settings"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after Dataset is initialized"):
            setattr(data, name, None)
    data.transform = len
    data.close()


@pytest.mark.parametrize("workers", [0, 2])
# semantics: PY-2
def test_look_at_one_batch_uses_up_no_epoch(images: Path, folder: Any, workers: int) -> None:
    sampler: Any = DistributedSampler(folder, 1, 0)
    theirs = Plain(folder, 8, sampler=sampler)
    with DataLoader(images, 8, transform=to_tensor, num_workers=workers, epochs=2) as ours:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            first = batches(theirs)[0]
            for _ in range(3):
                look = next(iter(ours))
                assert_same([look], [first])
                # The caller may change what it has got.
                look[0].zero_()
            assert_same(batches(ours), batches(theirs))
        with pytest.raises(foreread.errors.ConfigError, match="no epoch 2"):
            next(iter(ours))
        report = ours._native.report()
        assert report["origin_requests"] <= 2 * SAMPLES, "a look does not read again"


def test_loop_left_after_each_first_batch_gets_others(images: Path) -> None:
    with DataLoader(images, 8, transform=to_tensor) as ours:
        first = [next(iter(ours))[1].tolist() for _ in range(6)]
    assert first[0] == first[3] and first[3] != first[4] and first[4] == first[5]


def test_second_batch_is_more_than_a_look(images: Path, folder: Any) -> None:
    sampler: Any = DistributedSampler(folder, 1, 0)
    theirs = Plain(folder, 8, sampler=sampler)
    with DataLoader(images, 8, transform=to_tensor) as ours:
        assert len(list(zip(range(2), ours))) == 2
        sampler.set_epoch(1)
        assert_same(batches(ours), batches(theirs))
        next(iter(ours))
        # A set epoch and a state come before what is due.
        ours.set_epoch(0)
        sampler.set_epoch(0)
        assert_same(batches(ours), batches(theirs))


@pytest.mark.parametrize("work", [pickle.dumps, copy.copy, copy.deepcopy])
def test_copying_names_the_remedy(images: Path, work: Any) -> None:
    with DataLoader(images, 8, transform=to_tensor) as loader:
        with pytest.raises(TypeError, match="create it where it is used"):
            work(loader)
        with pytest.raises(TypeError, match=r"state_dict\(\)"):
            work(iter(loader))


def test_dataset_in_python_is_refused_with_wrap(folder: Any) -> None:
    for source in (Subset(folder, range(9)), TensorDataset(torch.arange(3)), Plain(folder, 8)):
        for kind in (DataLoader, Dataset):
            with pytest.raises(foreread.errors.ConfigError, match=r"wrap\("):
                kind(source)


def test_sampler_has_the_ids_of_the_epoch(images: Path, folder: Any) -> None:
    for shuffle in (True, False):
        theirs: Any = DistributedSampler(folder, 2, 1, seed=3, shuffle=shuffle)
        theirs.set_epoch(4)
        with DataLoader(images, 8, shuffle, transform=to_tensor, seed=3, rank=1, world_size=2, peers="off") as loader:
            loader.sampler.set_epoch(4)
            assert list(loader.sampler) == list(theirs) and len(loader.sampler) == len(theirs)
            assert isinstance(loader.sampler, torch.utils.data.SequentialSampler) == (not shuffle)
            sizes = [len(batch) for batch in loader.batch_sampler]
            assert sizes == [len(y) for _, y in loader]


def test_collation_runs_ahead_on_one_operator_thread(images: Path) -> None:
    import threading

    where = set()

    def collate(items: list[Any]) -> Any:
        where.add((threading.current_thread() is threading.main_thread(), torch.get_num_threads()))
        return torch.utils.data.default_collate(items)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for workers, expected in ((2, (False, 1)), (0, (True, 1))):
            where.clear()
            with DataLoader(images, 8, transform=to_tensor, num_workers=workers, collate_fn=collate, workers="threads") as loader:
                assert len(list(loader)) == 13 and where == {expected}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


# semantics: CACHE-6
def test_collated_batches_count_in_the_look_ahead(images: Path) -> None:
    with DataLoader(images, 8, transform=to_tensor, num_workers=2, prefetch_factor=50, look_ahead="32KiB") as loader:
        iterator = iter(loader)
        next(iterator)
        until("a batch is ahead", loader._pipeline.batches)
        # Images have 0.8 kB. All would be ahead otherwise.
        assert 0 < sum(batch.bytes for batch in loader._pipeline.batches()) <= 32 << 10
        assert len(list(iterator)) == 12
        assert position(loader) == (1, 0)
