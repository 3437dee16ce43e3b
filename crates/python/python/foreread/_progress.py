"""The progress of a run: a bar by tqdm if it is installed, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import Any

#: The minimum interval of plain lines, in seconds.
_LINE_INTERVAL = 5.0


class Progress:
    """One bar per epoch and phase, updated for each batch when the next one is requested."""

    def __init__(self, samples: int, world_size: int) -> None:
        # Of a training pass, without padding and dropped samples.
        self._total = -(-samples // world_size)
        self._bar: Any = None
        self._label = ""
        self._done = 0
        self._began = self._printed = time.monotonic()

    def batch(self, epoch: int, phase: str, samples: int) -> None:
        """Adds a finished batch."""
        label = f"epoch {epoch}" if phase == "train" else f"epoch {epoch} {phase}"
        if label != self._label:
            self.end()
            self._begin(label, self._total if phase == "train" else None)
        self._done += samples
        if self._bar is not None:
            self._bar.update(samples)
        elif time.monotonic() - self._printed >= _LINE_INTERVAL:
            self._print()

    def _begin(self, label: str, total: int | None) -> None:
        self._label, self._done = label, 0
        self._began = self._printed = time.monotonic()
        try:
            from tqdm import tqdm
        except ImportError:
            return
        self._bar = tqdm(total=total, desc=label, unit=" samples")

    def _print(self) -> None:
        self._printed = time.monotonic()
        rate = self._done / max(self._printed - self._began, 1e-9)
        print(f"{self._label}: {self._done} of about {self._total} samples, {rate:.0f}/s", file=sys.stderr)

    def end(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._label:
            self._print()
        self._label = ""
