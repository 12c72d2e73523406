"""HaltuneScheduler: a study of haltune where Syne Tune asks what to train and whether to continue."""

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
from haltune.study import Study
from haltune.tuners.conductor import UNLIMITED, Conducting, Conductor, Words, check_epochs, goal_of
from haltune.tuners.domains import MOST_VALUES, choice_of, domain_of

try:
    import syne_tune.config_space as theirs
    from syne_tune.optimizer.scheduler import SchedulerDecision, TrialScheduler, TrialSuggestion
except ImportError as error:
    raise ImportError(f"haltune.syne_tune needs Syne Tune: {installing('syne-tune')}") from error


_KNOWN = (
    "haltune knows uniform, loguniform, quniform, randint, lograndint, qrandint, finrange, logfinrange, ordinal and "
    "choice"
)


def space_of(given: Mapping[str, Any]) -> Space:
    """What is sampled. Raises InvalidSpace for a domain that haltune has not, and where there is none."""
    found = {}
    for name, domain in given.items():
        if isinstance(domain, theirs.Domain):
            try:
                found[name] = _domain(domain)
            except InvalidSpace as error:
                raise InvalidSpace(f"Syne Tune's parameter {name!r}, {domain!r}: {error}") from error
    if not found:
        raise InvalidSpace(
            "config_space has nothing to search: {'lr': syne_tune.config_space.loguniform(...)}"
        )
    return Space(found)


