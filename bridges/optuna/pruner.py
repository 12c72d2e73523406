"""HaltunePruner: optimal stopping as an Optuna pruner, with the reason of each decision on the trial.

A decision depends only on the ended trials, the judged trial and the seed. Every thread or process with the same trials
makes the same decision.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Lock
from typing import Any, Literal

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.checks import check_whole
from haltune._utils.memo import Memo
from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.errors import InvalidInput, InvalidSpace, warn
from haltune.log.decisions import Verdict
from haltune.log.events import Status
from haltune.log.history import PURPOSES
from haltune.log.problem import Maximize, Minimize, Problem
from haltune.log.records import TrialRecord
from haltune.log.scores import Scale, given, learn, measured
from haltune.policies.bobos.optimal_stopping import OptimalStopping
from haltune.policies.bobos.policy import Stopper
from haltune.space import Space

from .spaces import ENDS, PREFIX, WHOLE, FrozenTrial, TrialState, beyond, curve_of, optuna, set_attribute, space_of


def record_of(trial: FrozenTrial, problem: Problem, scale: Scale | None = None) -> TrialRecord:
    """Return a trial as the policy judges it: the epochs up to max_epochs, without the configuration."""
    curve = curve_of(trial)
    horizon = problem.max_epochs or math.inf
    epochs = np.array([float(n) for n in curve if n <= horizon])
    values = np.array([curve[int(n)] for n in epochs])
    scores = np.full(len(values), np.nan) if scale is None else scale.score(values)
    status = ENDS.get(trial.state, Status.RUNNING)
    return TrialRecord(
        id=trial.number, config={}, pause_at=problem.max_epochs, epochs=epochs, values=values, scores=scores,
        seconds=np.ones(len(epochs)), metrics={}, status=status, attempt=1, tags={},
    )  # fmt: skip


@dataclass(frozen=True)
class Past:
    """The other trials of a study, in the form of `haltune.policies.bobos.policy.Runs`."""

    problem: Problem
    seed: int
    trials: Sequence[TrialRecord]  # ended trials with a curve
    points: Array | None = None  # configurations in the unit cube, by the numbers of the trials
    beyond: Collection[int] = ()  # trials that violate a constraint

    def incumbent(self, exclude: int | None = None) -> float:
        """Return the best final value of another trial within the constraints, unscaled; NaN without one."""
        results = [t.result(self.problem.goal) for t in self.trials if t.id != exclude and t.id not in self.beyond]
        sign = self.problem.goal.sign
        return sign * max((sign * r for r in results if not math.isnan(r)), default=math.nan)

    def scale_of(self, trial: int) -> Scale | None:
        """Return the scale of all trials: by the goal's bounds, or learnt from ended trials."""
        return self._scale

    @cached_property
    def _scale(self) -> Scale | None:
        goal = self.problem.goal
        if goal.bounds is not None:
            return given(goal)
        heights = [goal.sign * measured(t.values) for t in self.trials]
        known = [h[np.isfinite(h)] for h in heights]
        firsts = [float(h[0]) for h in known if len(h)]
        return learn(firsts, max((float(h.max()) for h in known if len(h)), default=-math.inf), goal.sign)

    def rng(self, purpose: str, *keys: int) -> np.random.Generator:
        """Return the random generator of a decision, by the number of the trial."""
        return np.random.default_rng([self.seed, PURPOSES[purpose], *keys])


