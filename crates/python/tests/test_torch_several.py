"""Several simultaneous DataLoaders on each rank, as in training scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch.utils.data import DataLoader as Plain
from torch.utils.data import DistributedSampler
from torch_images import folder, generators, images  # noqa: F401

# The deadline of a hang, not a measure of speed.
HANG = 180

SCRIPT = """
    import json, sys
    import numpy, torch
    from foreread.torch import DataLoader

    def pixels(image):
        return torch.from_numpy(numpy.array(image)).long().sum()

    def epoch(loader):
        return [(x.tolist(), y.tolist()) for x, y in loader]

    made = {"transform": pixels, "memory": "16MiB"}
    seen = {}
    train = DataLoader(sys.argv[1], 8, seed=3, **made)
    held_out = DataLoader(sys.argv[1], 5, shuffle=False, **made)
    for number in range(2):
        train.set_epoch(number)
        seen[f"train {number}"] = epoch(train)
        seen[f"validation {number}"] = epoch(held_out)
    # Created again while both exist.
    again = DataLoader(sys.argv[1], 8, seed=4, **made)
    seen["again"] = epoch(again)
    together = [loader._native.plan["together"] for loader in (train, held_out, again)]
    for loader in (train, held_out, again):
        loader.close()
    print(json.dumps([seen, together]))
"""


def pixels(image: Any) -> Any:
    return torch.from_numpy(np.array(image)).long().sum()


def launch(images: Path, rank: int, job: str) -> subprocess.Popen[str]:
    """One rank of two, with torchrun's environment."""
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": job, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(images)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {name: str(value) for name, value in environment.items()} | master,
    )


def plain(folder: Any, rank: int, batch: int, seed: int, epoch: int, shuffle: bool) -> list[list[list[int]]]:
    sampler: Any = DistributedSampler(folder, 2, rank, shuffle=shuffle, seed=seed)
    sampler.set_epoch(epoch)
    return [[x.tolist(), y.tolist()] for x, y in Plain(folder, batch, sampler=sampler)]


# semantics: RANK-12
def test_training_and_validation_loaders_coexist(images: Path, folder: Any, tmp_path: Path) -> None:
    folder.transform = pixels
    children = [launch(images, rank, str(tmp_path)) for rank in range(2)]
    for rank, child in enumerate(children):
        out, err = child.communicate(timeout=HANG)
        assert child.returncode == 0, err
        seen, together = json.loads(out)
        for epoch in range(2):
            assert seen[f"train {epoch}"] == plain(folder, rank, 8, 3, epoch, True), (rank, epoch)
            assert seen[f"validation {epoch}"] == plain(folder, rank, 5, 0, 0, False), (rank, epoch)
        assert seen["again"] == plain(folder, rank, 8, 4, 0, True), rank
        assert together == [True] * 3
