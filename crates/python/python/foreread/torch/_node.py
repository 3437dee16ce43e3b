"""Sources whose caches the ranks of a node share.

A wrapped loader and a ``Dataset`` know no other ranks: each has an order of its own. So the ranks of a node share an agent
of their job, which the first of them hosts (``node_store``). The agents of a job's nodes meet in the background, with the
user's token or torch's. No rank waits for another one. Files that the kernel caches stay with the kernel, and a user's
agent, if one runs, comes first.
"""

from __future__ import annotations

from typing import Any

from .. import _token
from .._native import NodeStore, Source, node_token

#: The settings of the caches, which belong to the shared one.
_CACHES = ("agent", "disk", "memory", "memory_alone")


def open_source(target: Any, settings: dict[str, Any]) -> Source:
    """A source of samples, with the cache of this rank's node if its ranks share one."""
    store = NodeStore.of(_token.local_group(), **settings)
    if store is None:
        return Source(target, **settings)
    others = {name: value for name, value in settings.items() if name not in _CACHES}
    opened = Source(target, memory=0, agent="off", **others)
    catalog, is_kernel_cached = opened.catalog, opened.is_kernel_cached
    opened.close()
    if is_kernel_cached:
        return Source(catalog, **settings)
    if (needs_token := store.start()) is not None:
        _token.in_background(*needs_token, node_token)
    return store.source(catalog, **others)