class HaltunePruner(optuna.pruners.BasePruner):
    """Pruner for Optuna: prunes a trial that is unlikely to beat the best, and writes the reason on the trial.

    It stops a trial if the expected loss of stopping is below that of continuing. The losses come from curves simulated
    from the trial's own epochs and those of ended trials, and from the parameters of both. This is the rule of
    `haltune.policies.Halting`. It works with any sampler, with threads, and with several processes on one storage. The
    last decision is in the trial's attributes "haltune:reason" and "haltune:p_beats". Steps are epochs and may count
    from 0 or 1.

    Args:
        max_epochs: Epochs of a full training: the number of values that an unpruned trial reports.
        seed: Seed of the simulated curves. Default: 0.
        bounds: (lowest, highest) value of the objective. Default: None, the scale is learnt from the trials.
        of: The epoch whose value counts for a trial, its "last" or its "best". Default: "last".
        stopping: Settings of optimal stopping. Default: None, OptimalStopping().
        min_epochs: No trial is pruned before this epoch, like MedianPruner's n_warmup_steps. Default: 0.

    Raises:
        InvalidInput: If an argument is invalid.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> def objective(trial):
        ...     top = trial.suggest_float("top", 0.1, 0.9)
        ...     for epoch in range(20):
        ...         trial.report(top * (epoch + 1) / (epoch + 2), epoch)
        ...         if trial.should_prune():
        ...             raise optuna.TrialPruned
        ...     return top * 20 / 21
        >>> sampler = optuna.samplers.RandomSampler(seed=0)
        >>> study = optuna.create_study(direction="maximize", sampler=sampler, pruner=HaltunePruner(max_epochs=20))
        >>> study.optimize(objective, n_trials=8)
        >>> [t.user_attrs["haltune:reason"][:9] for t in study.trials if t.state.name == "PRUNED"][0]
        'P(beats 0'
    """

    def __init__(
        self,
        max_epochs: int,
        *,
        seed: int = 0,
        bounds: tuple[float, float] | None = None,
        of: Literal["last", "best"] = "last",
        stopping: OptimalStopping | None = None,
        min_epochs: int = 0,
    ) -> None:
        check_whole("HaltunePruner", 1, max_epochs=max_epochs)
        check_whole("HaltunePruner", 0, seed=seed, min_epochs=min_epochs)
        if stopping is not None and not isinstance(stopping, OptimalStopping):
            raise InvalidInput(f"HaltunePruner(stopping={stopping!r}): use an OptimalStopping(...), or None")
        self._arguments: dict[str, Any] = {
            "max_epochs": max_epochs, "seed": seed, "bounds": bounds, "of": of, "stopping": stopping,
            "min_epochs": min_epochs,
        }  # fmt: skip
        space = Space({"configuration": "any"})  # the space of the trials is inferred from them
        self._problems = {
            way: Problem(space, kind("value", bounds, of), max_epochs, min_epochs=min_epochs)
            for way, kind in ((True, Maximize), (False, Minimize))
        }
        self._seed = seed
        self._stopper = Stopper(stopping or OptimalStopping())
        self._known: dict[Any, TrialRecord] = {}  # ended trials: the stopper distinguishes them by identity
        self._encoded: Memo[Array | None] = Memo(16)
        self._warned: set[str] = set()
        self._lock = Lock()  # for the trials of several threads

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        verdict = self._verdict(study, trial)
        if verdict is None:
            return False
        if warning := str(verdict.evidence.get("warning", "")):
            curve = warning.partition(",")[0].capitalize()  # "A learning curve rises well above its best value"
            self._warn_once(
                "falling",
                f"{curve}, but the pruner judges by the last value. If the objective returns the best value, use "
                "HaltunePruner(of='best').",
            )
        if trial.state is TrialState.RUNNING and (verdict.stops or "p_win" in verdict.evidence):
            p = verdict.evidence.get("p_win")
            found = {"reason": verdict.reason, "p_beats": p if p is not None and math.isfinite(p) else None}
            for name, value in found.items():
                set_attribute(study, trial, PREFIX + name, value)
        return verdict.stops

    def _verdict(self, study: optuna.Study, trial: FrozenTrial) -> Verdict | None:
        problem = self._problems[study.direction is optuna.study.StudyDirection.MAXIMIZE]
        last, horizon = max(curve_of(trial), default=0), problem.max_epochs or 1
        if last > horizon:
            self._warn_once(
                "long",
                f"Trial {trial.number} reported epoch {last}, but a full training has {horizon} epochs. Later epochs "
                f"are not pruned. Use HaltunePruner(max_epochs={last}) or more. A step is an epoch.",
            )
        if not max(1, problem.min_epochs) <= last < horizon:
            return None
        with self._lock, undisturbed, one_thread, undisturbed.heard:
            over = study.get_trials(deepcopy=False, states=WHOLE)
            points = self._points(study.study_name, over, trial)
            violating = {t.number for t in over if beyond(t)}
            past = Past(problem, self._seed, self._records(study.study_name, over, problem), points, violating)
            judged = record_of(trial, problem, past.scale_of(trial.number))
            return self._stopper.verdict(past, judged)

    def _records(self, study: str, over: list[FrozenTrial], problem: Problem) -> list[TrialRecord]:
        found = []
        for t in over:
            if t.intermediate_values:
                key = (study, t.number, t.datetime_complete)
                if key not in self._known:
                    self._known[key] = record_of(t, problem)
                found.append(self._known[key])
        return found

    def _points(self, study: str, over: list[FrozenTrial], trial: FrozenTrial) -> Array | None:
        """Return the configurations (n, d) of ended trials and this one, by their numbers; None without a space."""

        def encoded() -> Array | None:
            try:
                translated = space_of(over)
                configs = {t.number: translated.inward(t.params) for t in (*over, trial)}
            except InvalidSpace:
                return None
            points = np.full((max(configs) + 1, translated.space.dim), np.nan)
            points[list(configs)] = translated.space.encode_many(list(configs.values()))
            return points

        ended = tuple((t.number, t.datetime_complete) for t in over)
        key = (study, ended, trial.number, trial.datetime_start, len(trial.params))
        return self._encoded(key, encoded)

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warn(text)

    def __repr__(self) -> str:
        return f"HaltunePruner({', '.join(f'{n}={v!r}' for n, v in self._arguments.items() if v is not None)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(HaltunePruner, **self._arguments), ()
