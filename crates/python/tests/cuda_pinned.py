"""On a machine with CUDA: batches of foreread.torch.DataLoader are pinned, and reach the device as plain PyTorch's do.

    python cuda_pinned.py

Needs foreread and PyTorch, and nothing else. Makes the data that it reads. Without CUDA it reports that, and expects
PyTorch's warning.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

import foreread
from foreread.torch import DataLoader
from torch.utils.data import Dataset, DistributedSampler
from torch.utils.data import DataLoader as Plain

SAMPLES, BYTES, BATCH = 512, 16 * 1024, 64


class Files(Dataset[Any]):
    """PyTorch's dataset over the same files."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.rglob("*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        data = torch.frombuffer(bytearray(self.paths[index].read_bytes()), dtype=torch.uint8)
        return data, int(self.paths[index].parent.name.removeprefix("class"))


def check(root: Path, workers: int) -> None:
    there = torch.cuda.is_available()
    data = Files(root)
    sampler: Any = DistributedSampler(data, 1, 0, seed=0)
    theirs = Plain(data, BATCH, sampler=sampler, pin_memory=there)
    with warnings.catch_warnings(record=True) as text:
        warnings.simplefilter("always")
        ours = DataLoader(root, BATCH, seed=0, decode="bytes", pin_memory=True, num_workers=workers, memory="64MiB")
    assert any("'pin_memory' argument is set as true" in str(warning.message) for warning in text) != there, text
    with ours:
        for epoch in range(3):
            sampler.set_epoch(epoch)
            ours.set_epoch(epoch)
            batches = 0
            for (x, y), (their_x, their_y) in zip(ours, theirs, strict=True):
                assert x.is_pinned() == y.is_pinned() == there and their_x.is_pinned() == there
                if there:
                    x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
                    torch.cuda.synchronize()
                assert torch.equal(x.cpu(), their_x) and torch.equal(y.cpu(), their_y)
                batches += 1
            assert batches == SAMPLES // BATCH
        print(f"{workers} threads:", ours.stats())


def main() -> None:
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for number in range(SAMPLES):
            path = root / f"class{number % 4}" / f"{number:04}.bin"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(draw.randbytes(BYTES))
        for workers in (0, 3):
            check(root, workers)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA: nothing can be pinned, and a warning says so"
    print(f"foreread {foreread.__version__}, PyTorch {torch.__version__}, {device}: as plain PyTorch")


if __name__ == "__main__":
    main()
