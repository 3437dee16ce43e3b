"""foreread.torch.DataLoader yields the same as PyTorch's DataLoader."""

from __future__ import annotations

import gc
import io
import os
import tarfile
import threading
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import foreread
from torch_images import SAMPLES, assert_same, batches, folder, generators, images, to_tensor  # noqa: F401
from foreread.torch import DataLoader, Dataset
from waiting import until
from torch.utils.data import DataLoader as Plain
from torch.utils.data import DistributedSampler


def plain(folder: Any, world: int, rank: int, seed: int, drop_last: bool, shuffle: bool = True) -> tuple[Any, Any]:
    sampler: Any = DistributedSampler(folder, world, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
    return Plain(folder, 8, sampler=sampler, drop_last=drop_last), sampler


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 5])
# semantics: PY-1
def test_batches_equal_pytorchs(images: Path, folder: Any, world: int, drop_last: bool) -> None:
    for rank in range(world):
        theirs, sampler = plain(folder, world, rank, 3, drop_last)
        settings = {"seed": 3, "drop_last": drop_last, "rank": rank, "world_size": world, "peers": "off"}
        with DataLoader(images, 8, transform=to_tensor, **settings) as ours:
            assert len(ours) == len(theirs)
            assert len(ours.dataset) == SAMPLES and ours.dataset.class_to_idx == folder.class_to_idx
            # In order, repeated, forward and backward.
            for epoch in (0, 1, 1, 7, 2):
                ours.set_epoch(epoch)
                sampler.set_epoch(epoch)
                assert_same(batches(ours), batches(theirs))


def test_epochs_advance_without_set_epoch(images: Path, folder: Any) -> None:
    theirs, sampler = plain(folder, 1, 0, 0, False)
    with DataLoader(images, 8, transform=to_tensor) as ours:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert_same(batches(ours), batches(theirs))


def test_order_without_shuffling_is_image_folders(images: Path, folder: Any) -> None:
    with DataLoader(images, 8, shuffle=False, transform=to_tensor) as ours:
        assert_same(batches(ours), batches(Plain(folder, 8)))


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_threads_change_nothing(images: Path, folder: Any, threads: int) -> None:
    theirs, _ = plain(folder, 1, 0, 0, False)
    with DataLoader(folder, 8, num_workers=threads, prefetch_factor=3) as ours:
        assert_same(batches(ours), batches(theirs))


def test_worker_arguments_are_ignored_with_one_warning(images: Path, folder: Any) -> None:
    theirs, _ = plain(folder, 1, 0, 0, False)
    # PyTorch's defaults need no warning.
    with DataLoader(images, 8, transform=to_tensor, persistent_workers=False, timeout=0, in_order=True) as ours:
        assert_same(batches(ours), batches(theirs))
    with pytest.warns(UserWarning, match="ignored, because .* threads make .*: persistent_workers, timeout"):
        DataLoader(images, 8, transform=to_tensor, persistent_workers=True, timeout=30).close()
    # Warnings are errors in these tests, and a process gets each once.
    with DataLoader(images, 8, transform=to_tensor, persistent_workers=True, timeout=30) as again:
        assert_same(batches(again), batches(theirs))


# semantics: PY-2
def test_epoch_left_early_is_over(images: Path, folder: Any) -> None:
    theirs, sampler = plain(folder, 1, 0, 0, False)
    with DataLoader(images, 8, transform=to_tensor, memory="16MiB") as ours:
        for _ in zip(range(3), ours):
            pass
        sampler.set_epoch(1)
        assert_same(batches(ours), batches(theirs))
        first = iter(ours)
        # One batch would be a look, which uses up no epoch.
        next(first), next(first)
        sampler.set_epoch(3)
        assert_same(batches(ours), batches(theirs))
        with pytest.raises(foreread.errors.ClosedError, match="one epoch is read at a time"):
            list(first)


@pytest.mark.parametrize("taken", [0, 1, 5, 12, 13, 16])
@pytest.mark.parametrize("world", [1, 2, 3])
# semantics: PY-2
def test_state_resumes_at_its_position(images: Path, folder: Any, taken: int, world: int) -> None:
    with DataLoader(images, 8, transform=to_tensor) as whole:
        labels = [y for _ in range(2) for _, y in whole]
    with DataLoader(images, 8, transform=to_tensor) as before:
        left = taken
        while left:
            for _, _ in before:
                left -= 1
                if not left:
                    break
        state = before.state_dict()
    rest = labels[taken:]
    ranks = []
    for rank in range(world):
        settings = {"rank": rank, "world_size": world, "peers": "off"}
        after = DataLoader(images, 4, transform=to_tensor, **settings)
        after.load_state_dict(state)
        assert after.state_dict() == state
        ranks.append([y for y_batches in (after, after) for _, y in y_batches][: 40])
        after.close()
    # The global order interleaves the ranks' samples. Padding is at the end of an epoch.
    mine = [torch.cat(batches) for batches in ranks]
    turn = torch.stack([labels[: min(map(len, mine))] for labels in mine], dim=1).flatten()
    first_epoch = SAMPLES - 8 * taken if taken < 13 else 2 * SAMPLES - SAMPLES - 8 * (taken - 13)
    assert torch.equal(turn[:first_epoch], torch.cat(rest)[:first_epoch])


