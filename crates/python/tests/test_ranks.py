"""Ranks that share their caches, as processes of one launcher."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import content

SCRIPT = """
    import json, sys, foreread
    seen = []
    with foreread.Loader(sys.argv[1], batch_size=5, epochs=3, seed=3, memory="1MiB") as loader:
        for batch in loader:
            assert len(batch.ids) == 5
            seen.append((batch.epoch, batch.ids))
            loader.step_done()
        together = loader.plan["together"]
    report = loader.report()
    print(json.dumps([loader.rank, together, seen, report["origin_requests"], report.get("all_ranks")]))
"""


def launch(directory: Path, rank: int, **environment: str) -> subprocess.Popen[str]:
    """One rank of two."""
    settings = {"RANK": str(rank), "WORLD_SIZE": "2", "FOREREAD_TOKEN": "b7e1c95a03f64d2893ab5c17e0d68f42", **environment}
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(SCRIPT), str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | settings,
    )


def test_ranks_meet_share_and_leave(directory: Path, tmp_path: Path) -> None:
    for attempt in range(5):
        meet = tmp_path / f"meet{attempt}"
        meet.mkdir()
        ranks = [launch(directory, rank, FOREREAD_MEET=str(meet)) for rank in range(2)]
        ended = [child.communicate(timeout=180) for child in ranks]
        # The rank with the node's memory may be silent for long on a busy machine, and is then read around.
        if not any("no sign of life" in err for _, err in ended):
            break
    assert [(child.returncode, err) for child, (_, err) in zip(ranks, ended, strict=True)] == [(0, "")] * 2
    results = [json.loads(out) for out, _ in ended]
    assert [rank for rank, *_ in results] == [0, 1] and all(together for _, together, *_ in results)
    for epoch in range(3):
        ids = [number for _, _, seen, *_ in results for of, batch in seen if of == epoch for number in batch]
        assert sorted(ids) == list(range(100))
    # In total they read each sample from the origin once, in three epochs.
    assert sum(requests for *_, requests, _ in results) == 100
    assert results[0][4]["ranks"] == 2 and results[0][4]["origin_requests"] == 100 and results[1][4] is None


def test_ranks_without_a_rendezvous_read_alone(directory: Path) -> None:
    children = [launch(directory, rank) for rank in range(2)]
    for child in children:
        out, err = child.communicate(timeout=180)
        assert child.returncode == 0, err
        _, together, seen, requests, _ = json.loads(out)
        # Each rank caches its samples, and half of its later samples are new to it.
        assert not together and len(seen) == 30 and 50 <= requests <= 100
        # Logged once, with the remedy.
        assert err.count("ranks do not share their caches") == 1 and "FOREREAD_MEET" in err


@pytest.mark.parametrize("rank", [0, 1])
def test_interrupted_rank_leaves_the_rendezvous(directory: Path, tmp_path: Path, rank: int) -> None:
    meet = tmp_path / "meet"
    meet.mkdir()
    script = f"""
        import _thread, signal, sys, threading, foreread
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.5, _thread.interrupt_main).start()
        try:
            foreread.Loader(sys.argv[1], rank={rank}, world_size=2)
        except KeyboardInterrupt:
            print("interrupted")
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(directory)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        env=os.environ | {"FOREREAD_MEET": str(meet), "FOREREAD_TOKEN": "b7e1c95a03f64d2893ab5c17e0d68f42"},
    )
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n"), ran.stderr


FORKING = """
    import json, os, sys, foreread
    seen, child = [], 0
    with foreread.Loader(sys.argv[1], batch_size=5, epochs=4, seed=3, memory="1MiB") as loader:
        for batch in loader:
            seen.append((batch.epoch, batch.ids, [bytes(data) for data in batch]))
            loader.step_done()
            if batch.epoch == 1 and not child and loader.rank == 0:
                child = os.fork()
                if child == 0:
                    # It has copies of all sockets, and outlives the rank that hosts the node's cache.
                    sys.stdin.read()
                    os._exit(0)
                print(child, flush=True)
                # It is killed here.
                sys.stdin.read()
    print(json.dumps([[epoch, ids, [data.decode() for data in values]] for epoch, ids, values in seen]))
"""


def test_fork_of_a_killed_host_keeps_no_rank_waiting(directory: Path, tmp_path: Path) -> None:
    """The forked child has the sockets of the rank that hosted the node's cache, so they are not closed with it."""
    (tmp_path / "meet").mkdir()
    environment = {"WORLD_SIZE": "2", "FOREREAD_TOKEN": "b7e1c95a03f64d2893ab5c17e0d68f42", "FOREREAD_MEET": str(tmp_path / "meet")}
    command = [sys.executable, "-c", textwrap.dedent(FORKING), str(directory)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    host, other = (subprocess.Popen(command, env=os.environ | environment | {"RANK": str(rank)}, **pipes) for rank in range(2))
    assert host.stdout is not None
    # The child lives as long as its standard input is open.
    assert int(host.stdout.readline()) > 0
    host.kill()
    out, err = other.communicate(timeout=180)
    assert other.returncode == 0, err
    seen = json.loads(out)
    for epoch in range(4):
        assert sum(len(ids) for of, ids, _ in seen if of == epoch) == 50
    assert all(data.encode() == content(number) for _, ids, values in seen for number, data in zip(ids, values, strict=True))
    host.communicate(timeout=60)
