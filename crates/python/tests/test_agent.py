"""One cache for several jobs: loaders and workers that read through the agent of a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import status
from torch_images import images, to_tensor, torch  # noqa: F401

import foreread
from foreread.torch import DataLoader, Dataset, wrap


def batches(directory: Path, **settings: Any) -> tuple[list[list[tuple[int, bytes]]], Any]:
    with foreread.Loader(directory, batch_size=10, epochs=2, seed=4, **settings) as loader:
        found = [[(sample.id, bytes(sample)) for sample in batch] for batch in loader]
        return found, loader.stats()


def test_loader_reads_through_the_agent(directory: Path, agent: Path) -> None:
    expected, _ = batches(directory, agent="off")
    for _ in range(2):
        for _ in range(10):
            found, stats = batches(directory, agent=agent)
            assert found == expected
            # An agent that is silent for long, on a busy machine, is read around.
            if stats.report["agent"]["direct_samples"] == 0:
                break
        assert "agent" in str(stats) and stats.origin_bytes == 0
    # The second loader found all samples in the agent's memory.
    report = status(agent)
    assert (report["reads"], report["jobs"]) == (100, [])
    with pytest.raises(foreread.errors.ConfigError, match="agent"):
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


#: A training script: a small network, and the loss of each step. `kind` is the way in which it reads.
TRAINING = """
import sys
import numpy, torch
import foreread
from foreread.torch import DataLoader, Dataset, wrap
from torch.utils.data import DataLoader as Plain
sys.path.insert(0, sys.argv[3])
from torch_images import to_tensor
from torchvision.datasets import ImageFolder

def batches(kind, images):
    if kind == "loader":
        for batch in foreread.Loader(images, batch_size=4, epochs=2, seed=3, memory="1MiB"):
            pixels = [numpy.frombuffer(sample, numpy.uint8)[:64].astype("float32") for sample in batch]
            yield torch.from_numpy(numpy.stack(pixels)), torch.tensor([sample.label for sample in batch])
        return
    if kind == "DataLoader":
        loader = DataLoader(images, batch_size=4, seed=3, epochs=2, transform=to_tensor, memory="1MiB")
    elif kind == "wrap":
        loader = wrap(Plain(ImageFolder(images, to_tensor), 4, shuffle=True, num_workers=2), memory="1MiB")
    else:
        loader = wrap(Plain(Dataset(images, to_tensor, memory="1MiB"), 4, shuffle=True, num_workers=2))
    for epoch in range(2):
        yield from loader

torch.manual_seed(5)
torch.set_num_threads(1)
network, optimizer = None, None
for pixels, labels in batches(sys.argv[1], sys.argv[2]):
    flat = pixels.reshape(len(pixels), -1).float() / 255
    if network is None:
        network = torch.nn.Linear(flat.shape[1], 8)
        optimizer = torch.optim.SGD(network.parameters(), 0.01)
    loss = torch.nn.functional.cross_entropy(network(flat), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def test_four_training_scripts_have_equal_losses_with_an_agent(images: Path, agent: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    tests = Path(__file__).parent

    def train(environment: dict[str, str]) -> list[str]:
        """The losses of all scripts, which run at the same time."""
        kinds = ["loader", "DataLoader", "wrap", "Dataset"]
        commands = [[sys.executable, script, kind, images, tests] for kind in kinds]
        every = {**os.environ, **environment}
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=every) for command in commands]
        found = [process.communicate(timeout=120)[0] for process in running]
        assert [process.returncode for process in running] == [0] * len(kinds)
        return found

    expected = train({"FOREREAD_AGENT": "off"})
    assert all(len(losses.split()) >= 4 for losses in expected), expected
    assert train({"FOREREAD_AGENT": str(agent)}) == expected
    report = status(agent)
    # All four were served, and each image was read once for all of them that read the same files.
    assert report["hits"] + report["joined"] > report["reads"] > 0, report
