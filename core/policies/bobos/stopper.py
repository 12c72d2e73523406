"""Optimal stopping applied to a trial of a study: from its record to a verdict.

Shared by BO-BOS and by the wrapper `Halting`. It turns scores into errors, finds the
incumbent, solves or recalls the decision table, and words the answer. The paper's
symbols: incumbent y*_{t-1}, costs K_{1,t}, K_2, c_{d_0}, noise correction xi_t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.memo import Memo
from haltune.errors import InvalidInput
from haltune.log.decisions import Verdict, go_on, stop
from haltune.log.records import TrialRecord
from haltune.log.scores import Scale, measured

from .company import Runs, beside, company, errors_of
from .induction import DecisionTable, Losses
from .matched_curves import Beside
from .optimal_stopping import OptimalStopping
from .receipt import Receipt

_FINEST = 120  # epochs that a stopping problem tells apart
_SLOWEST = 1e6  # times as long as others an epoch may count for: c is a number
_NEW = ("slopes", "missing", "beside")  # options of OptimalStopping that studies may have been begun without
_LOST = 3  # whole epochs in a row without a finite value: diverged
FALLING = (
    "a learning curve falls well below its best: BO-BOS assumes that curves rise, so such a run is judged on its "
    "running best; where you keep the best weights, say so and that is exact: Maximize('val_acc', of='best')"
)


@dataclass(frozen=True)
class Posed:
    """The stopping problem of a run, on the steps that it is solved on."""

    errors: Array  # (n,) of its steps so far
    horizon: int  # steps
    before: int  # epochs before the first
    stride: int  # epochs a step
    scale: Scale
    others: Beside | None
    table: Callable[[int], DecisionTable]  # solved after so many steps

    def epoch(self, step: int) -> int:
        """The epoch at which a step ends."""
        return self.before + self.stride * step


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
    _curves: Memo[Beside] = field(default_factory=lambda: Memo(8), repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.settings, OptimalStopping):
            raise InvalidInput(f"stopping={self.settings!r}: its settings, such as OptimalStopping(K1=500)")
        if not self.growth >= 1.0:
            raise InvalidInput(f"growth={self.growth!r}: K1 may not shrink from trial to trial; at least 1")
        if self.epoch_cost not in ("epochs", "seconds"):
            raise InvalidInput(f"epoch_cost={self.epoch_cost!r}: 'epochs' or 'seconds'")
        losses = self.settings.losses()
        if losses.K2 + losses.c > losses.K1:
            raise InvalidInput(
                f"K1={losses.K1:g} is below K2 + c = {losses.K2 + losses.c:g}: theorem 2 needs K1 >= K2 + c"
            )
        if not (0.0 <= self.noise < 1e60 and 0.0 < self.delta < 1.0):
            raise InvalidInput(f"noise={self.noise!r}, delta={self.delta!r}: noise >= 0 and 0 < delta < 1")

    @property
    def spec(self) -> dict[str, Any]:
        """JSON of every option."""
        names = ("growth", "certain_from", "epoch_cost", "noise", "delta")
        usual = OptimalStopping(self.settings.mode).to_json()  # what a log of an earlier version does not say
        settings = {k: v for k, v in self.settings.to_json().items() if k not in _NEW or v != usual[k]}
        return settings | {name: getattr(self, name) for name in names}

    def verdict(self, history: Runs, trial: TrialRecord) -> Verdict:
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
        errors, falls = errors_of(trial, history.problem.goal.of == "best")
        threshold = 1.0 - float(scale.score(best)) + self._correction(trial.id + 1)
        verdict = self._decide(history, trial, scale, errors, threshold, losses).verdict(
            best, int(trial.epoch), losses
        )
        return replace(verdict, evidence={**verdict.evidence, "warning": FALLING}) if falls else verdict

    def _losses(self, history: Runs, trial: TrialRecord) -> Losses:
        t = trial.id + 1
        certain = self.certain_from is not None and t >= self.certain_from
        own = self.settings.losses()
        weight = _relative_epoch(history, trial) if self.epoch_cost == "seconds" else 1.0
        try:
            price = math.inf if certain else own.K1 * self.growth ** (t - 1)
        except OverflowError:  # at 1/0.95 after 13,800 trials
            price = math.inf
        return self.settings.losses(price, own.c * weight)

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
        history: Runs,
        trial: TrialRecord,
        scale: Scale,
        errors: Array,
        threshold: float,
        losses: Losses,
    ) -> Receipt:
        """The decision at the last epoch, and what it rests on."""
        posed = self._posed(history, trial, scale, errors, threshold, losses)
        decision, at = self.settings.decide(posed.errors, posed.horizon, posed.table, posed.others)
        if decision is None:
            return Receipt(None)
        others = posed.others
        near = None if others is None else others.near(posed.errors[:at])
        company = (
            ()
            if others is None or near is None
            else (near.count, near.beyond(posed.horizon - 1), others.beyond(at))
        )
        return Receipt(decision, posed.epoch(at), posed.epoch(len(posed.errors)), *company)

    def _posed(
        self, history: Runs, trial: TrialRecord, scale: Scale, errors: Array, threshold: float, losses: Losses
    ) -> Posed:  # fmt: skip
        """The stopping problem of a run.

        Beyond 120 epochs it is solved on every second, third, ... of them, the last among them; between two steps the
        decision of the last one stands.
        """
        stride = math.ceil((history.problem.max_epochs or 1) / _FINEST)
        horizon, before = divmod(history.problem.max_epochs or 1, stride)
        steps = slice(before + stride - 1, None, stride)
        errors = errors[steps]
        if self.settings.mode == "faithful":  # its c is an epoch's at every horizon
            losses = replace(losses, c=losses.c * stride)
        key, others = self._beside(history, trial, scale, horizon, steps)

        def table(at: int) -> DecisionTable:
            def solved() -> DecisionTable:
                rng = history.rng("stopping", trial.id, at)
                return self.settings.solve_at(errors[:at], horizon, threshold, losses, rng, others)

            known = (history.seed, trial.id, horizon, threshold, losses, errors[:at].tobytes(), key)
            return self._tables(known, solved)

        return Posed(errors, horizon, before, stride, scale, others, table)

    def posed(self, history: Runs, trial: TrialRecord) -> Posed | None:
        """The stopping problem that `verdict` solves, for who wants to look at it; None before there is one."""
        scale, best = history.scale_of(trial.id), history.incumbent(exclude=trial.id)
        if scale is None or math.isnan(best) or not trial.whole.any():
            return None
        errors, _ = errors_of(trial, history.problem.goal.of == "best")
        threshold = 1.0 - float(scale.score(best)) + self._correction(trial.id + 1)
        return self._posed(history, trial, scale, errors, threshold, self._losses(history, trial))

    def _beside(
        self, history: Runs, trial: TrialRecord, scale: Scale, horizon: int, steps: slice
    ) -> tuple[Hashable, Beside | None]:
        """The runs beside, and what tells them from others; None for a rule that looks at one curve alone.

        Records are told apart by being others: one policy may serve several studies, whose runs look alike by number.
        """
        if not self.settings.beside:
            return None, None
        runs = company(history, trial)
        peaks = history.problem.goal.of == "best"
        key = (tuple(runs), scale, horizon, peaks)
        return key, self._curves(key, lambda: beside(runs, peaks, scale, horizon, steps))


def _relative_epoch(history: Runs, trial: TrialRecord) -> float:
    """This trial's median epoch over the median of all trials' medians; 1 when there is nothing to compare."""
    own = float(np.median(trial.epoch_seconds))
    others = [
        float(np.median(t.epoch_seconds)) for t in history.trials if t.id != trial.id and len(t.seconds)
    ]
    typical = float(np.median([*others, own]))
    # coarse on purpose: each new weight is a stopping problem to be solved anew
    return max(0.1, round(min(own / typical, _SLOWEST), 1)) if typical > 0 and own > 0 else 1.0
