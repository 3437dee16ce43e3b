"""Hugging Face Accelerate: the plain way, and the same with foreread. The network and the data are train.py's.

    python train_accelerate.py /data/train                        # plain: a prepared DataLoader over ImageFolder
    python train_accelerate.py /data/train --foreread wrap        # one line more
    python train_accelerate.py /data/train --foreread loader      # foreread's own DataLoader, buckets too
    torchrun --nproc_per_node 2 train_accelerate.py /data/train --foreread wrap

On one rank all print the same losses. On several, Accelerate deals whole batches to ranks, and foreread's loader deals
samples like DistributedSampler. So wrap's losses equal the plain ones, and the loader's equal train.py's.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from train import TRANSFORM, arguments, network, own
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets


def prepared(options: argparse.Namespace, accelerator: Accelerator) -> Any:
    """Accelerate deals to the ranks, so all share one sampler. The seed determines an epoch's order."""
    data = datasets.ImageFolder(options.data, TRANSFORM)
    sampler: Any = DistributedSampler(data, 1, 0, shuffle=True, seed=options.seed)
    return accelerator.prepare(DataLoader(data, options.batch_size, sampler=sampler, num_workers=options.workers))


def wrapped(options: argparse.Namespace, accelerator: Accelerator) -> Any:
    """The same, read ahead: first prepared, then wrapped."""
    from foreread.torch import wrap

    loader = prepared(options, accelerator)
    loader.base_dataloader = wrap(loader.base_dataloader, memory=options.memory, disk=options.disk)
    return loader


def main() -> None:
    options = arguments(__doc__)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    # Without CUDA, Accelerate takes each process for the only one, unless CPUs are requested.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = network(options.classes)
    model(torch.zeros(1, 3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    loss_of = nn.CrossEntropyLoss()
    if options.foreread == "loader":
        # Not prepared: it has dealt the samples to the ranks.
        loader = own(options, accelerator.process_index, accelerator.num_processes)
    else:
        loader = {"no": prepared, "wrap": wrapped}[options.foreread](options, accelerator)

    for epoch in range(options.epochs):
        loader.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader):
            loss = loss_of(model(images.to(accelerator.device)), labels.to(accelerator.device))
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            if accelerator.is_main_process:
                print(f"epoch {epoch} step {step} loss {loss.item():.9f}")
    if options.foreread != "no":
        if accelerator.is_main_process:
            print(f"# {loader.stats()}")
        # Accelerate's loader passes on what it does not know itself.
        loader.close()
    accelerator.end_training()


if __name__ == "__main__":
    main()
