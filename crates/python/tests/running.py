"""Runs scripts like users do: by a separate Python, from a separate directory, on one rank or several."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from conftest import WHEEL
from documents import ROOT
from slurm_cluster import free_ports

EXAMPLES = ROOT / "examples" / "pytorch"

# The deadline of a hang, not a measure of speed.
HANG = 300


def run(interpreter: str, directory: Path, *command: object, **variables: str) -> str:
    """The output of a script that a user's Python runs in `directory`."""
    launchers = ("RANK", "WORLD", "MASTER", "PYTHONPATH" if WHEEL else "RANK")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    done = subprocess.run(
        [interpreter, *map(str, command)],
        env=environment | {"OMP_NUM_THREADS": "1"} | variables,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(interpreter: str, directory: Path, ranks: int, *command: object) -> list[str]:
    # PyTorch 1.13's torchrun on Python 3.11 fails without redirections, so each stream gets one.
    # Several tests run at a time, so each has a port of its own.
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", ranks, "--master_port", free_ports(1)[0]]
    torchrun += ["--redirects", "2", "--tee", "1"]
    output = run(interpreter, directory, *(torchrun if ranks > 1 else []), *command)
    return [line.removeprefix("[default0]:") for line in output.splitlines() if "epoch " in line]
