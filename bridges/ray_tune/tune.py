"""HaltuneSearch, a study of haltune where Ray Tune asks for a configuration, and HaltuneScheduler, which stops trials.

A nested search space of Tune is flat here, by names such as "optimizer/lr".
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal

from haltune._utils.checks import check_whole
from haltune.errors import InvalidInput, InvalidSpace, installing
from haltune.log.decisions import Finish, Verdict, Wait
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Problem
from haltune.policies import Halting, RandomSearch
from haltune.policies.bobos.optimal_stopping import OptimalStopping
from haltune.space import Space
from haltune.space.domains import Domain
from haltune.study import Study
from haltune.tuners.conductor import UNLIMITED, Conducting, Conductor, Words, anonymous, check_epochs, goal_of
from haltune.tuners.domains import domain_of

try:
    from ray import tune
except ImportError as error:
    raise ImportError(f"haltune.ray_tune needs Ray Tune: {installing('ray-tune')}") from error

from ray.tune.result import AUTO_RESULT_KEYS, DEFAULT_METRIC, TIME_THIS_ITER_S, TRAINING_ITERATION
from ray.tune.search import sample
from ray.tune.search.variant_generator import parse_spec_vars
from ray.tune.utils.util import flatten_dict, unflatten_dict

Params = dict[str, Any]  # as Tune hands them over
_OWN = (*AUTO_RESULT_KEYS, "trial_id", "experiment_tag", "done", "date", "should_checkpoint")


def _words(metric: str | None, time_attr: str) -> Words:
    return Words(
        str(metric), time_attr, TIME_THIS_ITER_S, lambda name: name in _OWN or name.startswith("config/")
    )


_KNOWN = "haltune knows tune.uniform, loguniform, quniform, randint, lograndint, qrandint and choice among plain values"


def space_of(given: Mapping[str, Any]) -> Space | None:
    """The space of what Tune would sample; what is fixed is no part of it. None where nothing is sampled.

    Raises InvalidSpace for a domain that haltune has not.
    """
    _, domains, grids = parse_spec_vars(deepcopy(dict(given)))
    if grids:
        raise InvalidSpace(
            f"tune.grid_search of {', '.join(_name(path) for path, _ in grids)} says what to train, and here haltune "
            "chooses: write tune.choice([...]), or leave the search to Tune and take HaltuneScheduler(max_epochs=...)"
        )
    for path, _ in domains:
        if any(not isinstance(part, str) or "/" in part for part in path):
            raise InvalidSpace(
                f"Tune's parameter {_name(path)!r} lies in a list, or has a '/' in a key, which names a level of "
                "nested dicts: put it into a dict, by another name"
            )
    found = {}
    for path, domain in domains:
        name = _name(path)
        try:
            found[name] = domain_of(domain, sample, _KNOWN, open_above=True)
        except InvalidSpace as error:
            raise InvalidSpace(
                f"Tune's parameter {name!r}, {domain.get_sampler()} {domain.domain_str}: {error}"
            ) from error
    return Space(found) if found else None


def nested_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as Tune hands it on."""
    return dict(unflatten_dict(dict(config)))


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `nested_config`."""
    return dict(flatten_dict(dict(config)))


def fixed(given: Mapping[str, Any]) -> dict[str, Any]:
    """What of a space is not sampled, as Tune hands it on."""
    flat = flatten_dict(dict(given), prevent_delimiter=True)
    return nested_config(
        {name: value for name, value in flat.items() if not isinstance(value, sample.Domain)}
    )


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))


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
        found = _words(self._metric, self.time_attr).read(result)
        return None if found is None else self.conductor.report(trial_id, **found, judge=judge)

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
    if any(isinstance(domain, Domain) for domain in space.values()):
        return Space(space), {}
    found = space_of(space)
    if found is None:
        raise InvalidInput(
            f"HaltuneSearch(space={space!r}) has nothing to search: write tune.uniform(...) or Float(...)"
        )
    return found, fixed(space)


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
        found = getattr(tune_controller, "search_alg", None) if self._search is None else None
        while found is not None and not isinstance(found, HaltuneSearch):  # within whatever limits it
            found = getattr(found, "searcher", None)
        if found is not None:
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
        found = _words(self._metric, self.time_attr).read(result)
        if found is None:
            return None
        self.conductor.begin(trial.trial_id)
        return self.conductor.report(trial.trial_id, **found, judge=judge)

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
