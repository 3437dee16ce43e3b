"""Ranks of a node whose own loaders share one cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import bucket
from conftest import content
from slurm_cluster import free_ports
from waiting import until

#: Trains an epoch for each line of standard input.
SCRIPT = """
    import json, os, sys, time
    import torch.distributed
    from foreread.torch import Dataset, wrap
    from torch.utils.data import DataLoader, DistributedSampler

    class Numbered(Dataset):
        def __getitem__(self, index):
            return index, bytes(super().__getitem__(index)[0]).decode()

        def __getitems__(self, indices):
            return [self[index] for index in indices]

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if "TEST_GROUP" in os.environ:
        torch.distributed.init_process_group("gloo")
    pause = float(os.environ.get("TEST_PAUSE", "0"))
    data = Numbered("s3://data/train", memory="1MiB", decode="bytes")
    sampler = DistributedSampler(data, ranks, rank, seed=3)
    loader = wrap(DataLoader(data, 5, sampler=sampler, num_workers=int(sys.argv[1]), collate_fn=list))
    for epoch, _ in enumerate(sys.stdin):
        sampler.set_epoch(epoch)
        pairs, longest, begun = [], 0.0, time.monotonic()
        for batch in loader:
            longest = max(longest, time.monotonic() - begun)
            pairs += batch
            time.sleep(pause)
            begun = time.monotonic()
        stats = loader.stats()
        print(json.dumps([pairs, longest, stats.origin_bytes]), flush=True)
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    assert "agent" not in stats.hits and stats.report["agent"]["shared_by"] == local, stats
    assert stats.report["agent"]["capacity"] == local << 20, stats
"""


class Rank:
    """A rank of a job, on this node unless the environment has others."""

    #: The seconds of the longest wait for a batch of the last epoch.
    longest = 0.0
    #: The bytes that were read from storage for it.
    read = 0

    def __init__(self, rank: int, ranks: int, workers: int, environment: dict[str, str]) -> None:
        launched = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(workers)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=os.environ | launched | environment, **pipes)

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("next\n")
        self.process.stdin.flush()

    def epoch(self) -> dict[int, str]:
        """The samples of the epoch that was begun, by id."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=60)[1]
        pairs, self.longest, self.read = json.loads(line)
        return {int(number): text for number, text in pairs}


@contextmanager
def counted(directory: Path) -> Iterator[tuple[dict[str, str], Counter[str]]]:
    """A bucket, and how often each of its objects was read."""
    reads: Counter[str] = Counter()
    lock = threading.Lock()
    plain = bucket._Handler.do_GET

    def counting(self: Any) -> None:
        if self.command == "GET" and "train/" in self.path and "list-type" not in self.path:
            with lock:
                reads[self.path] += 1
        plain(self)

    bucket._Handler.do_GET = counting  # type: ignore[method-assign]
    try:
        with bucket.bucket("data", "train", directory) as settings:
            yield settings, reads
    finally:
        bucket._Handler.do_GET = plain  # type: ignore[method-assign]


def host_of(runtime: Path) -> int | None:
    """The process that hosts the cache of the job, none while a new one takes the lock."""
    (lock,) = runtime.glob("foreread/job-*/agent.lock")
    words = lock.read_text().split()
    return int(words[1]) if len(words) > 1 else None


@pytest.mark.parametrize("workers", [0, 2])
# semantics: PY-22
def test_ranks_read_each_sample_once_and_survive_their_host(directory: Path, workers: int) -> None:
    # Paths of sockets are short.
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))
    with counted(directory) as (settings, reads):
        environment = settings | {"XDG_RUNTIME_DIR": str(runtime)}
        ranks = [Rank(rank, 3, workers, environment) for rank in range(3)]
        left = list(ranks)

        def train() -> None:
            for rank in left:
                rank.begin()
            seen = [rank.epoch() for rank in left]
            assert all(text == content(number).decode() for part in seen for number, text in part.items())
            if len(left) == 3:
                assert {number for part in seen for number in part} == set(range(100))

        for _ in range(3):
            train()
        assert len(reads) == 100 and set(reads.values()) == {1}, Counter(reads.values())
        host = host_of(runtime)
        (killed,) = (rank for rank in ranks if rank.process.pid == host)
        left.remove(killed)
        killed.process.kill()
        killed.process.wait()
        train()
        # Another rank hosts the cache from now on.
        until("another rank hosts the cache", lambda: host_of(runtime) in {rank.process.pid for rank in left})
        train()
        for rank in left:
            _, err = rank.process.communicate(timeout=60)
            assert rank.process.returncode == 0, err
        killed.process.communicate(timeout=60)
    assert not list(runtime.glob("foreread/job-*")), "the job leaves nothing"
    shutil.rmtree(runtime)


