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
import typing as _typing

from . import _native, errors, metrics
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
from .errors import Error

__all__ = [
    "Batch",
    "Catalog",
    "Error",
    "Field",
    "ImageDecoder",
    "Loader",
    "Picture",
    "Plan",
    "Sample",
    "ShareClient",
    "SharedSample",
    "Simulation",
    "Source",
    "Stats",
    "calibrate",
    "errors",
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

# Not for type checkers, which would accept any name.
if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> type[Error]:
        """The classes that have moved to `foreread.errors`, with one warning for each."""
        if name not in errors.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import warnings

        warnings.warn(f"foreread.{name} is deprecated: use foreread.errors.{name}", DeprecationWarning, stacklevel=2)
        # Found directly from now on. `from foreread import` looks twice.
        globals()[name] = found = getattr(errors, name)
        return found
