"""Runs programs without `foreread run`, and under it with copies of none, half and all of the files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The command. Without the variable, that of the environment's wheel.
FOREREAD = os.environ.get("FOREREAD_TEST_PROGRAM", str(Path(sys.executable).with_name("foreread")))

#: Files that were changed less than two seconds ago are not copied.
SETTLED = 3.1

#: The deadline of a hang, not a measure of speed.
HANG = 300

#: Opens every file of the dataset several times, in an order that is not that of the names.
READ_ALL = """
for again in 1 2 3; do
    find $DATA -type f | sort | shuf --random-source=/bin/sh | xargs cat > /dev/null
    sleep .2
done
"""

AMPLE = 1 << 30


@dataclass
class Run:
    """What a program did. Its output goes to standard output and to files in its working directory."""

    code: int
    output: str
    made: list[tuple[object, ...]]


class Dataset:
    """A directory `data`, and directories for copies of none, half and all of its files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.root = directory / "data"
        self.root.mkdir()

    def settle(self) -> None:
        """Waits until the files may be copied, and copies half and all of them."""
        self.half = sum(path.stat().st_blocks * 512 for path in self.files()) // 2
        time.sleep(SETTLED)
        self.warm("half")
        self.warm("all")

    def files(self) -> list[Path]:
        return [path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink()]

    def room(self, part: str) -> int:
        return self.half if part == "half" else AMPLE

    def warm(self, part: str) -> None:
        """Reads all files until the copies are there."""
        files = len(self.files())
        least = files // 3 if part == "half" else files
        deadline = time.monotonic() + HANG
        while True:
            _, report, _ = self.run(READ_ALL, self.room(part), self.directory / part)
            copies = report["host"]["copies"]
            if copies >= least:
                assert part == "all" or copies < files, report
                return
            assert time.monotonic() < deadline, report

    def run(
        self, script: str, room: int = 0, copies: Path | None = None, *options: str
    ) -> tuple[Run, dict[str, Any], str]:
        """Runs a shell script in an empty directory, where `$DATA` names the files. With copies in `copies`, if given.

        The result, the report, and the other lines on standard error.
        """
        words = ["sh", "-c", script]
        if copies is not None:
            report = [] if "--report" in options else ["--report", "json"]
            words = [FOREREAD, "run", f"--root={self.root}", f"--disk={copies}={room}", *options, *report, "--", *words]
        with tempfile.TemporaryDirectory(dir=self.directory) as at:
            done = subprocess.run(
                words,
                cwd=at,
                env={**os.environ, "DATA": str(self.root)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=HANG,
            )
            run = Run(done.returncode, done.stdout, listing(Path(at)))
        lines = done.stderr.splitlines()
        if copies is None or "--report" in options:
            return run, {}, done.stderr
        return run, json.loads(lines[-1]), "\n".join(lines[:-1])

    def compare(self, name: str, script: str, served: int, *options: str, others: tuple[str, ...] = ()) -> None:
        """Requires the same of a program with copies of no files, half and all of them.

        With copies of all, `served` opens and more find one, and the others do not for one of the reasons `others`.
        """
        expected, _, errors = self.run(script)
        assert expected.code == 0, errors
        shown = []
        for part in ("none", "half", "all"):
            if part != "none":
                self.warm(part)
            with tempfile.TemporaryDirectory(dir=self.directory) as empty:
                copies = Path(empty) if part == "none" else self.directory / part
                found, report, errors = self.run(script, self.room(part), copies, *options)
            assert found.code == expected.code, f"{name}, {part}: exit code {found.code}\n{errors}"
            assert found.output == expected.output, f"{name}, {part}: {found.output}\n{errors}"
            assert found.made == expected.made, f"{name}, {part}: {found.made}"
            shown.append(f"{part} {report['served']}/{report['opens']}")
        print(f"\n{name}: exit code {expected.code}; served/opens with copies of {', '.join(shown)}", flush=True)
        assert report["served"] >= served, f"{name}: {report}"
        assert set(report["originals"]) <= set(others), f"{name}: {report}"


def listing(root: Path) -> list[tuple[object, ...]]:
    """Names, modes, owners and contents of what a program has made, and the times that it has copied."""
    found = []
    for path in sorted(root.rglob("*")):
        stat = path.lstat()
        content: object = os.readlink(path) if path.is_symlink() else None
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        is_new = time.time() - stat.st_mtime < 3600
        found.append(
            (
                str(path.relative_to(root)),
                stat.st_mode,
                (stat.st_uid, stat.st_gid),
                stat.st_nlink if content is not None else 0,
                content,
                None if is_new else stat.st_mtime_ns,
            )
        )
    return found
