"""haltune.ray_tune: haltune in a Ray Tune program, as search algorithm, scheduler or both.

    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-4, 1e-1)},
        tune_config=tune.TuneConfig(
            metric="accuracy", mode="max", num_samples=20,
            search_alg=HaltuneSearch(max_epochs=30), scheduler=HaltuneScheduler(),
        ),
    )

Together they use one study, with haltune's default search. Each also works alone. A nested search space of Tune is flat
in haltune, with names such as "optimizer/lr".
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from json import dumps, loads
from pathlib import Path
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
from haltune.tuners import UNLIMITED, Conducting, Conductor, check_epochs, domain_of, goal_of

try:
    from ray import tune
except ImportError as error:
    raise ImportError(f"haltune.ray_tune needs Ray Tune: {installing('ray-tune')}") from error

from ray.tune.result import AUTO_RESULT_KEYS, DEFAULT_METRIC, TIME_THIS_ITER_S, TRAINING_ITERATION
from ray.tune.search import sample
from ray.tune.search.variant_generator import parse_spec_vars
from ray.tune.utils.util import flatten_dict, unflatten_dict

__all__ = ["HaltuneScheduler", "HaltuneSearch"]

Params = dict[str, Any]  # in Tune's form
_OWN = (*AUTO_RESULT_KEYS, "trial_id", "experiment_tag", "done", "date", "should_checkpoint")
_KNOWN = "haltune supports tune.uniform, loguniform, quniform, randint, lograndint, qrandint and choice of plain values"


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith("config/")


def space_of(given: Mapping[str, Any]) -> Space | None:
    """Return the space that Tune would sample, without constants; None if nothing is sampled.

    Raises InvalidSpace for a domain without a counterpart.
    """
    _, domains, grids = parse_spec_vars(deepcopy(dict(given)))
    if grids:
        raise InvalidSpace(
            f"tune.grid_search of {', '.join(_name(path) for path, _ in grids)} trains every configuration, but here "
            "haltune chooses. Use tune.choice([...]), or HaltuneScheduler(max_epochs=...) without HaltuneSearch."
        )
    found = {}
    for path, domain in domains:
        name = _name(path)
        if any(not isinstance(part, str) or "/" in part for part in path):
            raise InvalidSpace(
                f"Tune's parameter {name!r} is in a list, or has a '/' in a key, which separates levels of nested "
                "dicts. Put it into a dict, with another name."
            )
        try:
            found[name] = domain_of(domain, sample, _KNOWN, open_above=True)
        except InvalidSpace as error:
            raise InvalidSpace(
                f"Tune's parameter {name!r}, {domain.get_sampler()} {domain.domain_str}: {error}"
            ) from error
    return Space(found) if found else None


def nested_config(config: Mapping[str, Any]) -> Params:
    return dict(unflatten_dict(dict(config)))


def fixed(given: Mapping[str, Any]) -> Params:
    flat = flatten_dict(dict(given), prevent_delimiter=True)
    return nested_config({name: v for name, v in flat.items() if not isinstance(v, sample.Domain)})


def _name(path: tuple[Any, ...]) -> str:
    return "/".join(map(str, path))


class HaltuneSearch(Conducting, tune.search.Searcher):  # type: ignore[misc, unused-ignore]
    """Search algorithm for Ray Tune that uses the values of all trials, also of stopped ones.

    By default it decides like haltune's default search. With `HaltuneScheduler()` in the same Tuner, the same study
    also stops trials. With another scheduler, it learns from the trials which that scheduler stops. Its state is JSON
    next to Tune's: `Tuner.restore` continues the search, with the running trials.

    Args:
        space: Domains of Tune, nested, or of haltune. Default: None, the Tuner's param_space.
        metric: Name of the metric in reports. Default: None, TuneConfig's.
        mode: "max" or "min". Default: None, TuneConfig's.
        max_epochs: Epochs of a full training, counted by `time_attr`.
        min_epochs: No trial is stopped before this epoch, like ASHAScheduler's grace_period. Default: 0.
        time_attr: The name in a result that counts epochs, from 1. Default: "training_iteration".
        bounds: (lowest, highest) value of the metric. Default: None, the scale is learnt.
        of: The epoch whose value counts for a trial, its "last" or its "best". Default: "last".
        points_to_evaluate: Configurations to train first. Default: None.
        policy: The policy that decides. Default: None, haltune.policies.MultiFidelity().
        seed: Seed of all randomness. Default: None, chosen at random and recorded.
        store: The study's store, as for Study. haltune's page and commands can open it, and the same program continues
            the study when you start it again. Default: None, in memory.
        name: The study's name in the store. Default: "study".
        learn_from: Prior studies, as for Study. Default: none.

    Raises:
        InvalidInput: If an argument is invalid.
        InvalidSpace: If a domain has no counterpart.

    Example:
        >>> search = HaltuneSearch({"lr": Float(1e-4, 1e-1, log=True)}, "accuracy", "max", max_epochs=9, seed=0)
        >>> config = search.suggest("first")
        >>> search.on_trial_complete("first", {"accuracy": 0.8, "training_iteration": 9})
        >>> search.study.best_value, search.study.best_params == config
        (0.8, True)
    """

    _metric: str | None
    _mode: str | None
    judged = False  # HaltuneScheduler is the scheduler, so no other one stops trials
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
        self._points = [dict(flatten_dict(dict(point))) for point in points_to_evaluate or ()]
        self._policy, self._store = policy, store
        self._options: Params = {"seed": seed, "name": name, "learn_from": learn_from}

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """See ray.tune.search.Searcher. Uses space, metric, mode and num_samples from the Tuner."""
        found = space_of(config)
        if self._space is not None and found is not None:
            return False
        if self._space is None:
            self._space = found
        _set_goal(self, metric, mode)
        samples = spec.get("num_samples")
        self._budget = Budget(trials=samples) if isinstance(samples, int) and samples > 0 else UNLIMITED
        return True

    def suggest(self, trial_id: str) -> Any:
        answer = self.conductor.begin(trial_id)
        if isinstance(answer, Finish):
            return self.FINISHED
        if isinstance(answer, Wait):
            return None
        return tune.utils.util.merge_dicts(self._fixed, nested_config(answer.config))

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """See ray.tune.search.Searcher. Only records the result; HaltuneScheduler asked for a verdict before."""
        self.record(trial_id, result, judge=False)
        self.conductor.warn_of_failed(trial_id)  # Tuner.restore(resume_errored=True)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        whole = {self.time_attr: self._max_epochs}  # Repeater reports only the mean
        self.record(trial_id, {**whole, **(result or {})}, judge=False)
        cut = not self.judged  # Tune does not report whether another scheduler has stopped it
        self.conductor.end(trial_id, "the trial failed in Ray Tune" if error else None, cut)

    def record(self, trial_id: str, result: Mapping[str, Any] | None, judge: bool) -> Verdict | None:
        """Report a result; return None if the metric is missing."""
        found = self.conductor.read(trial_id, result, self.time_attr, _is_own, TIME_THIS_ITER_S)
        return None if found is None else self.conductor.report(trial_id, **found, judge=judge)

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_text(dumps(self._kept(), allow_nan=False), encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """See ray.tune.search.Searcher. Raises InvalidInput for another file."""
        try:
            self._conductor, self._saved = None, loads(Path(checkpoint_path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidInput(f"{checkpoint_path} is not a state of HaltuneSearch: {error}") from error
        if self._metric is None and "name" in (self._saved or {}):
            goal = self.study.problem.goal
            self._metric, self._mode = goal.metric, "max" if goal.sign > 0 else "min"

    def _constraints(self) -> Any:
        return () if self._space is None else self._space.constraints

    def _problem_now(self) -> Problem:
        if self._space is None:
            raise InvalidInput(
                "HaltuneSearch has no space. Give it space=, or give the Tuner a param_space with tune.uniform(...) or "
                "another domain."
            )
        goal = goal_of("HaltuneSearch", self._metric, self._mode, **self._value)
        return Problem(self._space, goal, self._max_epochs, min_epochs=self._min_epochs)


def _searched(space: Space | Mapping[str, Any]) -> tuple[Space | None, Params]:
    if isinstance(space, Space):
        return space, {}
    if not isinstance(space, Mapping):
        raise InvalidInput(
            f"Cannot read HaltuneSearch(space={space!r}). Use a dict of parameters with domains of Tune or haltune."
        )
    if any(isinstance(domain, Domain) for domain in space.values()):
        return Space(space), {}
    found = space_of(space)
    if found is None:
        raise InvalidInput(
            f"HaltuneSearch(space={space!r}) has nothing to search. Use tune.uniform(...) or Float(...)."
        )
    return found, fixed(space)


class HaltuneScheduler(Conducting, tune.schedulers.FIFOScheduler):  # type: ignore[misc, unused-ignore]
    """Scheduler for Ray Tune that stops trials which are unlikely to beat the best, with a reason for each.

    In a Tuner with `HaltuneSearch`, the search's study also stops trials, and this scheduler has no arguments. With
    another search it uses optimal stopping (haltune.policies.Halting): it stops a trial if the expected loss of
    stopping is below that of continuing. The losses come from curves simulated from the trial's own epochs and those of
    ended trials.

    Args:
        max_epochs: Epochs of a full training. Default: None, HaltuneSearch's.
        min_epochs: No trial is stopped before this epoch, like ASHAScheduler's grace_period. Default: 0, or
            HaltuneSearch's.
        metric: Name of the metric in reports. Default: None, TuneConfig's.
        mode: "max" or "min". Default: None, TuneConfig's.
        time_attr: The name in a result that counts epochs, from 1. Default: "training_iteration".
        seed: Seed of the simulated curves. Default: 0.
        bounds: (lowest, highest) value of the metric. Default: None, the scale is learnt from the trials.
        of: The epoch whose value counts for a trial, its "last" or its "best". Default: "last".
        stopping: Settings of optimal stopping. Default: None, OptimalStopping().
        store: The store of the decisions, as for Study. Tune does not restore schedulers, so without a store a restored
            Tuner has no earlier trials to compare with. Default: None, in memory.
        name: The study's name in the store. Default: "study".

    Raises:
        InvalidInput: If an argument is invalid, or HaltuneSearch already has it.

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
            raise InvalidInput(f"Cannot read stopping={stopping!r}. Use an OptimalStopping(...), or None.")
        if metric is not None or mode is not None:
            goal_of("HaltuneScheduler", metric, mode, bounds, of)
        self._metric, self._mode, self.time_attr = metric, mode, time_attr
        self._max_epochs, self._min_epochs = max_epochs, min_epochs
        self._value: Params = {"bounds": bounds, "of": of}
        self._stopping, self._store = stopping, store
        self._policy = Halting(RandomSearch(), stopping or OptimalStopping())
        self._options: Params = {"seed": seed, "name": name}
        self._search: HaltuneSearch | None = None  # whose study decides

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        if (self._metric and metric) or (self._mode and mode):
            return False
        _set_goal(self, metric, mode)
        return True

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """See ray.tune.schedulers.TrialScheduler. Raises InvalidInput if an argument is missing or not allowed."""
        found = getattr(tune_controller, "search_alg", None) if self._search is None else None
        while found is not None and not isinstance(found, HaltuneSearch):  # in wrappers, such as a limiter
            found = getattr(found, "searcher", None)
        if found is not None:
            given = (self._max_epochs, self._min_epochs or None, self._stopping, self._store)
            differs = (
                self.time_attr not in (TRAINING_ITERATION, found.time_attr)
                or self._value["of"] not in ("last", found._value["of"])
                or self._value["bounds"] not in (None, found._value["bounds"])
                or self._metric not in (None, found._metric)
                or self._mode not in (None, found._mode)
            )
            if differs or any(option is not None for option in given):
                raise InvalidInput(
                    "The study of HaltuneSearch decides. Use HaltuneScheduler() without arguments, and pass them to "
                    "HaltuneSearch. For optimal stopping, use HaltuneSearch(policy=haltune.policies.Halting(...))."
                )
            self._search, self._conductor = found, None
            found.judged = True
        self.conductor  # noqa: B018 - opens the study before a trial trains

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        verdict = self._report(trial, result, judge=True)
        return str(self.STOP if verdict is not None and verdict.stops else self.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> None:
        if self._search is None:  # Tune also calls the search
            self._report(trial, result, judge=False)
            self.conductor.end(trial.trial_id)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """See ray.tune.schedulers.TrialScheduler. A trial that Tune tries again continues."""
        again = trial.status == "RUNNING" and trial.should_recover()
        if self._search is None and not again:
            self.conductor.end(trial.trial_id, "the trial failed in Ray Tune")

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        if self._search is None:
            self.conductor.end(trial.trial_id)

    def debug_string(self) -> str:
        return f"Using haltune: {len(self.reasons)} trials stopped"

    def _report(self, trial: Any, result: Mapping[str, Any], judge: bool) -> Verdict | None:
        if self._search is not None:
            return self._search.record(trial.trial_id, result, judge)
        found = self.conductor.read(trial.trial_id, result, self.time_attr, _is_own, TIME_THIS_ITER_S)
        if found is None:
            return None
        self.conductor.begin(trial.trial_id)
        return self.conductor.report(trial.trial_id, **found, judge=judge)

    @property
    def conductor(self) -> Conductor:
        """See Conducting. With HaltuneSearch, its conductor."""
        return super().conductor if self._search is None else self._search.conductor

    @property
    def reasons(self) -> dict[str, str]:
        return super().reasons if self._search is None else self._search.reasons

    def _problem_now(self) -> Problem:
        """Return a problem with one configuration for all trials, because only their curves are compared."""
        epochs = check_epochs("HaltuneScheduler, without HaltuneSearch,", self._max_epochs)
        goal = goal_of("HaltuneScheduler", self._metric, self._mode, **self._value)
        return Problem(Space({"configuration": "any"}), goal, epochs, min_epochs=self._min_epochs)

    def __getstate__(self) -> Params:
        return super().__getstate__() | {"_search": None}  # found again in on_trial_add


def _set_goal(bridge: Any, metric: str | None, mode: str | None) -> None:
    """Set metric and mode from TuneConfig; a mode alone means Tune's default metric."""
    bridge._metric, bridge._mode = metric or bridge._metric, mode or bridge._mode
    if bridge._mode and not bridge._metric:
        bridge._metric = DEFAULT_METRIC