# semantics: PY-22
def test_stopped_host_holds_nobody_up(directory: Path) -> None:
    """The other ranks train on while the process that hosts the cache is stopped, and after it."""
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))
    with counted(directory) as (settings, _):
        environment = settings | {"XDG_RUNTIME_DIR": str(runtime)}
        ranks = [Rank(rank, 3, 0, environment) for rank in range(3)]
        for rank in ranks:
            rank.begin()
        first = [rank.epoch() for rank in ranks]
        host = host_of(runtime)
        (stopped,) = (rank for rank in ranks if rank.process.pid == host)
        stopped.process.send_signal(signal.SIGSTOP)
        others = [rank for rank in ranks if rank is not stopped]
        for rank in others:
            rank.begin()
        seen = [rank.epoch() for rank in others]
        stopped.process.send_signal(signal.SIGCONT)
        stopped.begin()
        seen.append(stopped.epoch())
        for part in (first, seen):
            assert {number for its in part for number in its} == set(range(100))
            assert all(text == content(number).decode() for its in part for number, text in its.items())
        for rank in ranks:
            _, err = rank.process.communicate(timeout=60)
            assert rank.process.returncode == 0, err
    shutil.rmtree(runtime)


#: Ranks that no launcher has started, for three epochs in each of two process groups.
SPAWNING = """
    import sys
    import torch.distributed as distributed
    import torch.multiprocessing
    from foreread.torch import Dataset, wrap
    from torch.utils.data import DataLoader, DistributedSampler

    def train(rank, ranks, ports):
        for port in ports:
            distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
            data = Dataset("s3://data/train", memory="1MiB", decode="bytes")
            sampler = DistributedSampler(data, seed=3)
            loader = wrap(DataLoader(data, 5, sampler=sampler, collate_fn=list))
            for epoch in range(3):
                sampler.set_epoch(epoch)
                for _ in loader:
                    pass
                distributed.barrier()
            distributed.destroy_process_group()

    if __name__ == "__main__":
        torch.multiprocessing.spawn(train, (3, sys.argv[1:]), 3)
"""


# semantics: PY-22
def test_spawned_ranks_share_without_a_launcher(directory: Path, tmp_path: Path) -> None:
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SPAWNING))
    with counted(directory) as (settings, reads):
        environment = os.environ | settings | {"XDG_RUNTIME_DIR": str(runtime)}
        subprocess.run([sys.executable, str(script), *map(str, free_ports(2))], env=environment, check=True, timeout=180)
    assert len(reads) == 100 and set(reads.values()) == {1}, Counter(reads.values())
    assert not list(runtime.glob("foreread/job-*")), "the job leaves nothing"
    shutil.rmtree(runtime)


# semantics: PY-22
def test_statistics_of_ranks_sum_up_to_the_reads(directory: Path) -> None:
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))
    with counted(directory) as (settings, reads):
        ranks = [Rank(rank, 3, 0, settings | {"XDG_RUNTIME_DIR": str(runtime)}) for rank in range(3)]
        for _ in range(3):
            for rank in ranks:
                rank.begin()
            assert {number for rank in ranks for number in rank.epoch()} == set(range(100))
        assert len(reads) == 100 and set(reads.values()) == {1}, Counter(reads.values())
        assert sum(rank.read for rank in ranks) == sum(len(content(number)) for number in range(100))
        for rank in ranks:
            _, err = rank.process.communicate(timeout=60)
            assert rank.process.returncode == 0, err
    shutil.rmtree(runtime)


# semantics: PY-22
def test_files_whose_times_prove_nothing_are_not_shared(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have one time and no tag. So a later listing may be of other files with equal sizes."""
    answer = bucket._Handler._answer

    def untagged(self: Any, status: int, body: bytes, **headers: str) -> None:
        headers.pop("ETag", None)
        answer(self, status, re.sub(rb"<ETag>.*?</ETag>", b"", body), **headers)

    monkeypatch.setattr(bucket._Handler, "_answer", untagged)
    runtime = Path(tempfile.mkdtemp(dir="/tmp"))
    with counted(directory) as (settings, reads):
        first, later = (Rank(rank, 2, 0, settings | {"XDG_RUNTIME_DIR": str(runtime)}) for rank in range(2))
        first.begin()
        assert all(text == content(number).decode() for number, text in first.epoch().items())
        _, err = later.process.communicate("next\n", timeout=60)
        assert "nothing proves that the ranks" in err, err
        _, err = first.process.communicate(timeout=60)
        assert first.process.returncode == 0, err
    # With their look-ahead. None got a sample of the other.
    assert max(reads.values()) >= 2
    shutil.rmtree(runtime)
