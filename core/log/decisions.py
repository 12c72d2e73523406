"""The answers of a policy: a `Move` between trials, a `Verdict` within a trial.

Both carry a `reason`, one sentence a user can act on, and `evidence`, the numbers
behind it (JSON: str -> float, int, str, bool, None or lists of them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

from haltune.hints import NO_TRIAL, KnowsAttributes

# names in the evidence
CUT = "policy"  # of a verdict: the budget ended the trial, the policy was not asked
FULL = "full"  # of a STOP: the trial had all that its policy gives any; it was not cut short
AUDIT = "audit"  # of a Start: the trial continues where it would be stopped; of a verdict: the epoch of that
WISH = "wish"  # of a verdict by which the user cut a trial: "pause", this trial alone, or "hold", the search
ASKED = "asked"  # of a STOP: the user ended the trial, the policy was not asked
ENQUEUED = "enqueued"  # of a Start: it has the user's configuration; the rest is about the policy's own
EARLIER = "earlier"  # of a copied report: the attempt that it is copied from; see events.Reported
Config = Mapping[str, Any]  # parameter name -> value; inactive parameters are absent


class Action(StrEnum):
    """The action of a trial after a report."""

    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"
    UNJUDGED = "unjudged"  # stored without asking the policy: delivered late, or between two judged reports


@dataclass(frozen=True, slots=True)
class Verdict(KnowsAttributes):
    """The policy's answer to one report: an action, and its reason.

    Args:
        action: Action.CONTINUE, PAUSE, STOP, or UNJUDGED for what was stored without asking the policy.
        reason: One sentence that a user can act on.
        evidence: The numbers behind it, by their names; JSON. Default: none.
        until: Epochs, a new end for this leg of the trial. Default: None, the old one stands.

    Example:
        >>> verdict = Verdict(Action.STOP, "P(beats 0.912) = 0.02 at epoch 14", {"p_win": 0.02})
        >>> verdict.stops, verdict.resumable
        (True, False)
    """

    action: Action
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    until: float | None = None  # epochs; a new end for this leg of the trial, None keeps the old one

    @property
    def stops(self) -> bool:
        """True when the training loop should end now, for good (STOP) or for a while (PAUSE)."""
        return self.action in (Action.STOP, Action.PAUSE)

    @property
    def resumable(self) -> bool:
        """True when the trial may continue later, so that its state should be saved: PAUSE, or cut by the budget."""
        return self.action is Action.PAUSE or (self.action is Action.STOP and CUT in self.evidence)


def go_on(reason: str, **evidence: Any) -> Verdict:
    """A CONTINUE verdict."""
    return Verdict(Action.CONTINUE, reason, evidence)


def stop(reason: str, **evidence: Any) -> Verdict:
    """A STOP verdict."""
    return Verdict(Action.STOP, reason, evidence)


@dataclass(frozen=True, slots=True)
class Start:
    """A policy's move: train a new configuration.

    Args:
        config: Parameter name -> value; inactive parameters are absent.
        until: Epochs to train before its policy decides. Default: None, the problem's max_epochs.
        resource: What the training code reads as trial.resource, in the policy's unit. Default: None.
        tags: The policy's own labels, JSON: bracket, rung, ... Default: none.
        reason: One sentence that a user can act on. Default: "".
        evidence: The numbers behind it, by their names; JSON. Default: none.
        partial: True: never a full training, because it trains on few samples, say. Default: False.

    Example:
        >>> Start({"lr": 0.1}, until=9.0, reason="first of its bracket").config
        {'lr': 0.1}
    """

    config: Config
    until: float | None = None  # epochs; None: the problem's max_epochs
    resource: float | None = None  # handed to the user's code as trial.resource
    tags: Mapping[str, Any] = field(default_factory=dict)  # the policy's own labels: bracket, rung, ...
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False  # never a full training: on few samples, say

    @property
    def goes_on(self) -> bool:
        """True when it trains again the configuration of an earlier trial that was promoted: nothing new starts."""
        return "of" in self.tags

    @property
    def repeats(self) -> bool:
        """True when its configuration was trained before: another cannot take its place."""
        return self.goes_on or self.tags.get("repeat", 1) != 1


@dataclass(frozen=True, slots=True)
class Resume:
    """A policy's move: continue a paused trial from its last checkpoint.

    Args:
        trial: Its number.
        until: Epochs, the new end. Default: None, the problem's max_epochs.
        resource: As Start's. Default: None.
        tags: As Start's; they take the place of the trial's. Default: none.
        reason: One sentence that a user can act on. Default: "".
        evidence: The numbers behind it, by their names; JSON. Default: none.

    Example:
        >>> Resume(3, until=27.0, reason="among the best 3 after 9 epochs").trial
        3
    """

    trial: int
    until: float | None = None  # epochs
    resource: float | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


class _NoTrial:
    """The answer of `study.ask()` when there is no trial: used as one, it says so."""

    __slots__ = ()
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            said = f"{type(self).__name__!r} object has no attribute {name!r}: {NO_TRIAL}"
            raise AttributeError(said, name=name, obj=self)

    def __enter__(self) -> NoReturn:
        raise TypeError(f"{self!r} is no trial. {NO_TRIAL}")

    def __exit__(self, *raised: object) -> None:
        """`with` asks for it first."""


@dataclass(frozen=True, slots=True)
class Wait(_NoTrial):
    """Nothing to do until another worker reports; ask again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish(_NoTrial):
    """The search is over, for good."""

    reason: str


Move = Start | Resume | Wait | Finish
