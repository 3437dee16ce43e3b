"""PyTorch's worker processes share one engine, for all start methods, and leave nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from foreread.torch import Dataset, wrap
from torch.utils.data import DataLoader
from torch_images import SAMPLES, assert_same, batches, folder, generators, images, to_tensor  # noqa: F401
from waiting import until

# The deadline of a hang, not a measure of speed.
HANG = 120

# The repetitions and the start methods of workers. Those that import PyTorch again take seconds each.
SOAK = bool(os.environ.get("FOREREAD_SOAK"))
CYCLES, CONTEXTS = (200, ("fork", "spawn", "forkserver")) if SOAK else (6, ("fork",))


def make(data: Any, workers: int, context: str | None) -> Any:
    return DataLoader(
        data,
        8,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=context if workers else None,
        generator=torch.Generator().manual_seed(1),
    )


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("workers", [2, 8])
# semantics: PY-5
def test_workers_give_the_same_batches_from_one_engine(images: Path, folder: Any, context: str, workers: int) -> None:
    theirs = [batches(loader) for loader in [make(folder, 0, None)] for _ in range(2)]
    data = Dataset(images, transform=to_tensor, memory="64MiB")
    with wrap(make(data, workers, context)) as ours:
        for other in theirs:
            assert_same(batches(ours), other)
        assert data.engine.source.report()["origin_requests"] == SAMPLES


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
# semantics: PY-5
def test_image_folder_in_workers_is_served(folder: Any, context: str) -> None:
    theirs = batches(make(folder, 0, None))
    # Later epochs are read ahead too, once, because memory holds the samples.
    with wrap(make(folder, 2, context), memory="16MiB") as ours:
        assert_same(batches(ours), theirs)
        assert ours._parts[0].engine.source.report()["origin_requests"] == SAMPLES


def test_persistent_workers_continue(images: Path, folder: Any) -> None:
    loaders = [
        DataLoader(
            data,
            8,
            shuffle=True,
            num_workers=2,
            persistent_workers=True,
            generator=torch.Generator().manual_seed(1),
        )
        for data in (folder, folder)
    ]
    theirs = [batches(loaders[0]) for _ in range(3)]
    with wrap(loaders[1]) as ours:
        for other in theirs:
            assert_same(batches(ours), other)


def children() -> set[str]:
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "stat").read_text().rsplit(")", 1)[1].split()[1] == str(os.getpid()):
                found.add(entry.name)
        except OSError:
            pass  # it has ended
    return found


def left() -> tuple[int, int, int, int]:
    """Threads, descriptors and abstract sockets of this process's engines, and its child processes."""
    own = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the folder's own descriptor
            own.add(os.readlink(entry))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    sockets = sum(f"socket:[{words[6]}]" in own for words in lines if words[-1].startswith("@foreread"))
    return len(os.listdir("/proc/self/task")), len(own), sockets, len(children())


# semantics: PY-6
def test_starting_and_ending_leaves_nothing(images: Path) -> None:
    def cycle(workers: int, context: str) -> None:
        data = Dataset(images, transform=to_tensor)
        with wrap(make(data, workers, context)) as loader:
            assert sum(1 for _ in loader) == 13

    # Python's own processes (fork server, resource tracker) exist from now on.
    for context in CONTEXTS:
        cycle(2, context)
    before, shared = left(), set(os.listdir("/dev/shm"))
    for number in range(CYCLES):
        cycle((0, 2, 8)[number % 3], CONTEXTS[number // 3 % len(CONTEXTS)])
        if SOAK and number % 20 == 19:
            print(f"{number + 1} of {CYCLES} cycles: {left()}", flush=True)
    # Ending threads are gone soon, also those of earlier tests.
    until(f"no more is left than {before}", lambda: all(now <= then for now, then in zip(left(), before, strict=True)))
    nothing_is_left(shared)


SCRIPT = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from foreread.torch import Dataset, wrap
from torch.utils.data import DataLoader
loader = wrap(DataLoader(Dataset(sys.argv[1], decode="bytes", transform=len), 4, num_workers=2, shuffle=True))
for step, batch in enumerate(loader):
    if step == 1:
        own = {os.readlink(f"/proc/self/fd/{file}") for file in range(1024) if os.path.islink(f"/proc/self/fd/{file}")}
        lines = [line.split() for line in open("/proc/net/unix")]
        print(*[words[7] for words in lines if len(words) == 8 and f"socket:[{words[6]}]" in own], flush=True)
        {then}
"""


def session(images: Path, then: str) -> subprocess.Popen[str]:
    script = textwrap.dedent(SCRIPT).replace("{then}", then)
    return subprocess.Popen(
        [sys.executable, "-c", script, str(images)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def nothing_is_left(shared: set[str]) -> None:
    """Asserts that no new shared memory is left. Other programs' semaphores vary: names that disappear after a while belong to
    them."""
    until("shared memory is gone", lambda: not set(os.listdir("/dev/shm")) - shared)


def is_gone(group: int) -> bool:
    """Whether no process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    # Zombie processes are no longer running.
    states = subprocess.run(["ps", "-o", "stat=", "-g", str(group)], capture_output=True, text=True, check=False).stdout
    return all(state.startswith("Z") for state in states.split())


@pytest.mark.parametrize(
    ("then", "send", "code"),
    [
        ("pass", None, 0),
        ("raise ValueError('odd')", None, 1),
        ("time.sleep(60)", signal.SIGINT, None),
        ("time.sleep(60)", signal.SIGKILL, -signal.SIGKILL),
        ("time.sleep(60)", signal.SIGTERM, -signal.SIGTERM),
    ],
)
# semantics: PY-6
def test_exits_of_every_kind_leave_nothing(images: Path, then: str, send: int | None, code: int | None) -> None:
    shared = set(os.listdir("/dev/shm"))
    child = session(images, then)
    assert child.stdout is not None
    addresses = {address for address in child.stdout.readline().split() if address.startswith("@foreread")}
    assert addresses
    if send is not None:
        os.kill(child.pid, send)
    try:
        _, err = child.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        pytest.fail("it hangs")
    assert code is None or child.returncode == code, err
    until("no process is left", lambda: is_gone(child.pid))
    assert not addresses & {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()}
    if send != signal.SIGKILL:
        # Resources of a killed PyTorch are ignored.
        nothing_is_left(shared)
