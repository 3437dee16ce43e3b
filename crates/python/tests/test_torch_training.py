"""Training equals plain PyTorch's to the last digit of each loss, for the README's example and the one in `examples`.

On one rank and on two, with the wheel in a separate environment and from an empty directory."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import documents
from bucket import bucket
from conftest import WHEEL
from documents import ROOT
from running import EXAMPLES, losses, run
from torch_images import generators, images, jpegs  # noqa: F401


@pytest.mark.parametrize("ranks", [1, 2])
# semantics: PY-1
def test_losses_of_the_example_equal_plain_pytorchs(interpreter: str, images: Path, tmp_path: Path, ranks: int) -> None:
    example = (EXAMPLES / "train.py", images, "--classes", "5")
    plain = losses(interpreter, tmp_path, ranks, *example)
    assert len(plain) == 2 * (4 if ranks == 1 else 2), plain
    # Each start of PyTorch takes seconds, so workers are compared on one rank and in other tests.
    ways = [("wrap", "2"), ("loader", "0")] + [("wrap", "0"), ("loader", "2")] * (ranks == 1)
    for way, workers in ways:
        assert losses(interpreter, tmp_path, ranks, *example, "--foreread", way, "--workers", workers) == plain, (way, workers)


def test_losses_of_the_readme_equal_plain_pytorchs(interpreter: str, images: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    trainer = documents.Trainer()
    trainer.run(documents.prepared(str(images))["loader"])
    assert len(trainer.losses) == 4
    with bucket("my-bucket", "train", images) as environment:
        output = run(interpreter, scratch, documents.__file__, ROOT / "README.md", "Quick start", images, scratch, **environment)
    by_block = list(json.loads(output.splitlines()[-1]).values())
    from torch.utils.data import DataLoader

    shuffled = documents.Trainer()
    shuffled.run(DataLoader(documents.prepared(str(images))["data"], batch_size=64, shuffle=True))
    # foreread's loader from a bucket, its saved and loaded state, and wrap() of a shuffled loader.
    assert by_block == [trainer.losses, [], shuffled.losses]


# semantics: IMAGE-4
def test_losses_on_decoded_images_equal_on_ranks_and_resumed(interpreter: str, jpegs: Path, tmp_path: Path) -> None:
    script, state = Path(__file__).parent / "image_training.py", tmp_path / "state.pt"
    one = losses(interpreter, tmp_path, 1, script, jpegs, state)
    assert len(one) == 16 and len(set(one)) == 16, one
    assert losses(interpreter, tmp_path, 2, script, jpegs, state) == one
    assert losses(interpreter, tmp_path, 4, script, jpegs, state, "--stop", 11) == one
    # Two ranks continue from the state of four, in the middle of the second epoch.
    assert losses(interpreter, tmp_path, 2, script, jpegs, state, "--resume") == one[11:]


@pytest.mark.skipif(WHEEL is None, reason="needs the wheel, which `.ci/run` builds")
def test_wheel_is_the_imported_package(interpreter: str, tmp_path: Path) -> None:
    output = run(interpreter, tmp_path, "-c", "import foreread, torch; print(foreread.__file__, torch.__file__)")
    ours, theirs = map(Path, output.split())
    assert ours.is_relative_to(Path(interpreter).parents[1]) and not theirs.is_relative_to(Path(interpreter).parents[1])
    assert interpreter != sys.executable
