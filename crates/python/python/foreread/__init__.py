"""foreread: a data loader for machine-learning training that knows the future.

The order in which a run reads its samples is drawn from a seed, so it is known before the run starts. foreread computes
it, decides from it where every sample is kept, and has each in memory before the trainer asks.

>>> import foreread
>>> with foreread.Loader("s3://bucket/train", batch_size=64, epochs=90, seed=0) as loader:  # doctest: +SKIP
...     for batch in loader:
...         for sample in batch:
...             memoryview(sample), sample.label
"""

from __future__ import annotations

import atexit as _atexit

from . import _native, metrics
from ._native import (
    Batch,
    Catalog,
    Field,
    Loader,
    Sample,
    SharedSample,
    ShareClient,
    Source,
    calibrate,
    index,
    set_log_level,
)
from ._outlook import Picture, Plan, Simulation, plan, simulate
from ._stats import Stats
from .errors import (
    ChangedError,
    ClosedError,
    ConfigError,
    CorruptError,
    DeniedError,
    Error,
    ForkError,
    MeetingError,
    NotFoundError,
    OriginError,
    StateError,
)

__all__ = [
    "Batch",
    "Catalog",
    "ChangedError",
    "ClosedError",
    "ConfigError",
    "CorruptError",
    "DeniedError",
    "Error",
    "Field",
    "ForkError",
    "Loader",
    "MeetingError",
    "NotFoundError",
    "OriginError",
    "Picture",
    "Plan",
    "Sample",
    "ShareClient",
    "SharedSample",
    "Simulation",
    "Source",
    "StateError",
    "Stats",
    "calibrate",
    "index",
    "metrics",
    "plan",
    "set_log_level",
    "simulate",
]

__version__ = _native.__version__

# Threads of a loader that is still open must not outlive what the interpreter tears down.
_atexit.register(_native.close_all, 5.0)
