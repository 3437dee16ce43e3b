"""Measures one contender: epochs of batches, reading each sample, and the CPU time of all its processes."""

import os
import resource
import time

TICK = os.sysconf("SC_CLK_TCK")

#: Additional warm epochs: until this many seconds have passed, and at most this many.
LONG_ENOUGH, MOST = 1.0, 200


def below(process):
    """The processes below one that still run."""
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
    """Seconds of CPU of this process, of those it has waited for, and of those below it that run, whatever their depth."""
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


def measure(make, fewest, most):
    """Creates a contender and reads a first epoch and at least `fewest` warm ones. An epoch that lasts `most` seconds after
    its first batch is cut short.

    The first epoch includes the creation: connections, listings and the start of workers.
    """
    began, used = time.monotonic(), cpu()
    contender, epochs, first, warm = make(), [], None, 0.0
    while len(epochs) <= fewest or (fewest and warm < LONG_ENOUGH and len(epochs) <= MOST):
        start = time.monotonic() if epochs else began
        samples, size, check, cut = 0, 0, 0, False
        for batch in contender():
            for sample in batch:
                view = memoryview(sample)
                size += view.nbytes
                check ^= view[0] ^ view[-1]
                samples += 1
            now = time.monotonic()
            if first is None:
                first, first_at = now, time.time()
            if now - max(start, first) > most:
                cut = True
                break
        del batch
        seconds, now = time.monotonic() - start, cpu()
        epochs.append({"seconds": seconds, "cpu": now - used, "samples": samples, "bytes": size, "cut": cut})
        used = now
        warm += seconds if len(epochs) > 1 else 0.0
    return {"epochs": epochs, "first": first - began, "first_at": first_at, "check": check}
