"""The example trains, and its losses are plain PyTorch's to the last digit, on one rank and on two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch_images import generators, images  # noqa: F401

EXAMPLE = Path(__file__).parents[3] / "examples" / "pytorch" / "train.py"

# Not how long it may take: how long a hang is waited for.
HANG = 300


def losses(images: Path, ranks: int, *options: str) -> list[str]:
    # torchrun. PyTorch 1.13's, on Python 3.11, takes no redirection at all for a mistake, so each stream gets one.
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--redirects", "2", "--tee", "1"]
    command = [sys.executable, *(torchrun if ranks > 1 else [])] + [str(EXAMPLE), str(images), "--classes", "5", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "MASTER"))}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.removeprefix("[default0]:") for line in done.stdout.splitlines() if "epoch " in line]


@pytest.mark.parametrize("ranks", [1, 2])
def test_losses_are_plain_pytorchs(images: Path, ranks: int) -> None:
    plain = losses(images, ranks)
    assert len(plain) == 2 * (4 if ranks == 1 else 2), plain
    # Each start of PyTorch takes seconds; what workers do is compared on one rank and in the other tests.
    ways = [("wrap", "2"), ("loader", "0")] + [("wrap", "0"), ("loader", "2")] * (ranks == 1)
    for way, workers in ways:
        assert losses(images, ranks, "--foreread", way, "--workers", workers) == plain, (way, workers)
