"""The ranks' token, passed through torch's store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as distributed

import foreread
from foreread import _token
from slurm_cluster import free_ports
from waiting import until

TOKENS = [f"{rank:x}7e1c95a03f64d2893ab5c17e0d68f4{rank:x}" for rank in range(5)]

HANG = 180


class Store:
    """A store that records its calls, optionally without deletion."""

    def __init__(self, deletes: bool = True) -> None:
        self.deletes = deletes
        self.values: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}
        self.lock = threading.Lock()

    def set(self, key: str, value: str, /) -> None:
        with self.lock:
            self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        with self.lock:
            return self.values[key]

    def add(self, key: str, amount: int, /) -> int:
        with self.lock:
            self.counts[key] = self.counts.get(key, 0) + amount
            return self.counts[key]

    def delete_key(self, key: str, /) -> bool:
        if not self.deletes:
            raise RuntimeError("not implemented")
        with self.lock:
            return (self.values.pop(key, None) or self.counts.pop(key, None)) is not None


class Broken(Store):
    """A store whose host is unreachable."""

    def add(self, key: str, amount: int, /) -> int:
        raise RuntimeError("Connection reset by peer")


def exchange(store: Store, ranks: list[int], number: int = 0) -> list[str]:
    """The tokens of these ranks of five, in parallel."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        got = [threads.submit(_token.exchange, store, rank, 5, TOKENS[rank], number, 60.0) for rank in ranks]
        return [one.result() for one in got]


# semantics: RANK-33
def test_ranks_get_rank_0s_token_and_the_last_one_deletes_it() -> None:
    store = Store()
    assert exchange(store, [3, 1, 0, 2]) == [TOKENS[0]] * 4
    # One rank has not read it.
    assert store.values and store.counts
    assert exchange(store, [4]) == [TOKENS[0]]
    assert not store.values and not store.counts


# semantics: RANK-33
def test_process_groups_have_different_tokens() -> None:
    store = Store()
    exchange(store, [0], 0)
    with pytest.raises(foreread.errors.MeetingError):
        _token.exchange(store, 1, 5, TOKENS[1], 1, timeout=0.0)


def test_store_without_deletion_keeps_no_token() -> None:
    store = Store(deletes=False)
    assert exchange(store, [0, 1, 2, 3, 4]) == [TOKENS[0]] * 5
    assert set(store.values.values()) == {b""}


# semantics: RANK-33
def test_rank_without_rank_0_fails_with_the_remedy() -> None:
    error = "rank 3 got no token from rank 0 .* within 0 s: .*same loaders in the same order.*FOREREAD_TOKEN"
    with pytest.raises(foreread.errors.MeetingError, match=error):
        _token.exchange(Store(), 3, 5, TOKENS[3], 0, timeout=0.0)


@pytest.mark.parametrize("rank", [0, 1])
# semantics: RANK-33
def test_failing_store_is_named_with_the_remedy(rank: int) -> None:
    error = rf"rank {rank} cannot pass .* torch's store: Connection reset by peer; .*foreread token"
    with pytest.raises(foreread.errors.MeetingError, match=error):
        _token.exchange(Broken(), rank, 5, TOKENS[rank], 0)


# semantics: RANK-33
def test_token_needs_a_process_group_and_no_file_store(tmp_path: Path) -> None:
    assert _token.of_torch(0, 1, TOKENS[0]) is None
    for store in (distributed.FileStore(str(tmp_path / "store"), 1), distributed.HashStore()):
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            # The world size differs from the process group's.
            assert _token.of_torch(0, 2, TOKENS[0]) is None
            expected = None if isinstance(store, distributed.FileStore) else TOKENS[0]
            assert _token.of_torch(0, 1, TOKENS[0]) == expected
        finally:
            distributed.destroy_process_group()


# semantics: PY-22
def test_token_in_background_is_the_loaders_own() -> None:
    given: list[str | None] = []
    _token.in_background(0, 2, given.append)
    # There is no process group.
    assert given == [None]
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        _token.in_background(0, 1, given.append)
        until("the token is there", lambda: len(given) == 2)
        assert given[1] is not None and given[1] == _token.of_torch(0, 1, TOKENS[0])
    finally:
        distributed.destroy_process_group()


SCRIPT = """
    import json, os, sys
    import torch.distributed as distributed
    import foreread
    from foreread import _token

    def never(*_):
        raise AssertionError("the store was used")

    if "FOREREAD_TOKEN" in os.environ:
        _token.of_torch = never
    rank = int(os.environ["RANK"])
    distributed.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
    together = []
    def loader():
        return foreread.Loader(sys.argv[1], batch_size=5, epochs=1, memory="1MiB")
    # In parallel: there is one port, so the second rendezvous is found through the first.
    with loader() as training, loader() as validation:
        for one in (training, validation):
            assert sum(len(batch.ids) for batch in one) == 50
            together.append(one.plan["together"])
    distributed.barrier()
    store = distributed.distributed_c10d._get_default_store()
    left = [store.add(f"foreread/token/{number}/count", 0) for number in range(2)]
    print(json.dumps([together, left]))
    distributed.barrier()
"""


@pytest.mark.parametrize("given", [None, TOKENS[0]])
# semantics: RANK-33
def test_ranks_at_a_host_use_torchs_or_the_users_token(directory: Path, given: str | None) -> None:
    torch_port, port = free_ports(2)
    environment = {"WORLD_SIZE": "2", "FOREREAD_MEET": f"127.0.0.1:{port}", "OMP_NUM_THREADS": "1"}
    if given is not None:
        environment["FOREREAD_TOKEN"] = given
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), str(directory), f"tcp://127.0.0.1:{torch_port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment | {"RANK": str(rank)},
        )
        for rank in range(2)
    ]
    for child in children:
        out, err = child.communicate(timeout=HANG)
        assert child.returncode == 0, err
        assert json.loads(out) == [[True, True], [0, 0]]
