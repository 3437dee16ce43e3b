"""Datasets that tests read."""

from __future__ import annotations

from pathlib import Path

import pytest


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
