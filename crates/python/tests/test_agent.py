"""One cache for several jobs: loaders and workers that read through the agent of a node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch_images import images, to_tensor, torch  # noqa: F401

import foreread
from foreread.torch import DataLoader, Dataset, wrap

FOREREAD = Path(sys.executable).with_name("foreread")


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


def batches(directory: Path, **settings: Any) -> tuple[list[list[tuple[int, bytes]]], Any]:
    with foreread.Loader(directory, batch_size=10, epochs=2, seed=4, **settings) as loader:
        found = [[(sample.id, bytes(sample)) for sample in batch] for batch in loader]
        return found, loader.stats()


def test_loader_reads_through_the_agent(directory: Path, agent: Path) -> None:
    expected, _ = batches(directory, agent="off")
    for _ in range(2):
        found, stats = batches(directory, agent=agent)
        assert found == expected
        assert "agent" in str(stats) and stats.origin_bytes == 0
    # The second loader found all samples in the agent's memory.
    report = status(agent)
    assert (report["reads"], report["jobs"]) == (100, [])
    with pytest.raises(foreread.ConfigError, match="agent"):
        foreread.Loader(directory, agent="node.sock")


def test_training_through_the_agent_equals_training_without(images: Path, agent: Path) -> None:
    torch.manual_seed(0)

    def losses(**settings: Any) -> list[list[float]]:
        loader = DataLoader(images, batch_size=4, seed=2, epochs=2, transform=to_tensor, **settings)
        data = Dataset(images, to_tensor, **settings)
        plain = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
        return [
            [float(batch.sum() + labels.sum()) for batch, labels in each]
            for each in (loader, loader, wrap(plain), wrap(plain))
        ]

    expected = losses(agent="off")
    assert losses(agent=agent) == expected
    assert status(agent)["hits"] > 0
