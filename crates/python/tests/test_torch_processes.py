"""Batches that foreread's own loader makes in worker processes are PyTorch's, and leave nothing."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

import foreread
import numpy
from conftest import content
from foreread import errors
from foreread.torch import DataLoader
from torch.utils.data import DistributedSampler, get_worker_info
from torch_images import assert_same, folder, images, to_tensor  # noqa: F401
from waiting import until


def children() -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "stat").read_text().rsplit(")", 1)[1].split()[1] == str(os.getpid()):
                found.add(int(entry.name))
        except OSError:
            pass  # It has ended.
    return found


class Noise:
    """A transform that depends on the generators of its worker."""

    def __call__(self, sample: Any) -> Any:
        worker = get_worker_info()
        drawn = [torch.rand(1).item(), random.random(), numpy.random.random(), worker.id if worker else -1]
        return torch.tensor([len(bytes(sample)), *drawn], dtype=torch.float64)


def raw(path: str) -> bytes:
    return Path(path).read_bytes()


def initial(number: int) -> None:
    torch.manual_seed(100 + number)
    random.seed(200 + number)


def loader(directory: Any, **settings: Any) -> DataLoader:
    wanted: dict[str, Any] = {"batch_size": 7, "decode": "bytes", "num_workers": 2, "workers": "processes", "seed": 5}
    return DataLoader(str(directory), **(wanted | settings))


class AsList:
    def __call__(self, items: list[Any]) -> list[Any]:
        return [(bytes(item), label) for item, label in items]


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [False, True])
# semantics: PY-23
def test_batches_and_random_numbers_are_those_of_pytorch(directory: Path, context: str, persistent: bool) -> None:
    from torchvision.datasets import DatasetFolder

    data = DatasetFolder(str(directory), raw, (".bin",), Noise())
    of_workers: dict[str, Any] = {"num_workers": 3, "persistent_workers": persistent, "multiprocessing_context": context}
    sampler = DistributedSampler(data, 2, 1, seed=5)
    theirs = torch.utils.data.DataLoader(data, 7, sampler=sampler, worker_init_fn=initial, **of_workers)
    ours = loader(directory, transform=Noise(), rank=1, world_size=2, peers="off", worker_init_fn=initial, **of_workers)
    with ours:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            torch.manual_seed(epoch)
            expected = list(theirs)
            after = torch.rand(1)
            torch.manual_seed(epoch)
            assert_same(list(ours), expected)
            assert torch.equal(torch.rand(1), after)
        assert ours._pipeline.waited > 0


# semantics: PY-23
def test_seeds_of_workers_are_drawn_as_in_pytorch(directory: Path) -> None:
    from torchvision.datasets import DatasetFolder

    data = DatasetFolder(str(directory), raw, (".bin",), Noise())
    sampler = DistributedSampler(data, 1, 0, seed=5)
    theirs = torch.utils.data.DataLoader(data, 7, sampler=sampler, num_workers=2)
    with loader(directory, transform=Noise()) as ours:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            torch.manual_seed(9)
            expected = list(theirs)
            torch.manual_seed(9)
            assert_same(list(ours), expected)


class IsShared:
    """Whether the bytes lie in memory of a file without a name."""

    def __call__(self, sample: Any) -> Any:
        at = numpy.frombuffer(sample, numpy.uint8).__array_interface__["data"][0]
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if first <= at < last:
                return "memfd:" in line
        return False


# semantics: PY-23
def test_samples_come_without_a_copy(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number:02}.bin").write_bytes(bytes([number]) * 100_000)
    with loader(tmp_path, transform=IsShared(), collate_fn=list, memory="16MiB") as ours:
        assert all(flag for _ in range(2) for batch in ours for flag in batch)


#: A rank whose workers say which samples they got without a copy.
RANK = """
    import json, sys
    sys.path.insert(0, sys.argv[2])
    import foreread.torch, test_torch_processes as tests
    settings = {"decode": "bytes", "num_workers": 2, "workers": "processes", "memory": "16MiB"}
    with foreread.torch.DataLoader(sys.argv[1], 7, transform=tests.IsShared(), collate_fn=list, **settings) as loader:
        flags = [[flag for batch in loader for flag in batch] for _ in range(3)]
        together, requests = loader._native.plan["together"], loader._native.report()["origin_requests"]
        print(json.dumps([flags, together, requests]))
