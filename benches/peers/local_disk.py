"""`wrap` over files of a local disk, next to the plain DataLoader: `local_disk.py DIRECTORY [--bandwidth BYTES --requests N]`.

Files of 110 KB, 1 MB and 10 MB are made in DIRECTORY. In the rows "cold" their pages are dropped before each epoch, in the
rows "cached" all are in the page cache. The two loaders take turns. With --bandwidth and --requests (per second), a cgroup
holds the disk to that speed, which needs root and cgroups of version 1. CPU is that of the process and its workers.
"""

import argparse
import os
import resource
import statistics
import time
from pathlib import Path

import torch
import torch.utils.data
from foreread.torch import wrap

#: Length, files of a cold epoch, files of a cached epoch.
SIZES = [(110_000, 2_000, 8_000), (1_000_000, 400, 1_500), (10_000_000, 40, 150)]


class Files(torch.utils.data.Dataset):
    """The bytes of files, opened by Python, as image datasets do."""

    def __init__(self, root, paths):
        self.root, self.samples = str(root), [str(path) for path in paths]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        with open(self.samples[index], "rb") as file:
            return len(file.read())


def make(root, size, count):
    """Files of a length, with their data on the disk."""
    root.mkdir(parents=True, exist_ok=True)
    paths = [root / f"{number:06}.bin" for number in range(count)]
    block = os.urandom(size)
    for path in paths:
        if not path.exists() or path.stat().st_size != size:
            path.write_bytes(block)
    os.sync()
    return paths


def pages(paths, cached):
    """Reads the files into the page cache, or drops them."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        if cached:
            while os.read(descriptor, 1 << 20):
                pass
        else:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def cpu():
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in (own, children))


def epoch(loader, count):
    """Samples per second, and microseconds of CPU per sample."""
    begun, used = time.monotonic(), cpu()
    assert sum(1 for _ in loader) == -(-count // 32)
    return count / (time.monotonic() - begun), (cpu() - used) / count * 1e6


def throttle(root, bandwidth, requests):
    """Holds this process and its children to a speed of the disk of `root`."""
    device = os.stat(root).st_dev
    group = Path("/sys/fs/cgroup/blkio/foreread-local-disk")
    group.mkdir(exist_ok=True)
    name = f"{os.major(device)}:{os.minor(device)}"
    (group / "blkio.throttle.read_bps_device").write_text(f"{name} {bandwidth}")
    (group / "blkio.throttle.read_iops_device").write_text(f"{name} {requests}")
    (group / "cgroup.procs").write_text(str(os.getpid()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bandwidth", type=int, default=0)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--only", choices=["cold", "cached"], nargs="+", default=["cold", "cached"])
    given = parser.parse_args()
    every = {size: make(given.directory / str(size), size, most) for size, _, most in SIZES}
    if given.bandwidth:
        throttle(given.directory, given.bandwidth, given.requests)
    print("| files | workers | plain, per second | wrap, per second | rate | plain, us CPU | wrap, us CPU | CPU |")
    print("|---|---|---|---|---|---|---|---|")
    for state in given.only:
        for size, cold, most in SIZES:
            paths = every[size][: cold if state == "cold" else most]
            for workers in given.workers:
                row(state, size, paths, workers, given.rounds)


def row(state, size, paths, workers, rounds):
    """One line of the table: medians of the rounds. The first one of cached files is not counted: `wrap` learns in it."""

    def loader():
        return torch.utils.data.DataLoader(
            Files(paths[0].parent, paths), batch_size=32, shuffle=True, num_workers=workers, collate_fn=sum
        )

    plain, wrapped = loader(), wrap(loader())
    found = {"plain": [], "wrap": []}
    for number in range(rounds + 1):
        for name, one in (("plain", plain), ("wrap", wrapped)):
            pages(paths, state == "cached")
            result = epoch(one, len(paths))
            if number > 0:
                found[name].append(result)
    wrapped.close()
    rates, costs = ({name: statistics.median(x[at] for x in rows) for name, rows in found.items()} for at in (0, 1))
    print(
        f"| {state}, {size / 1000:,.0f} KB | {workers} | {rates['plain']:,.0f} | {rates['wrap']:,.0f} | "
        f"{rates['wrap'] / rates['plain']:.2f} | {costs['plain']:,.0f} | {costs['wrap']:,.0f} | "
        f"{costs['wrap'] / costs['plain']:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
