"""On a machine with CUDA: images of foreread.image reach the device pinned, one batch ahead, and unchanged.

    python cuda_image.py

Needs foreread, PyTorch and Pillow. Makes the images that it reads. Without CUDA it reports that, and compares on the CPU.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from odd_images import picture, saved

import foreread
from foreread.torch import DataLoader

IMAGES, BATCH, EPOCHS = 400, 32, 3


def batches(root: Path, **how: Any) -> list[tuple[Any, Any]]:
    """All batches, copied back at once, as a trainer that uses each on its current stream."""
    decoder = foreread.image(96, train=True, mean="imagenet")
    with DataLoader(root, BATCH, seed=0, decode=decoder, epochs=EPOCHS, memory="64MiB", **how) as loader:
        found = []
        for _ in range(EPOCHS):
            for images, labels in loader:
                if how.get("device"):
                    assert images.device.type == labels.device.type == how["device"], images.device
                # Work on the device that would see an unfinished copy.
                found.append(((images * 2).cpu() / 2, labels.cpu()))
        print(how, loader.stats())
    return found


def check(root: Path, expected: list[tuple[Any, Any]], **how: Any) -> None:
    for (images, labels), (their_images, their_labels) in zip(batches(root, **how), expected, strict=True):
        assert torch.equal(images, their_images) and torch.equal(labels, their_labels), how


def main() -> None:
    there = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for number in range(IMAGES):
            path = root / f"class{number % 4}" / f"{number:04}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(saved(picture(random.Random(number), 120 + number % 60, 140), "JPEG"))
        expected = batches(root)
        check(root, expected, device="cpu")
        if there:
            check(root, expected, device="cuda")
            # Sample by sample, and collated by PyTorch.
            check(root, expected, device="cuda", transform=lambda image: image, num_workers=3)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                loader = DataLoader(root, BATCH, decode=foreread.image(96), pin_memory=True, epochs=1)
            with loader:
                assert all(images.is_pinned() and labels.is_pinned() for images, labels in loader)
    device = torch.cuda.get_device_name() if there else "no CUDA: only the way without a device was compared"
    print(f"foreread {foreread.__version__}, PyTorch {torch.__version__}, {device}: equal batches")


if __name__ == "__main__":
    main()
