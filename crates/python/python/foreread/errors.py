"""The exceptions of foreread.

All derive from :class:`Error`, and from Python's own exception where one fits: a missing bucket is a
``FileNotFoundError``, an invalid setting a ``ValueError``. An argument of a wrong type is a ``TypeError`` only.
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
    """Any failure of foreread. The message names the object, the cause and the remedy, in one line."""

    sample_id: int | None = None
    """The id of the unreadable sample, if a sample caused the error."""


class ConfigError(Error, ValueError):
    """A setting is invalid or contradicts another. Nothing was started."""


class NotFoundError(Error, FileNotFoundError):
    """The dataset, its bucket or directory, or a sample is missing, or the dataset is empty."""


class DeniedError(Error, PermissionError):
    """Access is denied, or the credentials have expired."""


class CorruptError(Error):
    """The data are corrupt: a checksum, a shard, a catalog."""


class ChangedError(Error):
    """A sample has changed since it was indexed. Index the dataset again if the change was intended."""


class OriginError(Error, OSError):
    """Storage fails, times out or throttles, despite retries."""


class MeetingError(Error):
    """Ranks did not find each other, or their settings differ. Nothing was started."""


class StateError(Error, ValueError):
    """A saved state is invalid, or belongs to another run."""


class ForkError(Error, RuntimeError):
    """A loader that was created before a fork is used in the child."""


class ClosedError(Error, RuntimeError):
    """The loader has been closed."""
