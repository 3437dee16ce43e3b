"""Batches and samples."""

from __future__ import annotations

import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import bucket
import pytest

import foreread
from conftest import content
from foreread._stream import Reader, loader_of
from waiting import until


def test_every_sample_of_every_epoch_arrives_as_it_is(directory: Path) -> None:
    with foreread.Loader(directory, batch_size=8, epochs=2, seed=7) as loader:
        epochs: dict[int, list[int]] = {0: [], 1: []}
        for batch in loader:
            assert len(batch) == len(batch.ids) == len(batch.labels)
            for sample, number, label in zip(batch, batch.ids, batch.labels, strict=True):
                assert bytes(sample) == content(number) == bytes(memoryview(sample))
                assert sample.id == number
                assert sample.label == label == number // 25
                assert sample.label_name == f"class{label}"
                assert sample.path == f"class{label}/{number:03}.bin"
                epochs[batch.epoch].append(number)
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(100))
        assert epochs[0] != epochs[1]
        assert loader.report()["epochs"][1]["samples"] == 100
    assert loader.closed


def test_recall_without_an_archive_changes_nothing(directory: Path) -> None:
    with foreread.Loader(directory, epochs=1, recall=True) as loader:
        assert sum(map(len, loader)) == 100


def test_batch_is_a_sequence(directory: Path) -> None:
    with foreread.Loader(directory, batch_size=8, epochs=1) as loader:
        batch = next(loader)
        assert [s.id for s in batch[2:4]] == batch.ids[2:4]
        assert batch[-1].id == batch.ids[-1]


def test_jobs_of_an_order_group_have_one_order(directory: Path) -> None:
    def order(**settings: object) -> list[int]:
        with foreread.Loader(directory, batch_size=8, epochs=2, **settings) as loader:
            return [number for batch in loader for number in batch.ids]

    group = order(seed=1, order_group="search")
    assert group == order(seed=2, order_group="search") == order(seed=2612920538)
    assert group not in (order(seed=1), order(order_group="other"))


# semantics: PY-18
def test_batch_that_arrives_with_an_interrupt_is_the_next_one(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts = iter([False] * 30 + [True] + [False] * 100)
    found: list[int] = []
    serve = bucket._Handler.do_GET

    def do_get(handler: bucket._Handler) -> None:
        # The signal arrives while the main thread waits for this sample, and not between the last one's delivery and its
        # place in the list.
        if handler.path.endswith(".bin") and next(interrupts):
            until("the samples before it are in the list", lambda: len(found) == 30)
            os.kill(os.getpid(), signal.SIGINT)
        serve(handler)

    with bucket.bucket("my-bucket", "train", directory) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        catalog = foreread.index("s3://my-bucket/train")
        monkeypatch.setattr(bucket._Handler, "do_GET", do_get)
        settings: Any = {"batch_size": 1, "epochs": 1, "sampler": "sequential", "memory": 0, "look_ahead": 1}
        interrupted = 0
        with foreread.Loader(catalog, origin_parallelism=1, **settings) as loader:
            while True:
                try:
                    found += next(loader).ids
                except KeyboardInterrupt:
                    interrupted += 1
                    assert json.loads(loader.state())["consumed"] == len(found)
                except StopIteration:
                    break
        assert (found, interrupted) == (list(range(100)), 1)


# semantics: PY-18
def test_read_error_is_raised_by_each_request(directory: Path) -> None:
    catalog = foreread.index(directory)
    sorted(directory.rglob("*.bin"))[30].unlink()
    with foreread.Loader(catalog, batch_size=4, epochs=1, seed=0, sampler="sequential") as loader:
        assert sum(1 for _ in zip(range(7), loader)) == 7
        state = loader.state()
        for _ in range(3):
            with pytest.raises(foreread.errors.NotFoundError):
                next(loader)
        loader.jump(state)
        with pytest.raises(foreread.errors.NotFoundError):
            next(loader)


# semantics: PY-18
def test_read_error_of_a_frameworks_dataset_stays(directory: Path) -> None:
    catalog = foreread.index(directory)
    sorted(directory.rglob("*.bin"))[30].unlink()
    settings = {"batch_size": 4, "shuffle": False, "epochs": 2, "seed": 0, "drop_last": False, "settings": {}}
    reader = Reader(loader_of(catalog, **settings), lambda batch: batch.ids, 4, False, 0)  # type: ignore[arg-type]
    iterator = reader.iterate()
    assert [next(iterator)[0] for _ in range(7)] == list(range(0, 28, 4))
    for _ in range(3):
        with pytest.raises(foreread.errors.NotFoundError):
            next(iterator)
    # The failed epoch does not count.
    assert next(reader.iterate()) == [0, 1, 2, 3]
    reader.close()


def test_loader_cannot_be_pickled(directory: Path) -> None:
    for loader in (foreread.Loader(directory, epochs=1), foreread.Source(directory)):
        with pytest.raises(TypeError, match="create it where it is used"):
            pickle.dumps(loader)
        loader.close()
