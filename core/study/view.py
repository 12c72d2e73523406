"""The part of a Study that reads, `StudyView`, and a study opened from its log alone, `RecordedStudy`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, overload

from haltune._utils.checks import python_number
from haltune._utils.disk import StrPath, is_gone
from haltune.above import above
from haltune.display import numeral, settings, short, table
from haltune.errors import HaltuneError, InvalidInput, StoreError
from haltune.log.decisions import Move, Resume
from haltune.log.events import ADVICE, Created, Event, Status
from haltune.log.history import History
from haltune.log.outcomes import Comparisons, outcome_of
from haltune.log.policy import Fold, Policy
from haltune.log.problem import Budget, Problem
from haltune.log.records import Best, OnFront, TrialRecord
from haltune.log.spending import Outcome, Spent
from haltune.store.base import Lease, Store, holder_is_gone, settled
from haltune.store.checkpoints import Checkpoints, own_folder
from haltune.store.open import only_study, open_store
from haltune.store.studies import enqueued, recorded_problem

from .attempt import Attempt, Log, end_of
from .messages import no_value, standing_line
from .proposing import outcome

if TYPE_CHECKING:
    import pandas as pd

    from haltune.policies.truvar.answers import LevelSet, Maximisers

    from .explain import Audit, Outlook

_ROWS = 50  # the newest trials, which a notebook shows


class StudyView(ABC):
    """Properties and methods of a study that read its log, as far as this process has read it."""

    name: str
    policy: Policy[Any]
    budget: Budget

    @property
    @abstractmethod
    def _log(self) -> Log:
        """The log as far as this process has read it."""

    @abstractmethod
    def sync(self) -> None:
        """Read the events that were appended since."""

    def _repr_html_(self) -> str:
        history, outcome = self.history, self.outcome
        problem, over = history.problem, outcome.final
        rows = [
            (
                t.id,
                outcome_of(t, problem, over).words,
                numeral(t.epoch),
                short(t.result(problem.goal)),
                settings(t.config),
            )
            for t in history.trials[-_ROWS:]
        ]
        head = f"Study {self.name!r}", standing_line(history, self.budget, over), outcome.reason
        return table(head, ("trial", "outcome", problem.units, problem.goal.metric, "configuration"), rows)

    @property
    def history(self) -> History:
        """The log as far as this process has read it."""
        return self._log.history

    @property
    def judged(self) -> History:
        """The history as policies and models count it: in points, one per judged report, and with smoothed values.

        It is `history` itself if the study has one judged report per epoch and no smooth=. See haltune.log.points.
        """
        return self.history if self.history.problem.in_points() is self.history.problem else self._log.judged

    @property
    def store(self) -> Store:
        """The store that holds the log."""
        return self._log.store

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoint files of the study."""
        return self._log.checkpoints

    @property
    def trials(self) -> Sequence[TrialRecord]:
        """All trials, as far as this process has read the log."""
        return self.history.trials

    @property
    def spent(self) -> Spent:
        """The cost of the search so far."""
        return self.history.spent

    @property
    def outcome(self) -> Outcome:
        """The end of the search and its reason, if it is over."""
        return outcome(self._log, self.budget)

    @property
    def lost(self) -> Set[int]:
        """The trials that run according to the log although their workers are gone."""
        now, running = self.store.now(), {t.id for t in self.history.with_status(Status.RUNNING)}
        return running.intersection(w.trial for w in self.store.leases(self.name) if self._log.is_lost(w, now))

    @property
    def idle(self) -> bool:
        """True if the search is not over and no worker trains."""
        return False

    @property
    def best(self) -> Best | None:
        """The best complete trial; before there is one, the best of those that trained furthest.

        The goal determines whether a trial counts with its last epoch or with its best. With constraints it is the best
        of the trials that satisfy them, or the one with the smallest violation. None before a trial has a value.

        A trial that trains again after an interruption counts with its earlier attempt until the new one has come as
        far. A value that was recorded does not get worse meanwhile.

        Raises InvalidInput with several goals; see `pareto_front`.
        """
        if self.history.problem.further:
            names = " and ".join(goal.metric for goal in self.history.problem.goals)
            raise InvalidInput(
                f"With several goals ({names}) no trial is the best in all. study.pareto_front() lists the trials "
                "that no other trial dominates."
            )
        if (best := self._kept(self.history.best())) is None:
            self._without_best()
        return best

    def _without_best(self) -> None:  # noqa: B027  a study that is only read logs nothing
        """Called when `best` is None: see Study."""

    def pareto_front(self) -> list[OnFront]:
        """Return the Pareto front: the trials that no other trial dominates.

        A trial dominates another if it is at least as good in every goal and better in one. The front has complete
        trials; before there is one, those that trained furthest. With constraints these are trials that satisfy them,
        or those with the smallest violation. A trial counts with its last epoch. A trial without a finite value in
        some goal is not on the front.

        Returns:
            The best in the first goal first, each with its trial, config, values by metric, epoch and checkpoint.

        Example:
            >>> from haltune import Float, Maximize, Minimize, Study
            >>> goals = [Maximize("acc"), Minimize("ms")]
            >>> study = Study({"width": Float(1, 9)}, goals, max_epochs=1, seed=0, budget="9 trials")
            >>> for trial in study:
            ...     width = trial.config["width"]
            ...     verdict = trial.report({"acc": 1 - 1 / width, "ms": 3 * width})
            >>> len(study.pareto_front())  # a wider one is more accurate and slower: none dominates another
            9
            >>> sorted(study.pareto_front()[0].values)
            ['acc', 'ms']
        """
        return [self._kept(self.history.on_front(id)) for id in self.history.front()]

    @property
    def best_params(self) -> dict[str, Any]:
        """The configuration of the best trial, a copy. Raises InvalidInput before a trial has a value."""
        return dict(self._the_best.config)

    @property
    def best_value(self) -> float:
        """The value with which the best trial counts. Raises InvalidInput before a trial has a value."""
        return self._the_best.value

    @property
    def best_trial(self) -> TrialRecord:
        """The record of the best trial, with its curve. Raises InvalidInput before a trial has a value."""
        return self.history.trial(self._the_best.trial)

    @property
    def _the_best(self) -> Best:
        if (best := self.best) is None:
            raise InvalidInput(f"Study {self.name!r} has no best trial: {no_value(self.history)} study.best is None.")
        return best

    def recommend(self) -> Best | None:
        """Return the tried configuration with the highest posterior mean, for noisy metrics.

        Returns:
            The configuration, with the trial's own value; None before a trial has a value.

        Raises:
            InvalidInput: With several goals or constraints; see `pareto_front`.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> study.recommend().trial in range(6)
            True
        """
        from haltune.policies.bayesopt import recommend

        self._need_one_goal("recommend()")
        return self._kept(recommend(self.history))

    def outlook(self) -> Outlook:
        """Estimate whether the search finds a better configuration if it continues for as long as it has taken.

        Returns:
            The probability, and its time or cost; print it.

        Raises:
            InvalidInput: For policies other than the default search and RandomSearch, with fewer than 5 trials or
                more than 200, for a metric that takes few values, and with several goals or constraints.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> study.outlook().probability in (0.5, 0.7)
            True
        """
        from .explain import outlook

        self._need_one_goal("outlook()")
        return outlook(self.history, self.policy.predicts)

    def level_set(self, threshold: float | None = None) -> LevelSet:
        """Return the configurations that reach a threshold; see haltune.policies.truvar.answers.

        Args:
            threshold: A value of the metric, in its own units. Default: None, that of the policy.

        Returns:
            The configurations considered, each with its probability to reach it; print it.

        Raises:
            InvalidInput: Without a threshold if the policy has none, and before enough trials have finished.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> study.level_set(threshold=1.0).threshold
            1.0
        """
        from haltune.policies.truvar.answers import level_set

        self._need_one_goal("level_set()")
        with self._log.lock:  # another thread must not read more events meanwhile
            return level_set(self.history, self.events(), self.policy, threshold)

    def maximisers(self) -> Maximisers:
        """Return the configurations that may be the best, and how close the first of them is to the best.

        Returns:
            These configurations, the most probable first; print it.

        Raises:
            InvalidInput: Before enough trials have finished.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> len(study.maximisers().configs) > 0
            True
        """
        from haltune.policies.truvar.answers import maximisers

        self._need_one_goal("maximisers()")
        with self._log.lock:
            return maximisers(self.history, self.events(), self.policy)

    def audit(self, wanted: float = 0.02) -> Audit:
        """Measure how often stopping was wrong, on trials that `audit=` of Halting or BOBOS continues beyond a stop.

        Trials that failed, were stopped for another reason or are not over count as unknown, and not in the rates. `K1`
        is the smallest value with which at most the `wanted` share of the audited stops would have been wrong. A
        smaller K1 than the present one stops more trials; it is given only if the whole interval lies below that share.
        `K1` is approximate. The loss of continuing stays as recorded, although it grows a little with K1. A trial that
        a larger K1 continues at its would-be stop counts as never stopped. `at_K1` is the share of wrong stops with
        this K1, with its interval. K1 is None before a would-be stop has a known end, or if no K1 changes the share.
        `advice` explains which, and whether there are enough stops.

        Args:
            wanted: Share of stops that may be wrong. Default: 0.02.

        Returns:
            The counts, rates with exact 95% intervals, epochs and K1; print it.

        Raises:
            InvalidInput: If the share is not at least 0 and below 1.

        Example:
            >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
            >>> from haltune.policies import Halting, RandomSearch
            >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=20)
            >>> study = Study(problem, Halting(RandomSearch(), audit=0.5), seed=0, budget=Budget(trials=12))
            >>> for trial in study:
            ...     with trial:
            ...         for epoch in trial.epochs():
            ...             verdict = trial.report((1 - trial.config["lr"] ** 0.5) * epoch / (epoch + 1))
            >>> found = study.audit()
            >>> found.audited, found.stops, found.wrong, found.cost
            (6, 2, 0, 37.0)
            >>> print(found.of_stops)
            0 of 2: 0%, 95% interval 0% to 84.2%
        """
        from .explain import audit

        self._need_one_goal("audit()")
        with self._log.lock:
            return audit(self.history, self.events(), wanted)

    def explain(self, trial: int | Attempt | TrialRecord | Best, whole: bool = True) -> str:
        """Explain each decision on a trial, as text: its reason, its numbers, and the epochs that it saved.

        Args:
            trial: A trial, its number, or study.best.
            whole: True includes every decision; False only the first and the last. Default: True.

        Raises:
            InvalidInput: If this study has no such trial.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> print(study.explain(5, whole=False).splitlines()[0])
            trial 5: trained in full
        """
        from .explain import explanation, short_explanation

        id = trial.trial if isinstance(trial, Best) else trial
        id = id.id if isinstance(id, Attempt | TrialRecord) else python_number(id)
        if isinstance(id, bool) or not isinstance(id, int):
            raise InvalidInput(f"explain(trial) takes a trial, its number or study.best, not {trial!r}.")
        with self._log.lock:
            over = self.outcome.final
            if not whole:
                return short_explanation(Comparisons(self.history, over), id, self.lost)
            return explanation(self.history, id, self.events(), over, self.lost)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the page about the search, one self-contained file, and return its path; see haltune.report.write.

        Args:
            path: The file. Default: None, the name of the study or of its store, with .html, in the current folder.

        Raises:
            OSError: If the file cannot be written.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> study.report().name
            'study.html'
        """
        found: Path = above("page", "study.report", "haltune.report.write(study)")(self, path)
        return found

    def frame(self) -> pd.DataFrame:
        """Return the search as a pandas table, with a row for each report.

        Returns:
            Columns trial, attempt, status, epoch, value, score, seconds, config.NAME and metric.NAME. The column
            epoch has the name of the study's unit, such as step. A cell is empty (None, or NaN in a column of
            numbers) if a parameter is inactive or a metric was not reported.

        Raises:
            ImportError: If pandas is missing.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> study.frame().shape
            (6, 8)
        """
        from .explain import frame

        return frame(self.history)

    def events(self, start: int = 0) -> Iterator[Event]:
        """Return the events of the log in order, as far as this process has read it: up to `history.position`.

        Args:
            start: The first position. Default: 0.

        Returns:
            Events, frozen dataclasses of haltune.log.events.

        Raises:
            StoreError: If the store cannot be reached.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> sum(event.kind == "reported" for event in study.events())
            6
        """
        return self._log.events(start)

    @overload
    def _kept(self, best: OnFront) -> OnFront: ...
    @overload
    def _kept(self, best: Best | None) -> Best | None: ...

    def _kept(self, best: Best | None) -> Best | None:
        """Return the best trial, without its checkpoint if that was deleted."""
        if best is not None and self._log.checkpoints.missing(best.checkpoint):
            return replace(best, checkpoint=None)
        return best

    def _need_one_goal(self, what: str) -> None:
        if not (problem := self.history.problem).plain:
            instead = "pareto_front() for several goals" if problem.further else "best, which satisfies the constraints"
            raise InvalidInput(f"study.{what} needs one goal without constraints. Use study.{instead}.")


# -- a study opened from its log alone, without its program ------------------------------------------------------------

_BETWEEN = 10.0  # seconds that a program may need from one trial to the next


def read_study(store: Store | StrPath, name: str | None = None, checkpoints: StrPath | None = None) -> RecordedStudy:
    """Open a study for reading, as its log is now; `name` may be None if the store holds one study.

    A URL or a path is opened for reading, which writes nothing and does not wait. checkpoints: their folder, if it was
    given to the Study. Raises StoreError with the names of the store's studies.
    """
    return _recorded(store, name, checkpoints, follow=False)


def follow_study(store: Store | StrPath, name: str | None = None, checkpoints: StrPath | None = None) -> RecordedStudy:
    """Open a study as `read_study`; `sync` then reads new events."""
    return _recorded(store, name, checkpoints, follow=True)


def _recorded(store: Store | StrPath, name: str | None, checkpoints: StrPath | None, follow: bool) -> RecordedStudy:
    store = open_store(store, reading=True)
    name = only_study(store, name)
    return RecordedStudy(store, name, *folded(store, name), checkpoints, follow)


def folded(store: Store, name: str) -> tuple[Created, History]:
    """Return the first event of a study, and its history with paths as recorded. Raises StoreError."""
    first = first_event(store, name)
    history = History(recorded_problem(first))
    history.whose = _whose(store, name)
    for event in store.read(name):
        history.apply(event)
    return first, history


def first_event(store: Store, name: str) -> Created:
    """Return the event that creates a study. Raises StoreError if the log does not start with it."""
    first = next(store.read(name, stop=1), None)
    if not isinstance(first, Created):
        raise StoreError(f"event 0 of {_whose(store, name)} does not create it. {ADVICE}")
    return first


def _whose(store: Store, name: str) -> str:
    return f"the study {name!r} in {store.url}"


class RecordedStudy(StudyView):
    """A study opened from its log, with the policy recorded there and the budget recorded last.

    follow: whether `sync` reads new events; otherwise the view does not change.
    """

    def __init__(
        self, store: Store, name: str, created: Created, history: History, checkpoints: StrPath | None,
        follow: bool,
    ) -> None:  # fmt: skip
        self.name, self._follow = name, follow
        self.policy = _rebuilt(created, history.problem)
        self.budget = history.recorded or Budget()
        kept = Checkpoints(own_folder(store, name, created, checkpoints))
        self.log = _ReadLog(store, name, self.policy, history, kept)
        history.locate = self._locate

    @property
    def problem(self) -> Problem:
        return self.history.problem

    @property
    def _log(self) -> Log:
        return self.log

    def sync(self) -> None:
        """Read new events. Raises StoreError if the log is gone or was created again."""
        if not self._follow:
            return
        with self.log.lock:
            for event in self.store.read(self.name, self.history.position):
                self.history.apply(event)
            self.budget = self.history.recorded or Budget()

    @property
    def outcome(self) -> Outcome:
        """The end of the search and its reason; or why the log does not show it."""
        found = super().outcome
        return Outcome(False, doubt) if not found.over and (doubt := self._doubt()) else found

    def _doubt(self) -> str | None:
        """Return why the log does not show whether the search is over; None if it does."""
        history = self.history
        if history.running or history.interrupted:
            return None
        if history.recorded is None and self.policy.endless:
            return "the log has no budget, so only the search's own program can decide whether it continues"
        budget = history.wishes.extended(self.budget)
        if history.spent.starts_no_more(budget) is not None and isinstance(self.policy, _Unknown):
            return (
                "the log lacks the policy, so only the search's own program can decide whether paused trials continue"
            )
        return None

    @property
    def idle(self) -> bool:
        """See StudyView."""
        return not self.attended and not self.outcome.over and self._doubt() is None

    @property
    def attended(self) -> bool:
        """True if a worker trains or decides; if the view follows the log, also between two trials."""
        now = self.store.now()
        if not all(self.log.is_lost(worker, now) for worker in self.store.leases(self.name)):
            return True
        return self._follow and not self.lost and now < self.history.now + _BETWEEN

    def enqueue(self, store: Store, config: Mapping[str, Any], again: bool = False) -> bool:
        """See Study.enqueue. store: the same, opened for writing. A worker checks the constraints later."""

        def once() -> bool:
            self.sync()
            canonical = self.problem.checked(config, "enqueue(config)")
            event = enqueued(self.history, self.policy, canonical, again, store.now())
            if event is not None:
                store.append(self.name, [event], seen=self.history.position, about=None)
            return event is not None

        return settled(once)

    def _locate(self, path: str) -> str | None:
        found = Path(os.path.abspath(self.checkpoints.folder / path))
        return None if is_gone(found) else str(found)


class _ReadLog:
    """See attempt.Log. The policy's state is folded when it is used."""

    logged_budget: Budget | None = None  # the recorded budget counts
    _folded: Fold | None = None

    def __init__(
        self, store: Store, name: str, policy: Policy[Any], history: History, checkpoints: Checkpoints
    ) -> None:
        self.store, self.name, self.policy, self.history = store, name, policy, history
        self.checkpoints, self.lock = checkpoints, RLock()

    @property
    def problem(self) -> Problem:
        return self.history.problem

    def events(self, start: int = 0) -> Iterator[Event]:
        return self.store.read(self.name, start, self.history.position)

    def is_lost(self, lease: Lease, now: float) -> bool:
        return end_of(lease, self.history) < now or holder_is_gone(self.store, lease.holder)

    @property
    def _fold(self) -> Fold:
        with self.lock:
            if self._folded is None or self._folded.torn:
                before = partial(self.store.read, self.name, 0)
                self._folded = Fold(self.problem, self.policy, self.history.whose, before)
            if (position := self._folded.history.position) < self.history.position:
                self._folded.read(self.events(position))
            return self._folded

    @property
    def state(self) -> Any:
        return self._fold.state

    @property
    def judged(self) -> History:
        return self._fold.judged


class _Unknown(Policy[None]):
    """Stands for a policy that the log does not hold, such as a user's own: paused trials may continue."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    @property
    def spec(self) -> dict[str, Any]:
        return {}

    def start(self, problem: Problem) -> None:
        return None

    def fold(self, state: None, event: Event) -> None:
        return None

    def propose(self, state: None, history: History, rng: Any) -> Move:
        return Resume(0)


def _rebuilt(created: Created, problem: Problem) -> Policy[Any]:
    """Return the policy of a log."""
    from haltune.policies.from_spec import policy_from, suited

    try:
        policy = suited(policy_from(created.policy), problem)
        policy.start(problem)
    except HaltuneError:
        return _Unknown(str(created.policy.get("policy")))
    return policy
