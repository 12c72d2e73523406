"""What came of a search: everything a study tells, as far as this process has read its log."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence, Set
from typing import Any

from haltune.display import plural, settings, short, table
from haltune.errors import InvalidInput
from haltune.log.fate import fate_of
from haltune.log.records import Best, OnFront, TrialRecord
from haltune.log.spending import Spent
from haltune.store.base import Store

from .messages import standing_line
from .telling.questions import Questions

_ROWS = 50  # trials that a notebook shows, the newest


class Results(Questions):
    """The half of a Study that only reads: the log as far as this process has read it, to one position."""

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
        head = f"Study {self.name!r}", standing_line(history, self.budget, over), outcome.reason
        return table(head, ("trial", "outcome", "epochs", problem.goal.metric, "configuration"), rows)

    @property
    def store(self) -> Store:
        """Where the log is kept."""
        return self._log.store

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
    def spent(self) -> Spent:
        """What the search has cost so far."""
        return self.history.spent

    @property
    def lost(self) -> Set[int]:
        """The trials that are running as the log has it, though their workers are gone. Who trains knows no such."""
        return frozenset()

    @property
    def idle(self) -> bool:
        """True when the search is not over, and nobody trains now."""
        return False
