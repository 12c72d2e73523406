"""An independent reader of a log: it uses the JSON of events and the documented rules, and no code of haltune."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any


def number(value: Any) -> float:
    """A float of the log's JSON, in which 'nan', 'inf' and '-inf' are texts."""
    return float(value)


@dataclass
class Told:
    """One trial, as far as its events were read."""

    config: dict[str, Any]
    resource: float | None
    partial: bool
    tags: dict[str, Any]
    status: str = "running"
    attempt: int = 1
    saved: float = 0.0
    curve: list[tuple[float, float]] = field(default_factory=list)
    verdict: dict[str, Any] | None = None  # the last that stopped or paused it
    former: Told | None = None  # its attempt that came further than the present one, which counts
    ended: float | None = None  # its value when it last ended or paused

    @property
    def epoch(self) -> float:
        return self.curve[-1][0] if self.curve else self.saved


class Auditor:
    """The results of a log, updated by each event as JSON."""

    def __init__(self) -> None:
        self.trials: list[Told] = []
        self.epochs, self.cost = 0.0, 0.0
        self.finished = False
        self.position = 0

    def hear(self, e: dict[str, Any]) -> None:
        self.position += 1
        kind = e["kind"]
        if kind == "created":
            goal = e["problem"]["goal"]
            self.sign = 1.0 if goal["goal"] == "maximize" else -1.0
            self.of, self.horizon = goal.get("of", "last"), e["problem"]["max_epochs"]
        elif kind == "started":
            self.trials.append(Told(e["config"], e["resource"], e.get("partial", False), e["tags"]))
        elif kind == "finished":
            self.finished = True
        elif kind == "budgeted":
            self.finished = self.finished and not e.get("plans", True)
        elif "trial" in e:
            self._about(self.trials[e["trial"]], kind, e)

    def _about(self, t: Told, kind: str, e: dict[str, Any]) -> None:
        if kind == "resumed":
            before = replace(t, former=None)
            t.saved = 0.0 if e["anew"] else t.saved
            t.curve = [point for point in t.curve if point[0] <= t.saved]
            t.former = t.former or (before if t.epoch < before.epoch else None)
            if e["given_up"]:
                t.former = t.ended = None
            t.status, t.attempt, t.verdict = "running", e["attempt"], None
            t.resource, t.tags = e["resource"], e["tags"]
            return
        if e["attempt"] != t.attempt or t.status != "running":
            return  # too late
        if kind == "reported" and e["epoch"] > t.epoch:
            self.epochs += e["epoch"] - t.epoch
            self.cost += e["cost"] or 0.0
            t.curve.append((e["epoch"], number(e["value"])))
            if e["verdict"]["action"] in ("stop", "pause"):
                t.verdict = e["verdict"]
            if t.former is not None and t.epoch >= t.former.epoch:
                t.former = None
        elif kind == "checkpointed":
            t.saved = e["epoch"]
        elif kind in ("ended", "expired"):
            t.status = e["status"]
            if t.status != "interrupted":
                t.former = None
                found = self.counts(t) if t.status != "failed" else None
                t.ended = None if found is None else found[0]

    # documented rules

    @property
    def runs(self) -> list[Told]:
        """The attempts with which the trials count."""
        return [t.former or t for t in self.trials]

    def counts(self, t: Told) -> tuple[float, float] | None:
        """(value, epoch) that a run counts for."""
        if self.of == "last":
            points = t.curve[-1:]
        else:
            points = sorted((p for p in t.curve if math.isfinite(p[1])), key=lambda p: -self.sign * p[1])[:1]
        return (points[0][1], points[0][0]) if points and math.isfinite(points[0][1]) else None

    def complete(self, t: Told) -> bool:
        full = t.status == "stopped" and t.verdict is not None and "full" in t.verdict.get("evidence", {})
        at_end = self.horizon is not None and t.epoch >= self.horizon
        return not t.partial and (t.status == "completed" or full or at_end)

    def candidates(self) -> set[int]:
        """The runs that compare with the best."""
        valued = [i for i, t in enumerate(self.runs) if self.counts(t)]
        whole = {i for i in valued if self.complete(self.runs[i])}
        if whole or not valued:
            return whole

        def reach(i: int) -> tuple[Any, ...]:
            t = self.runs[i]
            return (t.status != "failed", (t.resource or 0.0) if t.partial else math.inf, t.epoch)

        furthest = max(map(reach, valued))
        return {i for i in valued if reach(i) == furthest}

    def best(self) -> tuple[int, float, float] | None:
        """Trial, value and epoch."""
        found = [(-self.sign * self.counts(self.runs[i])[0], i) for i in self.candidates()]  # type: ignore[index]
        if not found:
            return None
        i = min(found)[1]
        return (i, *self.counts(self.runs[i]))  # type: ignore[misc]

    def incumbent(self, but: int | None = None) -> float:
        """Return the incumbent of a running trial; NaN if there is none."""
        found = [self.sign * t.ended for i, t in enumerate(self.trials) if i != but and t.ended is not None]
        return self.sign * max(found) if found else math.nan

    def finished_best(self) -> float:
        """The best of the runs that are over."""
        found = [
            self.sign * c[0] for t in self.trials if t.status in ("completed", "stopped") and (c := self.counts(t))
        ]
        return self.sign * max(found) if found else math.nan

    def best_at(self, epoch: float) -> float:
        """The best of the values at an epoch."""
        points = [point for t in self.trials for point in (t.former or t).curve]
        found = [self.sign * value for at, value in points if at == epoch and math.isfinite(value)]
        return self.sign * max(found)

    def saved_of(self, t: Told, over: bool) -> float:
        """Return the epochs of a full training that a stopped trial saved; after the search also for a paused one."""
        ended = ("stopped", "paused") if over else ("stopped",)
        return max(0.0, self.horizon - t.epoch) if self.horizon and t.status in ended else 0.0

    def saved_epochs(self, over: bool) -> float:
        """The same of all runs."""
        return sum(self.saved_of(t, over) for t in self.trials)

    def fates(self, over: bool) -> Counter[str]:
        """Return the number of trials with each outcome."""
        return Counter(self._fate(t, over) for t in self.trials)

    def _fate(self, t: Told, over: bool) -> str:
        if t.status == "paused" and over:
            return "left"
        whole = self.horizon is not None and t.epoch >= self.horizon
        if t.status == "stopped" and self.complete(t):
            return "completed" if whole else "schedule"
        if t.status != "completed":
            return t.status
        if self.counts(t) is None:
            return "nothing"
        before, last = [0.0, *(epoch for epoch, _ in t.curve)][-2:]
        whole = self.horizon is not None and 2 * last - before > self.horizon  # no validation would follow
        return "part" if t.partial else "completed" if whole else "itself"
