"""The shell blocks of documents run as printed, and the example that survives a scheduler's signal."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import commands
from bucket import bucket
from conftest import WHEEL
from prose import DOCUMENTS, ROOT
from running import EXAMPLES, run
from torch_images import generators, images  # noqa: F401

#: The documents whose commands are run here.
HERE = [document for document in DOCUMENTS if document.name not in commands.ELSEWHERE]
WITH_COMMANDS = [document for document in HERE if commands.blocks(document)]


@pytest.fixture(scope="module", autouse=True)
def store(images: Path) -> Iterator[None]:
    """The bucket in the documents, and the command."""
    if commands.command() is None:
        assert WHEEL is None, "the command is not built"
        pytest.skip("needs the command: `cargo build`")
    with bucket("my-bucket", "train", images) as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=lambda document: document.name)
def test_commands_run(document: Path, images: Path, tmp_path: Path) -> None:
    done = commands.run(document, images, tmp_path / "scratch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def test_blocks_that_are_not_run_say_why() -> None:
    reasons = [found["why"] for document in HERE for found in commands.BLOCK.finditer(document.read_text())]
    assert sum(why is not None for why in reasons) <= 4 < len(reasons)
    text = "".join(document.read_text() for document in HERE)
    assert len(reasons) == text.count("```sh\n") and text.count("<!-- not run:") == sum(why is not None for why in reasons)
    languages = set(re.findall(r"^```([^\s`]+)", text, re.MULTILINE))
    assert languages <= {"sh", "python", "rust", "rust,no_run", "text", "toml", "json", "yaml"}, "a language that no test runs"


def test_failing_command_is_found(images: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.md"
    broken.write_text("```sh\nforeread load /data/train --batchsize 3\n```\n")
    assert commands.run(broken, images, tmp_path / "scratch").returncode == 2


@pytest.mark.parametrize("name", ["thesis-s3", "four-jobs", "unchanged-files"])
def test_simulation_prints_what_the_guide_shows(name: str) -> None:
    text = (ROOT / "docs" / "planning.md").read_text()
    (shown,) = re.findall(rf"^```text\n({name}.*?)^```$", text, re.MULTILINE | re.DOTALL)
    scenario = ROOT / "crates" / "simulator" / "scenarios" / f"{name}.toml"
    done = subprocess.run([str(commands.command()), "simulate", scenario], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(shown)


#: Runs a script that gets SIGTERM after its third line.
STOPPED = """
import builtins, os, runpy, signal, sys
lines, plain = 0, print
def counted(*values, **options):
    global lines
    plain(*values, **options)
    lines += 1
    if lines == 3:
        os.kill(os.getpid(), signal.SIGTERM)
builtins.print = counted
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_resume_example_continues_after_sigterm(interpreter: str, images: Path, tmp_path: Path) -> None:
    options = ["--classes", "5", "--batch-size", "8", "--workers", "2"]

    def losses(text: str) -> list[str]:
        return re.findall(r"^(epoch \d+ step \d+ loss .*)$", text, re.MULTILINE)

    whole = losses(run(interpreter, tmp_path, EXAMPLES / "resume.py", images, "--checkpoint", "whole.pt", *options))
    command = [interpreter, "-c", STOPPED, EXAMPLES / "resume.py", images, "--checkpoint", "run.pt", *options]
    stopped = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert stopped.returncode == 143, stopped.stderr
    first = stopped.stdout
    rest = losses(run(interpreter, tmp_path, EXAMPLES / "resume.py", images, "--checkpoint", "run.pt", *options))
    assert losses(first) + rest == whole
    assert 3 <= len(losses(first)) < len(whole) == 2 * 13


def test_resume_example_refuses_another_number_of_classes(interpreter: str, images: Path, tmp_path: Path) -> None:
    command = [interpreter, EXAMPLES / "resume.py", images, "--checkpoint", "run.pt", "--classes", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--classes 3: the data have 5 classes" in done.stderr, done.stderr
