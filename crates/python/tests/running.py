"""Scripts as users run them: by a Python of theirs, from a directory of theirs, on one rank or on several."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from conftest import WHEEL
from documents import ROOT

EXAMPLES = ROOT / "examples" / "pytorch"

# Not how long it may take: how long a hang is waited for.
HANG = 300


def run(interpreter: str, directory: Path, *command: object, **variables: str) -> str:
    """What a script prints that a user's Python runs in `directory`."""
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
    # torchrun. PyTorch 1.13's, on Python 3.11, takes no redirection at all for a mistake, so each stream gets one.
    torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", ranks, "--redirects", "2", "--tee", "1"]
    said = run(interpreter, directory, *(torchrun if ranks > 1 else []), *command)
    return [line.removeprefix("[default0]:") for line in said.splitlines() if "epoch " in line]
