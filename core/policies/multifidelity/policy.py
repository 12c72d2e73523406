"""MultiFidelity: one search for every kind of training.

Trials climb one ladder of rungs, as in asynchronous successive halving (Li et al. 2020, ASHA; hyperband.engine). One
Gaussian process of the values at each rung (`models.stage_process`) learns two things within the study:

- the rung at which trials are first compared: the one whose order predicts the final order well enough for its price
  (`first_rung`). Where a schedule decays late, that is a late rung. At the last rung the search is Bayesian
  optimization of full trainings;
- the configuration that starts: the one with the largest mean plus deviations at the end. An early value changes the
  prediction of the end only as far as early values have predicted ends.

Prior studies are data of the same process (`prior_studies`), each with a learnt relevance; misleading ones are left
out.

Promotion is by rank. An index of every trial, compared with that of a new one (Weitzman 1979; Xie et al. 2024), was
tried on the same process and was worse on recorded trainings: it starts too many trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import repeat
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array
from haltune._utils.checks import MOST_POINTS, check_whole
from haltune.display import plural
from haltune.errors import InvalidInput
from haltune.log.decisions import ENQUEUED, Action, Finish, Move, Resume, Start, Verdict, Wait
from haltune.log.events import Ended, Event, Expired, Reported, Resumed, Started, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.models.curve_rows import CurveRows
from haltune.models.scales import LogRegrets
from haltune.models.search_model import SearchModel, best_allowed, candidates, uncrowded
from haltune.models.stage_process import FIRST_SHARE, StageKernel, Stages, stage_epochs
from haltune.policies.acquisition import expected_improvement
from haltune.policies.bayesopt import chosen_to
from haltune.policies.hyperband.brackets import Bracket, Plan, Rung, exact
from haltune.policies.hyperband.engine import OUT, Asynchronous, Promotion
from haltune.policies.hyperband.policy import FEWEST_COMPARED, MOST_COMPARED, check_cuts, usual_min_trials
from haltune.policies.hyperband.sampler import Sampler

from .prior_studies import PriorValues, earlier_in_words, earlier_studies_of
from .rest import Remaining, trials_alone

_RANDOM_TRIALS = 3  # drawn at random where prior studies are known, and half of the next

# tags of trials that train in full, whatever their rank
FIRST = "first"  # the first that trains in full
CLOSING = "closing"  # a final full training
ALL_TRIED = "all tried"
_IN_FULL = {
    FIRST: "it is the first that trains in full",
    CLOSING: "it trains in full, because no new trial would end within the budget",
    ALL_TRIED: "it trains in full, because every configuration was tried",
}


@dataclass
class LadderState:
    ladder: Asynchronous
    rows: CurveRows
    model: SearchModel = field(repr=False, compare=False)
    prior_values: PriorValues = field(repr=False, compare=False)
    pauses: Pauses
    horizon: float
    baseline: int | None = None  # the first trial that the user enqueued
    first: int | None = None  # the trial that continued to its end, as the first, without a pause


@dataclass(frozen=True)
class MultiFidelity(Policy[LadderState]):
    """The default search: it learns how well early epochs predict the final value, and when to compare trials.

    `Study(problem)` uses it if you give no policy. It does not end by itself: a budget ends it. A paused trial may
    still resume, so its checkpoint stays; `Checkpointing(disk_quota=)` limits them. Without checkpoints a trial that
    resumes trains again from its start, so a trial that has trained 40% stops instead of pausing. The first
    configuration that you enqueue trains in full, so that you see what the search gains. Without one, the leading trial
    trains in full as soon as all trials together have cost a full training. Once the last third of all epochs has
    brought no better value, every third decision continues a paused trial that was not promoted, in place of a new one.

    A budget of trials alone does not limit epochs. Then more trials are promoted, and earlier, the fewer there are:
    of 20 about 6 train in full, and all together as long as 9.

    Args:
        initial: Random trials before the model chooses. With prior studies the model chooses every second one of them
            after the third. Default: 12.
        deviations: Standard deviations that are added to the mean when the model chooses. Default: 2.
        eta: One trial in `eta` of a rung is promoted. Default: 3.
        first_cut: The same at the rung where trials are first compared. Default: 6.
        min_trials_per_rung: Trials that are compared before one is promoted. Default: None, as many as cost four
            fifths of a full training, from 8 to 40.
        candidates: Points that are compared for a new configuration; a third lie near the five best trials. Default:
            800.
        learn_from: Prior studies; see Study. Default: none.
        min_share: The first rung is at no less than this share of a full training. Default: 0.02.

    Raises:
        InvalidInput: for other values of these options, and for a problem without max_epochs.

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

    initial: int = 12
    deviations: float = 2.0
    eta: float = 3
    first_cut: float = 6
    min_trials_per_rung: int | None = None
    candidates: int = 800
    learn_from: Sequence[Any] = field(default=(), hash=False)
    min_share: float = FIRST_SHARE

    plans = True  # by the budget: the trials that may start
    gives_up_pauses = predicts = True

    def __post_init__(self) -> None:
        check_cuts("MultiFidelity", eta=self.eta, first_cut=self.first_cut)
        check_whole("MultiFidelity", 2, MOST_POINTS, initial=self.initial)
        check_whole("MultiFidelity", 3, MOST_POINTS, candidates=self.candidates)
        if self.min_trials_per_rung is not None:
            check_whole("MultiFidelity", 1, min_trials_per_rung=self.min_trials_per_rung)
        object.__setattr__(self, "learn_from", earlier_studies_of(self.learn_from))
        if not 0 <= self.deviations < np.inf:
            raise InvalidInput(f"MultiFidelity(deviations={self.deviations!r}): a number that is not negative")
        if not 0 <= self.min_share < 1:
            raise InvalidInput(
                f"MultiFidelity(min_share={self.min_share!r}) is not a share. Give one from 0 to below 1."
            )

    @property
    def spec(self) -> dict[str, Any]:
        return {**super().spec, "learn_from": [study.to_json() for study in self.learn_from]}

    def with_prior_studies(self, studies: Sequence[Any]) -> MultiFidelity:
        return replace(self, learn_from=(*self.learn_from, *earlier_studies_of(studies)))

    def as_recorded(self, spec: Mapping[str, Any]) -> MultiFidelity:
        """Keep the log's prior studies, and its values of options that are left at their defaults."""
        if spec.get("policy") != "MultiFidelity":
            return self
        left = {f.name: spec[f.name] for f in fields(self) if f.name in spec and getattr(self, f.name) == f.default}
        as_then = replace(self, **left | {"learn_from": earlier_studies_of(spec["learn_from"])})
        return self if as_then == self else as_then

    def remarks(self, problem: Problem) -> list[str]:
        return PriorValues.of(self.learn_from, problem.space, Stages((1,), problem.space.dim)).remarks()

    def rungs(self, horizon: int, min_epochs: int = 0) -> tuple[int, ...]:
        """Return the epochs at which trials may be compared: 1, 3, 9, 27, and the horizon 50.

        None is below min_epochs, or below the share `min_share` of the horizon.
        """
        return stage_epochs(horizon, max(1, min_epochs, round(self.min_share * horizon)))

    def start(self, problem: Problem) -> LadderState:
        if problem.max_epochs is None:
            raise InvalidInput(
                "MultiFidelity needs a horizon: give the Problem max_epochs, or choose InfiniteHyperband()"
            )
        rungs = self.rungs(problem.max_epochs, problem.min_epochs)
        dim = problem.space.dim
        prior_values = PriorValues.of(self.learn_from, problem.space, Stages(rungs, dim))
        model = SearchModel(Stages(rungs, dim, len(prior_values.every)), prior_values.every)
        bracket = Bracket(tuple(Rung(MOST_COMPARED, float(n)) for n in rungs), 0)
        promotion = Promotion(exact(self.eta))
        ladder = Asynchronous(problem, Plan(repeat(bracket)), Sampler("random"), "epochs", promotion)
        # an early value may exceed the last one, which counts
        end = 0 if problem.goal.of == "best" else problem.max_epochs
        rows = CurveRows(problem.goal, self.rungs(problem.max_epochs)[0], end, problem.max_epochs)
        return LadderState(ladder, rows, model, prior_values, Pauses(), float(problem.max_epochs))

    def fold(self, state: LadderState, event: Event) -> LadderState:
        state.pauses.take(state.rows, event)
        if state.baseline is None and isinstance(event, Started) and event.evidence.get(ENQUEUED):
            state.baseline = event.trial
        if isinstance(event, Reported) and event.verdict.evidence.get(FIRST):
            state.first = event.trial
        state.ladder.take(event)
        state.rows.take(event)
        return state

    def judge(self, state: LadderState, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """CONTINUE to the first rung; from there on PAUSE unless the trial is promoted."""
        verdict = state.ladder.judge(
            history, trial, lambda: self._promotion(state, history, state.model.kernel(history, state.rows.table))
        )
        if "rung" not in verdict.evidence:
            return verdict
        action, reason, evidence, pause_at = verdict.action, verdict.reason, verdict.evidence, verdict.pause_at
        rest = Remaining(history, state.horizon, trial)
        in_full = next((why for tag, why in _IN_FULL.items() if trial.tags.get(tag)), None)
        if trial.id == state.first or (action is Action.PAUSE and _leads_first(state, history, trial, evidence, rest)):
            in_full, evidence = _IN_FULL[FIRST], {**evidence, FIRST: True}
        if trial.id == state.baseline:
            in_full = "the first trial that you enqueued trains in full, to compare with"
        if in_full:
            # the budget of all its remaining epochs is reserved, not only that to the next rung
            return Verdict(Action.CONTINUE, f"{reason}; {in_full}", evidence, state.horizon)
        halts = far_below(state, history, trial, evidence)
        continues = halts is None and action is Action.CONTINUE
        # not on the budget that another trial needs for its end
        if continues and not rest.trains(trial) and _one_in_full(state, history, trial.id):
            halts = f"{reason}, but the rest of the budget is too small to train it in full"
        if halts is not None:
            stops = trial.epoch >= state.pauses.stops_from(state.horizon)
            action, reason, pause_at = Action.STOP if stops else Action.PAUSE, halts, None
        if action is Action.STOP and "rank" in evidence:
            why = "trials cannot pause in this study" if state.pauses.declined else "no checkpoint is saved"
            reason += f"; stopped, because {why}"
        return Verdict(action, reason, evidence, pause_at)

    def propose(self, state: LadderState, history: History, rng: Generator) -> Move:
        """Resume the trial promoted at the highest rung, or start the configuration with the largest UCB at the end."""
        rest = Remaining(history, state.horizon)
        if (first := first_in_full(state, history, rest)) is not None:
            return first
        kernel, ladder = state.model.kernel(history, state.rows.table), state.ladder
        promotion = self._promotion(state, history, kernel)
        move, base = ladder.of_started(history, promotion), promotion.base
        if (last := instead(move, base, state, kernel, history, rest)) is not None:
            return last
        if move is not None:
            return move
        tried = all_tried(history) and not history.queue
        if tried and (paused := best_paused(state, kernel, history, rest)) is not None:
            return paused
        if kernel is None:
            return ladder.new(history, promotion, leading_again(ladder, history) if tried else None)
        if not tried:
            # with prior studies random trials take turns with chosen ones, in case the prior studies mislead
            started = len(history)
            chosen_early = state.prior_values.every and started >= _RANDOM_TRIALS and started % 2
            if started < self._cuts(history).initial and not chosen_early:
                compared = compared_from(kernel.stages.epochs[base], float(kernel.correlations[base]), history.problem)
                return replace(ladder.new(history, promotion), reason=f"drawn at random; {compared}")
            if (second := second_look(state, kernel, history, rest)) is not None:
                return second
        return ladder.new(history, promotion, self._chosen(base, kernel, state, history, rng))

    def _cuts(self, history: History) -> Cuts:
        """Return the options, or milder ones under a budget of trials alone.

        Of twenty trials the usual cuts would train two in full and learn little. So of n trials one in 2 (n / 20)^(1/2)
        is promoted at the first rung and one in 2.25 (n / 20)^(1/4) at the others, a third are random, and a fifth are
        compared before one is promoted. n is at least the number that has started, so that a smaller budget does not
        continue a finished search.
        """
        if (limit := trials_alone(history.budget)) is None:
            return Cuts(self.initial, self.eta, self.first_cut, MOST_COMPARED)
        n = max(limit, len(history))
        return Cuts(
            min(self.initial, max(2, n // 3)),
            min(self.eta, max(1.1, 2.25 * (n / _TRIALS) ** 0.25)),
            min(self.first_cut, max(1.0, 2 * (n / _TRIALS) ** 0.5)),
            max(2, n // 5),
        )

    def _promotion(self, state: LadderState, history: History, kernel: StageKernel | None) -> Promotion:
        """Return the share that is promoted, and from which rung on.

        Before the model is fitted that is the second rung if eight trials to there cost no more than a full training,
        else the first.
        """
        cuts, horizon, epochs = self._cuts(history), int(state.horizon), state.model.stages.epochs
        second = len(epochs) > 1 and FEWEST_COMPARED * epochs[1] <= horizon
        base = int(second) if kernel is None else first_rung(kernel.correlations, epochs)
        stops_from = state.pauses.stops_from(horizon)
        fewest = self.min_trials_per_rung or min(cuts.most, usual_min_trials(horizon, epochs[base]))
        if epochs[base] >= stops_from:
            fewest = 1
        return Promotion(exact(cuts.eta), exact(cuts.first), stops_from, fewest, base, chooses_first=True)

    def _chosen(
        self, base: int, kernel: StageKernel, state: LadderState, history: History, rng: Generator
    ) -> Start | None:
        """Return the untried candidate with the largest UCB at the end; if all were tried, the best, to train in full.

        None: there is none, or no value yet.
        """
        rows, prior_values = state.rows.table, state.prior_values
        if (posterior := state.model.posterior(kernel, history, rows)) is None:
            return None
        points = candidates(history, rows, self.candidates, rng, prior_values.best)
        points = points[uncrowded(points, history.points)]
        process, scale = posterior
        mean, deviation = process.ends(points)
        value = mean + self.deviations * deviation
        space = history.problem.space
        found = best_allowed(space, points, value, history.tried)
        again = found is None and all_tried(history)
        if again:  # the best that no trial has trained in full; if all have, the best
            found = best_allowed(space, points, value, in_full(history)) or best_allowed(space, points, value, ())
        if found is None:
            return None
        best, config = found
        sign, count = history.problem.goal.sign, len(rows)
        evidence = expected(scale, sign, float(mean[best]), float(deviation[best]), float(value[best])) | {
            "rows": count, "first_rung": base, "compared_from": kernel.stages.epochs[base],
            "correlation": round(float(kernel.correlations[base]), 3),
        }  # fmt: skip
        if prior_values.every:
            evidence["earlier"] = prior_values.evidence(kernel.relevance[1:])
        known = [plural(count, "value")] if count else []
        known += [earlier_in_words(**earlier) for earlier in evidence.get("earlier", ())]
        seen = " and ".join(known)
        reason = f"chosen by the values of prior studies: {seen}"
        if scale is not None:
            reason = chosen_to(history, evidence["mean"], evidence["sd"], seen)
        reason += f"; {compared_from(evidence['compared_from'], evidence['correlation'], history.problem)}"
        if again:
            reason += "; every configuration was tried, so it trains in full"
        return Start(config, tags={ALL_TRIED: True} if again else {}, reason=reason, evidence=evidence)


# -- how few are promoted, and from which rung on

_TRIALS = 20  # under a budget of so many trials alone about half of each rung are promoted


class Cuts(NamedTuple):
    initial: int  # random trials
    eta: float  # one in so many of a rung is promoted
    first: float  # the same at the rung where trials are first compared
    most: int  # limit of the usual number of trials that are compared before one is promoted


_TRAININGS = 8  # full trainings: the price for which rungs are compared


def first_rung(correlations: Array, epochs: tuple[int, ...]) -> int:
    """Return the rung that finds the best final value for the price of eight full trainings.

    For this price n = 8 N / epochs trials train to a rung. The best of n is about z(1 - 1 / n) deviations above the
    mean there, z the normal quantile, and keeps a share of that to the end: the correlation (K,) of the rung with the
    last. The largest product wins, the earlier of equals.
    """
    counts = [max(_TRAININGS * epochs[-1] / n, 2.001) for n in epochs]
    above = [NormalDist().inv_cdf(1 - 1 / n) for n in counts]
    return int(np.argmax(correlations * np.array(above)))


_FEWEST_IN_FULL = 4


def far_below(state: LadderState, history: History, trial: TrialRecord, evidence: Mapping[str, Any]) -> str | None:
    """Return why a trial pauses before the end, where trials are compared only there; None if it continues.

    Where early epochs do not order good trials, they still tell bad ones: further below the worst of the trials that
    trained in full than these differ among themselves.
    """
    ladder, at = state.ladder, evidence["rung"]
    rungs = ladder.rungs[ladder.trials[trial.id].bracket]
    if evidence.get("first_rung") != len(rungs) - 1:
        return None
    whole = {id for _, id in rungs[-1].arrived}
    there = [-key for key, id in rungs[at].arrived if id in whole]
    if len(there) < _FEWEST_IN_FULL or ladder.score(trial, history) >= 2 * min(there) - max(there):
        return None
    after, worst = ladder.amount(state.model.stages.epochs[at]), history.problem.goal.sign * min(there)
    return f"far below the {len(there)} trials that trained in full: these had {worst:.4g} or better after {after}"


_FROM_THE_START = 0.4  # share of a full training that a trial may train again when it resumes


@dataclass
class Pauses:
    """Trials whose verdict was PAUSE, and whether they cannot pause, or one paused without a checkpoint.

    If more could not than did, as the first one, trials stop: a disk that is full for a while decides nothing. Without
    checkpoints a trial that resumes trains again from its start, which is cheap at early rungs: it stops at later ones.
    A trial that was killed or interrupted before it paused does not count:
    perhaps it was about to save. Nor does one that reported again before it paused: a program may train until it saves.
    """

    # running, in the attempt of that verdict -> whether it has reported since
    asked: dict[int, bool] = field(default_factory=dict)
    unsaved: bool = False  # one paused without a checkpoint
    saved: set[int] = field(default_factory=set)  # trials that paused with a checkpoint
    trained_on: set[int] = field(default_factory=set)  # trials that did so instead

    @property
    def declined(self) -> bool:
        return len(self.trained_on) > len(self.saved)

    def stops_from(self, horizon: float) -> float:
        """Return the epochs from which on trials stop instead of pausing."""
        return 0.0 if self.declined else _FROM_THE_START * horizon if self.unsaved else math.inf

    def take(self, rows: CurveRows, event: Event) -> None:
        if not isinstance(event, Reported | Ended | Expired | Resumed):
            return
        t = rows.trials.get(event.trial)
        if t is None or (not isinstance(event, Resumed) and event.attempt != t.attempt):
            return  # superseded
        if not isinstance(event, Reported):
            trained_on, end = self.asked.pop(event.trial, False), event.status if isinstance(event, Ended) else None
            self.unsaved = self.unsaved or (end is Status.PAUSED and t.saved < t.at)
            if end is Status.PAUSED and t.saved >= t.at:
                self.saved.add(event.trial)
            if end is Status.COMPLETED and trained_on:
                self.trained_on.add(event.trial)
        elif not t.held or event.epoch <= t.at:
            return
        elif event.trial in self.asked:
            self.asked[event.trial] = True
            if event.verdict.action is not Action.UNJUDGED:  # the pause was taken back
                self.trained_on.add(event.trial)
        elif event.verdict.action is Action.PAUSE:
            self.asked[event.trial] = False


# -- the first result
#
# Once the trials together have trained as many epochs as a full training, the leading trial trains in full, unless one
# did or is about to. So a usable model is there within two full trainings, and the process learns early what its rungs
# are worth. On recorded trainings this lowers the mean regret after two full trainings by a quarter and changes later
# ones by less than their errors; earlier, after a half or four fifths, was worse (benchmarks/search/kinds.py).
_LAST_MOMENT = 0.75  # of the rest of the budget is needed to train in full


def first_in_full(state: LadderState, history: History, rest: Remaining) -> Resume | None:
    ladder = state.ladder
    if ladder.one_in_full or _first_under_way(state, history):
        return None
    # from its start a trial needs more of the rest of the budget
    last_moment = state.pauses.unsaved and rest.share(None) >= _LAST_MOMENT
    if history.spent.epochs < state.horizon and not last_moment:
        return None
    if not (paused := in_time(state, history, rest)):
        return None
    id = leader(ladder, paused)
    return resume_to_end(id, state, history, FIRST, f"{ladder.place(id)}; the first trial that trains in full", {})


def _first_under_way(state: LadderState, history: History, besides: int | None = None) -> bool:
    own = (state.baseline, state.first)
    under_way = (t for t in history.pending if t.id != besides)
    return any(t.tags.get(FIRST) or t.id in own or state.ladder.trials[t.id].last for t in under_way)


def _leads_first(
    state: LadderState, history: History, trial: TrialRecord, evidence: Mapping[str, Any], rest: Remaining
) -> bool:
    """Return whether a trial that would pause leads those that `first_in_full` could resume."""
    ladder, spent = state.ladder, history.spent.epochs + trial.epoch - history.trial(trial.id).epoch
    if ladder.one_in_full or spent < state.horizon or _first_under_way(state, history, besides=trial.id):
        return False
    own = (-evidence["rung"], -ladder.score(trial, history), trial.id)
    paused = in_time(state, history, rest)
    return rest.trains(trial) and all(own < (-ladder.trials[id].rung, *ladder.trials[id].key(id)) for id in paused)


# -- a search that stands still
#
# Where early epochs mislead among the best trials, the best ones are paused for good. So once the last third of all
# epochs has brought no better value, every third decision continues a paused trial to its next rung in place of a new
# one, whatever its rank: the one with the largest expected improvement per remaining epoch. What it reaches shows the
# model how much the rung misleads; promoted trials, which led there, cannot. A budget of trials alone counts only new
# trials, so there it would cost epochs and replace none.
_STILL = 3  # 1 / 3 of all epochs without a better value
_STILL_FROM = 6  # full trainings
_SECOND_LOOKS = 3  # decisions for one second look


def second_look(state: LadderState, kernel: StageKernel, history: History, rest: Remaining) -> Resume | None:
    """Return the paused trial that continues although it is not promoted; None unless the search stands still."""
    rows, ladder, horizon = state.rows, state.ladder, state.horizon
    still = _STILL * (rows.trained - rows.best_at) >= rows.trained >= _STILL_FROM * horizon
    if not still or not math.isfinite(rows.best) or history.queue or history.moves % _SECOND_LOOKS:
        return None
    if trials_alone(history.budget) is not None:
        return None
    epochs = {id: horizon - history.trial(id).checkpoint_epoch for id in in_time(state, history, rest)}
    if not epochs:
        return None
    id, predicted = worth_most(epochs, state, kernel, history)
    if not predicted:
        return None
    on, problem, since = ladder.trials[id], history.problem, (rows.trained - rows.best_at) / horizon
    why = (
        f"{ladder.place(id)}, not promoted; but no value was better in the last {since:.1f} full trainings, and of "
        f"{plural(len(epochs), 'paused trial')} this one has the largest expected improvement per remaining "
        f"{problem.unit}: predicts {problem.goal.metric} {predicted['mean']:.4g} ± {predicted['sd']:.2g}"
    )
    move = ladder.promoted(on.bracket, on.rung, id, why, history)
    trainings = round(rows.trained / horizon, 2)
    return replace(
        move, evidence={**predicted, "paused": len(epochs), "trainings": trainings, "since": round(since, 2)}
    )


# -- near the end of the budget
#
# A trial starts or resumes only if it can still be trained in full.
#
# If the ladder's move cannot, a paused trial that can is trained in full: the one with the largest expected improvement
# over the best complete trial for its share of the rest of the budget. If there is none, the search ends, provided that
# one trial was trained in full or can still be; otherwise the ladder's move is made. A leading trial continues by the
# same rule (`judge`).


def instead(
    move: Move | None, base: int, state: LadderState, kernel: StageKernel | None, history: History, rest: Remaining
) -> Move | None:
    """Return the move in place of one that would not end within the budget; None keeps the move.

    move: None for a new trial, which trains to the rung `base`. A user's configuration always starts. Without
    checkpoints a move must leave as much as a trial needs that trains from its start.
    """
    if (move is None and history.queue) or not isinstance(move, Resume | None):
        return None
    trial, epochs = None, float(state.model.stages.epochs[base])
    if move is not None:
        trial, epochs = history.trial(move.trial), move.pause_at or 0.0
    again = epochs / state.horizon if state.pauses.unsaved and epochs < state.horizon else 0.0
    if rest.share(trial) * (1.0 + again) <= 1.0:
        return None
    shares = in_time(state, history, rest)
    if not shares and _one_in_full(state, history):
        why = "the rest of the budget is too small to train another trial in full"
        return Wait(f"{why}, and some are still training") if history.running else Finish(why)
    shares = shares or in_time(state, history, rest, spare=False)  # one that may end too late is better than none
    if not shares:
        return None
    id, predicted = worth_most(shares, state, kernel, history)
    reason = "the rest of the budget is too small for a new trial, but trains this one in full"
    if others := len(shares) - 1:
        reason += f" or one of {plural(others, 'other')}"
    if predicted:
        which = "chosen by the model: " if others else ""
        reason += f"; {which}predicts {history.problem.goal.metric} {predicted['mean']:.4g} ± {predicted['sd']:.2g}"
    evidence = {**predicted, "share": round(shares[id], 4), "in_time": len(shares)}
    return resume_to_end(id, state, history, CLOSING, reason, evidence)


# -- a space whose configurations were all tried
#
# Then trials train in full: first paused ones, by their expected improvement per remaining cost,
# then configurations that were stopped, then again those that may be the best.


def all_tried(history: History) -> bool:
    space = history.problem.space
    if len(history.tried) < (space.size or math.inf):
        return False
    return space.whole is space or history.tried.issuperset(space.keys(space.enumerate()))


def best_paused(state: LadderState, kernel: StageKernel | None, history: History, rest: Remaining) -> Resume | None:
    if not (shares := in_time(state, history, rest)):
        return None
    id, predicted = worth_most({id: share or 1.0 for id, share in shares.items()}, state, kernel, history)
    reason = "every configuration was tried, so a paused trial trains in full"
    if predicted:
        reason += f"; predicts {history.problem.goal.metric} {predicted['mean']:.4g} ± {predicted['sd']:.2g}"
    return resume_to_end(id, state, history, ALL_TRIED, reason, predicted)


def leading_again(ladder: Asynchronous, history: History) -> Start | None:
    """Return the leading configuration that no trial has trained in full, to do so before the model is fitted."""
    key, done = history.problem.space.key_of_canonical, in_full(history)
    left = [t.id for t in history.trials if len(t.values) and key(dict(t.config)) not in done]
    if not left:
        return None
    config = dict(history.trial(leader(ladder, left)).config)
    reason = "every configuration was tried; of those that were not trained in full, this one leads"
    return Start(config, tags={ALL_TRIED: True}, reason=reason)


def in_full(history: History) -> set[str]:
    """Return the keys of the configurations that a trial has trained in full, or trains now."""
    done = (t for t in history.trials if t.complete or t.status is Status.RUNNING)
    return {history.problem.space.key_of_canonical(dict(t.config)) for t in done}


def worth_most(
    prices: Mapping[int, float], state: LadderState, kernel: StageKernel | None, history: History
) -> tuple[int, dict[str, Any]]:
    """Return the trial with the largest expected improvement for its price, and its prediction.

    Before a trial is complete, that is the one with the best predicted value; before the model is fitted, the one that
    leads at the highest rung, without a prediction.
    """
    posterior = None if kernel is None else state.model.posterior(kernel, history, state.rows.table)
    if posterior is None or (scale := posterior[1]) is None:
        return leader(state.ladder, prices), {}
    ids, process = list(prices), posterior[0]
    mean, deviation = process.ends(history.points[ids], seen=True)
    worth = mean
    if (best := process.best_end) is not None:
        worth = expected_improvement(mean, deviation**2, best) / np.array(list(prices.values()))
    found = int(worth.argmax())
    return ids[found], expected(scale, history.problem.goal.sign, float(mean[found]), float(deviation[found]))


def in_time(state: LadderState, history: History, rest: Remaining, spare: bool = True) -> dict[int, float]:
    """Return the paused trials that can still be trained in full, each with its share of the rest of the budget."""
    found = {}
    for trial in history.with_status(Status.PAUSED):
        on = state.ladder.trials[trial.id]
        waits = not on.last and on.result not in (None, OUT)
        if waits and (share := rest.share(trial, spare)) <= 1.0:
            found[trial.id] = share
    return found


def _one_in_full(state: LadderState, history: History, besides: int | None = None) -> bool:
    """Return whether one trial was trained in full, or another one is running that can still be."""
    if state.ladder.one_in_full:
        return True
    under_way = (t for t in history.with_status(Status.RUNNING) if t.id != besides)
    return any(Remaining(history, state.horizon, t).trains(t) for t in under_way)


def leader(ladder: Asynchronous, ids: Iterable[int]) -> int:
    """Return the trial with the best value at the highest rung."""
    return min(ids, key=lambda id: (-ladder.trials[id].rung, *ladder.trials[id].key(id)))


def resume_to_end(
    id: int, state: LadderState, history: History, tag: str, reason: str, evidence: dict[str, Any]
) -> Resume:
    tags = {**history.trial(id).tags, "rung": state.ladder.trials[id].rung + 1, tag: True}
    return Resume(id, state.horizon, state.horizon, tags, reason, evidence)


# -- reasons


def expected(
    scale: LogRegrets | None, sign: float, mean: float, deviation: float, ucb: float | None = None
) -> dict[str, Any]:
    """Return the prediction in the metric's unit; nothing before two finite values differ."""
    if scale is None:
        return {}
    value, low, high = scale.height(np.array([mean, mean - deviation, mean + deviation])).tolist()
    found = {"mean": sign * value, "sd": (high - low) / 2.0}
    return found if ucb is None else {**found, "ucb": sign * float(scale.height(np.array(ucb)))}


def compared_from(epoch: int, correlation: float, problem: Problem) -> str:
    """Return from which epoch on trials are compared; correlation: of that rung with the end."""
    if epoch == problem.max_epochs:
        return "trials are compared only at the end: the order before does not predict the final order"
    return (
        f"trials are compared from {problem.at(epoch)}: the order there predicts the final order well "
        f"(estimated correlation {correlation:.2f})"
    )
