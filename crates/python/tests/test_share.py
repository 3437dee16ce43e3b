"""Worker processes that share the main process's source, for all ways to start and end."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import conftest
import foreread
from foreread._native import Source
from waiting import until

METHODS = ("fork", "spawn", "forkserver")
WORK = Path(__file__).with_name("share_work.py")

# The deadline of a hang, not a measure of speed.
HANG = 1800 if "FOREREAD_SOAK" in os.environ else 120


@contextmanager
def script(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Runs `share_work.py` in a separate session, which is empty at the end."""
    # Python 3.12 and newer warn of a fork with threads, which is tested here.
    warnings = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    child = subprocess.Popen(
        [sys.executable, "-X", "dev", *warnings, str(WORK), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        for process in session(child.pid):
            os.kill(process, signal.SIGKILL)
        child.communicate()


def session(number: int) -> list[int]:
    """The processes of a session."""
    found = []
    for name in os.listdir("/proc"):
        try:
            after_name = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        # State, parent, group, session.
        if name.isdigit() and after_name[0] != "Z" and int(after_name[3]) == number:
            found.append(int(name))
    return found


def finish(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = child.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        status = Path(f"/proc/{child.pid}/status").read_text().splitlines()
        signals = "\n".join(each for each in status if each.startswith(("Sig", "ShdPnd")))
        # Prints where it hangs.
        child.send_signal(signal.SIGABRT)
        out, err = child.communicate()
        pytest.fail(f"the child hangs\n{signals}\n{out}\n{err}")
    return child.returncode, out, err


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def nothing_is_left(child: subprocess.Popen[str], address: str | None, shared: set[str]) -> None:
    """Asserts that an ended session has no process, socket or shared memory."""
    until("the session has ended", lambda: not session(child.pid))
    # The resources of the repeated start and stop are checked in the script.
    assert address is None or address.split(":")[0] not in Path("/proc/net/unix").read_text()
    assert {name for name in os.listdir("/dev/shm") if "foreread" in name} == shared


@pytest.fixture
def shared() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "foreread" in name}


def content(number: int) -> bytes:
    """Every other sample is long enough for shared memory. The others go through the socket."""
    return conftest.content(number) * (1000 if number % 2 else 1)


@pytest.fixture
def directory(directory: Path) -> Path:
    """A hundred files of these lengths."""
    for number in range(100):
        (directory / f"class{number // 25}" / f"{number:03}.bin").write_bytes(content(number))
    return directory


def test_client_gets_the_sources_samples(directory: Path) -> None:
    with Source(directory) as source:
        assert source.shared() is None
        client = foreread.ShareClient(source.share())
        sample = client.get(7)
        assert (sample.id, bytes(sample), len(sample)) == (7, content(7), len(content(7)))
        view = memoryview(sample)
        assert view.readonly and sample.is_shared
        del sample
        many = client.get_many([5, 5, 99, 0])
        assert [bytes(each) for each in many] == [content(5), content(5), content(99), content(0)]
        # A view keeps its shared memory.
        assert bytes(view) == content(7)
        assert b'"origin_requests"' in client.call("report")
        assert source.shared() == {
            "clients": 1,
            "shared_bytes": 64 << 20,
            "used_bytes": (source.shared() or {})["used_bytes"],
            "over_the_socket": 0,
        }
        again = pickle.loads(pickle.dumps(client))
        assert (again.address, bytes(again.get(3))) == (client.address, content(3))
        name, secret = client.address.split(":")
        assert name in repr(client) and secret not in repr(client)


def test_failing_requests_report_the_cause(directory: Path) -> None:
    with Source(directory) as source:
        client = foreread.ShareClient(source.share())
        with pytest.raises(foreread.errors.ConfigError, match="sample 100") as raised:
            client.get(100)
        assert raised.value.sample_id == 100
        with pytest.raises(OverflowError):
            client.get(-1)
        with pytest.raises(TypeError):
            client.get("7")  # type: ignore[arg-type]
        with pytest.raises(foreread.errors.ConfigError, match="pets"):
            client.call("pets")
        with pytest.raises(ValueError, match="65270"):
            client.call("report", bytes(100_000))
        (directory / "class0" / "003.bin").unlink()
        with pytest.raises(FileNotFoundError, match="sample 3 cannot be read"):
            client.get_many([2, 3, 4])
        assert bytes(client.get(2)) == content(2)
    with pytest.raises(foreread.errors.ClosedError, match="the main process is gone"):
        client.get(2)
    with pytest.raises(foreread.errors.ClosedError):
        source.share()
    with pytest.raises(ValueError, match="invalid address"):
        foreread.ShareClient("tmp/socket").get(1)
    with Source(directory) as source:
        with pytest.raises(foreread.errors.ConfigError, match="shared_memory"):
            source.share(shared_memory="much")
        with pytest.raises(TypeError, match="shared_memory"):
            source.share(shared_memory=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_workers_come_and_go_and_leave_nothing(directory: Path, method: str, shared: set[str]) -> None:
    count = 200 if "FOREREAD_SOAK" in os.environ else 10
    with script("cycles", directory, method, count) as child:
        code, out, err = finish(child)
        assert (code, out, err) == (0, "clean\n", "")
        nothing_is_left(child, None, shared)


@pytest.mark.parametrize("method", METHODS)
def test_killed_worker_releases_its_samples(directory: Path, method: str) -> None:
    with script("killed worker", directory, method) as child:
        code, out, err = finish(child)
        assert (code, err) == (0, "") and out.endswith("clean\n"), (code, out, err)


def test_forked_child_cannot_read_its_parents_samples(directory: Path) -> None:
    with script("held sample", directory, "fork") as child:
        assert finish(child) == (0, "notified\nclean\n", "")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", ["exception", "close", "interrupt", "killed"])
def test_main_processs_end_ends_its_workers(
    directory: Path, method: str, end: str, shared: set[str]
) -> None:
    with script("main", directory, method, end) as child:
        address = line(child)
        assert address.startswith("@foreread-")
        assert sorted(line(child) for _ in range(4)) == ["requests", "requests", "requests", "started"]
        if end == "interrupt":
            os.killpg(child.pid, signal.SIGINT)
        elif end == "killed":
            child.kill()
        else:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        code, out, err = finish(child)
        if end == "interrupt":
            assert code == -signal.SIGINT and "main interrupted" in out, (code, out, err)
            assert out.count("interrupted") + out.count("ended: ") >= 4, (code, out, err)
        else:
            assert out.count("ended: the main process is gone") == 3, (code, out, err)
            assert code == {"exception": 1, "close": 0, "killed": -signal.SIGKILL}[end], err
        assert ("as it should" in err) == (end == "exception")
        nothing_is_left(child, address, shared)