def test_invalid_state_is_refused(images: Path) -> None:
    with DataLoader(images, 8) as loader:
        for state in ({}, {"foreread": "{}"}, {"foreread": 7}, None):
            with pytest.raises((foreread.Error, ValueError)):
                loader.load_state_dict(state)  # type: ignore[arg-type]
        other = DataLoader(images, 8, seed=9)
        with pytest.raises(foreread.errors.StateError, match="seed is 9"):
            loader.load_state_dict(other.state_dict())
        other.close()


# semantics: PY-11
def test_transforms_exception_names_the_sample(images: Path) -> None:
    class Odd(Exception):
        pass

    def transform(image: Any) -> Any:
        raise Odd("no")

    for threads in (0, 2):
        with DataLoader(images, 8, transform=transform, num_workers=threads, workers="threads") as loader:
            loader.set_epoch(3)
            with pytest.raises(Odd, match="no") as raised:
                next(iter(loader))
            notes = "".join(raised.value.__notes__)
            assert "epoch 3" in notes and ".png" in notes
            assert "in transform" in "".join(str(entry.name) for entry in raised.traceback) or raised.tb


@pytest.fixture
def damaged(tmp_path: Path, images: Path) -> Path:
    root = tmp_path / "damaged"
    for number, path in enumerate(sorted(images.rglob("*.png"))[:16]):
        copy = root / path.relative_to(images)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes() if number != 5 else b"\x89PNG\r\n\x1a\nnot an image")
    return root


# semantics: PY-11
def test_corrupt_image_is_named(damaged: Path) -> None:
    with DataLoader(damaged, 8, transform=to_tensor, shuffle=False) as loader:
        with pytest.raises(foreread.errors.CorruptError, match=r"sample 5 \(class0/.*png\) of epoch 0 cannot be decoded"):
            list(loader)


# semantics: PY-11
def test_corrupt_image_is_skipped_or_replaced_on_request(damaged: Path) -> None:
    for policy, length in (("skip", 7), ("substitute", 8)):
        with DataLoader(damaged, 8, transform=to_tensor, shuffle=False, on_error=policy) as loader:
            with pytest.warns(RuntimeWarning, match="sample 5"):
                sizes = [len(x) for x, _ in loader]
            assert sizes == [length, 8] and loader.skipped == 1


def test_members_of_webdataset_samples_are_a_dict(tmp_path: Path) -> None:
    members = {f"{number:03}": {"bin": bytes([number]) * 900, "cls": str(number).encode()} for number in range(20)}
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        for key, fields in members.items():
            for name, content in fields.items():
                member = tarfile.TarInfo(f"{key}.{name}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    with DataLoader(tmp_path / "a.tar", batch_size=4, epochs=1, seed=0) as loader:
        found = [dict(zip(batch, fields, strict=True)) for batch in loader for fields in zip(*batch.values(), strict=True)]
    assert sorted(found, key=lambda fields: int(fields["cls"])) == list(members.values())


def test_bytes_come_as_they_are(images: Path) -> None:
    with DataLoader(images, 4, shuffle=False, decode="bytes", collate_fn=list) as loader:
        samples = [sample for batch in loader for sample, _ in batch]
        for number, sample in enumerate(samples):
            assert memoryview(sample).readonly
            assert bytes(sample) == (images / sample.path).read_bytes(), number


def test_images_without_a_transform_name_the_remedy(images: Path) -> None:
    with DataLoader(images, 8) as loader, pytest.raises(TypeError, match="images cannot be batched; set transform="):
        next(iter(loader))
    # The caller's own function has its own errors.
    with DataLoader(images, 8, collate_fn=lambda items: sum(items, None)) as loader:
        with pytest.raises(TypeError, match="unsupported operand"):
            next(iter(loader))


def test_function_may_decode(images: Path) -> None:
    from PIL import Image

    def size(sample: Any) -> int:
        return int(Image.open(io.BytesIO(sample)).size[0])

    with DataLoader(images, 4, decode=size) as loader:
        assert {int(value) for x, _ in loader for value in x} == {16}


def test_invalid_arguments_are_refused(images: Path, tmp_path: Path, folder: Any) -> None:
    with pytest.raises(foreread.errors.ConfigError, match="wrap"):
        DataLoader(images, 4, sampler=[1, 2])
    with pytest.raises(foreread.errors.ConfigError, match="decode"):
        DataLoader(images, 4, decode="jpeg")
    with pytest.raises(foreread.errors.NotFoundError, match="nowhere"):
        DataLoader(tmp_path / "nowhere", 4)
    with pytest.raises(TypeError, match="batch_size"):
        DataLoader(images, "four")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="shuffel"):
        DataLoader(images, 4, shuffel=True)
    folder.samples = folder.samples[:50]
    with pytest.raises(foreread.errors.ConfigError, match="wrap"):
        DataLoader(folder, 4)


