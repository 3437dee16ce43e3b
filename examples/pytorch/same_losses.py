"""One training on 1, 2, 4 and 8 ranks with the same global batch: the losses are the same.

    python same_losses.py losses.csv

It generates images of eight classes, trains the network of ``train.py`` with ``foreread.torch.DataLoader`` on each number of
ranks, and writes the mean loss of each step, one column per number of ranks. A step reads the same samples on any number of
ranks, so the losses differ only by the rounding of sums.
"""

from __future__ import annotations

import csv
import os
import socket
import sys
import tempfile
from pathlib import Path

import numpy
import torch
import torch.distributed as distributed
import torch.multiprocessing as processes
from PIL import Image
from torch import nn
from train import TRANSFORM, network

from foreread.torch import DataLoader

RANKS = (1, 2, 4, 8)
CLASSES = 8
IMAGES = 1024
GLOBAL_BATCH = 64
EPOCHS = 4


def generate(directory: Path) -> None:
    """Stripes in one of eight directions, below noise. One image in five has a wrong label, so the loss stays above 0."""
    numbers = numpy.random.default_rng(0)
    across, down = numpy.meshgrid(numpy.arange(32), numpy.arange(32))
    for index in range(IMAGES):
        shown = numbers.integers(CLASSES) if numbers.random() < 0.2 else index % CLASSES
        angle = numpy.pi * shown / CLASSES
        waves = numpy.sin((across * numpy.cos(angle) + down * numpy.sin(angle)) / 2 + numbers.uniform(0, 2))
        pixels = 128 + 60 * waves[..., None] + numbers.normal(0, 70, (32, 32, 3))
        path = directory / f"class{index % CLASSES}" / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype("uint8")).save(path)


def train(rank: int, world: int, port: int, directory: Path, losses: Path) -> None:
    """The training of one rank. Rank 0 writes the mean losses."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    os.environ.update(place | {"RANK": str(rank), "WORLD_SIZE": str(world)})
    torch.manual_seed(0)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    model = network(CLASSES)
    model(torch.zeros(1, 3, 32, 32))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    means = []
    with DataLoader(directory, GLOBAL_BATCH // world, seed=0, transform=TRANSFORM, epochs=EPOCHS, memory="64MiB") as loader:
        for _ in range(EPOCHS):
            for images, labels in loader:
                loss = loss_of(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                mean = loss.detach() / world
                distributed.all_reduce(mean)
                means.append(f"{mean.item():.7f}")
    if rank == 0:
        losses.write_text("\n".join(means))
    distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    columns = {}
    with tempfile.TemporaryDirectory() as name:
        directory, losses = Path(name, "train"), Path(name, "losses")
        generate(directory)
        for world in RANKS:
            processes.spawn(train, (world, free_port(), directory, losses), nprocs=world)
            columns[world] = losses.read_text().split()
    with open(sys.argv[1], "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["step", *RANKS])
        table.writerows([step, *row] for step, row in enumerate(zip(*columns.values(), strict=True)))
    differences = [max(map(float, row)) - min(map(float, row)) for row in zip(*columns.values(), strict=True)]
    print(f"{len(differences)} steps; the losses differ by at most {max(differences):.1e}")


if __name__ == "__main__":
    main()
