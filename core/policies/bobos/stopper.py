"""Optimal stopping applied to a trial of a study: from its record to a verdict.

Shared by BO-BOS and by the wrapper `Halting`. It turns scores into errors, finds the
incumbent, solves or recalls the decision table, and words the answer. The paper's
symbols: incumbent y*_{t-1}, costs K_{1,t}, K_2, c_{d_0}, noise correction xi_t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.memo import Memo
from haltune._utils.words import plural
from haltune.errors import InvalidInput
from haltune.log.decisions import Verdict, go_on, stop
from haltune.log.history import History
from haltune.log.records import TrialRecord
from haltune.log.scores import FALL, measured

from .induction import DecisionTable, Losses, StopDecision
from .optimal_stopping import OptimalStopping

_FINEST = 120  # epochs that a stopping problem tells apart
_SLOWEST = 1e6  # times as long as others an epoch may count for: c is a number
_LOST = 3  # whole epochs in a row without a finite value: diverged
FALLING = (
    "a learning curve falls well below its best: BO-BOS assumes that curves rise, so such a run is judged on its "
    "running best; where you keep the best weights, say so and that is exact: Maximize('val_acc', of='best')"
)


@dataclass(frozen=True)
class Stopper:
    """When to stop trial t: settings of the decision problem and how they change over trials.

    growth: K_{1,t} = K_{1,1} growth^(t-1), t = trial number + 1. certain_from: from this trial on
    K_1 is infinite and nothing is stopped (theorem 2). epoch_cost: "seconds" multiplies c by this
    trial's median epoch over the median trial's. noise: sigma of xi_t in score units, 0 ignores
    noise as the paper's experiments do; delta: its probability.
    """

    settings: OptimalStopping
    growth: float = 1.0
    certain_from: int | None = None
    epoch_cost: Literal["epochs", "seconds"] = "epochs"
    noise: float = 0.0
    delta: float = 0.1
    _tables: Memo[DecisionTable] = field(default_factory=lambda: Memo(64), repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.growth >= 1.0:
            raise InvalidInput(f"growth={self.growth!r}: K1 may not shrink from trial to trial; at least 1")
        if self.epoch_cost not in ("epochs", "seconds"):
            raise InvalidInput(f"epoch_cost={self.epoch_cost!r}: 'epochs' or 'seconds'")
        losses = self.settings.losses()
        if losses.K2 + losses.c > losses.K1:
            raise InvalidInput(
                f"K1={losses.K1:g} is below K2 + c = {losses.K2 + losses.c:g}: theorem 2 needs K1 >= K2 + c"
            )
        if not (self.noise >= 0.0 and 0.0 < self.delta < 1.0):
            raise InvalidInput(f"noise={self.noise!r}, delta={self.delta!r}: noise >= 0 and 0 < delta < 1")

    @property
    def spec(self) -> dict[str, Any]:
        """JSON of every option."""
        names = ("growth", "certain_from", "epoch_cost", "noise", "delta")
        return {**self.settings.to_json(), **{name: getattr(self, name) for name in names}}

    def verdict(self, history: History, trial: TrialRecord) -> Verdict:
        """CONTINUE or STOP for a trial whose last entry is the report being judged."""
        horizon = history.problem.max_epochs
        scale = history.scale_of(trial.id)
        best = history.incumbent(exclude=trial.id)
        if horizon is None:
            raise InvalidInput("optimal stopping needs a horizon: give the Problem max_epochs")
        if scale is None or math.isnan(best):
            return go_on("nothing to beat yet: no other trial has ended with a finite value")
        losses = self._losses(history, trial)
        if self._diverged(trial) and math.isfinite(losses.K1):
            return stop(f"the last {_LOST} epochs gave no finite value", incumbent=best)
        errors, falls = _errors(trial, history.problem.goal.of == "best")
        threshold = 1.0 - float(scale.score(best)) + self._correction(trial.id + 1)
        decision, solved = self._decide(history, trial, errors, falls, threshold, losses)
        verdict = _worded(decision, best, int(trial.epoch), losses, solved)
        return replace(verdict, evidence={**verdict.evidence, "warning": FALLING}) if falls else verdict

    def _losses(self, history: History, trial: TrialRecord) -> Losses:
        t = trial.id + 1
        certain = self.certain_from is not None and t >= self.certain_from
        own = self.settings.losses()
        weight = _relative_epoch(history, trial) if self.epoch_cost == "seconds" else 1.0
        return self.settings.losses(math.inf if certain else own.K1 * self.growth ** (t - 1), own.c * weight)

    def _correction(self, t: int) -> float:
        """xi_t = sqrt(2 sigma^2 log(pi^2 t^2 (t - 1) / (6 delta''))) for t > 1 (theorem 1), at least 0."""
        if t < 2 or self.noise == 0.0:
            return 0.0
        inside = math.log(math.pi**2 * t**2 * (t - 1) / (6.0 * self.delta))
        return math.sqrt(2.0 * self.noise**2 * max(inside, 0.0))

    @staticmethod
    def _diverged(trial: TrialRecord) -> bool:
        values = trial.values[trial.whole]
        return len(values) >= _LOST and not np.isfinite(measured(values[-_LOST:])).any()

    def _decide(
        self,
        history: History,
        trial: TrialRecord,
        errors: Array,
        falls: bool,
        threshold: float,
        losses: Losses,
    ) -> tuple[StopDecision | None, int]:
        """The decision at the last epoch, and the epoch its table was solved at; None before the first table.

        Beyond 120 epochs the problem is solved on every second, third, ... of them: a step of it then
        costs as many c, and between two steps the decision of the last one stands.
        """
        stride = math.ceil((history.problem.max_epochs or 1) / _FINEST)
        horizon = (history.problem.max_epochs or 1) // stride
        errors, losses = errors[stride - 1 :: stride], replace(losses, c=losses.c * stride)
        solved = self.settings.plan(horizon).solved_at(len(errors))
        if solved is None:
            return None, 0
        key = (history.seed, trial.id, horizon, threshold, losses, errors[:solved].tobytes())

        def table() -> DecisionTable:
            rng = history.rng("stopping", trial.id, solved)
            return self.settings.solve_at(errors[:solved], horizon, threshold, losses, rng)

        return self._tables(key, table).decide(errors), solved * stride


def _errors(trial: TrialRecord, peaks: bool) -> tuple[Array, bool]:
    """Errors 1 - score of epochs 1..n, gaps filled along straight lines; and whether the curve falls.

    Where runs count for their best epoch (peaks), it is the curve of the running best, which never falls. Else
    one whose last finite value lies well below its best is replaced by that.
    """
    epochs, scores = trial.epochs[trial.whole], trial.scores[trial.whole]
    errors = np.interp(np.arange(1.0, epochs[-1] + 1.0), epochs, 1.0 - scores)
    finite = scores[np.isfinite(trial.values[trial.whole])]
    falls = bool(len(finite) and finite.max() - finite[-1] > FALL)
    return (np.minimum.accumulate(errors) if falls or peaks else errors), falls and not peaks


def _relative_epoch(history: History, trial: TrialRecord) -> float:
    """This trial's median epoch over the median of all trials' medians; 1 when there is nothing to compare."""
    own = float(np.median(trial.epoch_seconds))
    others = [
        float(np.median(t.epoch_seconds)) for t in history.trials if t.id != trial.id and len(t.seconds)
    ]
    typical = float(np.median([*others, own]))
    # coarse on purpose: each new weight is a stopping problem to be solved anew
    return max(0.1, round(min(own / typical, _SLOWEST), 1)) if typical > 0 and own > 0 else 1.0


def _worded(decision: StopDecision | None, best: float, epoch: int, losses: Losses, solved: int) -> Verdict:
    if decision is None:
        return go_on(f"epoch {epoch}: too early to judge", incumbent=best)
    evidence = {
        "p_win": decision.p_win, "bound": decision.bound, "loss_stop": decision.loss_stop,
        "loss_continue": decision.loss_continue, "loss_win": decision.loss_win, "incumbent": best,
        "basis": decision.basis, "solved_at": solved, "K1": losses.K1, "K2": losses.K2, "c": losses.c,
    }  # fmt: skip
    return (stop if decision.d == "stop" else go_on)(_sentence(decision, best, epoch), **evidence)


def _sentence(d: StopDecision, best: float, epoch: int) -> str:
    if d.basis == "saturated" and d.d == "stop":
        return f"the score was the worst possible for {plural(epoch, 'epoch')}: it counts as losing to {best:.4g}"
    if math.isnan(d.p_win):
        return (
            f"P(beats {best:.4g}) is not known at epoch {epoch}: too few simulated curves look like this one"
        )
    chance = f"P(beats {best:.4g}) = {d.p_win:.2g} at epoch {epoch}"
    if d.d == "stop":
        return f"{chance}; expected loss of stopping {d.loss_stop:.3g} <= {d.loss_continue:.3g} of going on"
    if d.d == "win":
        return f"{chance}: likely to win, so it goes on"
    return f"{chance}; expected loss of going on {d.loss_continue:.3g} < {d.loss_stop:.3g} of stopping"
