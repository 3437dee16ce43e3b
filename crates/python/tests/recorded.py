"""Runs a training script and records what foreread's DataLoader delivers to it.

    recorded.py SCRIPT ARGUMENTS...

Each sample is a line, `EPOCH DIGEST`, in a file of its rank below `FOREREAD_TEST_DELIVERED`. The first start of a job is slowed
down by `FOREREAD_TEST_STEP` seconds a batch, so that a signal finds it in the middle of an epoch.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import foreread.torch


class RecordedLoader(foreread.torch.DataLoader):
    """The DataLoader of the script."""

    def __iter__(self) -> Any:
        epoch = json.loads(self.state_dict()["foreread"])["epoch"]
        return RecordedEpoch(super().__iter__(), epoch)


class RecordedEpoch(Iterator[Any]):
    """The batches of an epoch, written down when they are delivered."""

    def __init__(self, batches: Any, epoch: int) -> None:
        self._batches = batches
        self._epoch = epoch
        self._file = Path(os.environ["FOREREAD_TEST_DELIVERED"]) / os.environ["SLURM_PROCID"]
        is_first = os.environ.get("SLURM_RESTART_COUNT", "0") == "0"
        self._wait = float(os.environ["FOREREAD_TEST_STEP"]) if is_first else 0

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        images, labels = next(self._batches)
        time.sleep(self._wait)
        digests = [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in images]
        with self._file.open("a") as file:
            file.writelines(f"{self._epoch} {digest}\n" for digest in digests)
        return images, labels


#: Seconds after which a task that has not ended writes down where its threads are.
HANGS_AFTER = 90


def main() -> None:
    faulthandler.dump_traceback_later(HANGS_AFTER, repeat=True)
    del sys.argv[0]
    # As Python does for a script.
    sys.path[0] = str(Path(sys.argv[0]).parent)
    foreread.torch.DataLoader = RecordedLoader  # type: ignore[misc]
    # The script's objects are never deleted, and the interpreter has no end of its own: there a thread of PyTorch 1.13 may
    # wait for ever, once rank 0 has left.
    kept: Any = None
    try:
        kept = runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        end(ended.code)
    end(0 if kept is not None else 1)


def end(status: Any) -> None:
    sys.stdout.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    main()
