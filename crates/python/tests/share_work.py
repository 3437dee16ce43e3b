"""A main process and its workers, for `test_share.py`: run as a script, and imported in spawned processes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import foreread
from foreread._native import Source

# Background jobs of a shell ignore Ctrl-C, and so do their children.
signal.signal(signal.SIGINT, signal.default_int_handler)


def report(line: str) -> None:
    """Writes a whole line at once, because several processes write to one pipe."""
    os.write(1, f"{line}\n".encode())


def digest(client: Any, ids: Sequence[int], at_once: int) -> str:
    """Checks these samples, read individually or concurrently."""
    found = hashlib.sha256()
    for first in range(0, len(ids), at_once):
        part = list(ids[first : first + at_once])
        samples = client.get_many(part) if at_once > 1 else [client.get(part[0])]
        for number, sample in zip(part, samples, strict=True):
            assert sample.id == number and len(sample) == len(memoryview(sample))
            found.update(memoryview(sample))
    return found.hexdigest()


def work(client: foreread.ShareClient, ids: Sequence[int], at_once: int, results: Connection) -> None:
    results.send(digest(client, ids, at_once))
    results.close()


def hold(client: foreread.ShareClient, count: int) -> None:
    """Holds samples until it is killed."""
    held = client.get_many(range(count))
    report(f"holds {len(held)}")
    time.sleep(1000)


def request_until_the_end(client: foreread.ShareClient) -> None:
    """Sends requests in an endless loop, and reports its end."""
    try:
        try:
            report("requests")
            while True:
                client.get_many(range(100))
        except foreread.errors.ClosedError as error:
            ended = str(error)
        report(f"ended: {ended}")
    except KeyboardInterrupt:
        # Possibly during the notification of the main process's end.
        report("interrupted")


def in_use() -> tuple[int, int, int]:
    """The number of threads, descriptors of sockets and shared memory, and mappings."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            pass
    mine = [target for target in targets if target.startswith(("socket:", "/memfd:foreread"))]
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/task")), len(mine), maps.count("memfd:foreread")


def cycles(directory: str, method: str, count: int) -> None:
    """Starts and stops a source and workers repeatedly. Nothing is left."""
    context: Any = multiprocessing.get_context(method)
    before = None
    for cycle in range(count + 1):
        source = Source(directory)
        client = foreread.ShareClient(source.share(shared_memory="1MiB"))
        assert client.address == source.share()
        ids = [*range(100), *range(99, -1, -1)]
        wanted = digest(source, ids, 10)
        assert digest(client, ids, 7) == wanted
        workers = []
        for worker in range((0, 2, 8)[cycle % 3]):
            received, results = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(client, ids, (1, 16)[worker % 2], results))
            process.start()
            results.close()
            workers.append((process, received))
        for process, received in workers:
            assert received.recv() == wanted
            process.join()
            assert process.exitcode == 0
            process.close()
            received.close()
        client.close()
        address = client.address
        source.close()
        assert address.split(":")[0] not in Path("/proc/net/unix").read_text()
        try:
            client.get(0)
        except foreread.errors.ClosedError:
            pass
        else:
            raise AssertionError("a closed source was served")
        del client, source
        # Resources that Python and multiprocessing keep exist after the first run.
        before = before if before is not None else settled(None)
        assert settled(before) == before, f"cycle {cycle}: {settled(before)} instead of {before}"
    report("clean")


def settled(wanted: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """The resources in use after all ending threads have ended."""
    until = time.monotonic() + 20
    now = in_use()
    while time.monotonic() < until and (wanted is None or now != wanted):
        time.sleep(0.01 if wanted is not None else 0.5)
        before, now = now, in_use()
        if wanted is None and before == now:
            break
    return now


def main_with_workers(directory: str, method: str, end: str) -> None:
    """Starts workers that send requests in a loop, and ends in a given way."""
    context: Any = multiprocessing.get_context(method)
    source = Source(directory)
    client = foreread.ShareClient(source.share())
    report(client.address)
    workers = [context.Process(target=request_until_the_end, args=(client,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        # After the fork, because Python loses a Ctrl-C during a fork.
        report("started")
        if end == "exception":
            sys.stdin.readline()
            raise RuntimeError("as it should")
        if end == "close":
            sys.stdin.readline()
            source.close()
            return
        sys.stdin.readline()
        # Polls, because a signal that another thread receives does not interrupt waits.
        while True:
            time.sleep(0.02)
    except KeyboardInterrupt:
        report("main interrupted")
        raise
    finally:
        if end != "killed":
            source.close()
            for worker in workers:
                worker.join()


def killed_worker(directory: str, method: str) -> None:
    """Kills a worker that holds everything. Its samples are freed, and other workers never wait."""
    context: Any = multiprocessing.get_context(method)
    source = Source(directory)
    client = foreread.ShareClient(source.share(shared_memory=4096))
    wanted = digest(source, range(100), 10)
    for _ in range(3):
        worker = context.Process(target=hold, args=(client, 100))
        worker.start()
        while (source.shared() or {})["clients"] == 0 or (source.shared() or {})["over_the_socket"] == 0:
            time.sleep(0.005)
        assert digest(client, range(100), 10) == wanted
        client.close()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        until = time.monotonic() + 60
        while (source.shared() or {})["used_bytes"] > 0 or (source.shared() or {})["clients"] > 0:
            assert time.monotonic() < until, source.shared()
            time.sleep(0.005)
        worker.close()
    source.close()
    report("clean")


def held_sample(directory: str) -> None:
    """A forked child inherits a sample and a used client of its parent."""
    source = Source(directory)
    client = foreread.ShareClient(source.share())
    sample = client.get(7)
    child = os.fork()
    if child == 0:
        try:
            bytes(sample)
        except foreread.errors.ForkError:
            assert bytes(client.get(7)) == bytes(client.get_many([7])[0])
            report("notified")
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(sample) == bytes(client.get(7)) == bytes(source.get(7))
    source.close()
    report("clean")


if __name__ == "__main__":
    role, directory, method, *rest = sys.argv[1:]
    match role:
        case "cycles":
            cycles(directory, method, int(rest[0]))
        case "main":
            main_with_workers(directory, method, rest[0])
        case "held sample":
            held_sample(directory)
        case "killed worker":
            killed_worker(directory, method)
