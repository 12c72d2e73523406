"""What rules come to on recorded runs: run by run, in sum, and as a table to read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from haltune._utils.words import counted, plural, short
from haltune.display.terminal import visible
from haltune.log.records import Best


@dataclass(frozen=True)
class RunUnderRule:
    """One run under a rule."""

    trial: int
    trained: float  # epochs under the rule, repeated ones included
    recorded: float  # epochs in the log, likewise
    ended: float | None  # the epoch at which the rule stopped it, or paused it for good; None: it did neither
    reason: str  # of that, in the rule's words; "" without it
    incumbent: float  # the best of the other runs at its last report here, as the rule left them; NaN: there was none
    wins: bool | None  # its end in the log beats that, which there must be; None: the log holds no end of it
    beyond: float  # epochs at most that it had still before it where the log ends it and the rule does not

    @property
    def saved(self) -> float:
        """Recorded epochs that the rule does not train."""
        return self.recorded - self.trained

    @property
    def wrong(self) -> bool | None:
        """Whether a winner was stopped; None where that is not known."""
        return None if self.wins is None else self.wins and self.ended is not None


@dataclass(frozen=True)
class RuleOutcome:
    """What a rule comes to on the recorded runs."""

    name: str
    runs: tuple[RunUnderRule, ...]
    best: Best | None  # that it leaves, by the rule of `study.best`
    regret: (
        float  # how far that lies behind the log's best, the metric's units; NaN where one of them is missing
    )

    @property
    def stopped(self) -> int:
        """Runs that it ended."""
        return sum(r.ended is not None for r in self.runs)

    @property
    def recorded(self) -> float:
        """Epochs of the log."""
        return math.fsum(r.recorded for r in self.runs)

    @property
    def trained(self) -> float:
        """Those of them that it trains."""
        return math.fsum(r.trained for r in self.runs)

    @property
    def saved(self) -> float:
        """Those of them that it does not."""
        return self.recorded - self.trained

    @property
    def winners(self) -> int:
        """Runs that are known to beat the incumbent of their time."""
        return sum(r.wins is True for r in self.runs)

    @property
    def wrong(self) -> int:
        """Winners that it stopped."""
        return sum(r.wrong is True for r in self.runs)

    @property
    def unknown(self) -> int:
        """Runs of which the log does not hold the end."""
        return sum(r.wins is None for r in self.runs)

    @property
    def unjudged(self) -> int:
        """Stops of those: nobody knows whether they were wrong."""
        return sum(r.wins is None and r.ended is not None for r in self.runs)

    @property
    def beyond(self) -> float:
        """Epochs at most that it would have trained where the log ended a run and the rule did not."""
        return math.fsum(r.beyond for r in self.runs)


@dataclass(frozen=True)
class Replay:
    """A study's log under several stopping rules; print it. `replayed["a name"]` is one of them."""

    metric: str
    log: RuleOutcome  # what the study itself did
    rules: tuple[RuleOutcome, ...]

    def __iter__(self) -> Iterator[RuleOutcome]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __getitem__(self, name: str) -> RuleOutcome:
        for rule in self.rules:
            if rule.name == name:
                return rule
        raise KeyError(f"there are {', '.join(repr(rule.name) for rule in self.rules)}, not {name!r}")

    def __str__(self) -> str:
        log, whole = self.log, len(self.log.runs) - self.log.unknown
        recorded = f"{plural(len(log.runs), 'run')} and {plural(round(log.recorded, 1), 'epoch')} recorded"
        head = f"{recorded}, {whole} to the end"
        notes = [note for rule in self.rules for note in _notes(rule)]
        table = _table(self.metric, (log, *self.rules))
        return visible("\n".join([head, "", *table, "", *_words(self.metric, log, self.rules), *notes]))

    def to_dict(self) -> dict[str, Any]:
        """All of it in JSON's types; what is not a finite number is None."""
        told = {"metric": self.metric, "log": _told(self.log), "rules": [_told(rule) for rule in self.rules]}
        return {name: _finite(value) for name, value in told.items()}


def _table(metric: str, rules: Sequence[RuleOutcome]) -> list[str]:
    titles = ("rule", "stopped", "trained", "saved", "wrong stops", "unknown", f"best {metric}", "regret")
    rows = [titles, *(_cells(rule) for rule in rules)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _cells(rule: RuleOutcome) -> tuple[str, ...]:
    share = f" ({rule.saved / rule.recorded:.0%})" if rule.recorded else ""
    least, most = ("at least ", "at most ") if rule.beyond else ("", "")
    return (
        rule.name,
        f"{rule.stopped} of {len(rule.runs)}",
        f"{least}{counted(round(rule.trained, 1))}",
        f"{most}{counted(round(rule.saved, 1))}{share}",
        f"{rule.wrong} of {plural(rule.winners, 'winner')}",
        plural(rule.unknown, "run") if rule.unknown else "none",
        "none" if rule.best is None else short(rule.best.value),
        short(rule.regret, 3) if math.isfinite(rule.regret) else "",
    )


def _words(metric: str, log: RuleOutcome, rules: Sequence[RuleOutcome]) -> list[str]:
    """What the columns mean."""
    bound = (
        "; at most so many where a rule would train on beyond them" if any(r.beyond for r in rules) else ""
    )
    cut = log.unknown
    itself = f" ({plural(cut, 'run does', 'runs do')} not go to the end)" if cut else ""
    return [
        f"saved: of the epochs recorded{itself}{bound}",
        "wrong stops: of runs that beat the best of their time, where there was one",
        f"regret: how far the best {metric} that is left lies behind the best of the log",
    ]


def _notes(rule: RuleOutcome) -> list[str]:
    """What is unknown of a rule, and why."""
    stops, left, found = rule.unjudged, rule.unknown - rule.unjudged, []
    if stops:
        whose = "that run" if stops == 1 else "those runs"
        was = plural(stops, "stop was", "stops were")
        found.append(f"whether {was} right is unknown, for the log does not hold the end of {whose}")
    if left:
        end = plural(left, "run ends", "runs end")
        more = (
            f", with at most {plural(round(rule.beyond, 1), 'epoch')} still to train" if rule.beyond else ""
        )
        found.append(f"{end} in the log where this rule does not end {'it' if left == 1 else 'them'}{more}")
    return [f"{rule.name}: {'; '.join(found)}"] if found else []


def _told(rule: RuleOutcome) -> dict[str, Any]:
    totals = (
        "stopped",
        "recorded",
        "trained",
        "saved",
        "winners",
        "wrong",
        "unknown",
        "unjudged",
        "beyond",
        "regret",
    )
    best = rule.best and {"trial": rule.best.trial, "value": rule.best.value, "epoch": rule.best.epoch}
    runs = [{**asdict(r), "saved": r.saved, "wrong": r.wrong} for r in rule.runs]
    return {"name": rule.name, **{name: getattr(rule, name) for name in totals}, "best": best, "runs": runs}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(v) for name, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