def fixed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The rest, which every configuration carries."""
    return {name: value for name, value in given.items() if not isinstance(value, theirs.Domain)}


def _domain(domain: Any) -> Domain:
    if isinstance(domain, theirs.FiniteRange):
        if domain.size > MOST_VALUES:
            raise InvalidSpace(
                f"more than {MOST_VALUES} values: write uniform or randint, and round in your training"
            )
        return choice_of(list(dict.fromkeys(domain.values)), theirs.Domain, _KNOWN, ordered=True)
    if isinstance(domain, theirs.Ordinal):
        return choice_of(domain.categories, theirs.Domain, _KNOWN, ordered=True)
    if theirs.is_reverse_log_space(domain):
        raise InvalidSpace(f"write 1 - x with loguniform; {_KNOWN}")
    return domain_of(domain, theirs, _KNOWN, open_above=False)


_NEXT = "suggested "  # begins the names of trials until Syne Tune says what it calls them


class HaltuneScheduler(Conducting, TrialScheduler):  # type: ignore[misc, unused-ignore]
    """Chooses what Syne Tune trains next, and decides at every result whether a trial goes on.

    It decides as haltune's default search, or as the policy that it is given, and keeps for every stop why. Where
    Syne Tune saves its Tuner, this is saved with it as JSON, the running trials included.

    Args:
        config_space: As Syne Tune's schedulers take it: domains and constants.
        metric: The metric as trials report it.
        do_minimize: Whether smaller is better. Default: True.
        max_epochs: Epochs of a full training: the `time_attr` that a trial comes to when nobody stops it.
        min_epochs: Epochs before which no trial is stopped or paused, as ASHA's grace_period. Default: 0.
        time_attr: What of a result counts epochs, from 1. Default: "epoch".
        random_seed: Of all randomness. Default: None, drawn and recorded.
        pauses: Whether trials write checkpoints to Syne Tune's `st_checkpoint_dir` and go on from them: then haltune
            pauses runs and resumes those that deserve it. Default: False, and what loses is stopped for good.
        bounds: (lowest, highest) value of the metric. Default: None, and the scale is learnt.
        of: The epoch whose value a run counts for, its "last" or its "best". Default: "last".
        points_to_evaluate: Configurations that are trained first. Default: None.
        policy: What decides. Default: None, haltune.policies.MultiFidelity().
        store: Where the study is kept, as Study takes it. Default: None, in memory.
        name: Of the study there. Default: "study".
        learn_from: Earlier studies, as Study takes them. Default: none.

    Raises:
        InvalidInput: For arguments outside these.
        InvalidSpace: For a domain that haltune has not.

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
            raise InvalidInput(
                f"HaltuneScheduler(config_space={config_space!r}): a dict of Syne Tune's domains"
            )
        self.config_space, self.metric, self.mode = dict(config_space), metric, mode
        self.time_attr, self._pauses = time_attr, bool(pauses)
        self._problem = Problem(space_of(config_space), goal, epochs, min_epochs=min_epochs)
        self._points = [dict(point) for point in points_to_evaluate or ()]
        self._policy, self._store = policy, store
        self._options: dict[str, Any] = {"seed": random_seed, "name": name, "learn_from": learn_from}

    def suggest(self) -> Any:
        """See syne_tune's TrialScheduler. Raises NotSupported for a policy that has to wait for other trials."""
        name = f"{_NEXT}{len(self.study.history)}"
        answer = self.conductor.begin(name)
        if isinstance(answer, Finish):
            return None
        if isinstance(answer, Wait):
            raise NotSupported(
                f"{type(self.study.policy).__name__} waits for other trials, and Syne Tune takes that for the end: "
                f"take MultiFidelity(), the default, or another asynchronous policy ({answer.reason})"
            )
        if self._pauses and answer.checkpoint is not None:  # Syne Tune's own lies beside it
            known = next(known for known, number in self.conductor.numbers.items() if number == answer.id)
            self.conductor.rename(name, known)
            return TrialSuggestion.resume_suggestion(int(known))
        return TrialSuggestion.start_suggestion({**fixed(self.config_space), **answer.config})

    def on_trial_add(self, trial: Any) -> None:
        suggested = [name for name in self.conductor.held if name.startswith(_NEXT)]
        alike = [n for n in suggested if self.conductor.held[n].config.items() <= dict(trial.config).items()]
        self.conductor.rename((alike or suggested)[0], str(trial.trial_id))

    def on_trial_result(self, trial: Any, result: Mapping[str, Any]) -> str:
        verdict = self._told(trial, result)
        if verdict is None or not verdict.stops:
            return str(SchedulerDecision.CONTINUE)
        pauses = self._pauses and verdict.action is Action.PAUSE
        return str(SchedulerDecision.PAUSE if pauses else SchedulerDecision.STOP)

    def on_trial_complete(self, trial: Any, result: Mapping[str, Any]) -> None:
        self._told(trial, result)
        self.conductor.end(str(trial.trial_id))

    def on_trial_remove(self, trial: Any) -> None:
        """See syne_tune's TrialScheduler: it was stopped, or paused."""
        self.conductor.end(str(trial.trial_id))

    def on_trial_error(self, trial: Any) -> None:
        self.conductor.end(str(trial.trial_id), "the trial failed, or was stopped, in Syne Tune")

    def metric_names(self) -> list[str]:
        """What Syne Tune reports on."""
        return [self.metric]

    def metric_mode(self) -> str:
        """Which values are better: "min" or "max"."""
        return self.mode

    def metadata(self) -> dict[str, Any]:
        return {
            "scheduler_name": type(self).__name__,
            "scheduler_kwargs": {"max_epochs": self._problem.max_epochs, "time_attr": self.time_attr},
            "config_space": json.dumps(theirs.config_space_to_json_dict(self.config_space), default=str),
            "metric_names": self.metric_names(),
            "metric_mode": self.metric_mode(),
        }

    def _told(self, trial: Any, result: Mapping[str, Any]) -> Verdict | None:
        words = Words(
            self.metric, self.time_attr, "", lambda n: n.startswith(("st_", "config_")) or n == "trial_id"
        )
        found = words.read(result)
        return None if found is None else self.conductor.report(str(trial.trial_id), **found)

    def _opened(self) -> Study:
        study = Study(self._problem, self._policy, self._store, budget=UNLIMITED, verbose=0, **self._options)
        for point in self._points:
            study.enqueue({name: value for name, value in point.items() if name in self._problem.space.names})
        return study

    def _begun(self) -> Conductor:
        return Conductor(self._opened(), self._pauses)

    def _loading(self) -> dict[str, Any]:
        return {"policy": self._policy}