def test_foreread_dataset_is_accepted(images: Path, folder: Any) -> None:
    dataset = Dataset(images, transform=to_tensor)
    theirs, _ = plain(folder, 1, 0, 0, False)
    with DataLoader(dataset, 8) as ours:
        assert_same(batches(ours), batches(theirs))
    dataset.close()


def test_validation_set_is_refused_in_training(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(foreread.errors.ConfigError, match="validate"):
        DataLoader(images, 8, validate=images)
    monkeypatch.setenv("FOREREAD_VALIDATE", str(images))
    with DataLoader(images, 8, transform=to_tensor) as loader:
        with pytest.raises(foreread.errors.ConfigError, match="FOREREAD_VALIDATE"):
            for _ in range(2):
                list(loader)


def test_folder_with_a_custom_loader_is_refused(images: Path, folder: Any) -> None:
    class Own(type(folder)):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)

    for data in (Own(str(images)), type(folder)(str(images), loader=len)):
        with pytest.raises(foreread.errors.ConfigError, match="wrap"):
            DataLoader(data, 8)
    ours = Dataset(images, decode="bytes", transform=len, memory="1MiB")
    with DataLoader(ours, 8) as loader:
        assert sum(len(x) for x, _ in loader) == SAMPLES
    ours.close()


def test_missing_epoch_is_an_error(images: Path) -> None:
    with DataLoader(images, 8, transform=to_tensor, epochs=2) as loader:
        for _ in range(2):
            assert sum(1 for _ in loader) == 13
        with pytest.raises(foreread.errors.ConfigError, match="no epoch 2"):
            list(loader)


def test_files_other_than_images_are_named(tmp_path: Path, images: Path) -> None:
    import shutil

    root = shutil.copytree(images, tmp_path / "mixed")
    (root / "class0" / "labels.csv").write_text("a,b")
    with pytest.raises(foreread.errors.ConfigError, match=r"class0/labels\.csv is not an image"):
        DataLoader(root, 8)


def test_operators_use_one_thread_in_each_decoding_thread(images: Path) -> None:
    """On 16 cores each thread used 16 more, and a loader with 16 threads was four times slower than worker processes."""
    numbers = set()

    def transform(image: Any) -> Any:
        numbers.add((threading.current_thread() is threading.main_thread(), torch.get_num_threads()))
        return to_tensor(image)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with DataLoader(images, 8, transform=transform, num_workers=2, workers="threads") as loader:
            assert len(list(loader)) > 1
        assert (numbers, torch.get_num_threads()) == ({(False, 1)}, 3)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [0, 1])
def test_raw_samples_reach_the_trainer_from_workers_too(images: Path, workers: int) -> None:
    data = Dataset(images, decode="bytes")
    loader = Plain(data, 2, num_workers=workers, collate_fn=list)
    sizes = [len(x) for batch in loader for x, _ in batch]
    assert sizes == [path.stat().st_size for path in sorted(images.rglob("*.png"))]
    data.transform = lambda sample: sample
    assert [len(x) for batch in loader for x, _ in batch] == sizes
    data.close()


def test_random_transforms_are_repeated_by_the_seed(images: Path) -> None:
    def run() -> list[Any]:
        torch.manual_seed(0)
        with DataLoader(images, 16, transform=lambda image: torch.rand(2)) as loader:
            return [(x, torch.rand(1)) for x, _ in loader]

    for (x, drawn), (other_x, other) in zip(run(), run(), strict=True):
        assert torch.equal(x, other_x) and torch.equal(drawn, other)


