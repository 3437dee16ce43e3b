"""The wheel's `foreread` command behaves as the Rust program does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import foreread
from conftest import WHEEL

# The deadline of a hang, not a measure of speed.
HANG = 120

#: The command of the environment in which the tests run.
COMMAND = str(Path(sys.executable).parent / "foreread")


def start(*arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    """The running command."""
    # A file of settings in the working directory would be read.
    return subprocess.Popen([COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **streams)


def finish(*arguments: str) -> tuple[int, str, str]:
    """The command's exit code, output and errors."""
    child = start(*arguments)
    out, errors = child.communicate(timeout=HANG)
    return child.returncode, out.decode(), errors.decode()


def test_version_is_that_of_the_package() -> None:
    code, out, errors = finish("--version")
    assert (code, errors) == (0, "")
    assert out.split()[:2] == ["foreread", foreread.__version__]


@pytest.mark.skipif(WHEEL is None, reason="needs the wheel that `.ci/run` builds")
def test_clean_environment_has_the_command(interpreter: str, tmp_path: Path) -> None:
    command = Path(interpreter).parent / "foreread"
    done = subprocess.run([command, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=HANG, check=True)
    assert done.stdout.startswith(f"foreread {foreread.__version__}")


def test_wrong_usage_is_one_line_and_exit_code_2(directory: Path) -> None:
    code, out, errors = finish("load", str(directory), "--batchsize", "3")
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("foreread: unexpected argument '--batchsize' found")


def test_missing_dataset_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    code, out, errors = finish("index", str(tmp_path / "missing"), "--output", str(tmp_path / "x.foreread"))
    assert (code, out, errors.count("\n")) == (1, "", 1)
    assert "missing" in errors


def test_argument_that_is_no_text_is_wrong_usage(directory: Path, tmp_path: Path) -> None:
    catalog = tmp_path / os.fsdecode(b"\xff.foreread")
    code, out, errors = finish("index", str(directory), "--output", str(catalog))
    assert (code, out, errors.count("\n"), catalog.exists()) == (2, "", 1, False), errors
    assert "UTF-8" in errors


def test_closed_pipe_ends_the_command_with_141(directory: Path) -> None:
    with start("load", str(directory), "--epochs", "5000", "--compute-ms", "10") as child:
        assert child.stdout is not None
        assert len(child.stdout.read(20)) == 20
        child.stdout.close()
        assert child.wait(HANG) == 141


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
# semantics: STATE-1
def test_signal_saves_the_state_and_the_run_resumes(directory: Path, tmp_path: Path, sent: signal.Signals) -> None:
    state = tmp_path / "state.json"
    run = ["load", str(directory), "--epochs=3", "--batch-size=4", "--seed=9", "--report=json", "--ids"]
    code, out, errors = finish(*run)
    assert code == 0, errors
    whole = ids(out)
    seen, codes, delay = list[int](), list[int](), 0.3
    while codes[-1:] != [0]:
        # Slow until a run was interrupted.
        compute = "--compute-ms=20" if 128 + sent in codes else "--compute-ms=300"
        child = start(*run, compute, "--state", str(state))
        # Longer each time, so that a slow machine gets to its first batch and to the end.
        time.sleep(delay)
        delay *= 1.5
        child.send_signal(sent)
        printed, error_bytes = child.communicate(timeout=HANG)
        if not printed:
            # It ended before the command handled signals, and nothing was delivered.
            assert child.returncode != 0
            continue
        seen += ids(printed.decode())
        codes.append(child.returncode)
        assert codes[-1] in (0, 128 + sent), error_bytes.decode()
    assert seen == whole
    assert 128 + sent in codes, "no run was interrupted"


def ids(report: str) -> list[int]:
    """The ids of a report in JSON, in order."""
    return [number for epoch in json.loads(report)["epochs"] for number in epoch["ids"]]
