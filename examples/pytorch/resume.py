"""Training that survives preemption: model, optimizer and loader in one checkpoint.

    python resume.py /data/train --checkpoint run.pt
    torchrun --nproc_per_node 4 resume.py s3://bucket/train --checkpoint run.pt --memory 8GiB
    srun python resume.py train.foreread --checkpoint run.pt --disk /local/scratch=400GB

The checkpoint is written after each epoch, and on SIGTERM after the current step. The script then ends with status
143. Started again, with the same or another number of ranks, it continues with the next batch.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torchvision import transforms
from train import network

from foreread.torch import DataLoader

TRANSFORM = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
#: The status of a process that SIGTERM has ended.
STOPPED = 128 + signal.SIGTERM

#: Set by SIGTERM.
stopping = False


def stop(*_: object) -> None:
    global stopping
    stopping = True


def join() -> tuple[int, int]:
    """Rank and world size, from torchrun or SLURM. Joins torch's process group if there are several ranks."""
    for ours, slurm in [("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS"), ("LOCAL_RANK", "SLURM_LOCALID")]:
        os.environ.setdefault(ours, os.environ.get(slurm, "1" if ours == "WORLD_SIZE" else "0"))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return rank, world


def any_rank_stops(world: int, device: torch.device) -> bool:
    """Whether a rank has got SIGTERM. All ranks get the same answer, so that they stop at the same step."""
    if world == 1:
        return stopping
    flag = torch.tensor([int(stopping)], device=device)
    distributed.all_reduce(flag, distributed.ReduceOp.MAX)
    return bool(flag.item())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a directory, a URL, or a catalog made by `foreread index`")
    parser.add_argument("--checkpoint", required=True, help="the file of the run's state")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--classes", type=int, help="refuse data with another number of classes")
    parser.add_argument("--memory", default="auto", help="per rank, for example 16GiB")
    parser.add_argument("--disk", help="per node, for example /local/scratch=400GB")
    parser.add_argument("--recall", action="store_true", help="restore files in an archive while it trains")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, stop)
    rank, world = join()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    loader = DataLoader(
        options.data,
        options.batch_size,
        seed=0,
        epochs=options.epochs,
        num_workers=options.workers,
        transform=TRANSFORM,
        memory=options.memory,
        disk=options.disk,
        recall=options.recall,
    )
    classes = len(loader.dataset.classes)
    if options.classes not in (None, classes):
        parser.error(f"--classes {options.classes}: the data have {classes} classes")
    torch.manual_seed(0)
    model = network(classes)
    model(torch.zeros(1, 3, 32, 32))
    model = model.to(device)
    trained: nn.Module = model if world == 1 else nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()

    def save(epoch: int) -> None:
        """All ranks are at the same step, so that rank 0's state is everybody's."""
        if rank == 0:
            state: dict[str, Any] = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"loader": loader.state_dict()}, f"{options.checkpoint}.new")
            os.replace(f"{options.checkpoint}.new", options.checkpoint)

    first = 0
    if os.path.exists(options.checkpoint):
        state = torch.load(options.checkpoint, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        first = state["epoch"]

    stopped = False
    for epoch in range(first, options.epochs):
        batches, done = iter(loader), False
        # A resumed epoch has fewer batches left.
        before = len(loader) - len(batches)
        for step, (images, labels) in enumerate(batches):
            loss = loss_of(trained(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch} step {before + step} loss {loss.item():.9f}", flush=True)
            done = step + 1 == len(batches)
            if stopped := any_rank_stops(world, device):
                break
        # The next run begins with the rest of this epoch, or with the next one.
        save(epoch + int(done))
        if stopped:
            break
    if rank == 0:
        print(f"# {loader.stats()}")
    loader.close()
    if world > 1:
        distributed.destroy_process_group()
    sys.exit(STOPPED if stopped else 0)


if __name__ == "__main__":
    main()
