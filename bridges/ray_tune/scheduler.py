"""HaltuneScheduler: haltune stops Ray Tune's trials, and says why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from haltune._utils.checks import check_whole
from haltune.errors import InvalidInput
from haltune.log.decisions import Verdict
from haltune.policies import Halting, RandomSearch
from haltune.policies.bobos.optimal_stopping import OptimalStopping
from haltune.study import Study
from haltune.tuners.conducting import Conducting
from haltune.tuners.conductor import UNLIMITED, Conductor, anonymous, check_epochs, goal_of
from haltune.tuners.results import Result

from .library import DEFAULT_METRIC, TRAINING_ITERATION, Params, tune, words
from .search import HaltuneSearch


class HaltuneScheduler(Conducting, tune.schedulers.FIFOScheduler):  # type: ignore[misc, unused-ignore]
    """Stops a trial when it would not beat the best any more, and keeps for each stop why.

    In a Tuner with `HaltuneSearch` the study that chooses configurations stops trials, too, and this needs no
    arguments. With any other search it stops by optimal stopping, haltune.policies.Halting: when that is worth more
    than to train on, by curves drawn from the run's own epochs and from those of the runs that are over.

    Args:
        max_epochs: Epochs of a full training. Default: None, HaltuneSearch's.
        min_epochs: Epochs before which no trial is stopped, as ASHAScheduler's grace_period. Default: 0, or
            HaltuneSearch's.
        metric: The metric as trials report it. Default: None, TuneConfig's.
        mode: "max" or "min". Default: None, TuneConfig's.
        time_attr: What of a result counts epochs, from 1. Default: "training_iteration".
        seed: Of the simulated curves: the same trials are judged alike. Default: 0.
        bounds: (lowest, highest) value of the metric. Default: None, and the scale is learnt from the trials.
        of: The epoch whose value a run counts for, its "last" or its "best". Default: "last".
        stopping: How the stopping problem is set and solved. Default: None, OptimalStopping().
        store: Where the decisions are kept, as Study takes it: Tune restores no scheduler, and without a store a
            restored Tuner begins to compare anew. Default: None, in memory.
        name: Of the study there. Default: "study".

    Raises:
        InvalidInput: For arguments outside these, and beside HaltuneSearch for those that it has.

    Example:
        >>> scheduler = HaltuneScheduler(max_epochs=30, metric="accuracy", mode="max")
        >>> scheduler.study.problem.goal.metric, scheduler.reasons
        ('accuracy', {})
    """

    def __init__(
        self,
        max_epochs: int | None = None,
        *,
        min_epochs: int = 0,
        metric: str | None = None,
        mode: str | None = None,
        time_attr: str = TRAINING_ITERATION,
        seed: int = 0,
        bounds: tuple[float, float] | None = None,
        of: Literal["last", "best"] = "last",
        stopping: OptimalStopping | None = None,
        store: str | os.PathLike[str] | None = None,
        name: str = "study",
    ) -> None:
        super().__init__()
        check_whole("HaltuneScheduler", 0, seed=seed, min_epochs=min_epochs)
        if max_epochs is not None:
            check_epochs("HaltuneScheduler", max_epochs, min_epochs)
        if stopping is not None and not isinstance(stopping, OptimalStopping):
            raise InvalidInput(f"HaltuneScheduler(stopping={stopping!r}): an OptimalStopping(...), or None")
        if metric is not None or mode is not None:
            goal_of("HaltuneScheduler", metric, mode, bounds, of)
        self._metric, self._mode, self.time_attr = metric, mode, time_attr
        self._max_epochs, self._min_epochs = max_epochs, min_epochs
        self._value: Params = {"bounds": bounds, "of": of}
        self._stopping, self._store = stopping, store
        self._options: Params = {"seed": seed, "name": name}
        self._search: HaltuneSearch | None = None  # which decides

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        if (self._metric and metric) or (self._mode and mode):
            return False
        self._metric, self._mode = metric or self._metric, mode or self._mode
        if self._mode and not self._metric:
            self._metric = DEFAULT_METRIC
        return True

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """See ray.tune.schedulers.TrialScheduler. Raises InvalidInput where nothing could be decided."""
        if self._search is None and (found := _search_of(tune_controller)) is not None:
            self._give_way(found)
        self.conductor  # noqa: B018 - opened before anything trains

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        verdict = self._told(trial, result, judge=True)
        return str(self.STOP if verdict is not None and verdict.stops else self.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        if self._search is None:  # which hears it itself
            self._told(trial, result, judge=False)
            self.conductor.end(trial.trial_id)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        if self._search is None:
            self.conductor.end(trial.trial_id, "the trial failed in Ray Tune")

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        if self._search is None:
            self.conductor.end(trial.trial_id)

    def debug_string(self) -> str:
        """What Tune prints of it."""
        return f"Using haltune: {len(self.reasons)} trials stopped"

    def _told(self, trial: Any, result: Mapping[str, Any], judge: bool) -> Verdict | None:
        if self._search is not None:
            return self._search.told(trial.trial_id, result, judge)
        found = Result.of(result, words(self._metric, self.time_attr))
        if found is None:
            return None
        self.conductor.begin(trial.trial_id)
        return found.told(self.conductor, trial.trial_id, judge)

    def _give_way(self, search: HaltuneSearch) -> None:
        given = (self._max_epochs, self._min_epochs or None, self._stopping, self._store)
        if any(option is not None for option in given):
            raise InvalidInput(
                "beside HaltuneSearch its study decides: write HaltuneScheduler() without max_epochs, min_epochs, "
                "stopping and store. HaltuneSearch(policy=haltune.policies.Halting(...)) stops by optimal stopping"
            )
        self._search, self._conductor = search, None

    @property
    def conductor(self) -> Conductor:
        """See Conducting: that of HaltuneSearch beside it, where there is one."""
        return super().conductor if self._search is None else self._search.conductor

    def _opened(self) -> Study:
        epochs = check_epochs("HaltuneScheduler, without HaltuneSearch beside it,", self._max_epochs)
        goal = goal_of("HaltuneScheduler", self._metric, self._mode, **self._value)
        problem = anonymous(goal, epochs, self._min_epochs)
        policy = Halting(RandomSearch(), self._stopping or OptimalStopping())
        return Study(problem, policy, self._store, budget=UNLIMITED, verbose=0, **self._options)

    @property
    def reasons(self) -> dict[str, str]:
        return super().reasons if self._search is None else self._search.reasons

    def __getstate__(self) -> Params:
        return super().__getstate__() | {"_search": None}  # Tune says again which


def _search_of(tune_controller: Any) -> HaltuneSearch | None:
    """HaltuneSearch, within whatever limits it."""
    found = getattr(tune_controller, "search_alg", None)
    while found is not None and not isinstance(found, HaltuneSearch):
        found = getattr(found, "searcher", None)
    return found
