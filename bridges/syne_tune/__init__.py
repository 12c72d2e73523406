"""haltune.syne_tune: haltune as a scheduler in Syne Tune.

    scheduler = HaltuneScheduler(config_space, "accuracy", do_minimize=False, max_epochs=30)
    Tuner(LocalBackend("train.py"), scheduler, StoppingCriterion(max_wallclock_time=600), n_workers=4).run()

It chooses configurations and decides which trial is stopped, or paused and resumed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from haltune._utils.checks import check_whole
from haltune.errors import InvalidInput, InvalidSpace, NotSupported, installing
from haltune.log.decisions import Action, Finish, Verdict, Wait
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.space import Space
from haltune.space.domains import Domain
from haltune.tuners import MOST_VALUES, Conducting, check_epochs, choice_of, domain_of, goal_of

try:
    import syne_tune.config_space as theirs
    from syne_tune.optimizer.scheduler import SchedulerDecision, TrialScheduler, TrialSuggestion
except ImportError as error:
    raise ImportError(f"haltune.syne_tune needs Syne Tune: {installing('syne-tune')}") from error

__all__ = ["HaltuneScheduler"]

_KNOWN = (
    "haltune supports uniform, loguniform, quniform, randint, lograndint, qrandint, finrange, logfinrange, ordinal and "
    "choice"
)


def space_of(given: Mapping[str, Any]) -> Space:
    """Return the sampled space. Raises InvalidSpace if it is empty, or for an unknown domain."""
    found = {}
    for name, domain in given.items():
        if isinstance(domain, theirs.Domain):
            try:
                found[name] = _domain(domain)
            except InvalidSpace as error:
                raise InvalidSpace(f"Syne Tune's parameter {name!r}, {domain!r}: {error}") from error
    if not found:
        raise InvalidSpace(
            "config_space has nothing to search. Use a domain, {'lr': syne_tune.config_space.loguniform(...)}."
        )
    return Space(found)


def fixed(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if not isinstance(value, theirs.Domain)}


def _domain(domain: Any) -> Domain:
    if isinstance(domain, theirs.FiniteRange):
        if domain.size > MOST_VALUES:
            raise InvalidSpace(f"more than {MOST_VALUES} values. Use uniform or randint, and round in your training.")
        return choice_of(list(dict.fromkeys(domain.values)), ordered=True)
    if isinstance(domain, theirs.Ordinal):
        return choice_of(domain.categories, theirs.Domain, _KNOWN, ordered=True)
    if theirs.is_reverse_log_space(domain):
        raise InvalidSpace(f"use 1 - x with loguniform; {_KNOWN}")
    return domain_of(domain, theirs, _KNOWN, open_above=False)


_NEXT = "suggested "  # prefix of a trial's name until Syne Tune names it


class HaltuneScheduler(Conducting, TrialScheduler):  # type: ignore[misc, unused-ignore]
    """Scheduler for Syne Tune that chooses configurations and decides at each result whether a trial continues.

    By default it decides like haltune's default search. It keeps the reason of each stop. When Syne Tune saves its
    Tuner, it also saves this scheduler as JSON, with the running trials.

    Args:
        config_space: Domains and constants, as for Syne Tune's schedulers.
        metric: Name of the metric in reports.
        do_minimize: True if smaller is better. Default: True.
        max_epochs: Epochs of a full training, counted by `time_attr`.
        min_epochs: No trial is stopped or paused before this epoch, like ASHA's grace_period. Default: 0.
        time_attr: The name in a result that counts epochs, from 1. Default: "epoch".
        random_seed: Seed of all randomness. Default: None, chosen at random and recorded.
        pauses: True if trials write checkpoints to Syne Tune's `st_checkpoint_dir` and continue from them. Then haltune
            pauses trials and resumes promoted ones. Default: False, trials are stopped instead.
        bounds: (lowest, highest) value of the metric. Default: None, the scale is learnt.
        of: The epoch whose value counts for a trial, its "last" or its "best". Default: "last".
        points_to_evaluate: Configurations to train first. Default: None.
        policy: The policy that decides. Default: None, haltune.policies.MultiFidelity().
        store: The study's store, as for Study. Default: None, in memory.
        name: The study's name in the store. Default: "study".
        learn_from: Prior studies, as for Study. Default: none.

    Raises:
        InvalidInput: If an argument is invalid.
        InvalidSpace: If a domain has no counterpart.

    Example:
        >>> from syne_tune.config_space import loguniform
        >>> scheduler = HaltuneScheduler({"lr": loguniform(1e-4, 1e-1), "gpus": 1}, "loss", max_epochs=9, random_seed=0)
        >>> sorted(scheduler.suggest().config)
        ['gpus', 'lr']
    """

    def __init__(
        self,
        config_space: Mapping[str, Any],
        metric: str,
        do_minimize: bool = True,
        *,
        max_epochs: int,
        min_epochs: int = 0,
        time_attr: str = "epoch",
        random_seed: int | None = None,
        pauses: bool = False,
        bounds: tuple[float, float] | None = None,
        of: Literal["last", "best"] = "last",
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        policy: Policy[Any] | None = None,
        store: str | os.PathLike[str] | None = None,
        name: str = "study",
        learn_from: Sequence[Any] = (),
    ) -> None:
        if random_seed is not None:
            check_whole("HaltuneScheduler", 0, random_seed=random_seed)
        super().__init__(random_seed=random_seed)
        epochs = check_epochs("HaltuneScheduler", max_epochs, min_epochs)
        mode = "min" if do_minimize else "max"
        goal = goal_of("HaltuneScheduler", metric, mode, bounds, of)
        if not isinstance(config_space, Mapping):
            raise InvalidInput(f"Cannot read config_space={config_space!r}. Use a dict of Syne Tune's domains.")
        self.config_space, self.metric, self.mode = dict(config_space), metric, mode
        self.time_attr, self._pauses = time_attr, bool(pauses)
        self._problem = Problem(space_of(config_space), goal, epochs, min_epochs=min_epochs)
        names = self._problem.space.names
        self._points = [{n: v for n, v in point.items() if n in names} for point in points_to_evaluate or ()]
        self._policy, self._store = policy, store
        self._options: dict[str, Any] = {"seed": random_seed, "name": name, "learn_from": learn_from}

    def suggest(self) -> Any:
        """See syne_tune's TrialScheduler. Raises NotSupported for a policy that must wait for other trials."""
        name = f"{_NEXT}{len(self.study.history)}"
        answer = self.conductor.begin(name)
        if isinstance(answer, Finish):
            return None
        if isinstance(answer, Wait):
            raise NotSupported(
                f"{type(self.study.policy).__name__} waits for other trials ({answer.reason}), but Syne Tune then ends "
                "the search. Use MultiFidelity(), the default, or another asynchronous policy."
            )
        names = [n for n, number in self.conductor.numbers.items() if number == answer.id and n != name]
        if self._pauses and answer.checkpoint is not None and names:  # Syne Tune has its own
            known = names[-1]  # after a start from scratch it has several
            self.conductor.rename(name, known)
            return TrialSuggestion.resume_suggestion(int(known))
        return TrialSuggestion.start_suggestion({**fixed(self.config_space), **answer.config})

    def on_trial_add(self, trial: Any) -> None:
        suggested = [name for name in self.conductor.held if name.startswith(_NEXT)]
        alike = [n for n in suggested if self.conductor.held[n].config.items() <= dict(trial.config).items()]
        self.conductor.rename((alike or suggested)[0], str(trial.trial_id))

    def on_trial_result(self, trial: Any, result: Mapping[str, Any]) -> str:
        verdict = self._report(trial, result)
        if verdict is None or not verdict.stops:
            return str(SchedulerDecision.CONTINUE)
        pauses = self._pauses and verdict.action is Action.PAUSE
        return str(SchedulerDecision.PAUSE if pauses else SchedulerDecision.STOP)

    def on_trial_complete(self, trial: Any, result: Mapping[str, Any]) -> None:
        self._report(trial, result)
        self.conductor.end(str(trial.trial_id))

    def on_trial_remove(self, trial: Any) -> None:
        """See syne_tune's TrialScheduler. Called after a stop or a pause."""
        self.conductor.end(str(trial.trial_id))

    def on_trial_error(self, trial: Any) -> None:
        self.conductor.end(str(trial.trial_id), "the trial failed or was stopped in Syne Tune")

    def metric_names(self) -> list[str]:
        return [self.metric]

    def metric_mode(self) -> str:
        return self.mode

    def metadata(self) -> dict[str, Any]:
        return {
            "scheduler_name": type(self).__name__,
            "scheduler_kwargs": {"max_epochs": self._problem.max_epochs, "time_attr": self.time_attr},
            "config_space": json.dumps(theirs.config_space_to_json_dict(self.config_space), default=str),
            "metric_names": self.metric_names(),
            "metric_mode": self.metric_mode(),
        }

    def _report(self, trial: Any, result: Mapping[str, Any]) -> Verdict | None:
        own = lambda name: name.startswith(("st_", "config_")) or name == "trial_id"  # noqa: E731
        name = str(trial.trial_id)
        found = self.conductor.read(name, result, self.time_attr, own)
        return None if found is None else self.conductor.report(name, **found)

    def _problem_now(self) -> Problem:
        return self._problem
