"""MultiFidelity: one search for every kind of training.

Trials climb one ladder of rungs, as in asynchronous successive halving (Li et al. 2020, ASHA; hyperband.ladder). What
differs is learnt within the study, by one Gaussian process of what runs reached at each rung (`stage_kernel`):

- where runs are first compared: at the rung whose order foretells the end well enough for its price (`first_rung`).
  Where a schedule falls late that is a late rung; at the last the search is Bayesian optimisation of full trainings;
- which configuration begins: the one of the highest mean plus deviations at the end, of which early values move the
  belief only as far as they have foretold ends.

Earlier studies teach the same process (`earlier_studies`, `lessons`), each as far as it foretells this one; those that
mislead are left out (`model`).

Who goes on is decided by rank. A fair value of every run, weighed against that of beginning anew (Weitzman 1979; Xie et
al. 2024), was tried on the same process and was worse on recorded trainings: it begins too many runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.checks import MOST_POINTS, check_whole
from haltune._utils.memo import Memo
from haltune.errors import InvalidInput
from haltune.errors.old_names import takes_old_names
from haltune.log.decisions import AUDIT, ENQUEUED, Action, Move, Start, Verdict
from haltune.log.events import Event, Started
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.policies.guided.candidates import candidates, first_untried
from haltune.policies.guided.curve_rows import CurveRows
from haltune.policies.hyperband.asynchronous import Climber
from haltune.policies.hyperband.brackets import Bracket, Rung, exact
from haltune.policies.hyperband.climb import Climb
from haltune.policies.hyperband.ladder import FEWEST_COMPARED, MOST_COMPARED, check_cuts
from haltune.policies.hyperband.plan import Plan
from haltune.policies.hyperband.sampler import Sampler

from .earlier_studies import earlier_studies_of
from .lessons import Lessons
from .model import Model
from .promotion.cuts import Cuts
from .promotion.first_rung import first_rung
from .promotion.last_runs import instead, is_last, unless_late
from .promotion.pauses import Pauses
from .receipts import chosen_because, drawn_at_random, expected
from .stage_kernel import StageKernel, Stages

_RUNG_RATIO = 3  # ratio of the epochs of rungs
_TOO_CLOSE = 1.25  # to the horizon: a rung there would compare what is nearly trained in full
_RANDOM_TRIALS = (
    3  # trials that are drawn at random where earlier studies tell where to begin, and half of the next
)


@dataclass(frozen=True)
class Ascent:
    """What is known: the ladder, and what the process learns from."""

    climb: Climb
    rows: CurveRows
    model: Model = field(repr=False, compare=False)  # what it learns by
    pauses: Pauses = field(default_factory=Pauses)
    baseline: int | None = None  # the first trial that the user enqueued


@takes_old_names
@dataclass(frozen=True)
class MultiFidelity(Policy[Ascent]):
    """One search for every kind of training: it learns how much early epochs say, and compares runs no sooner.

    What `Study(problem)` runs when no policy is given. Endless: a budget ends it. Whoever paused may still go on, so
    their checkpoints stay; `Study(disk_quota=)` bounds them. Where the first run that is to pause has saved nothing, or
    cannot, runs are stopped for good from then on: one that others overtake later is then lost. The first configuration
    that the user enqueues trains in full: what the search gains is seen beside it.

    Where a budget bounds trials alone, epochs are not what is short: then more go on the fewer trials there are, and
    sooner. Of 20 about 6 train in full.

    Args:
        initial: Trials that are drawn at random before the model chooses; where it learns from earlier studies, it
            chooses every second one of them after the third. Default: 20.
        deviations: Of the model that are added to its mean where it chooses. Default: 3.
        eta: One in so many of a rung goes on. Default: 3.
        first_cut: The same of the rung where runs are first compared. Default: 6.
        min_trials_per_rung: Trials that are compared before any goes on. Default: None, as many as cost four fifths of
            a full training, from 8 to 40.
        candidates: Points that are compared for a new configuration; a third lie near the five best trials. Default:
            300.
        learn_from: Earlier studies, to learn from; see Study. Default: none.

    Raises:
        InvalidInput: for options outside these, and for a problem without a horizon.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import MultiFidelity
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, MultiFidelity(initial=4), seed=0, budget=Budget(trials=6))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        6
    """

    initial: int = 20
    deviations: float = 3.0
    eta: float = 3
    first_cut: float = 6
    min_trials_per_rung: int | None = None
    candidates: int = 300
    learn_from: Sequence[Any] = field(default=(), hash=False)

    plans = True  # by the budget: what may begin
    gives_up_pauses = True
    _climbers: Memo[Climber] = field(default_factory=lambda: Memo(4), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_cuts("MultiFidelity", eta=self.eta, first_cut=self.first_cut)
        check_whole("MultiFidelity", 2, MOST_POINTS, initial=self.initial)
        check_whole("MultiFidelity", 3, MOST_POINTS, candidates=self.candidates)
        if self.min_trials_per_rung is not None:
            check_whole("MultiFidelity", 1, min_trials_per_rung=self.min_trials_per_rung)
        object.__setattr__(self, "learn_from", earlier_studies_of(self.learn_from))
        if not 0 <= self.deviations < np.inf:
            raise InvalidInput(
                f"MultiFidelity(deviations={self.deviations!r}): a number that is not negative"
            )

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy, what it has from earlier studies included."""
        spec = super().spec
        earlier = [study.to_json() for study in spec.pop("learn_from")]
        return {**spec, "learn_from": earlier} if earlier else spec

    def taught_by(self, studies: Sequence[Any]) -> MultiFidelity:
        return replace(self, learn_from=(*self.learn_from, *earlier_studies_of(studies)))

    def as_recorded(self, spec: Mapping[str, Any]) -> MultiFidelity:
        """See Policy: what earlier studies have told by the time the study was made."""
        earlier = earlier_studies_of(spec.get("learn_from", ()))
        return self if earlier == self.learn_from else replace(self, learn_from=earlier)

    def remarks(self, problem: Problem) -> list[str]:
        """What is learnt from earlier studies, and what of them is not."""
        return Lessons.of(self.learn_from, problem.space, Stages((1,), problem.space.dim)).remarks()

    def rungs(self, horizon: int, min_epochs: int = 0) -> tuple[int, ...]:
        """Return the epochs at which trials may be compared: 1, 3, 9, 27, and the horizon 50.

        None is below min_epochs.
        """
        epochs = [max(1, min_epochs)]
        while epochs[-1] * _RUNG_RATIO * _TOO_CLOSE < horizon:
            epochs.append(epochs[-1] * _RUNG_RATIO)
        return (*epochs, horizon) if epochs[0] * _TOO_CLOSE < horizon else (horizon,)

    @property
    def predicts(self) -> bool | None:
        """True: a Gaussian process chooses new configurations."""
        return True

    def start(self, problem: Problem) -> Ascent:
        """Nobody on the ladder. Raises InvalidInput without a horizon."""
        if problem.max_epochs is None:
            raise InvalidInput(
                "MultiFidelity needs a horizon: give the Problem max_epochs, or choose InfiniteHyperband()"
            )
        rungs = self.rungs(problem.max_epochs, problem.min_epochs)
        stages = Stages(rungs, problem.space.dim, len(self.learn_from))
        lessons = Lessons.of(self.learn_from, problem.space, stages)
        model = Model(replace(stages, earlier=0), self.initial)
        if lessons:
            model = Model(stages, self.initial, lessons)
        climb = Climb(problem.goal.sign, problem.goal.of == "best", problem.max_epochs, problem.min_epochs)
        return Ascent(climb, CurveRows(problem.goal), model)

    def fold(self, state: Ascent, event: Event) -> Ascent:
        """The ladder and the rows after `event`."""
        pauses, baseline = state.pauses.fold(state.rows, event), state.baseline
        if baseline is None and isinstance(event, Started) and event.evidence.get(ENQUEUED):
            baseline = event.trial
        climb = self._climber(state).fold(state.climb, event)
        return Ascent(climb, state.rows.fold(event), state.model, pauses, baseline)

    def judge(self, state: Ascent, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """On to the rung where runs are compared; from there on, PAUSE unless it leads."""
        on = state.climb.trials.get(trial.id)
        climber = self._climber(state)
        if on is not None and on.member.after("epochs", trial.epoch, 0.0) >= on.needed:
            climber = self._based(state, history, state.model.kernel(history, state.rows.table))
        verdict = climber.judge(state.climb, history, trial)
        if (why := self._in_full(state, trial)) and "rung" in verdict.evidence:
            horizon = float(
                state.climb.horizon or 1
            )  # all that it lacks is set aside, not only the next rung
            return Verdict(Action.CONTINUE, f"{verdict.reason}; {why}", verdict.evidence, horizon)
        verdict = unless_late(verdict, state.climb, history, trial, state.pauses.declined)
        if state.pauses.declined and verdict.action is Action.STOP and "rank" in verdict.evidence:
            return replace(verdict, reason=f"{verdict.reason}; stopped for good, for runs cannot pause here")
        return verdict

    def _in_full(self, state: Ascent, trial: TrialRecord) -> str | None:
        """Why a run is trained in full whatever its rank; None: it is not."""
        if trial.id == state.baseline:
            return "the first that you enqueued trains in full, to compare with"
        return "it trains in full, for no new run would end within the budget" if is_last(trial) else None

    def propose(self, state: Ascent, history: History, rng: Generator) -> Move:
        """Who goes on at the highest rung, or the configuration that may end best."""
        kernel = state.model.kernel(history, state.rows.table)
        climber = self._based(state, history, kernel)
        move = climber.propose(state.climb, history)
        if (last := instead(move, state.climb, state.model, kernel, history, state.rows.table)) is not None:
            return last
        if not isinstance(move, Start) or kernel is None:
            return move
        if self._at_random(state, history):
            return replace(move, reason=drawn_at_random(kernel, climber.base, history))
        return self._chosen(move, climber.base, kernel, state, history, rng)

    def _at_random(self, state: Ascent, history: History) -> bool:
        """Whether the next configuration is drawn at random.

        Where earlier studies tell where to begin, all but a few take turns: what misleads is not all that is seen.
        """
        begun, first = len(history), self._cuts(history).initial
        told = state.model.lessons is not None and begun >= _RANDOM_TRIALS
        return begun < first and not (told and begun % 2)

    # -- the ladder ----------------------------------------------------------------------

    def _climber(self, state: Ascent) -> Climber:
        assert state.climb.horizon is not None  # `start` saw to it
        key = (state.climb.horizon, state.climb.min_epochs)
        return self._climbers(key, partial(self._climbing, *key))

    def _climbing(self, horizon: int, min_epochs: int) -> Climber:
        bracket = Bracket(tuple(Rung(MOST_COMPARED, float(n)) for n in self.rungs(horizon, min_epochs)), 0)
        return Climber(Plan(repeat(bracket)), Sampler("random"), "epochs", exact(self.eta), rising=True)

    def _cuts(self, history: History) -> Cuts:
        return Cuts(self.initial, self.eta, self.first_cut, self.min_trials_per_rung).within(
            history.budget, len(history)
        )

    def _based(self, state: Ascent, history: History, kernel: StageKernel | None) -> Climber:
        """The ladder, compared from the rung on that the study has learnt.

        While it has not, from the second, where eight runs to that cost no more than a full training; else the first.
        """
        cuts, horizon = self._cuts(history), state.climb.horizon or 1
        climber = replace(self._climber(state), eta=exact(cuts.eta), first=exact(cuts.first))
        epochs = self.rungs(horizon, state.climb.min_epochs)
        second = len(epochs) > 1 and FEWEST_COMPARED * epochs[1] <= horizon
        base = int(second) if kernel is None else first_rung(kernel.foretells, epochs)
        if state.pauses.declined:  # decided on arrival, and nobody waits to be compared
            return replace(climber, base=base, stops=True)
        return replace(climber, base=base, min_trials_per_rung=cuts.waiting(horizon, epochs[base]))

    # -- the choice ----------------------------------------------------------------------

    def _chosen(
        self, move: Start, base: int, kernel: StageKernel, state: Ascent, history: History, rng: Generator
    ) -> Start:
        """The candidate of highest UCB at the end that was not tried; the move itself where there is none."""
        rows, lessons = state.rows.table, state.model.lessons
        scale = state.model.scale(history, rows)
        if scale is None and lessons is None:
            return move
        points = candidates(history, rows, self.candidates, rng, None if lessons is None else lessons.best)
        mean, deviation = state.model.process(kernel, history, rows, scale).ends(points)
        value = mean + self.deviations * deviation
        if (found := first_untried(history, points, value)) is None:
            return move
        best, config = found
        evidence = expected(scale, float(mean[best]), float(deviation[best]), float(value[best])) | {
            "rows": len(rows), "first_rung": base, "compared_from": kernel.stages.epochs[base],
            "foretells": round(float(kernel.foretells[base]), 3),
        }  # fmt: skip
        if lessons is not None:
            evidence["earlier"] = lessons.told(kernel.told[1:])
        if AUDIT in move.evidence:
            evidence[AUDIT] = move.evidence[AUDIT]  # what was declared of this trial
        return replace(move, config=config, reason=chosen_because(history, evidence), evidence=evidence)
