"""The datasets and the agent of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

#: Tests of frameworks that this environment lacks: `.ci/soak frameworks` has them.
_FRAMEWORKS = {"test_dali.py": "nvidia", "test_grain.py": "grain", "test_huggingface.py": "datasets", "test_tensorflow.py": "tensorflow"}
collect_ignore = [file for file, package in _FRAMEWORKS.items() if find_spec(package) is None]

#: The command of this environment.
FOREREAD = Path(sys.executable).with_name("foreread")

#: The wheel that `.ci/run` has built, if any.
WHEEL = os.environ.get("FOREREAD_TEST_WHEEL")


def content(number: int) -> bytes:
    """The unique content of a file, of varying length."""
    return f"sample {number} ".encode() * (1 + number % 7)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A hundred files in four classes, in ImageFolder's layout."""
    root = tmp_path / "data"
    for number in range(100):
        path = root / f"class{number // 25}" / f"{number:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    return root


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """The socket of an agent."""
    socket = tmp_path / "agent" / "node.sock"
    subprocess.run([FOREREAD, "agent", "start", "--memory", "8MiB", "--socket", socket], check=True, timeout=60)
    yield socket
    subprocess.run([FOREREAD, "agent", "stop", "--socket", socket], check=True, timeout=60)


def status(socket: Path) -> dict[str, Any]:
    command = [FOREREAD, "agent", "status", "--report", "json", "--socket", socket]
    report: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return report


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of a fresh environment with the system's packages and the wheel. Without a wheel, this Python."""
    if WHEEL is None:
        return sys.executable
    fresh = tmp_path_factory.mktemp("fresh")
    python = str(fresh / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(fresh)], check=True)
    # It needs only what the wheel contains.
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", WHEEL], check=True)
    return python


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where nothing may be left out, a test that was skipped fails the run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if "FOREREAD_TEST_ALL" in os.environ and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
