"""How far a run has come: a bar by tqdm where it is installed, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from typing import Any

#: Plain lines come no closer together, in seconds.
_EVERY = 5.0


class Progress:
    """One bar an epoch and phase. Told of each batch when the next one is asked for."""

    def __init__(self, samples: int, world_size: int) -> None:
        # Of a training pass, give or take what is padded or dropped.
        self._total = -(-samples // world_size)
        self._bar: Any = None
        self._label = ""
        self._done = 0
        self._began = self._said = time.monotonic()

    def batch(self, epoch: int, phase: str, samples: int) -> None:
        """One more batch is done."""
        label = f"epoch {epoch}" if phase == "train" else f"epoch {epoch} {phase}"
        if label != self._label:
            self.end()
            self._begin(label, self._total if phase == "train" else None)
        self._done += samples
        if self._bar is not None:
            self._bar.update(samples)
        elif time.monotonic() - self._said >= _EVERY:
            self._say()

    def _begin(self, label: str, total: int | None) -> None:
        self._label, self._done = label, 0
        self._began = self._said = time.monotonic()
        try:
            from tqdm import tqdm
        except ImportError:
            return
        self._bar = tqdm(total=total, desc=label, unit=" samples")

    def _say(self) -> None:
        self._said = time.monotonic()
        rate = self._done / max(self._said - self._began, 1e-9)
        print(f"{self._label}: {self._done} of about {self._total} samples, {rate:.0f}/s", file=sys.stderr)

    def end(self) -> None:
        """Leaves what is shown as it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        elif self._label:
            self._say()
        self._label = ""
