"""A small network on a folder of images: the plain way, and the same with foreread.

    python train.py /data/train                        # plain PyTorch: DataLoader over ImageFolder
    python train.py /data/train --foreread wrap        # one line more: wrap(loader)
    python train.py /data/train --foreread loader      # foreread's own DataLoader
    python train.py s3://bucket/train --foreread loader --memory 8GiB --disk /local/scratch=100GB
    torchrun --nproc_per_node 2 train.py /data/train --foreread loader

All print the same losses, because order and transforms are equal.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

TRANSFORM = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])


def plain(options: argparse.Namespace, rank: int, world: int) -> Any:
    """The loader of most scripts."""
    data = datasets.ImageFolder(options.data, TRANSFORM)
    sampler: Any = DistributedSampler(data, world, rank, shuffle=True, seed=options.seed)
    return DataLoader(data, options.batch_size, sampler=sampler, num_workers=options.workers)


def wrapped(options: argparse.Namespace, rank: int, world: int) -> Any:
    """The same, read ahead: one line changes."""
    from foreread.torch import wrap

    return wrap(plain(options, rank, world), memory=options.memory, disk=options.disk)


def own(options: argparse.Namespace, rank: int, world: int) -> Any:
    """foreread's loader: for directories and buckets, with caches shared by all ranks."""
    from foreread.torch import DataLoader as Loader

    return Loader(
        options.data,
        options.batch_size,
        shuffle=True,
        seed=options.seed,
        transform=TRANSFORM,
        num_workers=options.workers,
        epochs=options.epochs,
        memory=options.memory,
        disk=options.disk,
    )


def network(classes: int) -> nn.Module:
    """Small enough for a CPU. Use a ResNet instead."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes)
    )


def arguments(about: str | None) -> argparse.Namespace:
    """The command line's arguments. Its help begins with `about`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder of images, one directory per class, or (with --foreread loader) a bucket")
    parser.add_argument("--foreread", choices=["no", "wrap", "loader"], default="no")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--memory", help="for example 8GiB (default: automatic)")
    parser.add_argument("--disk", help="for example /local/scratch=100GB")
    return parser.parse_args()


def main() -> None:
    options = arguments(__doc__)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    model = network(options.classes)
    model(torch.zeros(1, 3, 32, 32))
    if world > 1:
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    loader = {"no": plain, "wrap": wrapped, "loader": own}[options.foreread](options, rank, world)

    for epoch in range(options.epochs):
        loader.sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader):
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.9f}")
    if options.foreread != "no":
        if rank == 0:
            print(f"# {loader.stats()}")
        loader.close()
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
