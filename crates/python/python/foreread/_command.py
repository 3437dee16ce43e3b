"""The `foreread` command of the wheel."""

from __future__ import annotations

import signal
import sys

from . import _native


def main() -> None:
    """Runs the command with the arguments of this process, and exits with its code."""
    # The command has its own handlers, and no Python code runs until it ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_native.run_command(["foreread", *sys.argv[1:]]))
