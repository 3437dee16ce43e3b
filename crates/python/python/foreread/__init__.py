"""foreread: a data loader for machine-learning training that knows the order of reads.

A seed defines the order in which a run reads its samples, so it is known before the run starts. foreread computes
the order, plans where to cache every sample, and reads each into memory before the trainer requests it.

>>> import foreread
>>> with foreread.Loader("s3://bucket/train", batch_size=64, epochs=90, seed=0) as loader:  # doctest: +SKIP
...     for batch in loader:
...         for sample in batch:
...             memoryview(sample), sample.label
"""

from __future__ import annotations

import atexit as _atexit

from . import _native, metrics
from ._image import ImageDecoder, image
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
    "ImageDecoder",
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
    "image",
    "index",
    "metrics",
    "plan",
    "set_log_level",
    "simulate",
]

__version__ = _native.__version__

# Threads of an open loader must not outlive the interpreter.
_atexit.register(_native.close_all, 5.0)