"""


# semantics: PY-23
def test_workers_of_ranks_get_samples_without_a_copy(tmp_path: Path) -> None:
    (tmp_path / "meet").mkdir()
    for number in range(60):
        path = tmp_path / "data" / f"{number:02}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number]) * 100_000)
    launched = {"WORLD_SIZE": "2", "FOREREAD_MEET": str(tmp_path / "meet"), "FOREREAD_TOKEN": "b7e1c95a03f64d2893ab5c17e0d68f42"}
    command = [sys.executable, "-c", textwrap.dedent(RANK), str(tmp_path / "data"), str(Path(__file__).parent)]
    ranks = [
        subprocess.Popen(command, env=os.environ | launched | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    ended = [json.loads(rank.communicate(timeout=180)[0]) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks) and all(together for _, together, _ in ended)
    assert sum(requests for *_, requests in ended) == 60
    for flags, *_ in ended:
        assert [len(epoch) for epoch in flags] == [30] * 3 and all(map(all, flags))


# semantics: PY-23
def test_left_epochs_resumes_and_jumps(directory: Path) -> None:
    with loader(directory, collate_fn=AsList(), workers="threads", num_workers=0) as threads:
        expected = [list(threads) for _ in range(4)]
    with loader(directory, collate_fn=AsList()) as ours:
        seen = iter(ours)
        first = [next(seen) for _ in range(3)]
        assert first == expected[0][:3]
        state = ours.state_dict()
        # Left early: the next iteration is the next epoch.
        assert list(ours) == expected[1]
        ours.set_epoch(3)
        assert list(ours) == expected[3]
        ours.load_state_dict(state)
        assert list(ours) == expected[0][3:]
        assert list(ours) == expected[1]
        # A look.
        assert next(iter(ours)) == expected[2][0]
        assert list(ours) == expected[2]
    with loader(directory, collate_fn=AsList(), batch_size=5) as other:
        other.load_state_dict(state)
        rest = [item for batch in other for item in batch]
        assert rest == [item for batch in expected[0][3:] for item in batch]


class FailsAt:
    """Fails for one sample, or ends its process."""

    def __init__(self, text: bytes, kill: bool = False) -> None:
        self._text = text
        self._kill = kill

    def __call__(self, sample: Any) -> Any:
        if bytes(sample) == self._text:
            if self._kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("no such animal")
        return sample


# semantics: PY-23
def test_error_of_a_transform_leaves_the_other_batches(directory: Path) -> None:
    with loader(directory, collate_fn=AsList(), workers="threads") as threads:
        expected = list(threads)
    text = expected[4][0][0]
    with loader(directory, collate_fn=AsList(), transform=FailsAt(text)) as ours:
        batches = iter(ours)
        assert [next(batches) for _ in range(4)] == expected[:4]
        with pytest.raises(ValueError, match=r"(?s)worker process 0.*no such animal.*transform of sample") as raised:
            next(batches)
        assert "class" in str(raised.value)
        assert list(batches) == expected[5:]


def test_unpicklable_results_and_errors_are_errors(directory: Path) -> None:
    """Python's queues print such an error and wait for ever."""

    class Odd(Exception):
        pass

    def odd(sample: Any) -> Any:
        raise Odd("what now")

    with loader(directory, transform=odd) as ours, pytest.raises(RuntimeError, match=r"(?s)worker process.*Odd: what now"):
        next(iter(ours))
    with loader(directory, collate_fn=lambda items: lambda: items) as ours, pytest.raises(AttributeError, match="pickle"):
        next(iter(ours))
    kind = NamedTuple("kind", [("number", int)])
    with loader(directory, transform=lambda _: kind(1)) as ours, pytest.raises(pickle.PicklingError, match="kind"):
        next(iter(ours))


class InterruptedOnce:
    """Calls a function, and raises an interrupt before or after the third call."""

    def __init__(self, function: Any, before: bool) -> None:
        self._function = function
        self._before = before
        self._calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self._calls += 1
        if self._calls == 3 and self._before:
            raise KeyboardInterrupt
        made = self._function(*arguments)
        if self._calls == 3:
            raise KeyboardInterrupt
        return made


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("step", ["_result", "_lend", "_fill", "_outcome"])
# semantics: PY-23
def test_interrupt_loses_no_batch(directory: Path, step: str, before: bool, persistent: bool) -> None:
    """A result that PyTorch's iterator had taken was waited for, for ever."""
    with loader(directory, collate_fn=AsList(), workers="threads") as threads:
        expected = [list(threads) for _ in range(2)]
    with loader(directory, collate_fn=AsList(), persistent_workers=persistent) as ours:
        setattr(ours._pipeline, step, InterruptedOnce(getattr(ours._pipeline, step), before))
        batches, seen, interrupts = iter(ours), [], 0
        while len(seen) < len(expected[0]):
            try:
                seen.append(next(batches))
            except KeyboardInterrupt:
                interrupts += 1
        assert (seen, interrupts) == (expected[0], 1)
        assert list(batches) == [] and list(ours) == expected[1]


