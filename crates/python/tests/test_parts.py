"""Parts of catalogs: their orders against a model, and the caches that they share."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

import foreread
from conftest import content, status
from foreread.torch import Dataset

SEEDS = 10_000 if "FOREREAD_SOAK" in os.environ else 40

Numbers = npt.NDArray[np.int64]


def numbers_of(catalog: foreread.Catalog) -> Numbers:
    return np.array(array("q", catalog.numbers()))


def dealt(catalog: foreread.Catalog, world: int, state: str | None = None, **options: Any) -> tuple[list[Any], str]:
    """What all ranks read, in the order of the global positions, and the state after `batches` of each rank."""
    batches, parts, position = options.pop("batches", None), [], ""
    extra = options.pop("extra", lambda sample: sample["note"])
    for rank in range(world):
        settings = {"epochs": 1, "rank": rank, "world_size": world, "peers": "off", **options}
        with foreread.Loader(catalog, **settings) as loader:
            if state is not None:
                loader.jump(state)
            part: list[Any] = []
            for number, batch in enumerate(loader, 1):
                part += [(sample.id, bytes(sample), sample.label, extra(sample)) for sample in batch]
                if number == batches:
                    break
            parts.append(part)
            position = loader.state()
    return [sample for step in zip(*parts, strict=True) for sample in step], position


@pytest.mark.parametrize("seed", range(SEEDS))
# semantics: SAMPLE-28, STATE-3
def test_parts_are_those_of_numpy(directory: Path, seed: int) -> None:
    """Rows with repeated files, chosen in several steps, over ranks, resumed by other ranks in other batches."""
    draw = np.random.default_rng(seed)
    count = int(draw.integers(1, 80))
    files = draw.integers(0, 100, count)
    table = pd.DataFrame(
        {
            "path": [f"class{number // 25}/{number:03}.bin" for number in files],
            "y": draw.integers(-3, 3, count),
            "note": [f"note {at}" for at in range(count)],
        }
    )
    catalog = foreread.index(directory, table=table, label="y")
    model = np.arange(count)
    for step in draw.integers(0, 3, int(draw.integers(0, 4))):
        if step == 0:
            chosen = draw.integers(-len(model), len(model), int(draw.integers(1, 60)))
            catalog, model = catalog.select(chosen.tolist()), model[chosen]
        elif step == 1:
            mask = draw.random(len(model)) < 0.8
            mask[0] = True
            catalog, model = catalog.filter(mask), model[mask]
        elif len(model) >= 2:
            parts = catalog.random_split([0.5, 0.5], seed=seed)
            assert sum(map(len, parts)) == len(model)
            assert sorted(np.concatenate([numbers_of(part) for part in parts])) == sorted(model)
            catalog, model = parts[0], numbers_of(parts[0])
    assert (len(catalog), len(catalog.whole())) == (len(model), count)
    assert (numbers_of(catalog) == model).all()
    samples = [(int(at), content(int(files[at])), int(table["y"][at]), f"note {at}") for at in model]
    assert [(catalog.path(at), catalog.label(at)) for at in range(len(model))] == [
        (table["path"][at], int(table["y"][at])) for at in model
    ]
    check_reads(catalog, samples, draw, seed)


def check_reads(
    catalog: foreread.Catalog, samples: list[Any], draw: np.random.Generator, seed: int, **options: Any
) -> None:
    """Ranks read these samples, in one order whatever their number, and other ranks resume it."""
    shuffled = {"sampler": "shuffle", "seed": seed, "batch_size": 64, **options}
    order, _ = dealt(catalog, 1, **shuffled)
    assert sorted(order) == sorted(samples)
    assert dealt(catalog, 1, sampler="sequential", batch_size=5, **options)[0] == samples

    world, size = int(draw.choice([1, 2, 4, 8])), int(draw.integers(1, 9))
    steps = -(-len(samples) // (world * size))
    first, state = dealt(catalog, world, **shuffled | {"batch_size": size}, batches=int(draw.integers(1, steps + 1)))
    position = json.loads(state)
    consumed = len(order) if position["epoch"] == 1 else min(position["consumed"], len(order))
    assert first[:consumed] == order[:consumed]
    if consumed < len(order):
        others = int(draw.choice([1, 2, 4, 8]))
        rest, _ = dealt(catalog, others, state, **shuffled | {"batch_size": int(draw.integers(1, 9))})
        assert rest[: len(order) - consumed] == order[consumed:]


@pytest.mark.parametrize("seed", range(SEEDS))
# semantics: SAMPLE-29, STATE-3
def test_groups_are_those_of_a_dictionary(tmp_path: Path, seed: int) -> None:
    """Files of one stem, of which some samples lack one, over ranks, resumed by other ranks."""
    draw = np.random.default_rng(seed)
    names = ["jpg", "json", "seg.png"][: int(draw.integers(1, 4))]
    model: dict[str, dict[str, bytes]] = {}
    for number in range(int(draw.integers(1, 40))):
        stem = f"class{number % 3}/{number:03}"
        present = {name: content(number) + name.encode() for name in names if draw.random() < 0.9}
        for name, data in present.items():
            path = tmp_path / f"{stem}.{name.upper() if number % 2 else name}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        if present:
            model[stem] = present
    counts = {name: sum(name in files for files in model.values()) for name in names}
    usual = sorted(name for name in names if counts[name] * 2 > max(counts.values()))
    whole = [stem for stem in sorted(model) if all(name in model[stem] for name in usual)]
    if not whole:
        with pytest.raises(foreread.Error):
            foreread.index(tmp_path, group="stem", on_missing="skip")
        return
    if len(whole) < len(model):
        with pytest.raises(foreread.Error, match="lack one of the files"):
            foreread.index(tmp_path, group="stem")
    catalog = foreread.index(tmp_path, group="stem", on_missing="skip")
    classes = sorted({stem.partition("/")[0] for stem in model})
    parts = [{name: model[stem][name] for name in usual} for stem in whole]
    samples = [
        (at, b"".join(files.values()), classes.index(stem.partition("/")[0]), tuple(files.items()))
        for at, (stem, files) in enumerate(zip(whole, parts, strict=True))
    ]
    if draw.random() < 0.5:
        chosen = draw.integers(0, len(whole), int(draw.integers(1, 30))).tolist()
        catalog, samples = catalog.select(chosen), [samples[at] for at in chosen]
    samples = [(int(at), *sample[1:]) for at, sample in zip(numbers_of(catalog), samples, strict=True)]

    def fields(sample: Any) -> tuple[tuple[str, bytes], ...]:
        return tuple((name, bytes(sample.field(name))) for name in sample.field_names)

    check_reads(catalog, samples, draw, seed, extra=fields)


# semantics: SAMPLE-30
def test_disk_of_the_whole_serves_its_parts(directory: Path, tmp_path: Path) -> None:
    catalog = foreread.index(directory)
    catalog.save(tmp_path / "whole.foreread")
    settings: dict[str, Any] = {"batch_size": 7, "epochs": 1, "memory": 0, "disk": f"{tmp_path / 'cache'}=10MB"}

    def read(target: Any, **more: Any) -> tuple[list[int], int]:
        with foreread.Loader(target, **settings | more) as loader:
            seen = [sample.id for batch in loader for sample in batch if bytes(sample) == content(sample.id)]
            return sorted(seen), loader.report()["origin_requests"]

    train, test = catalog.random_split([0.8, 0.2], seed=1, stratify=True)
    test.save(tmp_path / "test.foreread")
    # A sample is read again, if its second use comes before its copy is written.
    found, requests = read(train, epochs=2)
    assert found == sorted([*numbers_of(train)] * 2) and 80 <= requests <= 160
    found, requests = read(tmp_path / "whole.foreread", epochs=2)
    assert found == sorted([*range(100)] * 2) and 20 <= requests <= 40
    assert read(tmp_path / "test.foreread") == (sorted(numbers_of(test)), 0)
    assert read(train.select([4, 4, 1])) == (sorted(numbers_of(train)[[4, 4, 1]]), 0)


# semantics: SAMPLE-30
def test_agent_reads_a_sample_once_for_all_parts(directory: Path, tmp_path: Path, agent: Path) -> None:
    catalog = foreread.index(directory)
    folds = [catalog.select([at for at in range(100) if at % 5 != fold]) for fold in range(5)]
    direct = 0
    for fold in [*folds, catalog, *catalog.random_split([0.5, 0.5])]:
        with foreread.Loader(fold, batch_size=9, epochs=2, agent=agent) as loader:
            for batch in loader:
                assert all(bytes(sample) == content(sample.id) for sample in batch)
            direct += loader.report()["agent"]["direct_samples"]
    report = status(agent)
    # An agent that is silent for long, on a busy machine, is read around.
    assert report["reads"] == 100 or direct > 0
    assert len(report["datasets"]) == 1


# semantics: AGENT-32
def test_agent_reads_a_file_once_for_all_tables(directory: Path, agent: Path) -> None:
    """Tables over one directory, the directory itself, and one file in several rows, in turn and at the same time."""

    def rows(numbers: list[int]) -> foreread.Catalog:
        table = {"path": [f"class{at // 25}/{at:03}.bin" for at in numbers], "y": [-at for at in numbers]}
        return foreread.index(directory, table=pd.DataFrame(table), path="path", label="y")

    direct = 0

    def read(loader: foreread.Loader, numbers: list[int] | None) -> Iterator[None]:
        nonlocal direct
        with loader:
            for batch in loader:
                for sample in batch:
                    file = sample.id if numbers is None else numbers[sample.id]
                    assert bytes(sample) == content(file)
                    assert sample.label == (file // 25 if numbers is None else -file)
                yield
            direct += loader.report()["agent"]["direct_samples"]

    def reads() -> int:
        count: int = status(agent)["reads"]
        return count

    lists = [list(range(60)), [*range(99, 39, -1), 50, 50, 3], [7, 7, 7, 99]]
    for numbers in lists:
        for _ in read(foreread.Loader(rows(numbers), batch_size=9, epochs=2, agent=agent), numbers):
            pass
    assert reads() == 100 or direct > 0
    # All at once, with the directory.
    loaders = [
        read(foreread.Loader(catalog, batch_size=7, epochs=3, seed=at, agent=agent), numbers)
        for at, (catalog, numbers) in enumerate(
            [*((rows(numbers), numbers) for numbers in lists), (foreread.index(directory), None)]
        )
    ]
    while loaders:
        loaders = [loader for loader in loaders if next(loader, "end") != "end"]
    assert reads() == 100 or direct > 0


# semantics: AGENT-32
def test_agent_reads_a_changed_file_anew_for_a_later_table(directory: Path, agent: Path) -> None:
    paths = [f"class{at // 25}/{at:03}.bin" for at in range(100)]

    def read() -> list[bytes]:
        catalog = foreread.index(directory, table=pd.DataFrame({"path": paths}), path="path")
        with foreread.Loader(catalog, batch_size=10, epochs=1, agent=agent) as loader:
            found = {sample.id: bytes(sample) for batch in loader for sample in batch}
            assert loader.report()["agent"]["direct_samples"] == 0
        return [found[at] for at in range(100)]

    assert read() == [content(at) for at in range(100)]
    old = (directory / paths[17]).stat()
    (directory / paths[17]).write_bytes(b"x" * old.st_size)
    os.utime(directory / paths[17], ns=(old.st_atime_ns, old.st_mtime_ns))
    assert read() == [content(at) if at != 17 else b"x" * old.st_size for at in range(100)]
    assert status(agent)["reads"] == 101


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_of_parts_have_the_numbers_of_the_part(directory: Path, workers: int) -> None:
    import torch

    part = foreread.index(directory).select([70, 3, 3, 99])
    dataset = Dataset(part, decode=bytes)
    assert [dataset[at][1] for at in range(4)] == [2, 0, 0, 3] and len(dataset) == 4
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, shuffle=True, num_workers=workers, collate_fn=list)
    for _ in range(3):
        found = sorted(item for batch in loader for item in batch)
        assert found == sorted((content(at), at // 25) for at in (70, 3, 3, 99))


def test_state_of_a_part_is_not_that_of_another(directory: Path) -> None:
    catalog = foreread.index(directory)
    one, other = catalog.random_split([0.5, 0.5])
    with foreread.Loader(one, batch_size=5, epochs=1) as loader:
        next(iter(loader))
        state = loader.state()
    with foreread.Loader(other, batch_size=5, epochs=1) as loader:
        with pytest.raises(foreread.Error, match="fingerprint"):
            loader.jump(state)


def test_frame_of_a_part_has_its_rows(directory: Path) -> None:
    part = foreread.index(directory).select([70, 3])
    assert part.to_pandas()["path"].tolist() == ["class2/070.bin", "class0/003.bin"]
