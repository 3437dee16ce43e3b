"""Forks, signals and exits of processes, each tested in a separate child process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# The deadline of a hang, not a measure of speed.
HANG = 120

# Background jobs of a shell ignore Ctrl-C, and so do their children.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def start(script: str, *arguments: object, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A child process that runs `script` with warnings as errors."""
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", HEED + textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (env or {}),
    )


def finish(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code and the output."""
    try:
        out, err = child.communicate(timeout=HANG)
    except subprocess.TimeoutExpired:
        child.kill()
        out, err = child.communicate()
        pytest.fail(f"the child hangs\n{out}\n{err}")
    return child.returncode, out, err


def run(script: str, *arguments: object) -> str:
    """The output of a script, which must succeed without messages on stderr."""
    code, out, err = finish(start(script, *arguments))
    assert (code, err) == (0, ""), f"{code}\n{out}\n{err}"
    return out


def wait_for(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == line + "\n"


# semantics: PY-17
def test_importing_starts_no_thread() -> None:
    run("""
        import os, foreread
        assert len(os.listdir("/proc/self/task")) == 1
    """)


# semantics: PY-17
def test_ctrl_c_ends_a_wait_for_a_batch(directory: Path) -> None:
    child = start(
        """
        import sys, foreread
        loader = foreread.Loader(sys.argv[1], origin_limit=1)
        try:
            print("waits", flush=True)
            next(loader)
        except KeyboardInterrupt:
            print("interrupted", loader.report()["origin_requests"] >= 0)
            raise
        """,
        directory,
    )
    wait_for(child, "waits")
    child.send_signal(signal.SIGINT)
    code, out, err = finish(child)
    assert code == -signal.SIGINT
    assert out == "interrupted True\n"
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_ctrl_c_ends_the_opening_of_a_silent_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        child = start(
            """
            import foreread
            foreread.Loader("s3://bucket/train")
            """,
            env={
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "x",
                "AWS_SECRET_ACCESS_KEY": "x",
                "AWS_REGION": "us-east-1",
            },
        )
        server.settimeout(HANG)
        connection, _ = server.accept()
        with connection:
            child.send_signal(signal.SIGINT)
            code, _, err = finish(child)
    assert code == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("os._exit(4)", 4),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("loader.close(); sys.exit(5)", 5),
        ("del loader, batch; sys.exit(6)", 6),
        ("sys.modules['keep'] = loader", 0),
        ("threading.Thread(target=drain, daemon=True).start()", 0),
        ("threading.Thread(target=lambda: [next(loader) for _ in range(9)]).start()", 0),
    ],
)
def test_process_exits_with_its_code_during_a_run(
    directory: Path, tmp_path: Path, ending: str, expected: int
) -> None:
    disk = f"{tmp_path}/cache=1MiB"
    child = start(
        f"""
        import contextlib, os, signal, sys, threading, foreread
        def drain():
            with contextlib.suppress(foreread.errors.ClosedError):
                while True:
                    next(loader)
        loader = foreread.Loader(sys.argv[1], batch_size=4, disk=sys.argv[2], memory="1MiB", look_ahead="1KiB")
        for batch in loader:
            if batch.index == 3:
                {ending}
                break
        """,
        directory,
        disk,
    )
    code, out, err = finish(child)
    assert (code, out, err) == (expected, "", "")
    # The disk tier's directory is free again in all cases.
    run(
        """
        import sys, foreread
        with foreread.Loader(sys.argv[1], epochs=1, disk=sys.argv[2]) as loader:
            assert sum(len(batch) for batch in loader) == 100
            assert loader.report()["disk"]["capacity_bytes"] > 0
        """,
        directory,
        disk,
    )


def test_exception_ends_a_with_block_at_once(directory: Path) -> None:
    code, out, err = finish(
        start(
            """
            import sys, foreread
            with foreread.Loader(sys.argv[1], batch_size=4) as loader:
                for batch in loader:
                    raise LookupError("of the trainer")
            """,
            directory,
        )
    )
    assert (code, out) == (1, "")
    assert err.rstrip().endswith("LookupError: of the trainer")


def test_forked_child_gets_an_error_and_exits_cleanly(directory: Path) -> None:
    out = run(
        """
        import gc, os, sys, foreread
        loader = foreread.Loader(sys.argv[1], batch_size=4, epochs=1)
        batch = next(loader)
        sample = batch[0]
        view = memoryview(sample)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            for use in (lambda: next(loader), loader.state, loader.report, loader.close, loader.step_done):
                try:
                    use()
                except foreread.errors.ForkError as error:
                    assert isinstance(error, RuntimeError) and "forked" in str(error), error
                else:
                    raise AssertionError(use)
            # Samples that were read before the fork stay readable.
            assert bytes(view) == bytes(batch[0]) and len(list(batch)) == 4
            del view, sample, batch, loader
            gc.collect()
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        rest = sum(len(batch) for batch in loader)
        assert rest == 96, rest
        print("done")
        """,
        directory,
    )
    assert out == "done\n"


def test_forked_child_refuses_its_parents_transform_threads(directory: Path) -> None:
    pytest.importorskip("torch")
    out = run(
        """
        import os, sys, time, foreread.torch
        def slow(sample):
            time.sleep(0.05)
            return len(sample)
        loader = foreread.torch.DataLoader(sys.argv[1], 4, decode="bytes", transform=slow, num_workers=2)
        batches = iter(loader)
        next(batches)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                list(batches)
            except foreread.errors.ForkError as error:
                os._exit(7 if "create the loader in the child" in str(error) else 8)
            os._exit(9)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        assert sum(1 for _ in batches) == 24
        print("done")
        """,
        directory,
    )
    assert out == "done\n"


def test_multiprocessing_children_do_not_disturb_reading(directory: Path) -> None:
    run(
        """
        import multiprocessing, os, sys, foreread
        def work():
            pass
        loader = foreread.Loader(sys.argv[1], batch_size=1)
        context = multiprocessing.get_context("fork")
        for _ in range(40):
            batch = next(loader)
            child = context.Process(target=work)
            child.start()
            next(loader)
            child.join()
            assert child.exitcode == 0
        loader.close()
        """,
        directory,
    )


def test_forked_child_creates_a_separate_loader(directory: Path) -> None:
    run(
        """
        import os, sys, foreread
        loader = foreread.Loader(sys.argv[1], batch_size=4, epochs=1)
        next(loader)
        child = os.fork()
        if child == 0:
            with foreread.Loader(sys.argv[1], batch_size=4, epochs=1) as own:
                assert sum(len(batch) for batch in own) == 100
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert sum(len(batch) for batch in loader) == 96
        """,
        directory,
    )


def test_spawned_and_forkserver_children_read_for_themselves(directory: Path) -> None:
    script = directory.parent / "main.py"
    script.write_text(
        textwrap.dedent("""
            import multiprocessing, sys, foreread
            def work(directory, answers):
                with foreread.Loader(directory, epochs=1) as loader:
                    answers.put(sum(len(batch) for batch in loader))
            if __name__ == "__main__":
                keep = foreread.Loader(sys.argv[1])
                for method in ("spawn", "forkserver"):
                    context = multiprocessing.get_context(method)
                    answers = context.Queue()
                    child = context.Process(target=work, args=(sys.argv[1], answers))
                    child.start()
                    assert answers.get(timeout=100) == 100
                    child.join()
                    assert child.exitcode == 0
        """)
    )
    child = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", script, directory],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    code, out, err = finish(child)
    assert (code, out, err) == (0, "", "")


def test_starting_and_stopping_leaves_nothing(directory: Path) -> None:
    run(
        """
        import gc, os, sys, time, foreread
        def counts():
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        def cycle():
            with foreread.Loader(sys.argv[1], batch_size=16) as loader:
                next(loader)
        def settled(least):
            # The threads of an ended run end soon.
            until = time.monotonic() + 60
            while counts()[0] > least and time.monotonic() < until:
                time.sleep(0.01)
            return counts()
        cycle()
        before = settled(1)
        for _ in range(30):
            cycle()
        after = settled(1)
        assert after == before and after[0] == 1, (before, after)
        """,
        directory,
    )


def test_ctrl_c_ends_a_transform_that_hangs(directory: Path) -> None:
    pytest.importorskip("torch")
    child = start(
        """
        import sys, threading, foreread.torch
        def hang(sample):
            print("hangs", flush=True)
            threading.Event().wait()
        loader = foreread.torch.DataLoader(sys.argv[1], 1, decode="bytes", transform=hang, num_workers=1)
        next(iter(loader))
        """,
        directory,
    )
    wait_for(child, "hangs")
    child.send_signal(signal.SIGINT)
    code, _, err = finish(child)
    assert code in (-signal.SIGINT, 130) and "KeyboardInterrupt" in err, (code, err)


def test_forked_child_reads_through_its_parents_wrap(directory: Path) -> None:
    pytest.importorskip("torch")
    out = run(
        """
        import multiprocessing, sys, torch, foreread.torch
        class Files(torch.utils.data.Dataset):
            def __init__(self, root):
                import pathlib
                self.root, self.samples = root, sorted(map(str, pathlib.Path(root).rglob("*.bin")))
            def __len__(self):
                return len(self.samples)
            def __getitem__(self, index):
                with open(self.samples[index], "rb") as file:
                    return file.read()
        data = Files(sys.argv[1])
        loader = torch.utils.data.DataLoader(data, 8, shuffle=True, collate_fn=list)
        wrapped = foreread.torch.wrap(loader, memory="16MiB")
        ours = torch.utils.data.DataLoader(foreread.torch.Dataset(sys.argv[1], decode="bytes"), 1, shuffle=True)
        more = foreread.torch.wrap(ours)
        def train():
            for _ in range(2):
                assert sorted(x for batch in wrapped for x in batch) == sorted(data[n] for n in range(100))
                assert len(list(more)) == 100
            wrapped.close()
        if __name__ == "__main__":
            list(wrapped)
            child = multiprocessing.get_context("fork").Process(target=train)
            child.start()
            child.join()
            assert child.exitcode == 0
            assert len(list(wrapped)) == 13
            report = wrapped._parts[0].engine.source.report()
            print(sum(tier.get("samples") or 0 for tier in report["direct"].values()))
        """,
        directory,
    )
    assert out == "200\n", "the child was served by the parent's engine"
