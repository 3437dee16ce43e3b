"""Datasets that tests read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: The wheel as it is installed by users, where `cargo xtask` has built it.
WHEEL = os.environ.get("FOREREAD_TEST_WHEEL")


def content(number: int) -> bytes:
    """What the file of this number holds: of another length each, and telling."""
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


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A user's Python: in a fresh environment that sees the system's packages, with the wheel. Without a wheel it is this one."""
    if WHEEL is None:
        return sys.executable
    fresh = tmp_path_factory.mktemp("fresh")
    python = str(fresh / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(fresh)], check=True)
    # It needs nothing that the wheel does not bring.
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", WHEEL], check=True)
    return python
