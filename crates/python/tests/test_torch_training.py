"""What is trained is what plain PyTorch trains, to the last digit of each loss: by the README's example and by the one in
`examples`, on one rank and on two, with the wheel in an environment of its own and from an empty directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import documents
from bucket import bucket
from conftest import WHEEL
from documents import ROOT
from torch_images import generators, images  # noqa: F401

EXAMPLES = ROOT / "examples" / "pytorch"

# Not how long it may take: how long a hang is waited for.
HANG = 300


def run(interpreter: str, directory: Path, *command: object, **variables: str) -> str:
    """What a script prints that a user's Python runs in `directory`."""
    launchers = ("RANK", "WORLD", "MASTER", "PYTHONPATH" if WHEEL else "RANK")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    done = subprocess.run(
        [interpreter, *map(str, command)],
        env=environment | {"OMP_NUM_THREADS": "1"} | variables,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(interpreter: str, directory: Path, ranks: int, *command: object) -> list[str]:
    # torchrun. PyTorch 1.13's, on Python 3.11, takes no redirection at all for a mistake, so each stream gets one.
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", ranks, "--redirects", "2", "--tee", "1"]
    said = run(interpreter, directory, *(torchrun if ranks > 1 else []), *command)
    return [line.removeprefix("[default0]:") for line in said.splitlines() if "epoch " in line]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_examples_losses_are_plain_pytorchs(interpreter: str, images: Path, tmp_path: Path, ranks: int) -> None:
    example = (EXAMPLES / "train.py", images, "--classes", "5")
    plain = losses(interpreter, tmp_path, ranks, *example)
    assert len(plain) == 2 * (4 if ranks == 1 else 2), plain
    # Each start of PyTorch takes seconds; what workers do is compared on one rank and in the other tests.
    ways = [("wrap", "2"), ("loader", "0")] + [("wrap", "0"), ("loader", "2")] * (ranks == 1)
    for way, workers in ways:
        assert losses(interpreter, tmp_path, ranks, *example, "--foreread", way, "--workers", workers) == plain, (way, workers)


def test_the_readmes_losses_are_plain_pytorchs(interpreter: str, images: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    trainer = documents.Trainer()
    trainer.run(documents.prepared(str(images))["loader"])
    assert len(trainer.losses) == 4
    with bucket("my-bucket", "train", images) as environment:
        said = run(interpreter, scratch, documents.__file__, ROOT / "README.md", "In PyTorch", images, scratch, **environment)
    by_block = list(json.loads(said).values())
    # wrap(), foreread's own loader from a bucket, and samples without a framework, which train nothing.
    assert by_block == [trainer.losses, trainer.losses, []]


@pytest.mark.skipif(WHEEL is None, reason="needs the wheel, which `cargo xtask test --all` builds")
def test_the_wheel_is_what_is_imported(interpreter: str, tmp_path: Path) -> None:
    said = run(interpreter, tmp_path, "-c", "import foreread, torch; print(foreread.__file__, torch.__file__)")
    ours, theirs = map(Path, said.split())
    assert ours.is_relative_to(Path(interpreter).parents[1]) and not theirs.is_relative_to(Path(interpreter).parents[1])
    assert interpreter != sys.executable
