"""HaltuneSearch: a study of haltune's where Ray Tune asks for a configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from haltune.errors import InvalidInput
from haltune.log.decisions import Finish, Verdict, Wait
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Problem
from haltune.space import Space
from haltune.study import Study
from haltune.tuners.conducting import Conducting
from haltune.tuners.conductor import UNLIMITED, check_epochs, goal_of
from haltune.tuners.results import Result

from .library import DEFAULT_METRIC, TRAINING_ITERATION, Params, tune, words
from .spaces import fixed, flat, is_haltunes, nested_config, space_of


class HaltuneSearch(Conducting, tune.search.Searcher):  # type: ignore[misc, unused-ignore]
    """Chooses what Ray Tune trains next, by the values that trials reached at all epochs, stopped ones included.

    It decides as haltune's default search, or as the policy that it is given. With `HaltuneScheduler()` in the same
    Tuner the same study stops trials, too; with another scheduler it learns from what that one leaves. Its state is
    kept beside Tune's own, as JSON: `Tuner.restore` goes on where the search was, its running trials included.

    Args:
        space: Tune's domains, nested as they are, or haltune's. Default: None, the Tuner's param_space.
        metric: The metric as trials report it. Default: None, TuneConfig's.
        mode: "max" or "min". Default: None, TuneConfig's.
        max_epochs: Epochs of a full training: the `time_attr` that a trial comes to when nobody stops it.
        min_epochs: Epochs before which no trial is stopped, as ASHAScheduler's grace_period. Default: 0.
        time_attr: What of a result counts epochs, from 1. Default: "training_iteration".
        bounds: (lowest, highest) value of the metric. Default: None, and the scale is learnt.
        of: The epoch whose value a run counts for, its "last" or its "best". Default: "last".
        points_to_evaluate: Configurations that are trained first. Default: None.
        policy: What decides. Default: None, haltune.policies.MultiFidelity().
        seed: Of all randomness. Default: None, drawn and recorded.
        store: Where the study is kept, as Study takes it: haltune's page and commands open it then, and the program
            started anew goes on with it. Default: None, in memory.
        name: Of the study there. Default: "study".
        learn_from: Earlier studies, as Study takes them. Default: none.

    Raises:
        InvalidInput: For arguments outside these.
        InvalidSpace: For a domain that haltune has not.

    Example:
        >>> search = HaltuneSearch({"lr": Float(1e-4, 1e-1, log=True)}, "accuracy", "max", max_epochs=9, seed=0)
        >>> config = search.suggest("first")
        >>> search.on_trial_complete("first", {"accuracy": 0.8, "training_iteration": 9})
        >>> search.study.best_value, search.study.best_params == config
        (0.8, True)
    """

    _metric: str | None
    _mode: str | None
    CKPT_FILE_TMPL = "searcher-state-{}.json"

    def __init__(
        self,
        space: Space | Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        *,
        max_epochs: int,
        min_epochs: int = 0,
        time_attr: str = TRAINING_ITERATION,
        bounds: tuple[float, float] | None = None,
        of: Literal["last", "best"] = "last",
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        policy: Policy[Any] | None = None,
        seed: int | None = None,
        store: str | os.PathLike[str] | None = None,
        name: str = "study",
        learn_from: Sequence[Any] = (),
    ) -> None:
        self._max_epochs = check_epochs("HaltuneSearch", max_epochs, min_epochs)
        self._min_epochs = min_epochs
        if metric is not None or mode is not None:
            goal_of("HaltuneSearch", metric, mode, bounds, of)
        super().__init__(metric=metric, mode=mode)
        self.time_attr = time_attr
        self._space, self._fixed = (None, {}) if space is None else _searched(space)
        self._value: Params = {"bounds": bounds, "of": of}
        self._points = [flat(point) for point in points_to_evaluate or ()]
        self._policy, self._store = policy, store
        self._options: Params = {"seed": seed, "name": name, "learn_from": learn_from}
        self._samples: int | None = None

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """See ray.tune.search.Searcher: what the Tuner says of space, metric, mode and num_samples."""
        found = space_of(config)
        if self._space is not None and found is not None:
            return False
        if self._space is None:
            self._space = found
        self._metric, self._mode = metric or self._metric, mode or self._mode
        if self._mode and not self._metric:
            self._metric = DEFAULT_METRIC
        samples = spec.get("num_samples")
        self._samples = samples if isinstance(samples, int) and samples > 0 else None
        return True

    def suggest(self, trial_id: str) -> Any:
        answer = self.conductor.begin(trial_id)
        if isinstance(answer, Finish):
            return self.FINISHED
        if isinstance(answer, Wait):
            return None
        return tune.utils.util.merge_dicts(self._fixed, nested_config(answer.config))

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """See ray.tune.search.Searcher: recorded; HaltuneScheduler has asked for a verdict before."""
        self.told(trial_id, result, judge=False)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        whole = {self.time_attr: self._max_epochs}  # Repeater tells the mean alone
        self.told(trial_id, {**whole, **(result or {})}, judge=False)
        self.conductor.end(trial_id, "the trial failed in Ray Tune" if error else None, cut=True)

    def told(self, trial_id: str, result: Mapping[str, Any] | None, judge: bool) -> Verdict | None:
        """What the study says to a result; None where the metric is missing."""
        found = Result.of(result, words(self._metric, self.time_attr))
        return None if found is None else found.told(self.conductor, trial_id, judge)

    def save(self, checkpoint_path: str) -> None:
        """See ray.tune.search.Searcher: JSON."""
        self._write(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """See ray.tune.search.Searcher. Raises InvalidInput for what `save` did not write."""
        self._read(checkpoint_path)
        if self._metric is None and "name" in (self._saved or {}):
            goal = self.study.problem.goal
            self._metric, self._mode = goal.metric, "max" if goal.sign > 0 else "min"

    def _loading(self) -> Params:
        return {"policy": self._policy, "constraints": () if self._space is None else self._space.constraints}

    def _opened(self) -> Study:
        if self._space is None:
            raise InvalidInput(
                "HaltuneSearch has no space: give it one, or the Tuner a param_space with a tune.uniform or another "
                "domain in it"
            )
        goal = goal_of("HaltuneSearch", self._metric, self._mode, **self._value)
        problem = Problem(self._space, goal, self._max_epochs, min_epochs=self._min_epochs)
        budget = UNLIMITED if self._samples is None else Budget(trials=self._samples)
        study = Study(problem, self._policy, self._store, budget=budget, verbose=0, **self._options)
        for point in self._points:
            study.enqueue(point)
        return study


def _searched(space: Space | Mapping[str, Any]) -> tuple[Space | None, Params]:
    """What is searched and what is fixed, of a space in either's words."""
    if isinstance(space, Space):
        return space, {}
    if not isinstance(space, Mapping):
        raise InvalidInput(
            f"HaltuneSearch(space={space!r}): a dict of parameters, of Tune's or of haltune's domains"
        )
    if is_haltunes(space):
        return Space(space), {}
    found = space_of(space)
    if found is None:
        raise InvalidInput(
            f"HaltuneSearch(space={space!r}) has nothing to search: write tune.uniform(...) or Float(...)"
        )
    return found, fixed(space)
