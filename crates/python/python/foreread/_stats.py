"""A summary of a run, and its bottleneck."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["Stats"]

_log = logging.getLogger("foreread")

#: The sources of delivered samples, as named in the report.
_TIERS = ("origin", "memory", "disk", "agent")

#: Below this share of stalled time, the trainer itself is the bottleneck.
TRAINER_BOUND_SHARE = 0.05

#: The bottleneck of a time in which no sample was delivered, and the trainer did not wait.
IDLE = "nothing"

#: The tier of the cache that the ranks of a node share without an agent.
_NODE = "node cache"


@dataclass(frozen=True, slots=True)
class Stats:
    """A run so far, and since the last ``stats()`` (the first time: the whole run)."""

    samples: int
    """Samples delivered."""
    samples_per_second: float
    """Since the last ``stats()``, without the time between epochs. 0 if nothing was delivered."""
    overall_samples_per_second: float
    """Over the whole run."""
    stall_share: float
    """The share of time that the trainer waited for batches since the last ``stats()``."""
    overall_stall_share: float
    """The same over the whole run."""
    hits: dict[str, float]
    """The sources of samples since the last ``stats()``, as shares: origin, memory, disk, agent, or "node cache" (the cache
    that the ranks of a node share)."""
    limiting: str
    """The bottleneck: "trainer" (no waiting), "decode" (foreread.image), "transform" (decoding and transforms in Python),
    "collate", "transfer" (to a device), "origin", "origin: throttled", "disk", "agent", "node cache", "look-ahead",
    or "memory" (delivery of samples that are in memory). "nothing" if no sample was delivered since the last ``stats()``."""
    requests: int
    """Requests to storage for this rank."""
    origin_bytes: int
    """Bytes that were read from storage for this rank."""
    floor_bytes: int
    """The lower bound of storage bytes for the run, for any policy, over all ranks. For samples by id, it covers the
    last announcement."""
    look_ahead_bytes: int
    """The current look-ahead."""
    skipped: int = 0
    """Uses that were omitted or replaced, because their sample could not be read or decoded."""
    retried: int = 0
    """Requests that were repeated."""
    waits: dict[str, float] = field(default_factory=dict)
    """The share of time that the trainer waited since the last ``stats()``, by cause: "storage" (samples that were not yet in
    memory), "decode", "transform", "collate" and "transfer". ``foreread.Loader`` and ``Source`` know storage only."""
    direct: dict[str, int] = field(default_factory=dict)
    """Samples of the whole run that this rank read from storage itself although a cache of another process should have had
    them, by cause: "late peers", "lost peers", and "agent" or "node cache" that were absent, silent or unable."""
    _text: str = field(default="{}", repr=False, compare=False)
    _ranks: int = field(default=1, repr=False, compare=False)
    _shares: bool = field(default=False, repr=False, compare=False)
    _seconds: float = field(default=0.0, repr=False, compare=False)

    @property
    def report(self) -> dict[str, Any]:
        """The full report as printed by ``foreread load --report json``, and ``waits``: a new copy each time."""
        report: dict[str, Any] = json.loads(self._text) | {"waits": dict(self.waits)}
        return report

    def __str__(self) -> str:
        bound = "lower bound of all ranks" if self._ranks > 1 else "lower bound"
        if self._ranks == 1 and self._shares:
            # Each of these ranks has an order of its own, and the cache reads for all of them.
            bound = "lower bound without the other ranks"
        direct = ", ".join(f"{count} {cause}" for cause, count in self.direct.items() if count)
        return (
            f"{self.samples} samples, {self._lately()}; "
            f"{self.requests} requests, {self.origin_bytes / 1e6:.1f} MB from storage "
            f"({bound} {self.floor_bytes / 1e6:.1f} MB)" + (f"; samples read directly: {direct}" if direct else "")
        )

    def _lately(self) -> str:
        """The time since the last ``stats()``, or the whole run if nothing was delivered since then."""
        if self.limiting == IDLE:
            if not self.samples:
                return "nothing delivered"
            return f"none since the last stats(); the whole run: {self.overall_samples_per_second:.0f}/s, stalled {self.overall_stall_share:.0%}"
        hits = ", ".join(f"{tier} {share:.0%}" for tier, share in self.hits.items() if share > 0)
        return f"{self.samples_per_second:.0f}/s, stalled {self._waited()}, limited by {self.limiting}; {hits or 'nothing delivered'}"

    def _waited(self) -> str:
        """The share of time waited, with its causes if there are several."""
        causes = {cause: share for cause, share in self.waits.items() if share >= 0.005}
        total = f"{min(1.0, sum(self.waits.values())):.0%}"
        if not causes or list(causes) == ["storage"]:
            return total
        return f"{total} ({', '.join(f'{cause} {share:.0%}' for cause, share in causes.items())})"


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that a trainer has waited, by cause. They do not overlap."""

    storage: float = 0.0
    decode: float = 0.0
    transform: float = 0.0
    collate: float = 0.0
    transfer: float = 0.0

    def since(self, before: Waits) -> Waits:
        """The seconds since `before`."""
        return Waits(*(getattr(self, name) - getattr(before, name) for name in self.__slots__))

    def added_to(self, stats: Stats, seconds: float) -> Stats:
        """`stats` with these waits of the last `seconds`, and the largest of all as the bottleneck."""
        waits = {name: min(1.0, getattr(self, name) / seconds) if seconds > 0 else 0.0 for name in self.__slots__}
        largest = max(waits, key=waits.__getitem__)
        if sum(waits.values()) < TRAINER_BOUND_SHARE:
            limiting = IDLE if stats.limiting == IDLE else "trainer"
        elif largest != "storage":
            limiting = largest
        else:
            limiting = _storage_limit(json.loads(stats._text), stats.hits)
        # Samples are counted when the engine hands them over, which may be ahead of the trainer.
        rate = stats.samples_per_second * stats._seconds / seconds if seconds > 0 else 0.0
        return replace(stats, samples_per_second=rate, waits=waits, limiting=limiting)


