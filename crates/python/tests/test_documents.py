"""The Python examples of documents run as printed."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import documents
from bucket import bucket
from documents import ROOT, Section
from torch_images import generators, images  # noqa: F401

# The deadline of a hang, not a measure of speed.
HANG = 300

#: Packages of `.ci/soak frameworks` that the usual test environment lacks.
OTHERS = {"accelerate", "av", "datasets", "grain", "jax", "lightning", "nvidia", "soundfile", "tensorflow"}


@pytest.fixture(scope="module")
def store(images: Path) -> Iterator[dict[str, str]]:
    """The bucket in the documents, with images."""
    with bucket("my-bucket", "train", images) as environment:
        yield environment


def ran(section: Section, images: Path, scratch: Path, store: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a section's blocks in a process in an empty directory, with warnings as errors."""
    scratch.mkdir()
    # PyTorch warns if an example has more workers than the machine has cores.
    quiet = [] if section.imports() & OTHERS else ["-W", "error", "-W", "ignore:This DataLoader will create:UserWarning"]
    command = [sys.executable, *quiet, documents.__file__, str(section.document), section.heading, str(images), str(scratch)]
    environment = os.environ | store
    return subprocess.run(
        command, env=environment, cwd=scratch, capture_output=True, text=True, timeout=HANG, check=False
    )


def params() -> list[Any]:
    return [
        pytest.param(section, marks=[pytest.mark.frameworks] if section.imports() & OTHERS else [], id=str(section))
        for section in documents.everywhere()
    ]


@pytest.mark.parametrize("section", params())
# semantics: PY-10
def test_examples_run(section: Section, images: Path, tmp_path: Path, store: dict[str, str]) -> None:
    for package in sorted(section.imports() & OTHERS):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}: `.ci/soak frameworks` has it")
    done = ran(section, images, tmp_path / "empty", store)
    assert done.returncode == 0, done.stderr
    # The last line, because an example may print too.
    by_block = json.loads(done.stdout.splitlines()[-1])
    losses = [loss for block in by_block.values() for loss in block]
    assert all(map(math.isfinite, losses))


def test_every_example_is_found() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        found = sum(len(section.blocks) for section in documents.sections(document))
        assert found == document.read_text().count("```python"), document
    shown = "".join(block.code for section in documents.everywhere() for block in section.blocks)
    assert all(place in shown for place in documents.PLACES), "a place that no document names"


@pytest.mark.parametrize("word", ["set_epoch", "batch_size=64"])
def test_broken_example_is_reported_with_its_line(
    images: Path, tmp_path: Path, store: dict[str, str], word: str
) -> None:
    text = (ROOT / "docs" / "pytorch.md").read_text()
    heading = "Train from anywhere: `DataLoader`"
    start = text.index("## " + heading)
    broken = tmp_path / "broken.md"
    broken.write_text(text[:start] + text[start:].replace(word, "x" + word, 1))
    (section,) = (section for section in documents.sections(broken) if section.heading == heading)
    done = ran(section, images, tmp_path / "empty", store)
    line = text[: text.index(word, start)].count("\n") + 1
    assert done.returncode == 1 and f'broken.md", line {line}' in done.stderr, done.stderr
