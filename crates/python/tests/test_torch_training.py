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
    python = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port", "0"]
    command = (python if ranks > 1 else [sys.executable]) + [str(EXAMPLE), str(images), "--classes", "5", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "MASTER"))}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("epoch ")]


@pytest.mark.parametrize("ranks", [1, 2])
def test_losses_are_plain_pytorchs(images: Path, ranks: int) -> None:
    plain = losses(images, ranks)
    assert len(plain) == 2 * (4 if ranks == 1 else 2), plain
    for way in ("wrap", "loader"):
        for workers in ("0", "2"):
            assert losses(images, ranks, "--foreread", way, "--workers", workers) == plain, (way, workers)
