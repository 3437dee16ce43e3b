"""What a run has done, in the few figures that a trainer looks at; and what it waits for."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Stats"]

_log = logging.getLogger("foreread")

#: Where delivered samples come from, as the report names it.
_TIERS = ("origin", "memory", "disk", "peer")

#: A trainer that waits for less than this part of its time is the limit itself.
FED = 0.05


@dataclass(frozen=True, slots=True)
class Stats:
    """A run so far, and what has come since the last ``stats()`` (the whole run, the first time)."""

    samples: int
    """Samples delivered."""
    samples_per_second: float
    """Since the last ``stats()``; time between epochs does not count. 0 where nothing was delivered."""
    overall_samples_per_second: float
    """Over the whole run."""
    stall_share: float
    """The part of the time in which the trainer waited for a batch, since the last ``stats()``."""
    overall_stall_share: float
    """The same over the whole run."""
    hits: dict[str, float]
    """Where samples came from since the last ``stats()``, as shares: origin, memory, disk, peer."""
    limiting: str
    """What the run waits for: "trainer" (for nothing), "transform" (for what is made of samples), "origin", "origin: throttled", "disk", "peers", "look-ahead", or
    "memory": what is there already is not handed over faster."""
    requests: int
    """Requests to the origin that this rank has sent."""
    origin_bytes: int
    """Bytes that this rank has read from the origin."""
    floor_bytes: int
    """The fewest bytes that any policy can read from the origin for the run, over all ranks; where samples are asked for by their
    numbers, for what was announced last."""
    look_ahead_bytes: int
    """How far reads run ahead now."""
    skipped: int = 0
    """Uses that were left out or replaced, because their sample could not be read, or not be decoded."""
    retried: int = 0
    """Requests that were repeated."""
    _text: str = field(default="{}", repr=False, compare=False)

    @property
    def report(self) -> dict[str, Any]:
        """Everything: the report as ``foreread load --report json`` prints it, made anew each time."""
        report: dict[str, Any] = json.loads(self._text)
        return report

    def __str__(self) -> str:
        hits = ", ".join(f"{tier} {share:.0%}" for tier, share in self.hits.items() if share > 0)
        return (
            f"{self.samples} samples, {self.samples_per_second:.0f}/s, stalled {self.stall_share:.0%}, "
            f"limited by {self.limiting}; {hits or 'nothing delivered'}; "
            f"{self.requests} requests, {self.origin_bytes / 1e6:.1f} MB from the origin "
            f"(floor {self.floor_bytes / 1e6:.1f} MB)"
        )


@dataclass(slots=True)
class _Sums:
    """What a report comes to."""

    samples: int = 0
    seconds: float = 0.0
    stalled: float = 0.0
    tiers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TIERS, 0))

    @staticmethod
    def of(report: dict[str, Any] | None) -> _Sums:
        sums = _Sums()
        if report is None:
            return sums
        for epoch in report["epochs"]:
            sums.seconds += epoch["seconds"]
            sums.stalled += epoch["stall_seconds"]
            sums._add(epoch["reads"])
        sums._add(report.get("direct") or {})
        if asked := report.get("asked"):
            # Announced or not: whoever asks has waited for both.
            sums.seconds, sums.stalled = asked["seconds"], asked["stall_seconds"]
        sums.samples = sum(sums.tiers.values())
        return sums

    def _add(self, reads: dict[str, Any]) -> None:
        for tier in _TIERS:
            self.tiers[tier] += reads.get(tier, {}).get("samples", 0)

    def since(self, before: _Sums) -> _Sums:
        return _Sums(
            self.samples - before.samples,
            self.seconds - before.seconds,
            self.stalled - before.stalled,
            {tier: count - before.tiers[tier] for tier, count in self.tiers.items()},
        )

    def rate(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def stall(self) -> float:
        return min(1.0, self.stalled / self.seconds) if self.seconds > 0 else 0.0


def _limiting(report: dict[str, Any], lately: _Sums) -> str:
    if lately.stall() < FED:
        return "trainer"
    adapted = report["adapted"]
    parallelism = adapted.get("origin_parallelism") or {}
    slow = {tier: lately.tiers[tier] for tier in ("origin", "disk", "peer")}
    tier = max(slow, key=slow.__getitem__)
    if slow[tier] == 0 and lately.tiers["memory"] > 0:
        return "memory"
    if slow[tier] > 0 and tier != "origin":
        return {"disk": "disk", "peer": "peers"}[tier]
    if parallelism.get("why") == "throttled":
        return "origin: throttled"
    ahead = adapted["look_ahead"]
    if parallelism.get("peak", 0) < parallelism.get("now", 0) and ahead["now_bytes"] >= ahead["allowed_bytes"]:
        # More requests might be under way, and nothing within reach is left to ask for.
        return "look-ahead"
    return "origin"


def build(report: dict[str, Any], before: dict[str, Any] | None, text: str | None = None) -> Stats:
    """The figures of `report`, and of what has come since the report `before`. `text` is all of the report, where `report` has
    its epochs summed up."""
    whole = _Sums.of(report)
    lately = whole.since(_Sums.of(before))
    return Stats(
        samples=whole.samples,
        samples_per_second=lately.rate(),
        overall_samples_per_second=whole.rate(),
        stall_share=lately.stall(),
        overall_stall_share=whole.stall(),
        hits={tier: count / lately.samples if lately.samples else 0.0 for tier, count in lately.tiers.items()},
        limiting=_limiting(report, lately),
        requests=report["origin_requests"],
        origin_bytes=report["origin_bytes"],
        floor_bytes=report["floor_origin_bytes"],
        look_ahead_bytes=report["adapted"]["look_ahead"]["now_bytes"],
        skipped=report["skipped"] + report["substituted"],
        retried=report["retried"],
        _text=json.dumps(report) if text is None else text,
    )


#: What would help, by what is waited for.
_REMEDY = {
    "origin": "more memory= or disk= would keep more of the data near; foreread.plan(...) says how much a GB is worth",
    "origin: throttled": "the store asks to be asked less: more memory= or disk= spares it requests, and so do packed shards",
    "disk": "more memory=, or a faster disk= (foreread calibrate measures it)",
    "peers": "a faster network between ranks, or more memory= on each, so that more is its own",
    "memory": "samples this small cost more to hand over than to read: a larger batch_size=, or several samples in one",
    "look-ahead": "a larger look_ahead= lets more reads be under way at once",
}


def starved(report: dict[str, Any], before: dict[str, Any] | None, threshold: float, waited: float | None = None) -> bool:
    """Says by what the trainer was starved since `before`, if it was for more than this part of the time: `waited`, where others ask
    for it and may wait while it does not."""
    stats = build(report, before)
    waited = stats.stall_share if waited is None else waited
    if waited <= threshold or stats.limiting == "trainer":
        return False
    served = ", ".join(f"{tier} {share:.0%}" for tier, share in stats.hits.items() if share > 0)
    _log.warning(
        "the trainer has waited %.0f %% of the last seconds for data (%.0f samples/s; %s), limited by %s: %s",
        100 * waited,
        stats.samples_per_second,
        served or "nothing came",
        stats.limiting,
        _REMEDY[stats.limiting],
    )
    return True