@dataclass(slots=True)
class _Sums:
    """The sums of a report."""

    samples: int = 0
    seconds: float = 0.0
    stalled: float = 0.0
    tiers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TIERS, 0))
    #: The bytes from the agent or the node's cache, and those from storage.
    shared_bytes: int = 0
    origin_bytes: int = 0

    @staticmethod
    def of(report: dict[str, Any] | None) -> _Sums:
        sums = _Sums()
        if report is None:
            return sums
        sums.origin_bytes = report.get("origin_bytes", 0)
        for epoch in report["epochs"]:
            sums.seconds += epoch["seconds"]
            sums.stalled += epoch["stall_seconds"]
            sums._add(epoch["reads"])
        sums._add(report.get("direct") or {})
        if waits := report.get("asked"):
            # Requests wait for announced and other samples alike.
            sums.seconds, sums.stalled = waits["seconds"], waits["stall_seconds"]
        sums.samples = sum(sums.tiers.values())
        return sums

    def _add(self, reads: dict[str, Any]) -> None:
        for tier in _TIERS:
            self.tiers[tier] += reads.get(tier, {}).get("samples", 0)
        self.shared_bytes += reads.get("agent", {}).get("bytes", 0)

    def since(self, before: _Sums) -> _Sums:
        return _Sums(
            self.samples - before.samples,
            self.seconds - before.seconds,
            self.stalled - before.stalled,
            {tier: count - before.tiers[tier] for tier, count in self.tiers.items()},
            self.shared_bytes - before.shared_bytes,
            self.origin_bytes - before.origin_bytes,
        )

    def hits(self, report: dict[str, Any]) -> dict[str, float]:
        """The share of samples from each tier. The cache of a node reads from storage for its ranks, which counts as storage."""
        hits = {tier: count / self.samples if self.samples else 0.0 for tier, count in self.tiers.items()}
        if _is_shared_by_ranks(report):
            share = hits.pop("agent")
            read = min(1.0, self.origin_bytes / self.shared_bytes) if self.shared_bytes else 0.0
            hits["origin"] += share * read
            hits[_NODE] = share * (1 - read)
        return hits

    def rate(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def stall(self) -> float:
        return min(1.0, self.stalled / self.seconds) if self.seconds > 0 else 0.0


def _is_shared_by_ranks(report: dict[str, Any]) -> bool:
    """Whether the samples come from the cache of a node that has no agent."""
    return (report.get("agent") or {}).get("shared_by") is not None


def _direct(report: dict[str, Any]) -> dict[str, int]:
    """Samples read from storage in place of another process, by cause."""
    peers, agent = report.get("peers") or {}, report.get("agent") or {}
    name = _NODE if _is_shared_by_ranks(report) else "agent"
    return {"late peers": peers.get("late", 0), "lost peers": peers.get("lost", 0), name: agent.get("direct_samples", 0)}


def _storage_limit(report: dict[str, Any], tiers: dict[str, float]) -> str:
    """What a wait for samples is for, by the samples of each tier."""
    adapted = report["adapted"]
    parallelism = adapted.get("origin_parallelism") or {}
    slow = {tier: tiers.get(tier, 0.0) for tier in ("origin", "disk", "agent", _NODE)}
    tier = max(slow, key=slow.__getitem__)
    if slow[tier] == 0 and tiers["memory"] > 0:
        return "memory"
    if slow[tier] > 0 and tier != "origin":
        return tier
    if parallelism.get("why") == "throttled":
        return "origin: throttled"
    ahead = adapted["look_ahead"]
    if parallelism.get("peak", 0) < parallelism.get("now", 0) and ahead["now_bytes"] >= ahead["allowed_bytes"]:
        # More requests would be possible, but none is left within the look-ahead.
        return "look-ahead"
    return "origin"


def build(report: dict[str, Any], before: dict[str, Any] | None, text: str | None = None) -> Stats:
    """The summary of `report`, and of the time since the report `before`. `text` is the full report if `report` has its
    epochs summed up."""
    whole = _Sums.of(report)
    lately = whole.since(_Sums.of(before))
    hits = lately.hits(report)
    if lately.stall() >= TRAINER_BOUND_SHARE:
        limiting = _storage_limit(report, hits)
    else:
        limiting = "trainer" if lately.samples else IDLE
    return Stats(
        samples=whole.samples,
        samples_per_second=lately.rate(),
        overall_samples_per_second=whole.rate(),
        stall_share=lately.stall(),
        overall_stall_share=whole.stall(),
        hits=hits,
        limiting=limiting,
        requests=report["origin_requests"],
        origin_bytes=report["origin_bytes"],
        floor_bytes=report["floor_origin_bytes"],
        look_ahead_bytes=report["adapted"]["look_ahead"]["now_bytes"],
        skipped=report["skipped"] + report["substituted"],
        retried=report["retried"],
        waits={"storage": lately.stall()},
        direct=_direct(report),
        _text=json.dumps(report) if text is None else text,
        _ranks=report["world_size"],
        _shares=_is_shared_by_ranks(report),
        _seconds=lately.seconds,
    )


#: The remedy for each bottleneck.
_REMEDY = {
    "origin": "more memory= or disk= would cache more of the data; foreread.plan(...) shows the gain per GB",
    "origin: throttled": "the storage throttles requests: more memory= or disk=, or packed shards, reduce them",
    "disk": "more memory=, or a faster disk= (foreread calibrate measures it)",
    "agent": "more memory for the node's agent (foreread agent status shows what it keeps)",
    _NODE: "more memory= or a faster disk= for the cache that the ranks of this node share; busy CPUs delay it, too",
    "memory": "small samples cost more to deliver than to read: use a larger batch_size=, or several samples in one",
    "look-ahead": "a larger look_ahead= allows more concurrent reads",
}


#: In place of the remedy for storage, if caches cannot save any read.
_READ_ONCE = "each sample is read from storage only once, and more memory= or disk= would save nothing; later epochs come from the caches"


def _reads_once(report: dict[str, Any]) -> bool:
    """Whether the plan reads no sample twice. Of a rank without its group, the plan does not tell: it may read a part of the
    samples in each epoch."""
    knows = report["world_size"] == 1 or "peers" in report
    return knows and report.get("planned_origin_bytes", 0) <= report.get("dataset_bytes", -1)


def starved(report: dict[str, Any], before: dict[str, Any] | None, threshold: float, waited: float | None = None) -> bool:
    """Warns of a trainer that was stalled for more than this share of the time since `before`, with the bottleneck.
    `waited` is the measured share, if workers make the requests, which may wait while the trainer does not."""
    stats = build(report, before)
    waited = stats.stall_share if waited is None else waited
    if waited <= threshold or stats.limiting in ("trainer", IDLE):
        return False
    remedy = _REMEDY[stats.limiting]
    if stats.limiting == "origin" and _reads_once(report):
        remedy = _READ_ONCE
    served = ", ".join(f"{tier} {share:.0%}" for tier, share in stats.hits.items() if share > 0)
    _log.warning(
        "the trainer has waited %.0f %% of the last seconds for data (%.0f samples/s; %s), limited by %s: %s",
        100 * waited,
        stats.samples_per_second,
        served or "nothing delivered",
        stats.limiting,
        remedy,
    )
    return True
