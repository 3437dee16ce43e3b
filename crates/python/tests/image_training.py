"""Trains a small network on images of foreread.image, on the ranks of torchrun, and prints the mean loss of each step.

python image_training.py DATA STATE [--stop STEP] [--resume]

With ``--stop`` the state is saved after that step. With ``--resume`` training continues from there.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as distributed
from torch import nn

import foreread
from foreread.torch import DataLoader

GLOBAL_BATCH, EPOCHS = 12, 2


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("data")
    arguments.add_argument("state", type=Path)
    arguments.add_argument("--stop", type=int)
    arguments.add_argument("--resume", action="store_true")
    options = arguments.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # Sums over ranks round differently: with 64 bits, far below what is printed.
    torch.set_default_dtype(torch.float64)
    model: nn.Module = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(900, 3))
    if world > 1:
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    decoder = foreread.image(32, train=True, mean="imagenet")
    with DataLoader(options.data, GLOBAL_BATCH // world, seed=5, decode=decoder, epochs=EPOCHS, memory="16MiB") as loader:
        step = 0
        if options.resume:
            saved = torch.load(options.state)
            step = saved["step"]
            (model.module if world > 1 else model).load_state_dict(saved["model"])
            loader.load_state_dict(saved["loader"])
        for epoch in range(step * GLOBAL_BATCH // len(loader.dataset), EPOCHS):
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images.double()), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                mean = loss.detach() / world
                if world > 1:
                    distributed.all_reduce(mean)
                step += 1
                if os.environ.get("RANK", "0") == "0":
                    print(f"epoch {epoch} step {step} loss {mean.item():.9f}", flush=True)
                    if step == options.stop:
                        weights = (model.module if world > 1 else model).state_dict()
                        torch.save({"step": step, "model": weights, "loader": loader.state_dict()}, options.state)
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
