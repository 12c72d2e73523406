"""What came of a search: everything a study tells, as far as this process has read its log."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from haltune._utils.words import plural, settings, short
from haltune.above import above
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.fate import fate_of
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Budget
from haltune.log.records import Best, OnFront, TrialRecord
from haltune.log.spending import Outcome, Spent
from haltune.notebook import table
from haltune.store.checkpoints import Checkpoints

from .session.asking import outcome
from .session.attempt import Attempt
from .session.session import Log
from .session.voice import standing

if TYPE_CHECKING:
    import pandas as pd

    from haltune.policies.autobct.gain import Outlook
    from haltune.policies.truvar.answers.answers import LevelSet, Maximisers

    from .audit import Audit


_ROWS = 50  # trials that a notebook shows, the newest


class Results(ABC):
    """The half of a Study that only reads: the log as far as this process has read it, to one position."""

    name: str
    policy: Policy[Any]
    budget: Budget

    @property
    @abstractmethod
    def _log(self) -> Log:
        """The log as far as this process has read it."""

    @abstractmethod
    def sync(self) -> None:
        """Read what was appended since."""

    def _repr_html_(self) -> str:
        history, outcome = self.history, self.outcome
        problem, over = history.problem, outcome.over and not outcome.held
        rows = [
            (
                t.id,
                fate_of(t, problem, over).words,
                f"{t.epoch:g}",
                short(t.result(problem.goal)),
                settings(t.config),
            )
            for t in history.trials[-_ROWS:]
        ]
        head = f"Study {self.name!r}", standing(history, self.budget, over), outcome.reason
        return table(head, ("trial", "outcome", "epochs", problem.goal.metric, "configuration"), rows)

    @property
    def history(self) -> History:
        """The log as far as this process has read it."""
        return self._log.history

    @property
    def trials(self) -> Sequence[TrialRecord]:
        """All trials, as far as this process has read the log."""
        return self.history.trials

    @property
    def best(self) -> Best | None:
        """The best run of those that haltune did not cut; before there is one, of those that went furthest.

        The goal says whether a run counts for its last epoch or for its best. Where there are constraints, the best of
        those that keep to them; where none does, the one that is the least beyond. None before one has a value.

        Raises InvalidInput with several goals, where `pareto_front` tells the runs that nothing betters.
        """
        if self.history.problem.further:
            names = " and ".join(goal.metric for goal in self.history.problem.goals)
            raise InvalidInput(
                f"no run is the best in {names} together: study.pareto_front() lists those that nothing betters in all"
            )
        return self._kept(self.history.best())

    def pareto_front(self) -> list[OnFront]:
        """The runs that no other run dominates: at least as good in every goal, and better in one.

        Of the runs that haltune did not cut; before there is one, of those that went furthest. Where there are
        constraints, of those that keep to them; where none does, of those that are the least beyond. A run counts for
        its last epoch; one without a finite value in some goal is not on the front.

        Returns:
            The best in the first goal first, each with its trial, config, values by metric, epoch and checkpoint.

        Example:
            >>> from haltune import Float, Maximize, Minimize, Study
            >>> goals = [Maximize("acc"), Minimize("ms")]
            >>> study = Study({"width": Float(1, 9)}, goals, max_epochs=1, seed=0, budget="9 trials")
            >>> for trial in study:
            ...     width = trial.config["width"]
            ...     verdict = trial.report({"acc": 1 - 1 / width, "ms": 3 * width})
            >>> len(study.pareto_front())  # the wider, the more accurate and the slower: none betters another
            9
            >>> sorted(study.pareto_front()[0].values)
            ['acc', 'ms']
        """
        return [self._kept(self.history.on_front(id)) for id in self.history.front()]

    @property
    def best_params(self) -> dict[str, Any]:
        """The configuration of the best run, a copy. Raises InvalidInput when no run has a value yet."""
        return dict(self._the_best.config)

    @property
    def best_value(self) -> float:
        """What the best run counts for, the goal's metric. Raises InvalidInput when no run has a value yet."""
        return self._the_best.value

    @property
    def best_trial(self) -> TrialRecord:
        """The record of the best run: its curve, times and metrics. Raises InvalidInput when no run has a value yet."""
        return self.history.trial(self._the_best.trial)

    @property
    def _the_best(self) -> Best:
        if (best := self.best) is None:
            raise InvalidInput(
                f"no run of {self.name!r} has a value yet, of {plural(len(self.history), 'trial')}: until then "
                "study.best is None"
            )
        return best

    @property
    def checkpoints(self) -> Checkpoints:
        """Where the checkpoints of paused trials are kept."""
        return self._log.checkpoints

    @property
    def spent(self) -> Spent:
        """What the search has cost so far."""
        return self.history.spent

    @property
    def outcome(self) -> Outcome:
        """Whether the search is over, and why."""
        return outcome(self._log, self.budget)

    @property
    def lost(self) -> Set[int]:
        """The trials that are running as the log has it, though their workers are gone. Who trains knows no such."""
        return frozenset()

    @property
    def idle(self) -> bool:
        """True when the search is not over, and nobody trains now."""
        return False

    def recommend(self) -> Best | None:
        """The tried configuration with the highest posterior mean: for noisy metrics."""
        from haltune.policies.bayesopt.recommend import recommend

        self._need_one_goal("recommend()")
        return self._kept(recommend(self.history))

    def outlook(
        self, time: float | str = "1h", policy: Policy[Any] | None = None, worlds: int = 200, seed: int = 0
    ) -> Outlook:
        """What another `time` of search would gain, whoever has searched; see haltune.policies.autobct.outlook.

        A search by AutoBCT, or by the one that is given, is simulated; of any other, records tell.
        """
        from haltune.policies.autobct.gain import outlook

        self._need_one_goal("outlook()")
        return outlook(self.history, time, policy or self.policy, worlds, seed)

    @overload
    def _kept(self, best: OnFront) -> OnFront: ...
    @overload
    def _kept(self, best: Best | None) -> Best | None: ...

    def _kept(self, best: Best | None) -> Best | None:
        """Without a checkpoint that is not there any more."""
        gone = best is not None and self._log.checkpoints.missing(best.checkpoint)
        return replace(best, checkpoint=None, checkpoint_epoch=None) if best is not None and gone else best

    def level_set(self, threshold: float | None = None) -> LevelSet:
        """Which configurations reach the policy's threshold, or another; see haltune.policies.truvar.answers."""
        from haltune.policies.truvar.answers.answers import level_set

        self._need_one_goal("level_set()")
        with self._log.lock:  # another thread must not read on in between
            return level_set(self.history, self.events(), self.policy, threshold)

    def maximisers(self) -> Maximisers:
        """Which configurations may be the best, and how close the first of them is to it."""
        from haltune.policies.truvar.answers.answers import maximisers

        self._need_one_goal("maximisers()")
        with self._log.lock:
            return maximisers(self.history, self.events(), self.policy)

    def _need_one_goal(self, what: str) -> None:
        """Raises InvalidInput for what cannot be said of several goals, or within constraints."""
        if not self.history.problem.plain:
            raise InvalidInput(
                f"study.{what} tells of one goal without constraints; study.pareto_front() tells of several"
            )

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
        """Write the page about the search, one file that opens anywhere; see haltune.report.write. Returns its path.

        path: its file. Default: None, the study's name, or its store's, with .html, where you are.
        """
        found: Path = above("page", "study.report", "haltune.report.write(study)")(self, path)
        return found

    def frame(self) -> pd.DataFrame:
        """One row a report. Raises ImportError saying how to get pandas when it is missing."""
        from .table import frame

        return frame(self.history)

    def explain(self, trial: int | Attempt | TrialRecord | Best, whole: bool = True) -> str:
        """Each decision on a trial: reason, numbers, what it saved. whole: False, only how it began and ended.

        Raises InvalidInput for what is no trial of this study.
        """
        from .receipt import receipt, short_receipt

        id = trial.trial if isinstance(trial, Best) else getattr(trial, "id", trial)
        if isinstance(id, bool) or not isinstance(id, int):
            raise InvalidInput(f"explain(trial) takes a trial, its number or study.best, not {trial!r}")
        with self._log.lock:
            over = self.outcome.over and not self.outcome.held
            if not whole:
                return short_receipt(self.history, id, over)
            return receipt(self.history, id, self.events(), over)

    def events(self, start: int = 0) -> Iterator[ev.Event]:
        """The log from position `start` on, in order, as far as this process has read it: to `history.position`."""
        return self._log.events(start)
