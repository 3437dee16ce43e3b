"""Measures one contender: epochs of batches, with access to each sample, and the CPU of all its processes.

An epoch that takes too long is cut short. The epoch after it would first have to wait for the batches that the workers
still had in their queues: eight batches of several seconds each with four workers of a PyTorch loader. A loader that keeps
nothing therefore continues the same epoch, and that part is its later epoch: all of its samples are read from the source,
and startup is over. A loader that keeps what it reads has no later epoch after a cut, because it has not read all samples.
"""

import os
import resource
import time

TICK = os.sysconf("SC_CLK_TCK")

#: Later epochs, in addition to the requested ones: until this many seconds have passed, and at most this many.
LONG_ENOUGH, MOST = 1.0, 200

#: An epoch is cut short after at least this many batches, since workers deliver several at once. A slower loader is cut
#: short after this multiple of the time limit.
FEWEST_BATCHES, SLOWEST = 20, 4


def below(process):
    """The descendants of a process that still run."""
    try:
        tasks = os.listdir(f"/proc/{process}/task")
    except FileNotFoundError:
        return
    for task in tasks:
        try:
            with open(f"/proc/{process}/task/{task}/children", encoding="ascii") as file:
                children = file.read().split()
        except FileNotFoundError:
            continue
        for child in children:
            yield child
            yield from below(child)


def cpu():
    """CPU seconds of this process, of those it has waited for, and of its descendants that run."""
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    seconds = sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, both))
    for process in below("self"):
        try:
            with open(f"/proc/{process}/stat", encoding="ascii") as file:
                fields = file.read().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        seconds += sum(map(int, fields[11:15])) / TICK
    return seconds


class Epoch:
    """One epoch, or a part of it, from `start` on."""

    def __init__(self, start):
        self.start, self.used = start, cpu()
        self.first, self.samples, self.cut = None, 0, False

    def read(self, batches, limit):
        """Reads batches to their end, or until `limit` seconds after the first one."""
        number, check = 0, 0
        for number, batch in enumerate(batches, 1):
            for sample in batch:
                view = memoryview(sample)
                check ^= view[0] ^ view[-1]
                self.samples += 1
            now = time.monotonic()
            if self.first is None:
                self.first, self.first_at = now, time.time()
            late = now - self.first
            if late > limit and (number > FEWEST_BATCHES or late > SLOWEST * limit):
                self.cut = True
                break
        self.seconds = time.monotonic() - self.start
        self.used = cpu() - self.used

    def figures(self):
        return {"seconds": self.seconds, "cpu": self.used, "samples": self.samples, "cut": self.cut}


def measure(make, fewest, limit, keeps):
    """Creates a contender, and reads a first epoch and at least `fewest` later ones.

    An epoch is cut short `limit` seconds after its first batch. `keeps` says whether the contender keeps samples. The first
    epoch begins with the creation: it includes connections, listings and the start of workers.
    """
    first = Epoch(time.monotonic())
    contender = make()
    batches = iter(contender())
    first.read(batches, limit)
    later, seconds = [], 0.0
    while (not first.cut or not keeps) and (
        len(later) < fewest or (fewest and seconds < LONG_ENOUGH and len(later) < MOST)
    ):
        epoch = Epoch(time.monotonic())
        epoch.read(batches if first.cut else iter(contender()), limit)
        if not epoch.samples:
            # The cut was at the last batch.
            break
        later.append(epoch)
        seconds += epoch.seconds
        if first.cut or epoch.cut:
            # This part, or this epoch, is long enough. The next one would wait for the workers' queues.
            epoch.cut = True
            break
    return {
        "epochs": [epoch.figures() for epoch in [first, *later]],
        "first": first.first - first.start,
        "first_at": first.first_at,
    }