# semantics: PY-23
def test_workers_leave_interrupts_to_the_trainer(directory: Path) -> None:
    """A terminal sends them to all processes."""
    before = children()
    with loader(directory, collate_fn=AsList(), prefetch_factor=1) as ours:
        batches = iter(ours)
        next(batches)
        for child in children() - before:
            os.kill(child, signal.SIGINT)
        assert len(list(batches)) == 14


class Late:
    """Makes its first sample once a file exists."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, sample: Any) -> Any:
        until("the trainer has waited", self._path.exists)
        return sample


# semantics: PY-23
def test_late_worker_is_an_error_and_its_batch_follows(directory: Path, tmp_path: Path) -> None:
    late = tmp_path / "late"
    with loader(directory, collate_fn=AsList(), transform=Late(late), timeout=1, num_workers=1) as ours:
        batches, seen = iter(ours), []
        with pytest.raises(RuntimeError, match="timed out"):
            next(batches)
        late.touch()
        while len(seen) < 15:
            try:
                seen.append(next(batches))
            except RuntimeError as error:
                # The machine is busy.
                assert "timed out" in str(error)
    with loader(directory, collate_fn=AsList(), workers="threads") as threads:
        assert seen == list(threads)


# semantics: PY-23
def test_killed_worker_is_an_error_as_in_pytorch(directory: Path) -> None:
    with loader(directory, collate_fn=AsList(), workers="threads") as threads:
        expected = list(threads)
    with loader(directory, collate_fn=AsList(), transform=FailsAt(expected[4][0][0], kill=True)) as ours:
        batches = iter(ours)
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            for _ in expected:
                next(batches)


class Undecodable:
    def __init__(self, text: bytes) -> None:
        self._text = text

    def __call__(self, sample: Any) -> Any:
        if bytes(sample) == self._text:
            raise OSError("broken data stream")
        return bytes(sample)


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
# semantics: PY-23
def test_undecodable_samples_are_left_out_or_replaced(directory: Path, on_error: Any) -> None:
    given = {"decode": Undecodable(content(17)), "collate_fn": AsList(), "on_error": on_error}
    found = []
    for workers in ("threads", "processes"):
        with loader(directory, workers=workers, **given) as ours:
            with pytest.warns(RuntimeWarning, match="017.bin.*broken data stream"):
                found.append(list(ours))
            assert ours.skipped == 1
    assert found[0] == found[1]


# semantics: PY-23
def test_closing_ends_the_workers(directory: Path) -> None:
    before = children()
    ours = loader(directory, collate_fn=AsList(), persistent_workers=True)
    assert len(list(ours)) == 15
    assert len(children() - before) >= 2
    ours.close()
    until("the workers have ended", lambda: not children() - before)
    with pytest.raises(errors.ClosedError):
        next(iter(ours))


def test_workers_of_a_dropped_loader_end(directory: Path) -> None:
    before = children()
    ours = loader(directory, collate_fn=AsList())
    next(iter(ours))
    del ours
    until("the workers have ended", lambda: not children() - before)


def test_arguments_are_checked(directory: Path) -> None:
    with pytest.raises(errors.ConfigError, match="workers must be"):
        loader(directory, workers="both")
    with pytest.raises(errors.ConfigError, match=r"foreread\.image decodes on native threads"):
        loader(directory, decode=foreread.image(32))
    with loader(directory, num_workers=0, collate_fn=AsList()) as ours:
        assert len(list(ours)) == 15


def test_images_as_in_pytorch(images: Path, folder: Any) -> None:
    sampler = DistributedSampler(folder, 1, 0, seed=5)
    theirs = torch.utils.data.DataLoader(folder, 8, sampler=sampler, num_workers=2)
    with loader(images, batch_size=8, decode="auto", transform=to_tensor) as ours:
        assert_same(list(ours), list(theirs))
