"""Reads a directory of files with other loaders and prints what they took, as one line of JSON.

    python3 directory.py DIRECTORY

Shuffled, batches of 64 delivered as one buffer, best of some warm epochs. CPU time is that of this process and of the
processes that it started.
"""

import json
import os
import random
import resource
import sys
import time

BATCH = 64
WARM_EPOCHS = 4


def children():
    """The processes that this one has started and that still run."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
            found += file.read().split()
    return found


def cpu():
    """Seconds of CPU that this process and those that it started have used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    ticks = 0
    for child in children():
        with open(f"/proc/{child}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return usage.ru_utime + usage.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def measure(name, samples, epoch):
    """The best rate of some epochs after one that is not counted; CPU time is their mean."""
    epoch()
    best, before = float("inf"), cpu()
    for _ in range(WARM_EPOCHS):
        start = time.perf_counter()
        epoch()
        best = min(best, time.perf_counter() - start)
    used = (cpu() - before) / WARM_EPOCHS
    return {"name": name, "rate": samples / best, "cpu": used * 1e6 / samples}


def floor(paths, sizes):
    """One thread of os.open, os.readv into one buffer that is used again and again, os.close."""
    room = memoryview(bytearray(max(sizes) * BATCH))

    def epoch():
        order = list(range(len(paths)))
        random.shuffle(order)
        for start in range(0, len(order), BATCH):
            at = 0
            for index in order[start : start + BATCH]:
                file = os.open(paths[index], os.O_RDONLY)
                os.readv(file, [room[at : at + sizes[index]]])
                os.close(file)
                at += sizes[index]

    return epoch


def pread(paths, sizes):
    """One thread of os.open, os.pread into an object of its own, os.close; a batch is a list."""

    def epoch():
        order = list(range(len(paths)))
        random.shuffle(order)
        for start in range(0, len(order), BATCH):
            batch = []
            for index in order[start : start + BATCH]:
                file = os.open(paths[index], os.O_RDONLY)
                batch.append(os.pread(file, sizes[index], 0))
                os.close(file)

    return epoch


def torch_loader(paths, workers):
    """A plain torch DataLoader over the same files."""
    import torch

    class Files(torch.utils.data.Dataset):
        def __len__(self):
            return len(paths)

        def __getitem__(self, index):
            with open(paths[index], "rb", buffering=0) as file:
                return file.read()

    def join(batch):
        return torch.frombuffer(bytearray(b"".join(batch)), dtype=torch.uint8)

    # The workers stay, or starting them would be most of so short an epoch.
    loader = torch.utils.data.DataLoader(
        Files(), batch_size=BATCH, shuffle=True, num_workers=workers, collate_fn=join, persistent_workers=workers > 0
    )

    def epoch():
        for _ in loader:
            pass

    return epoch


def main():
    paths = sorted(os.path.join(root, name) for root, _, names in os.walk(sys.argv[1]) for name in names)
    sizes = [os.path.getsize(path) for path in paths]
    contenders = [
        ("Python: os.readv into one buffer, 1 thread", floor(paths, sizes)),
        ("Python: os.pread, 1 thread", pread(paths, sizes)),
        ("torch DataLoader, 0 workers", torch_loader(paths, 0)),
        ("torch DataLoader, 2 workers", torch_loader(paths, 2)),
    ]
    print(json.dumps([measure(name, len(paths), epoch) for name, epoch in contenders]))


if __name__ == "__main__":
    main()
