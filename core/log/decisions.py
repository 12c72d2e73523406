"""A policy's decisions: a `Move` between trials, a `Verdict` within a trial.

Both have a `reason`, one sentence a user can act on, and `evidence`, the numbers behind it (JSON).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

from haltune.hints import NO_TRIAL, KnowsAttributes

# names in the evidence
CUT = "policy"  # of a verdict: the budget ended the trial; the policy was not asked
FULL = "full"  # of a STOP: the trial reached its policy's longest training, so it was not stopped early
AUDIT = "audit"  # of a Start: the trial continues where it would be stopped; of a verdict: the epoch of that decision
WISH = "wish"  # of a verdict by which the user ended a leg: "pause", this trial alone, or "hold", the search
ASKED = "asked"  # of a STOP: the user ended the trial; the policy was not asked
ENQUEUED = "enqueued"  # of a Start: the configuration is the user's; the other numbers describe the policy's own
EARLIER = "earlier"  # of a copied report: the attempt it is copied from; see events.Reported
COMPARED_AT = "compared_at"  # of a verdict after a report that has passed a later rung: where it compares
Config = Mapping[str, Any]  # parameter name -> value; inactive parameters are absent


class Action(StrEnum):
    """The action of a trial after a report."""

    CONTINUE = "continue"
    PAUSE = "pause"
    STOP = "stop"
    UNJUDGED = "unjudged"  # stored without a decision: delivered late, or between two judged reports


@dataclass(frozen=True, slots=True)
class Verdict(KnowsAttributes):
    """The policy's decision about one report: an action and its reason.

    Args:
        action: Action.CONTINUE, PAUSE or STOP, or UNJUDGED for a report stored without a decision.
        reason: One sentence that a user can act on.
        evidence: The numbers behind the reason, by name; JSON. Default: none.
        pause_at: New end of this leg of the trial, in epochs. Default: None, the end does not change.

    Example:
        >>> verdict = Verdict(Action.STOP, "P(beats 0.912) = 0.02 at epoch 14", {"p_win": 0.02})
        >>> verdict.stops, verdict.resumable
        (True, False)
    """

    action: Action
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    pause_at: float | None = None

    @property
    def stops(self) -> bool:
        """True if the training loop should end now, permanently (STOP) or temporarily (PAUSE)."""
        return self.action in (Action.STOP, Action.PAUSE)

    @property
    def resumable(self) -> bool:
        """True if the trial may continue later, so its state should be saved: PAUSE, or ended by the budget."""
        return self.action is Action.PAUSE or (self.action is Action.STOP and CUT in self.evidence)


def continue_(reason: str, **evidence: Any) -> Verdict:
    return Verdict(Action.CONTINUE, reason, evidence)


def stop(reason: str, **evidence: Any) -> Verdict:
    return Verdict(Action.STOP, reason, evidence)


@dataclass(frozen=True, slots=True)
class Start(KnowsAttributes):
    """A policy's move: train a new configuration.

    Args:
        config: Parameter name -> value, without inactive parameters.
        pause_at: Epochs to train before the policy decides. Default: None, the problem's max_epochs.
        resource: The value of trial.resource in the training code, in the policy's unit. Default: None.
        tags: The policy's own labels, JSON: bracket, rung, ... Default: none.
        reason: One sentence that a user can act on. Default: "".
        evidence: The numbers behind the reason, by name; JSON. Default: none.
        partial: True if this is never a full training, for example because it uses few samples. Default: False.

    Example:
        >>> Start({"lr": 0.1}, pause_at=9.0, reason="first of its bracket").config
        {'lr': 0.1}
    """

    config: Config
    pause_at: float | None = None
    resource: float | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    partial: bool = False

    @property
    def promotes(self) -> bool:
        """True if it continues a promoted trial as a new one, so that nothing new starts."""
        return "of" in self.tags

    @property
    def repeats(self) -> bool:
        """True if its configuration was trained before, so that no other can replace it."""
        return self.promotes or self.tags.get("repeat", 1) != 1


@dataclass(frozen=True, slots=True)
class Resume(KnowsAttributes):
    """A policy's move: resume a paused trial from its last checkpoint.

    Args:
        trial: Its number.
        pause_at: New end, in epochs. Default: None, the problem's max_epochs.
        resource: As for `Start`. Default: None.
        tags: As for `Start`; they replace the trial's tags. Default: none.
        reason: One sentence that a user can act on. Default: "".
        evidence: The numbers behind the reason, by name; JSON. Default: none.

    Example:
        >>> Resume(3, pause_at=27.0, reason="among the best 3 after 9 epochs").trial
        3
    """

    trial: int
    pause_at: float | None = None
    resource: float | None = None
    tags: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


class _NoTrial:
    """Result of `study.ask()` when there is no trial. If code uses it as a trial, it raises an explanation."""

    __slots__ = ()
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = f"{type(self).__name__!r} object has no attribute {name!r}: {NO_TRIAL}"
            raise AttributeError(message, name=name, obj=self)

    def __enter__(self) -> NoReturn:
        raise TypeError(f"{self!r} is no trial. {NO_TRIAL}")

    def __exit__(self, *raised: object) -> None:
        """Exist because `with` looks it up before `__enter__`."""


@dataclass(frozen=True, slots=True)
class Wait(_NoTrial):
    """Nothing to do until another worker reports; ask again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finish(_NoTrial):
    """The search has finished."""

    reason: str


Move = Start | Resume | Wait | Finish
