"""What can go wrong, in a few classes.

All are :class:`Error`. Those that Python has a word for are that too: a bucket that is not there is a
``FileNotFoundError``, a setting that makes no sense a ``ValueError``. Arguments of the wrong type are ``TypeError`` alone.
"""

from __future__ import annotations

__all__ = [
    "ChangedError",
    "ClosedError",
    "ConfigError",
    "CorruptError",
    "DeniedError",
    "Error",
    "ForkError",
    "MeetingError",
    "NotFoundError",
    "OriginError",
    "StateError",
]


class Error(Exception):
    """Any failure of foreread. The text says the thing, the cause and the remedy, in one line."""

    sample_id: int | None = None
    """The number of the sample that could not be read, where it was one."""


class ConfigError(Error, ValueError):
    """A setting makes no sense or contradicts another. Nothing was started."""


class NotFoundError(Error, FileNotFoundError):
    """The dataset, its bucket or directory, or a sample is not there; or there are no samples."""


class DeniedError(Error, PermissionError):
    """It is there and may not be read, or the credentials have expired."""


class CorruptError(Error):
    """The bytes are there and wrong: a checksum, a shard, a catalog."""


class ChangedError(Error):
    """A sample is not the one that was indexed; index the dataset again if it was changed on purpose."""


class OriginError(Error, OSError):
    """The store fails, answers too late, or asks to be asked less; retries have not helped."""


class MeetingError(Error):
    """Ranks did not find each other, or are not about to do the same. Nothing was started."""


class StateError(Error, ValueError):
    """A saved state cannot be read, or is of another run."""


class ForkError(Error, RuntimeError):
    """A loader was made before the process was forked, and is used in the child."""


class ClosedError(Error, RuntimeError):
    """The loader has been closed."""
