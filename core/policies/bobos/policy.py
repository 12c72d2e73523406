"""BO-BOS and Halting: optimal stopping of the trials of a search (Dai et al. 2019).

BO-BOS, algorithm 1: the Gaussian process is over [x, n], configuration and epochs (on a log scale); the next
configuration maximises its UCB at n = N. A trial stops at epoch n if C1, the stopping rule decides so, and C2,
sigma_{t-1}([x, N]) <= kappa sigma_{t-1}([x, n]): the surrogate is not much less certain about the end than about now.
`Halting` applies the same rule to the trials of any policy.

`Stopper` decides C1, `ruled` adds C2 and the audit. The paper's symbols: incumbent y*_{t-1}, costs K_{1,t}, K_2,
c_{d_0}, noise correction xi_t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array
from haltune._utils.checks import is_number
from haltune._utils.memo import Memo
from haltune.display import chance, plural
from haltune.errors import InvalidInput
from haltune.log.decisions import AUDIT, Action, Move, Start, Verdict, continue_, stop
from haltune.log.events import Checkpointed, Event, Reported, Resumed, Started, Status, TrialEvent
from haltune.log.history import History
from haltune.log.policy import FinishedTrials, Policy, T, Wrapper, check_policy, defaults, fold_finished, fold_over
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.log.scores import Scale, measured
from haltune.models.curves import ReferenceCurves, coarse, errors_of, reference_curves, reference_trials
from haltune.policies.bayesopt import Beta, Surrogate, TrainingRows, epoch_coordinate, targets

from .optimal_stopping import DecisionTable, Losses, OptimalStopping, StopDecision

_SLOWEST = 1e6  # largest weight of an epoch, so that c is finite
_FIRST_K1 = 500.0  # of BOBOS: half of the usual one, because it grows
_FALL = 0.05  # of the scale: a curve that ends further below its best falls
_LOST = 3  # whole epochs in a row without a finite value: the trial diverged


class Runs(Protocol):
    """Interface of a study for optimal stopping: a `History`, or an adapter to the trials of another library."""

    @property
    def problem(self) -> Problem: ...
    @property
    def seed(self) -> int: ...
    @property
    def trials(self) -> Sequence[TrialRecord]: ...
    @property
    def points(self) -> Array | None: ...  # (n, d) configurations in the unit cube, by the numbers of the trials
    def incumbent(self, exclude: int | None = None) -> float: ...
    def scale_of(self, trial: int) -> Scale | None: ...
    def rng(self, purpose: str, *keys: int) -> np.random.Generator: ...


@dataclass(frozen=True)
class Posed:
    """The stopping problem of a trial, and the decision on it.

    With more than 120 epochs it is solved on every second, third, ... epoch, including the last. Between two steps the
    last decision holds.
    """

    errors: Array  # (n,) of its steps so far
    horizon: int  # steps
    before: int  # epochs before the first step
    stride: int  # epochs per step
    scale: Scale
    best: float  # the incumbent, raw
    losses: Losses  # of an epoch
    others: ReferenceCurves | None
    table: Callable[[int], DecisionTable]  # solved after this many steps
    decision: StopDecision | None  # None: too early
    at: int  # the step of the table that decides

    def epoch(self, step: int) -> int:
        return self.before + self.stride * step


@dataclass(frozen=True)
class Stopper:
    """The stopping rule, with options as for Halting. K_{1,t} = K_{1,1} growth^(t-1), t = trial number + 1 - after;
    noise: the sigma of xi_t, delta: its probability."""

    settings: OptimalStopping
    growth: float = 1.0
    certain_from: int | None = None
    epoch_cost: Literal["epochs", "seconds"] = "epochs"
    noise: float = 0.0
    delta: float = 0.1
    after: int = 0  # first trials that are never stopped, and that t does not count
    _tables: Memo[DecisionTable] = field(default_factory=lambda: Memo(64), repr=False, compare=False)
    # at least one for each scalarization of several goals
    _curves: Memo[ReferenceCurves] = field(default_factory=lambda: Memo(12), repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.settings, OptimalStopping):
            raise InvalidInput(f"stopping={self.settings!r} is not an OptimalStopping. Give OptimalStopping(K1=1000).")
        if not self.growth >= 1.0:
            raise InvalidInput(f"growth={self.growth!r} would shrink K1 from trial to trial. Give 1 or more.")
        if self.epoch_cost not in ("epochs", "seconds"):
            raise InvalidInput(f"epoch_cost={self.epoch_cost!r} is not allowed. Give 'epochs' or 'seconds'.")
        losses = self.settings.losses()
        if losses.K2 + losses.c > losses.K1:
            raise InvalidInput(
                f"K1={losses.K1:g} is below K2 + c = {losses.K2 + losses.c:g}, but theorem 2 needs K1 >= K2 + c. Raise "
                "K1, or lower K2."
            )
        if not (0.0 <= self.noise < 1e60 and 0.0 < self.delta < 1.0):
            raise InvalidInput(
                f"noise={self.noise!r} or delta={self.delta!r} is not allowed. Give noise >= 0 and 0 < delta < 1."
            )

    @property
    def spec(self) -> dict[str, Any]:
        names = ("growth", "certain_from", "epoch_cost", "noise", "delta")
        return self.settings.to_json() | {name: getattr(self, name) for name in names}

    def verdict(self, history: Runs, trial: TrialRecord) -> Verdict:
        """Return CONTINUE or STOP for a trial whose last entry is the report to be judged."""
        if history.problem.max_epochs is None:
            raise InvalidInput("Optimal stopping needs max_epochs. Give it to Problem: the epochs of a full training.")
        if trial.id < self.after:
            return continue_(f"one of the {plural(self.after, 'initial trial')}, which train in full")
        if (posed := self.decision(history, trial)) is None:
            return continue_("no value to beat yet: no other trial has ended with a finite value")
        epoch, problem = int(trial.epoch), history.problem
        last = trial.values[trial.whole][-_LOST:]
        if len(last) == _LOST and not np.isfinite(measured(last)).any() and math.isfinite(posed.losses.K1):
            return stop(f"the last {_LOST} reports gave no finite value", incumbent=posed.best)
        warning = _warned(problem, trial)
        if posed.decision is None:
            return continue_(f"{problem.at(epoch)}: too early to judge", incumbent=posed.best, **warning)
        return _explained(posed, posed.decision, problem, epoch, warning)

    def decision(self, history: Runs, trial: TrialRecord) -> Posed | None:
        """Return the stopping problem of a trial and the decision on it; None before there is an incumbent."""
        scale, best = history.scale_of(trial.id), history.incumbent(exclude=trial.id)
        if scale is None or math.isnan(best) or not trial.whole.any():
            return None
        goal, t, losses = history.problem.goal, trial.id + 1 - self.after, self.settings.losses()
        certain = self.certain_from is not None and trial.id + 1 >= self.certain_from
        weight = _relative_epoch(history, trial) if self.epoch_cost == "seconds" else 1.0
        try:
            k1 = math.inf if certain else losses.K1 * self.growth ** (t - 1)
        except OverflowError:  # at 1/0.95 after 13,800 trials
            k1 = math.inf
        losses = self.settings.losses(k1, losses.c * weight)
        threshold = 1.0 - float(scale.score(best))
        if t > 1 and self.noise > 0.0:
            # xi_t = sqrt(2 sigma^2 log(pi^2 t^2 (t - 1) / (6 delta''))), theorem 1, at least 0
            inside = math.log(math.pi**2 * t**2 * (t - 1) / (6.0 * self.delta))
            threshold += math.sqrt(2.0 * self.noise**2 * max(inside, 0.0))
        full = history.problem.max_epochs or 1
        stride, steps = coarse(full)
        horizon, before = divmod(full, stride)
        errors = errors_of(trial, goal.of == "best")[steps]
        # In the faithful mode c is the cost of an epoch at every horizon.
        each = replace(losses, c=losses.c * stride) if self.settings.mode == "faithful" else losses
        curves_key, others, every = None, None, history.points
        point = None if every is None else every[trial.id]
        if self.settings.reference_curves:
            # Records are compared as objects: one policy may serve several studies, whose trials have equal numbers.
            references = reference_trials(history.trials, trial)
            points = None if every is None else every[[t.id for t in references]]
            curves_key = (tuple(references), scale, horizon, goal.of, None if points is None else points.tobytes())
            others = self._curves(
                curves_key, lambda: reference_curves(references, goal.of == "best", scale, horizon, steps, points)
            )

        def table(at: int) -> DecisionTable:
            def solved() -> DecisionTable:
                rng = history.rng("stopping", trial.id, at)
                return self.settings.solve_at(errors[:at], horizon, threshold, each, rng, others, point)

            key = (history.seed, trial.id, horizon, threshold, each, errors[:at].tobytes(), curves_key)
            return self._tables(key, solved)

        decision, at = self.settings.decide(errors, horizon, table, others)
        return Posed(errors, horizon, before, stride, scale, best, losses, others, table, decision, at)


class StopsTrials(Policy[Any]):
    """A policy with a stopping rule."""

    _stopper: Stopper

    def completed(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """See Policy; a recorded stopping rule, too, gets the defaults of the options that are newer than it."""
        found = super().completed(spec)
        if not isinstance(recorded := found.get("stopping"), Mapping):
            return found
        rule = Stopper(OptimalStopping()).spec
        rule |= {name: value for name, value in defaults(self).items() if name in rule}
        return found | {"stopping": rule | dict(recorded)}

    def part(self, kind: type[T]) -> T | None:
        return self._stopper if isinstance(self._stopper, kind) else super().part(kind)


def _warned(problem: Problem, trial: TrialRecord) -> dict[str, str]:
    """Return a warning as evidence if the last value counts and is well below the best of the trial."""
    scores = trial.scores[trial.whole & np.isfinite(trial.values)]
    if problem.goal.of == "best" or not len(scores) or scores.max() - scores[-1] <= _FALL:
        return {}
    worse = "falls well below" if problem.goal.sign > 0 else "rises well above"
    text = f"a learning curve {worse} its best value, but the last value counts."
    if (goal := problem.by_best_epoch) is not None:
        text += f" If you keep the weights of the best epoch, use {goal!r}."
    return {"warning": text}


def _relative_epoch(history: Runs, trial: TrialRecord) -> float:
    """Return this trial's median epoch over the median of all trials' medians; 1 if no seconds are known."""
    own = trial.typical_epoch
    others = [t.typical_epoch for t in history.trials if t.id != trial.id and len(t.seconds)]
    typical = float(np.median([*others, own]))
    # rounded, because each new weight is a new stopping problem to solve
    return max(0.1, round(min(own / typical, _SLOWEST), 1)) if typical > 0 and own > 0 else 1.0


def _explained(posed: Posed, d: StopDecision, problem: Problem, epoch: int, warning: Mapping[str, str]) -> Verdict:
    """Return the decision as a verdict."""
    # used: trials whose curves were used; full: those of them trained to the end; known: all that trained further
    used = full = known = 0
    if posed.others is not None:
        near = posed.others.near(posed.errors[: posed.at])
        used, full, known = near.count, near.beyond(posed.horizon - 1), posed.others.beyond(posed.at)
    solved, seen, best, losses = posed.epoch(posed.at), posed.epoch(len(posed.errors)), posed.best, posed.losses
    evidence = {
        "p_win": d.p_win, "bound": d.bound, "loss_stop": d.loss_stop,
        "loss_continue": d.loss_continue, "loss_win": d.loss_win, "incumbent": best,
        "basis": d.basis, "solved_at": solved, "K1": losses.K1, "K2": losses.K2, "c": losses.c,
        "paths": d.paths, "p_model": d.p_model,
        "reference": used, "reference_full": full, "reference_known": known, **warning,
    }  # fmt: skip
    evidence = {k: v for k, v in evidence.items() if not (isinstance(v, float) and math.isnan(v))}  # not estimated
    if d.basis == "saturated" and d.d == "stop":
        worst = f"the score was the worst possible in all {problem.amount(epoch)}"
        return stop(f"{worst}, so the trial counts as losing to {best:.4g}", **evidence)
    if math.isnan(d.p_win):
        few = "too few simulated curves resemble this one"
        return continue_(f"P(beats {best:.4g}) is not known at {problem.at(epoch)}: {few}", **evidence)
    others = f"{used} of {plural(known, 'trial')}" if known > used else plural(used, "trial")
    others += f" trained further, {full or 'none'} of them to the end"
    if full == known:
        others = f"{plural(used, 'trial')} trained to the end"
    basis = f"its {'own' if seen == epoch else 'first'} {problem.amount(seen)}"
    if solved == seen:
        basis += f"{', its configuration' if 'p_model' in evidence else ''} and {others}" if used else ""
    else:
        basis += " and its configuration" if "p_model" in evidence else ""
        basis += f", by curves simulated at {problem.at(solved)}{f' from {others}' if used else ''}"
    reason = f"P(beats {best:.4g}) {chance(d.p_win, d.paths)} at {problem.at(epoch)}, from {basis}"
    if d.d == "stop":
        reason += f"; expected loss of stopping {d.loss_stop:.3g} <= {d.loss_continue:.3g} of continuing"
        return stop(reason, **evidence)
    if d.d == "win":
        return continue_(f"{reason}: likely to win, so it continues", **evidence)
    reason += f"; expected loss of continuing {d.loss_continue:.3g} < {d.loss_stop:.3g} of stopping"
    return continue_(reason, **evidence)


@dataclass(frozen=True)
class Marked:
    """Rows [x, epoch_coordinate(n)] and scores of a trial, at the marked epochs and at its last."""

    shares: tuple[float, ...] = (0.02, 0.2, 0.4, 0.6, 0.8)  # epochs 1, 10, 20, 30, 40 of 50: appendix D

    def __call__(self, history: History, trial: TrialRecord) -> TrainingRows:
        """Return inputs (k, d) and targets (k,), where the targets are known."""
        horizon = float(history.problem.max_epochs or 1)
        if trial.status is Status.FAILED:  # a full training there ends badly, even after a good value
            coordinates, y = np.ones(1), targets(history, np.array([np.nan]))
        else:
            marks = {max(1.0, float(round(share * horizon))) for share in self.shares}
            chosen = [i for i, n in enumerate(trial.epochs) if n in marks or i == len(trial.epochs) - 1]
            coordinates = epoch_coordinate(trial.epochs[chosen], horizon)
            if trial.status is Status.COMPLETED and len(chosen):  # also if its training ended by itself before
                coordinates[-1] = 1.0
            y = targets(history, trial.counting(history.problem.goal)[chosen])
        known = np.isfinite(y)
        x = np.tile(history.points[trial.id], (len(y), 1))
        return np.column_stack([x, coordinates])[known], y[known]


# An audit: a share of the trials, drawn before they start, continues where the rule would stop them. A stopped trial
# has no end, so only audited trials show how often a stop is wrong. The event that starts a trial declares the audit.
# The first report at which the rule would stop it records that decision; the rule does not judge later reports.
# `Study.audit` counts the outcomes.


@dataclass
class Followed:
    """An audited trial."""

    at: float | None = None  # the epoch at which it would have been stopped; None: not yet
    saved: float = 0.0  # the epoch of its last checkpoint


Audited = dict[int, Followed]  # by trial


def check_share(owner: str, share: Any) -> None:
    if not (is_number(share) and 0.0 <= share <= 1.0):
        raise InvalidInput(
            f"{owner}(audit={share!r}) is not a share. Give the share of trials that continue where they would be "
            "stopped, from 0 to 1; 0.05 is one trial in 20."
        )


def declare(move: Move, share: float, history: History) -> Move:
    """Return the move; if it starts a trial that is drawn for the audit, its evidence and reason declare so."""
    drawn = share > 0.0 and history.rng("audit", len(history)).random() < share
    if not drawn or not isinstance(move, Start) or AUDIT in move.evidence:
        return move
    words = f"drawn for the audit of {100.0 * share:.3g}% of the trials: it continues where it would be stopped"
    reason = f"{move.reason}; {words}" if move.reason else words
    return replace(move, reason=reason, evidence={**move.evidence, AUDIT: share})


def fold_audited(audited: Audited, event: Event, share: float) -> None:
    """Record the declared trials, and where each would have been stopped first, unless its program gave that up.

    Without a share it does nothing: a rule without an audit may be replayed on an audited search.
    """
    if share and isinstance(event, Started) and AUDIT in event.evidence:
        audited[event.trial] = Followed()
    elif isinstance(event, TrialEvent) and (trial := audited.get(event.trial)) is not None:
        if isinstance(event, Reported) and AUDIT in event.verdict.evidence and trial.at is None:
            trial.at = event.epoch
        elif isinstance(event, Checkpointed):
            trial.saved = event.epoch
        elif isinstance(event, Resumed):
            trial.saved = 0.0 if event.anew else trial.saved
            if event.given_up and trial.at is not None and trial.at > trial.saved:
                trial.at = None


def ruled(
    stopper: Stopper, surrogate: Surrogate, kappa: float | None, finished: FinishedTrials, audited: Audited,
    history: History, trial: TrialRecord,
) -> Verdict:  # fmt: skip
    """Return the stopping rule's verdict: C1 and, with kappa, C2. An audited trial continues.

    C2: a stop at epoch n stands only if sigma([x, N]) <= kappa sigma([x, n]), by the surrogate of the trials that ended
    before this one. Without a surrogate the stop stands.
    """
    if trial.id in audited and (at := audited[trial.id].at) is not None:
        reason = f"audit: would have been stopped at {history.problem.at(at)}; continues to measure wrong stops"
        return continue_(reason, **{AUDIT: at})
    verdict = stopper.verdict(history, trial)
    if not verdict.stops:
        return verdict
    if kappa is not None and (before := surrogate.posterior(history, finished)) is not None:
        x = history.points[trial.id]
        now_at = epoch_coordinate(trial.epoch, float(history.problem.max_epochs or 1))
        end, now = np.sqrt(before.variance(np.vstack([np.append(x, 1.0), np.append(x, now_at)])))
        evidence = {**verdict.evidence, "sd_end": float(end), "sd_now": float(now), "kappa": kappa}
        if end > kappa * now:
            why = f"sd {end:.3g} at the end > {kappa:g} x {now:.3g} now"
            return continue_(f"would stop, {verdict.reason}; but the surrogate is too uncertain: {why}", **evidence)
        verdict = replace(verdict, evidence=evidence)
    if trial.id in audited:
        reason = f"audit: would stop here, {verdict.reason}; continues to measure wrong stops"
        return continue_(reason, **{**verdict.evidence, AUDIT: float(trial.epoch)})
    return verdict


State = tuple[Any, FinishedTrials, Audited]  # the inner policy's state, the trials that ended, the audited trials


@dataclass(frozen=True)
class Halting(StopsTrials, Wrapper):
    """Halting: optimal stopping inside the trials of any policy, which proposes the configurations.

    A STOP from either wins over a PAUSE. The inner policy never promotes a stopped trial.

    Args:
        policy: the policy that chooses configurations, such as GPUCB() or Hyperband().
        stopping: settings of the stopping problem and its solver. Default: OptimalStopping().
        growth: factor by which K1 grows from trial to trial. Default: 1, K1 is constant.
        certain_from: from this trial on (the first is 1) K1 is infinite and nothing is stopped; theorem 2's guarantee
            needs it. Default: None, never.
        epoch_cost: "epochs": each costs c. "seconds": c is multiplied by this trial's median time per epoch over the
            median of all trials. Default: "epochs".
        noise: deviation of the noise of a value, in units of the score; 0, as in the paper's experiments, ignores
            noise. Default: 0.
        kappa: a trial is stopped only if a Gaussian process over the finished trials is at most this many times as
            uncertain of its end as of now (BO-BOS's condition C2). Default: None, without one.
        audit: share of the trials that continue where they would be stopped; `study.audit()` then reports how often a
            stop is wrong. The trials are drawn with the study's seed when they start. Default: 0.

    Raises:
        InvalidInput: for other values, if K1 < K2 + c, and for a problem without max_epochs.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import Halting, RandomSearch
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, Halting(RandomSearch(trials=3)), seed=0)
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    policy: Policy[Any]
    stopping: OptimalStopping = field(default_factory=OptimalStopping)
    growth: float = 1.0
    certain_from: int | None = None
    epoch_cost: Literal["epochs", "seconds"] = "epochs"
    noise: float = 0.0
    kappa: float | None = None
    audit: float = 0.0
    _stopper: Stopper = field(init=False, repr=False, compare=False)
    _surrogate: Surrogate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        policy = check_policy("Halting wraps a policy such as RandomSearch()", self.policy)
        object.__setattr__(self, "policy", policy)
        stopper = Stopper(self.stopping, self.growth, self.certain_from, self.epoch_cost, self.noise)
        if self.kappa is not None and not self.kappa >= 1.0:
            raise InvalidInput(
                f"Halting(kappa={self.kappa!r}) is not allowed. Give 1 or more, or None to stop without a surrogate."
            )
        check_share("Halting", self.audit)
        object.__setattr__(self, "_stopper", stopper)
        object.__setattr__(self, "_surrogate", Surrogate(Marked()))

    @property
    def spec(self) -> dict[str, Any]:
        own = {"inner": self.policy.spec, "kappa": self.kappa, "stopping": self._stopper.spec, AUDIT: self.audit}
        return {"policy": "Halting", **own}

    def start(self, problem: Problem) -> State:
        if problem.max_epochs is None:
            raise InvalidInput("Halting needs max_epochs. Give it to Problem: the epochs of a full training.")
        return self.policy.start(problem), (), {}

    def fold(self, state: State, event: Event) -> State:
        inner, finished, audited = state
        inner = self.policy.fold(inner, event)
        fold_audited(audited, event, self.audit)
        return inner, fold_finished(finished, event), audited

    def inside(self, state: State) -> Any:
        return state[0]

    def propose(self, state: State, history: History, rng: Generator) -> Move:
        return declare(self.policy.propose(state[0], history, rng), self.audit, history)

    def judge(self, state: State, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """Return STOP if either stops; else the inner policy's PAUSE; else the stopping rule's CONTINUE.

        Only the inner policy may stop an audited trial.
        """
        inner = self.policy.judge(state[0], history, trial, rng)
        if inner.action is Action.STOP or AUDIT in inner.evidence:
            return inner
        own = ruled(self._stopper, self._surrogate, self.kappa, state[1], state[2], history, trial)
        evidence = {**inner.evidence, **own.evidence}  # the inner policy folds its own
        if own.action is Action.STOP:
            return replace(own, pause_at=inner.pause_at)
        if inner.action is Action.CONTINUE:
            return replace(own, pause_at=inner.pause_at, evidence=evidence)
        if AUDIT in own.evidence:  # recorded although the trial pauses
            return replace(inner, reason=f"{inner.reason}; {own.reason}", evidence=evidence)
        return inner


BOBOSState = tuple[FinishedTrials, Audited]  # the trials that ended, in log order, and the audited trials


@dataclass(frozen=True)
class BOBOS(StopsTrials):
    """BO-BOS: Bayesian optimisation that stops trials which are unlikely to win (Dai et al. 2019).

    GP-UCB over configurations and epochs chooses configurations; Bayesian optimal stopping stops trials. The mode
    "robust" is recommended: it solves the stopping problem again during the trial, over reference curves and power
    laws. "faithful" solves it once, as in the paper, and again where the curve leaves the simulated ones; its surrogate
    also uses every first epoch; the initial trials train in full, and K1 grows from the first trial after them. Its
    curves decay towards error 0 of the score scale: give the goal bounds that the best trials come close to, or none.
    Within (0, 1) it hardly ever stops a curve that settles at an error of 0.1.

    Args:
        mode: "robust" or "faithful". Default: "robust".
        K1: loss of a wrong stop at the first trial. Default: None, 500 (robust) or 100 (faithful).
        K2: loss of continuing to the end without winning. Default: 99.
        c: loss of each further epoch. Default: 1.
        growth: factor by which K1 grows from trial to trial. Default: 1/0.95, as in the paper's (b); 1/0.99 for feature
            selection.
        certain_from: from this trial on (the first is 1) K1 is infinite and nothing is stopped; theorem 2's guarantee
            needs it. Default: None, never.
        wrong_stop: sets K1 = (K2 + c) / wrong_stop: no trial is stopped whose simulated probability to win is larger
            (the paper's lemma 8). Default: None.
        kappa: a trial is stopped only if the surrogate's deviation at the end is at most this many times the deviation
            now (condition C2); infinity turns this off. Default: 2.
        epoch_cost: "epochs": each costs c. "seconds": c is multiplied by this trial's median time per epoch over the
            median of all trials. Default: "epochs".
        noise: deviation of the noise of a value, in units of the score; 0, as in the paper's experiments, ignores
            noise. Default: 0.
        initial: number of Sobol configurations before the first fit. Default: 6.
        beta: weight of the variance in the upper confidence bound: "scaled", "theorem" or a number, as for GPUCB.
            Default: None, "scaled"; "faithful" on a finite space "theorem".
        delta: delta of beta_t, as for GPUCB, and delta'' of the correction for `noise`: the probabilities that these
            bounds of theorem 1 fail. Default: 0.1.
        refit_every: finished trials between fits of the kernel, as for GPUCB. Default: 10.
        stopping: an OptimalStopping with further settings of the solver, instead of mode, K1, K2, c and wrong_stop.
            Default: None.
        audit: share of the trials that continue where they would be stopped; `study.audit()` then reports how often a
            stop is wrong. The trials are drawn with the study's seed when they start. Default: 0.

    Raises:
        InvalidInput: for other values, if K1 < K2 + c, and for a problem without max_epochs.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import BOBOS
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, BOBOS(initial=2), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    mode: Literal["robust", "faithful"] = "robust"
    K1: float | None = None
    K2: float = 99.0
    c: float = 1.0
    growth: float = 1.0 / 0.95
    certain_from: int | None = None
    wrong_stop: float | None = None
    kappa: float = 2.0
    epoch_cost: Literal["epochs", "seconds"] = "epochs"
    noise: float = 0.0
    initial: int = 6
    beta: Beta | None = None
    delta: float = 0.1
    refit_every: int = 10
    stopping: OptimalStopping | None = None
    audit: float = 0.0
    _stopper: Stopper = field(init=False, repr=False, compare=False)
    _surrogate: Surrogate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.kappa >= 1.0:
            raise InvalidInput(
                f"BOBOS(kappa={self.kappa!r}) is not allowed. Give 1 or more, or infinity to turn the condition off."
            )
        check_share("BOBOS", self.audit)
        settings, of_solver = self.stopping, ("mode", "K1", "K2", "c", "wrong_stop")
        both = [name for name in of_solver if getattr(self, name) != getattr(BOBOS, name)]
        if settings is not None and both:
            raise InvalidInput(
                f"BOBOS got stopping= and {', '.join(f'{name}=' for name in both)}, which stopping= replaces. Give "
                "BOBOS(stopping=OptimalStopping(mode, K1=..., K2=..., c=...)) alone; wrong_stop= is K1 = (K2 + c) / "
                "wrong_stop."
            )
        if settings is None:
            k1 = self.K1  # None: the default of the mode
            if self.wrong_stop is not None:
                if k1 is not None:
                    raise InvalidInput(
                        "BOBOS got both K1 and wrong_stop, but wrong_stop sets K1 = (K2 + c) / wrong_stop. Give one of "
                        "them, not both."
                    )
                if not 0.0 < self.wrong_stop <= 1.0:
                    raise InvalidInput(
                        f"wrong_stop={self.wrong_stop!r} is not a probability in (0, 1]. Give one, such as 0.02."
                    )
                k1 = (self.K2 + self.c) / self.wrong_stop
            if k1 is None and self.mode == "robust":
                k1 = _FIRST_K1
            settings = OptimalStopping(mode=self.mode, K1=k1, K2=self.K2, c=self.c)
        faithful = isinstance(settings, OptimalStopping) and settings.mode == "faithful"  # Stopper refuses others
        if self.beta is None and not faithful:
            object.__setattr__(self, "beta", "scaled")
        after = self.initial if faithful else 0
        stopper = Stopper(settings, self.growth, self.certain_from, self.epoch_cost, self.noise, self.delta, after)
        object.__setattr__(self, "_stopper", stopper)
        # The robust mode leaves the first epoch out: it differs so much that it shortens all lengthscales.
        rows = Marked() if faithful else Marked(Marked.shares[1:])
        surrogate = Surrogate(rows, self.refit_every, self.initial, self.beta, self.delta, after)
        surrogate.check("BOBOS", unset=faithful)
        object.__setattr__(self, "_surrogate", surrogate)

    @property
    def spec(self) -> dict[str, Any]:
        names = ("kappa", "initial", "beta", "delta", "refit_every")
        return {
            "policy": "BOBOS",
            **{name: getattr(self, name) for name in names},
            "stopping": self._stopper.spec,
            AUDIT: self.audit,
        }

    def start(self, problem: Problem) -> BOBOSState:
        if problem.max_epochs is None:
            raise InvalidInput("BOBOS needs max_epochs. Give it to Problem: the epochs of a full training.")
        self._surrogate.check_space("BOBOS", problem.space)
        return (), {}

    def fold(self, state: BOBOSState, event: Event) -> BOBOSState:
        finished, audited = state
        fold_audited(audited, event, self.audit)
        return fold_over(finished, event), audited

    def propose(self, state: BOBOSState, history: History, rng: Generator) -> Move:
        return declare(self._surrogate.propose(history, state[0], (1.0,), rng), self.audit, history)

    def judge(self, state: BOBOSState, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """Check C1 and C2 (line 9 of algorithm 1); an audited trial continues."""
        kappa = None if math.isinf(self.kappa) else self.kappa
        return ruled(self._stopper, self._surrogate, kappa, *state, history, trial)
