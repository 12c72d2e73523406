"""MultiFidelity: one search for every kind of training.

Trials climb one ladder of rungs, as in asynchronous successive halving (Li et al. 2020, ASHA; hyperband.engine). What
differs is learnt within the study, by one Gaussian process of what runs reached at each rung (`stage_process`):

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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array
from haltune._utils.checks import MOST_POINTS, check_whole
from haltune.display import plural
from haltune.errors import InvalidInput, warn
from haltune.log.decisions import AUDIT, ENQUEUED, Action, Finish, Move, Resume, Start, Verdict, Wait
from haltune.log.events import Ended, Event, Expired, Reported, Resumed, Started, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Problem
from haltune.log.records import TrialRecord
from haltune.old_names import takes_old_names
from haltune.policies.acquisition import expected_improvement
from haltune.policies.bayesopt import chosen_to
from haltune.policies.hyperband.brackets import Bracket, Plan, Rung, exact
from haltune.policies.hyperband.engine import OUT, Asynchronous, Promotion, Sampler
from haltune.policies.hyperband.policy import FEWEST_COMPARED, MOST_COMPARED, check_cuts, usual_min_trials

from .prior_studies import Lessons, Model, earlier_in_words, earlier_studies_of
from .stage_process import CurveRows, LogRegret, StageKernel, Stages, candidates, first_untried

_RUNG_RATIO = 3  # ratio of the epochs of rungs
_TOO_CLOSE = 1.25  # to the horizon: a rung there would compare what is nearly trained in full
_RANDOM_TRIALS = 3  # drawn at random where earlier studies tell where to begin, and half of the next


@dataclass
class LadderState:
    ladder: Asynchronous
    rows: CurveRows
    model: Model = field(repr=False, compare=False)  # what it learns by
    pauses: Pauses
    baseline: int | None = None  # the first trial that the user enqueued

    @property
    def horizon(self) -> float:
        return float(self.ladder.horizon or 1)


@takes_old_names
@dataclass(frozen=True)
class MultiFidelity(Policy[LadderState]):
    """One search for every kind of training: it learns how much early epochs say, and compares runs no sooner.

    What `Study(problem)` runs when no policy is given. Endless: a budget ends it. Whoever paused may still go on, so
    their checkpoints stay; `Checkpointing(disk_quota=)` bounds them. Where the first run that is to pause has saved
    nothing, or cannot, runs are stopped for good from then on: one that others overtake later is then lost. The first
    configuration that the user enqueues trains in full: it shows what the search gains.

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

    @property
    def spec(self) -> dict[str, Any]:
        spec = super().spec
        earlier = [study.to_json() for study in spec.pop("learn_from")]
        return {**spec, "learn_from": earlier} if earlier else spec

    def taught_by(self, studies: Sequence[Any]) -> MultiFidelity:
        return replace(self, learn_from=(*self.learn_from, *earlier_studies_of(studies)))

    def as_recorded(self, spec: Mapping[str, Any]) -> MultiFidelity:
        earlier = earlier_studies_of(spec.get("learn_from", ()))
        return self if earlier == self.learn_from else replace(self, learn_from=earlier)

    def remarks(self, problem: Problem) -> list[str]:
        return Lessons.of(self.learn_from, problem.space, Stages((1,), problem.space.dim)).remarks()

    def rungs(self, horizon: int, min_epochs: int = 0) -> tuple[int, ...]:
        """Return the epochs at which trials may be compared: 1, 3, 9, 27, and the horizon 50.

        None is below min_epochs.
        """
        epochs = [max(1, min_epochs)]
        while epochs[-1] * _RUNG_RATIO * _TOO_CLOSE < horizon:
            epochs.append(epochs[-1] * _RUNG_RATIO)
        return (*epochs, horizon) if epochs[0] * _TOO_CLOSE < horizon else (horizon,)

    def start(self, problem: Problem) -> LadderState:
        if problem.max_epochs is None:
            raise InvalidInput(
                "MultiFidelity needs a horizon: give the Problem max_epochs, or choose InfiniteHyperband()"
            )
        rungs = self.rungs(problem.max_epochs, problem.min_epochs)
        stages = Stages(rungs, problem.space.dim, len(self.learn_from))
        lessons = Lessons.of(self.learn_from, problem.space, stages)
        model = (
            Model(stages, self.initial, lessons) if lessons else Model(Stages(rungs, problem.space.dim), self.initial)
        )
        bracket = Bracket(tuple(Rung(MOST_COMPARED, float(n)) for n in rungs), 0)
        promotion = Promotion(exact(self.eta))
        ladder = Asynchronous(problem, Plan(repeat(bracket)), Sampler("random"), "epochs", promotion, rising=True)
        return LadderState(ladder, CurveRows(problem.goal), model, Pauses())

    def fold(self, state: LadderState, event: Event) -> LadderState:
        state.pauses.take(state.rows, event)
        if state.baseline is None and isinstance(event, Started) and event.evidence.get(ENQUEUED):
            state.baseline = event.trial
        state.ladder.take(event)
        state.rows.take(event)
        return state

    def judge(self, state: LadderState, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """On to the rung where runs are compared; from there on, PAUSE unless it leads."""
        promotion = None
        if state.ladder.reaches(trial):
            promotion = self._promotion(state, history, state.model.kernel(history, state.rows.table))
        verdict = state.ladder.judge(history, trial, promotion)
        in_full = None
        if trial.id == state.baseline:
            in_full = "the first that you enqueued trains in full, to compare with"
        elif trial.tags.get(CLOSING):
            in_full = "it trains in full, for no new run would end within the budget"
        if in_full and "rung" in verdict.evidence:
            # all that it lacks is set aside, not only the next rung
            return Verdict(Action.CONTINUE, f"{verdict.reason}; {in_full}", verdict.evidence, state.horizon)
        verdict = unless_late(verdict, state, history, trial)
        if state.pauses.declined and verdict.action is Action.STOP and "rank" in verdict.evidence:
            return replace(verdict, reason=f"{verdict.reason}; stopped for good, for runs cannot pause here")
        return verdict

    def propose(self, state: LadderState, history: History, rng: Generator) -> Move:
        """The trial that continues at the highest rung, or the configuration that may end best."""
        kernel = state.model.kernel(history, state.rows.table)
        promotion = self._promotion(state, history, kernel)
        move = state.ladder.propose(history, promotion)
        if (last := instead(move, state, kernel, history)) is not None:
            return last
        if not isinstance(move, Start) or kernel is None:
            return move
        begun, base = len(history), promotion.base
        # where earlier studies tell where to begin, all but a few take turns: what misleads is not all that is seen
        told = state.model.lessons is not None and begun >= _RANDOM_TRIALS and begun % 2
        if begun < self._cuts(history).initial and not told:
            compared = compared_from(kernel.stages.epochs[base], float(kernel.foretells[base]), history.problem)
            return replace(move, reason=f"drawn at random; {compared}")
        return self._chosen(move, base, kernel, state, history, rng)

    def _cuts(self, history: History) -> Cuts:
        return Cuts(self.initial, self.eta, self.first_cut, self.min_trials_per_rung).within(
            history.budget, len(history)
        )

    def _promotion(self, state: LadderState, history: History, kernel: StageKernel | None) -> Promotion:
        """How few continue, compared from the rung on that the study has learnt.

        While it has not, from the second, where eight runs to that cost no more than a full training; else the first.
        """
        cuts, horizon, ladder = self._cuts(history), state.ladder.horizon or 1, state.ladder
        epochs = self.rungs(horizon, ladder.min_epochs)
        second = len(epochs) > 1 and FEWEST_COMPARED * epochs[1] <= horizon
        base = int(second) if kernel is None else first_rung(kernel.foretells, epochs)
        stops = state.pauses.declined  # decided on arrival, and nobody waits to be compared
        fewest = 1 if stops else cuts.waiting(horizon, epochs[base])
        return Promotion(exact(cuts.eta), exact(cuts.first), stops, fewest, base)

    def _chosen(
        self, move: Start, base: int, kernel: StageKernel, state: LadderState, history: History, rng: Generator
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


# -- how few continue, and from which rung on

_TRIALS = 20  # of a budget of trials alone: half of each rung then go on


@dataclass(frozen=True)
class Cuts:
    """What the ladder is climbed by."""

    initial: int  # trials that are drawn at random
    eta: float  # one in so many of a rung goes on
    first: float  # the same of the rung where runs are first compared
    min_trials_per_rung: int | None = None  # that are compared before any goes on; None: the usual number
    most: int = MOST_COMPARED  # of these

    def within(self, budget: Budget | None, begun: int = 0) -> Cuts:
        """The same, or milder where a budget bounds trials and nothing else.

        Few trials are soon begun: a search that dropped all but one in eighteen of twenty would have learnt nothing by
        then, and trained two in full. Of n trials one in 2 (n / 20)^(1/2) goes on from the first rung, and one in
        2 (n / 20)^(1/4) from the others, a third are drawn at random and a fifth wait for each other. Of a budget that
        is smaller than what was begun, n is that: a search that is over does not continue for being given less.
        """
        if budget is None or budget.trials is None or budget != Budget(trials=budget.trials):
            return self
        n = max(budget.trials, begun)
        return Cuts(
            min(self.initial, max(2, n // 3)),
            min(self.eta, max(1.1, 2 * (n / _TRIALS) ** 0.25)),
            min(self.first, max(1.0, 2 * (n / _TRIALS) ** 0.5)),
            self.min_trials_per_rung,
            max(2, n // 5),
        )

    def waiting(self, horizon: int, epochs: int) -> int:
        """How many are compared, at so many epochs, before any goes on."""
        return self.min_trials_per_rung or min(self.most, usual_min_trials(horizon, epochs))


_TRAININGS = 8  # full trainings that a rung is weighed for


def first_rung(foretells: Array, epochs: tuple[int, ...]) -> int:
    """The rung that finds the best run for the price of eight full trainings.

    So many epochs begin n = 8 N / epochs runs to a rung, the best of n is about z(1 - 1 / n) deviations above the mean
    there, z the normal quantile, and the share of that which it keeps to the end is the correlation `foretells` (K,) of
    the rung with the last. The largest product wins, the earlier of equals.
    """
    counts = [max(_TRAININGS * epochs[-1] / n, 2.001) for n in epochs]
    above = [NormalDist().inv_cdf(1 - 1 / n) for n in counts]
    return int(np.argmax(foretells * np.array(above)))


@dataclass
class Pauses:
    """Trials that were told to pause, and whether one could not.

    A trial that was killed, or interrupted, before it had paused says nothing: it may have been about to save.
    """

    told: set[int] = field(default_factory=set)  # under way, in the attempt in which they were told
    declined: bool = False  # one paused with nothing to continue from, or trained on

    def take(self, rows: CurveRows, event: Event) -> None:
        if not isinstance(event, Reported | Ended | Expired | Resumed):
            return
        t = rows.trials.get(event.trial)
        if t is None or (not isinstance(event, Resumed) and event.attempt != t.attempt):
            return  # superseded
        if not isinstance(event, Reported):
            self.told.discard(event.trial)
            paused = isinstance(event, Ended) and event.status is Status.PAUSED
            self.declined = self.declined or (paused and t.saved < t.at)
        elif event.trial in self.told:
            self.declined = self.declined or (t.held and event.epoch > t.at)
        elif t.held and event.verdict.action is Action.PAUSE:
            self.told.add(event.trial)


# -- what continues as the budget ends

# What goes on as the budget ends: what begins or goes on by then can still be trained in full.
#
# Where what the ladder would do cannot, a paused run that can is trained in full, of several the one that promises most
# of what it takes: by its expected improvement, over the best that was trained in full, for its share of what is left.
# Where none can, the search is over once one run was trained in full; before that the ladder does what it would, unless
# one under way can still be. A run that leads goes on by the same rule: not on what another needs for its end.
CLOSING = "closing"  # tag of a run that is trained in full, for the budget ends


def instead(move: Move, state: LadderState, kernel: StageKernel | None, history: History) -> Move | None:
    """What goes on in place of a move that would not end within the budget; None: the move does."""
    ladder, rows, remaining = state.ladder, state.rows.table, Remaining(history, state.horizon)
    if not too_late(move, remaining, history):
        return None
    shares = in_time(ladder, remaining, history)
    if not shares and not _one_in_full(state, history):  # one that may end too late is better than none
        shares = in_time(ladder, remaining, history, spare=False)
    if not shares:
        if not _one_in_full(state, history):
            return None
        why = "what is left of the budget trains no other run in full"
        return Wait(f"{why}, and some are still trained") if history.running else Finish(why)
    scale = state.model.scale(history, rows)
    if kernel is None or scale is None:  # the one that leads at the highest rung
        id = min(shares, key=lambda id: (-ladder.trials[id].rung, *ladder.trials[id].key(id)))
        return trained_in_full(id, ladder, history, shares, {})
    process, ids = state.model.process(kernel, history, rows, scale), list(shares)
    # the largest expected improvement for its share
    mean, deviation = process.ends(history.points[ids], seen=True)
    worth = mean
    if (best := process.best_end) is not None:
        worth = expected_improvement(mean, deviation**2, best) / np.array(list(shares.values()))
    found = int(worth.argmax())
    promise = expected(scale, float(mean[found]), float(deviation[found]))
    return trained_in_full(ids[found], ladder, history, shares, promise)


def too_late(move: Move, remaining: Remaining, history: History) -> bool:
    """Whether what a move begins or goes on with cannot be trained in full; not so of what the user enqueued."""
    if isinstance(move, Resume):
        return remaining.share(history.trial(move.trial)) > 1.0
    return isinstance(move, Start) and not history.queue and remaining.share(None) > 1.0


def unless_late(verdict: Verdict, state: LadderState, history: History, trial: TrialRecord) -> Verdict:
    """The verdict, but a run does not continue from a rung if what others leave of the budget cannot end it."""
    if verdict.action is not Action.CONTINUE or "rung" not in verdict.evidence:
        return verdict
    ends = Remaining(history, state.horizon, trial).share(trial) <= 1.0
    if ends or not _one_in_full(state, history, trial.id):
        return verdict
    reason = f"{verdict.reason}, but what is left of the budget does not train it in full"
    return Verdict(Action.STOP if state.pauses.declined else Action.PAUSE, reason, verdict.evidence)


def in_time(ladder: Asynchronous, remaining: Remaining, history: History, spare: bool = True) -> dict[int, float]:
    """The paused runs that can still be trained in full, and what each takes of what is left. spare: see Remaining."""
    found = {}
    for trial in history.with_status(Status.PAUSED):
        on = ladder.trials.get(trial.id)
        waits = on is not None and not on.last and on.result not in (None, OUT)
        if waits and (share := remaining.share(trial, spare)) <= 1.0:
            found[trial.id] = share
    return found


def _one_in_full(state: LadderState, history: History, besides: int | None = None) -> bool:
    """Whether one run was trained in full, or one besides this is under way and can still be."""
    if state.ladder.one_in_full:
        return True
    under_way = (t for t in history.with_status(Status.RUNNING) if t.id != besides)
    return any(Remaining(history, state.horizon, t).share(t) <= 1.0 for t in under_way)


def trained_in_full(
    id: int, ladder: Asynchronous, history: History, shares: dict[int, float], promise: dict[str, Any]
) -> Resume:
    on, trial = ladder.trials[id], history.trial(id)
    horizon = float(history.problem.max_epochs or on.bracket.rungs[-1].resource)
    name, others = history.problem.goal.metric, len(shares) - 1
    reason = "what is left of the budget trains no new run in full, but this one"
    if others:
        reason += f" or one of {plural(others, 'other')}"
    if promise:
        which = "chosen by the model: " if others else ""
        reason += f"; {which}predicts {name} {promise['mean']:.4g} ± {promise['sd']:.2g}"
    tags = {**trial.tags, "rung": on.rung + 1, CLOSING: True}
    evidence = {**promise, "share": round(shares[id], 4), "in_time": len(shares)}
    return Resume(id, horizon, horizon, tags, reason, evidence)


# What is left of a budget, and whether a run can still be trained in full with it.
#
# What a run takes is what its epochs took so far, for each epoch that it lacks; a new one takes what an epoch took in
# the mean. By the clock each attempt also takes what attempts took beside their epochs: start-up, checkpoints,
# decisions. Wall-clock time is spent by all workers together; of anything else is set aside what runs under way are
# to take until they are compared next. A run under way takes no new attempt; while it is judged, what it has just
# trained is not in the log yet.

_SPARE = 1.1  # seconds and costs are not known exactly, epochs are
Rate = Callable[[TrialRecord | None], float]


class Remaining:
    """The limits on what is trained, as the log has them; that on how many trials start is none of them.

    going: for this trial under way, as it is or as it is judged.
    """

    def __init__(self, history: History, horizon: float, going: TrialRecord | None = None) -> None:
        self.horizon = horizon
        # of each limit what is left, what an epoch of a trial takes (None: of a new one), what an attempt takes
        # beside its epochs, and how many times what is expected these are
        self.limits: list[tuple[float, Rate, float, float]] = []
        budget, spent = history.budget, history.spent
        if budget is None or not spent.epochs:
            return
        pending, attempts, trained = history.pending, 1.0, 0.0
        if going is not None:
            pending, attempts = [t for t in pending if t.id != going.id], 0.0
            trained = going.epoch - history.trial(going.id).epoch
        ahead = [(t, max(0.0, (t.until or horizon) - t.epoch)) for t in pending]

        def limit(left: float, rate: Rate, attempt: float = 0.0, spare: float = _SPARE, together: bool = False) -> None:
            """together: all workers spend it at once, and nothing is set aside."""
            aside = 0.0 if together else sum(rate(t) * epochs for t, epochs in ahead)
            aside += rate(going) * trained
            self.limits.append((left - aside, rate, attempts * attempt, spare))

        def each(taken: float, trial: TrialRecord | None, mean: float) -> float:
            """An epoch of a trial; in the mean over all, of one that has trained none."""
            return taken / trial.epoch if trial is not None and trial.epoch > 0.0 else mean

        if budget.epochs is not None:
            limit(budget.epochs - spent.epochs, lambda t: 1.0, spare=1.0)
        if budget.cost is not None:
            mean = spent.cost / spent.epochs
            limit(budget.cost - spent.cost, lambda t: _SPARE * each(history.cost(t.id) or 0.0 if t else 0.0, t, mean))
        training = spent.training + spent.validation
        # who reports more seconds than a worker has spent tells of another clock
        measured = min(1.0, spent.worker_time / training) if training else 0.0
        beside = _SPARE * max(0.0, spent.worker_time - training) / max(1, history.moves)

        def seconds(t: TrialRecord | None) -> float:
            taken = float(t.seconds.sum()) if t is not None else 0.0
            return _SPARE * measured * each(taken, t, training / spent.epochs)

        if budget.time is not None:
            limit(float(budget.time) - spent.time, seconds, beside, together=True)
        for most in (budget.worker_time, spent.payable(budget)):
            if most is not None:
                limit(float(most) - spent.worker_time, seconds, beside)

    def share(self, trial: TrialRecord | None, spare: bool = True) -> float:
        """Of what is left, what a trial takes until it is trained in full, None: a new one. Above 1 it cannot be.

        spare: with some more, where what an epoch takes is not known exactly.
        """
        trained = 0.0 if trial is None else trial.epoch
        if trial is not None and trial.status is Status.PAUSED:
            trained = trial.checkpoint_epoch  # what was not saved is trained again
        most = 0.0
        for left, rate, attempt, times in self.limits:
            takes = (attempt + (self.horizon - trained) * rate(trial)) / (1.0 if spare else times)
            most = max(most, takes / left if left > 0.0 else math.inf)
        return most


# -- reasons


def Guided(policy: Policy[Any] | None = None, *_: Any, **options: Any) -> MultiFidelity:
    """The name of another search until version 0.4; neither the policy inside nor the options are used."""
    warn("Guided is gone, because the default search is better. Write MultiFidelity().")
    return MultiFidelity()


def expected(scale: LogRegret | None, mean: float, deviation: float, ucb: float | None = None) -> dict[str, Any]:
    """What is expected, in the metric's unit, once there is a value that says what that is."""
    if scale is None:
        return {}
    told = {"mean": scale.value(mean), "sd": scale.deviation(mean, deviation)}
    return told if ucb is None else {**told, "ucb": scale.value(ucb)}


def chosen_because(history: History, evidence: dict[str, Any]) -> str:
    """Why a configuration begins, from the numbers behind it."""
    known = [plural(evidence["rows"], "value")] if evidence["rows"] else []
    known += [earlier_in_words(**earlier) for earlier in evidence.get("earlier", ())]
    seen = " and ".join(known)
    why = f"chosen by what is known of prior studies: {seen}"
    if "mean" in evidence:
        why = chosen_to(history, evidence["mean"], evidence["sd"], seen)
    compared = compared_from(evidence["compared_from"], evidence["foretells"], history.problem)
    return f"{why}; {compared}"


def compared_from(epoch: int, foretells: float, problem: Problem) -> str:
    """From where on trials are compared, as the study has learnt; foretells: its correlation with the end."""
    if epoch == problem.max_epochs:
        return "trials are compared only at the end: the order before does not predict the final order"
    return (
        f"trials are compared from {problem.at(epoch)}: the order there predicts the final order well "
        f"(estimated correlation {foretells:.2f})"
    )
