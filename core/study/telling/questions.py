"""What a study answers from its log, as far as this process has read it: beliefs, decisions, tables, a page."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from haltune._utils.checks import python_number
from haltune.above import above
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.comparison import Comparisons
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Budget
from haltune.log.records import Best, OnFront, TrialRecord
from haltune.log.spending import Outcome
from haltune.store.checkpoints import Checkpoints

from ..asking import outcome
from ..attempt import Attempt, Log

if TYPE_CHECKING:
    import pandas as pd

    from haltune.policies.truvar.answers import LevelSet, Maximisers

    from .audit import Audit
    from .outlook import Outlook


class Questions(ABC):
    """What a Study and a log that is only read answer alike."""

    name: str
    policy: Policy[Any]
    budget: Budget

    @property
    @abstractmethod
    def _log(self) -> Log:
        """The log as far as this process has read it."""

    @property
    def history(self) -> History:
        """The log as far as this process has read it."""
        return self._log.history

    @property
    def checkpoints(self) -> Checkpoints:
        """Where the checkpoints of paused trials are kept."""
        return self._log.checkpoints

    @property
    def outcome(self) -> Outcome:
        """Whether the search is over, and why."""
        return outcome(self._log, self.budget)

    def recommend(self) -> Best | None:
        """The tried configuration with the highest posterior mean: for noisy metrics.

        Returns:
            It with the value that it came to; None before a run has a value.

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
            The probability, and the time or cost that it is for; print it.

        Raises:
            InvalidInput: For policies other than the default search and RandomSearch, with fewer than 5 trials or
                more than 200, for a metric that takes few values, and with several goals or constraints.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> study.outlook().probability in (0.5, 0.7)
            True
        """
        from .outlook import outlook

        self._need_one_goal("outlook()")
        return outlook(self.history, self.policy.predicts)

    def level_set(self, threshold: float | None = None) -> LevelSet:
        """Which configurations reach the policy's threshold, or another; see haltune.policies.truvar.answers.

        Args:
            threshold: A value of the metric, its own units. Default: None, that of the policy.

        Returns:
            The configurations looked at, each with its chance to reach it; print it.

        Raises:
            InvalidInput: Without a threshold where the policy has none, and before enough trials have finished.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> study.level_set(threshold=1.0).threshold
            1.0
        """
        from haltune.policies.truvar.answers import level_set

        self._need_one_goal("level_set()")
        with self._log.lock:  # another thread must not read on in between
            return level_set(self.history, self.events(), self.policy, threshold)

    def maximisers(self) -> Maximisers:
        """Which configurations may be the best, and how close the first of them is to it.

        Returns:
            The configurations that may be the best, the likeliest first; print it.

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
        """How often stopping was wrong, measured on the runs that `audit=` of Halting or BOBOS lets train on.

        Runs that failed, were cut by something else or are not over count as unknown, and the rates are of the others.
        `K1` is the least with which at most the `wanted` share of the stops among the audited runs would have been
        wrong; a smaller one than the present, which stops more, only where the whole interval lies below that share.
        It is approximate: each decision's loss of going on stays as it was recorded, though it grows a little with K1;
        a run that a larger K1 lets go on at its would-be stop is taken never to be stopped; and no more runs than were
        audited tell it: `at_K1` is the share among them, with its interval. None while there is no would-be stop whose
        end is known, or where no K1 changes it; `advice` says which, and whether the stops are enough to tell.

        Args:
            wanted: share of stops that may be wrong. Default: 0.02.

        Returns:
            The counts, rates with exact 95% intervals, epochs and K1; print it.

        Raises:
            InvalidInput: for a share that is not at least 0 and below 1.

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
            (6, 4, 0, 43.0)
            >>> print(found.of_stops)
            0 of 4: 0%, 95% interval 0% to 60.2%
        """
        from .audit import audit

        self._need_one_goal("audit()")
        with self._log.lock:
            return audit(self.history, self.events(), wanted)

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the page about the search, one file that opens anywhere, and return its path; see haltune.report.write.

        Args:
            path: Its file. Default: None, the study's name, or its store's, with .html, where you are.

        Raises:
            OSError: When the file cannot be written.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> study.report().name
            'study.html'
        """
        found: Path = above("page", "study.report", "haltune.report.write(study)")(self, path)
        return found

    def frame(self) -> pd.DataFrame:
        """The search as a table of pandas', one row a report.

        Returns:
            Columns trial, attempt, status, epoch, value, score, seconds, config.NAME and metric.NAME; a cell is empty
            (None, or NaN in a column of numbers) where a parameter is inactive or a metric was not reported.

        Raises:
            ImportError: When pandas is missing, saying how to get it.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> study.frame().shape
            (6, 8)
        """
        from .table import frame

        return frame(self.history)

    def explain(self, trial: int | Attempt | TrialRecord | Best, whole: bool = True) -> str:
        """Each decision on a trial, as text: reason, numbers, what it saved.

        Args:
            trial: It, its number, or study.best.
            whole: False tells only how it began and how it ended. Default: True.

        Raises:
            InvalidInput: For what is no trial of this study.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="6 trials")
            >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
            >>> print(study.explain(5, whole=False).splitlines()[0])
            trial 5: trained in full
        """
        from .receipt import receipt, short_receipt

        id = trial.trial if isinstance(trial, Best) else trial
        id = id.id if isinstance(id, Attempt | TrialRecord) else python_number(id)
        if isinstance(id, bool) or not isinstance(id, int):
            raise InvalidInput(f"explain(trial) takes a trial, its number or study.best, not {trial!r}")
        with self._log.lock:
            over = self.outcome.over and not self.outcome.held
            if not whole:
                return short_receipt(Comparisons(self.history, over), id)
            return receipt(self.history, id, self.events(), over)

    def events(self, start: int = 0) -> Iterator[ev.Event]:
        """The log in its order, as far as this process has read it: to `history.position`.

        Args:
            start: The first position. Default: 0.

        Returns:
            Events, frozen dataclasses of haltune.log.events.

        Raises:
            StoreError: When the store is out of reach.

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
        """Without a checkpoint that is not there any more."""
        gone = best is not None and self._log.checkpoints.missing(best.checkpoint)
        return replace(best, checkpoint=None, checkpoint_epoch=None) if best is not None and gone else best

    def _need_one_goal(self, what: str) -> None:
        """Raises InvalidInput for what cannot be said of several goals, or within constraints."""
        if not (problem := self.history.problem).plain:
            instead = "pareto_front() tells of several" if problem.further else "best keeps to them"
            raise InvalidInput(f"study.{what} tells of one goal without constraints; study.{instead}")