# semantics: PY-7
def test_unused_iterator_begins_no_epoch(images: Path, folder: Any) -> None:
    theirs, sampler = plain(folder, 1, 0, 0, False)
    with DataLoader(images, 8, transform=to_tensor) as before, DataLoader(images, 8, transform=to_tensor) as ours:
        assert len([pair for pair in zip(range(5), before)]) == 5
        ours.load_state_dict(before.state_dict())
        # Lightning tests loaders in this way.
        for _ in range(2):
            iter(ours)
        assert_same(batches(ours), batches(theirs)[5:])
        iter(ours)
        sampler.set_epoch(1)
        assert_same(batches(ours), batches(theirs))


# semantics: PY-8
def test_batches_are_pinned_or_a_warning_is_given(images: Path, folder: Any) -> None:
    theirs, _ = plain(folder, 1, 0, 0, False)
    there = torch.cuda.is_available()
    with nullcontext() if there else pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no"):
        ours = DataLoader(images, 8, transform=to_tensor, pin_memory=True, num_workers=2)
    with ours:
        found = batches(ours)
        assert all(x.is_pinned() == y.is_pinned() == there for x, y in ours)
    assert_same(found, batches(theirs))


def test_iterator_knows_its_length(images: Path) -> None:
    with DataLoader(images, 8, transform=to_tensor) as loader:
        iterator = iter(loader)
        assert len(iterator) == 13
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
        loader.load_state_dict(state)
        rest = iter(loader)
        assert len(rest) == len(list(rest)) == 10 and len(loader) == 13


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("drops", [(False, True), (True, False)])
def test_state_resumes_with_the_other_drop_last(images: Path, world: int, drops: tuple[bool, bool]) -> None:
    """The rest of the epoch follows the new loader's drop_last, without repeats or gaps."""
    before, after = drops
    settings: dict[str, Any] = {"transform": to_tensor, "peers": "off", "world_size": world}
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(0)).tolist()
    got = []
    for rank in range(world):
        loaders = [DataLoader(images, 8, drop_last=drop, rank=rank, **settings) for drop in drops]
        for _ in zip(range(3), loaders[0]):
            pass
        loaders[1].load_state_dict(loaders[0].state_dict())
        batches = list(loaders[1])
        assert len(batches[-1][1]) == 8 or not after
        got.append(torch.cat([x for x, _ in batches]))
        for loader in loaders:
            loader.close()
    rest = order[3 * 8 * world :]
    each = len(rest) // world // 8 * 8 if after else -(-len(rest) // world)
    assert all(len(one) == each for one in got)
    dealt = torch.stack(got, dim=1).flatten(0, 1)
    paths = sorted(images.rglob("*.png"))
    from PIL import Image

    kept = (rest + rest)[: each * world] if not after else rest[: each * world]
    for number, image in zip(kept[: len(rest)], dealt):
        assert torch.equal(image, to_tensor(Image.open(paths[number])))


def test_good_batches_arrive_before_an_error(images: Path, tmp_path: Path) -> None:
    import shutil

    root = Path(shutil.copytree(images, tmp_path / "less"))
    catalog = foreread.index(root)
    sorted(root.rglob("*.png"))[30].unlink()
    with DataLoader(catalog, 4, shuffle=False, transform=to_tensor, num_workers=1, prefetch_factor=20) as loader:
        got = []
        with pytest.raises(foreread.errors.NotFoundError) as raised:
            for _, y in loader:
                got.append(y)
        assert len(got) == 7 and raised.value.sample_id == 30
        assert '"consumed": 28' in loader.state_dict()["foreread"]


@pytest.mark.parametrize("threads", [0, 2])
def test_dropped_loader_ends_its_threads(images: Path, threads: int) -> None:
    left = []
    before = threading.active_count()
    native = len(os.listdir("/proc/self/task"))
    gc.disable()
    try:
        for _ in range(5):
            loader = DataLoader(images, 8, transform=to_tensor, num_workers=threads)
            iterator = iter(loader)
            next(iterator)
            left.append(weakref.ref(loader))
            del loader, iterator
        # No garbage collection is needed. Threads finish their current jobs first.
        until("loaders and their threads are gone", lambda: not any(loader() for loader in left) and threading.active_count() <= before)
    finally:
        gc.enable()
    until("the engines' threads are gone", lambda: len(os.listdir("/proc/self/task")) <= native)


def test_million_names_are_checked_quickly(images: Path) -> None:
    """Not a measure of speed: the Python version took seconds."""
    calls = []

    class Spy:
        samples = SAMPLES

        def __init__(self, native: Any) -> None:
            self.catalog = native.catalog

        def path(self, number: int) -> str:
            calls.append(number)
            return f"{number}.jpg"

    with foreread.Source(images) as source:
        foreread.torch._decode.decoder("auto", Spy(source), None)
    assert len(calls) <= 100
