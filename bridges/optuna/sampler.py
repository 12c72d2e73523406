"""HaltuneSampler: the model of the default search as an Optuna sampler.

Only the model's input is recorded: of each curve the values at epochs 1, 3, 9, 27, ... and the last. A complete trial
counts with its objective value at the end of training. Failed trials are skipped, as in Optuna's samplers.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any
from zlib import crc32

import numpy as np

from haltune._utils.checks import check_counts, check_whole, is_number
from haltune._utils.memo import Memo
from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.errors import InvalidInput, InvalidSpace, warn
from haltune.log import events as ev
from haltune.log.decisions import Action, Verdict
from haltune.log.events import Event, plain
from haltune.log.history import History
from haltune.log.problem import Maximize, Minimize, Problem
from haltune.models.curve_rows import CurveRows, CurveTable
from haltune.models.search_model import SearchModel, best_allowed, candidates, uncrowded
from haltune.models.stage_process import StageKernel, Stages, stage_epochs

from .spaces import (
    ENDS,
    PREFIX,
    WHOLE,
    Distribution,
    FrozenTrial,
    Translated,
    TrialState,
    all_trials,
    beyond,
    contains,
    curve_of,
    optuna,
    set_system_attribute,
)  # fmt: skip

_CHOSEN = f"{PREFIX}relative"  # attribute of a running trial
_STORED = Verdict(Action.UNJUDGED, "reported to Optuna")
ConfiguredTrial = tuple[dict[str, Any], FrozenTrial]  # a configuration and its trial


def history_of(
    problem: Problem, trials: Sequence[FrozenTrial], translated: Translated, seed: int
) -> tuple[History, CurveTable]:
    """Return the history of ended and running trials in the space, and the rows of a model."""
    known = [(config, t) for t in trials if (config := _config(t, translated)) is not None]
    known.sort(key=lambda pair: pair[1].state is TrialState.RUNNING)  # running trials are pending
    history, rows = History(problem), CurveRows(problem.goal, stage_epochs(problem.max_epochs or 1)[0])
    for event in _events(problem, known, seed):
        history.apply(event)
        rows.take(event)
    return history, rows.table


def _config(trial: FrozenTrial, translated: Translated) -> dict[str, Any] | None:
    params = _chosen(trial, translated) | trial.params
    if not translated.counterparts.keys() <= params.keys():
        return None
    try:
        return translated.inward(params)
    except InvalidSpace:
        return None


def choose(study: optuna.Study, trial: FrozenTrial, params: dict[str, Any], translated: Translated) -> None:
    """Publish a trial's configuration for other workers: Optuna stores a parameter only when it is suggested."""
    chosen = {name: translated.counterparts[name].distribution.to_internal_repr(v) for name, v in params.items()}
    set_system_attribute(study, trial, _CHOSEN, chosen)


def _chosen(trial: FrozenTrial, translated: Translated) -> dict[str, Any]:
    if trial.state is not TrialState.RUNNING:
        return {}
    found = {}
    for name, internal in trial.system_attrs.get(_CHOSEN, {}).items():
        if name in translated.counterparts:
            distribution = translated.counterparts[name].distribution
            with suppress(IndexError):  # an option that the choice does not have here
                value = distribution.to_external_repr(internal)
                if contains(distribution, value):
                    found[name] = value
    return found


def _events(problem: Problem, known: Sequence[ConfiguredTrial], seed: int) -> Iterator[Event]:
    from_zero = any(0 in t.intermediate_values for _, t in known)
    yield ev.Created(at=0.0, problem=plain(problem.to_json()), policy={}, seed=seed)
    for number, (config, trial) in enumerate(known):
        yield ev.Started(
            at=0.0, trial=number, config=plain(config), pause_at=problem.max_epochs, resource=None, tags={},
            reason="", evidence={}, seen=0, deciding=0.0, worker="optuna",
        )  # fmt: skip
        if trial.state is TrialState.RUNNING:
            continue
        for epoch, value in _marked(trial, problem.max_epochs or 1, from_zero):
            yield ev.Reported(
                at=0.0, trial=number, attempt=1, epoch=float(epoch), value=float(value), seconds=0.0,
                verdict=_STORED, seen=0,
            )  # fmt: skip
        yield ev.Ended(at=0.0, trial=number, attempt=1, status=ENDS[trial.state])


def _marked(trial: FrozenTrial, horizon: int, from_zero: bool) -> Iterator[tuple[int, float]]:
    """Yield the first epochs at or after 1, 3, 9, ..., and the last one, up to the horizon.

    A trial that violates a constraint has NaN there, so that the model avoids it like one that diverged.
    """
    curve = {n: v for n, v in curve_of(trial, from_zero).items() if n <= horizon}
    if trial.state is TrialState.COMPLETE and trial.value is not None:
        curve[horizon] = trial.value
    mark, last, violates = 1, max(curve, default=0), beyond(trial)
    for epoch, value in curve.items():
        if epoch >= mark or epoch == last:
            yield epoch, math.nan if violates else value
            mark = 3 ** (math.floor(math.log(epoch, 3) + 1e-9) + 1)


_RELATIVE, _INDEPENDENT = 1, 2  # streams of randomness


class HaltuneSampler(optuna.samplers.BaseSampler):
    """Sampler for Optuna that uses the values of all trials at all epochs, also of pruned trials.

    The model is that of haltune's default search, `haltune.policies.MultiFidelity`: one Gaussian process for the values
    at each stage of training. It learns how well early epochs predict the final value. Parameters of all trials are
    chosen together. A parameter that only some trials have, or with another range, is chosen at random. Each choice
    depends on the trials in the storage, the new trial's number and the seed, also with threads and several processes.
    Configurations of trials that violate a constraint are avoided.

    Args:
        max_epochs: Epochs of a full training. Default: None, the epochs of the longest trial so far.
        seed: Seed of all randomness. Default: None, chosen at random.
        initial: Number of random trials before the model chooses. Default: 10.
        deviations: Number of standard deviations added to the model's mean. Default: 1, because trials are few.
        candidates: Number of points compared for a trial. Default: 300.
        independent_sampler: Sampler for the parameters that not all trials have. Default: None, at random.

    Raises:
        InvalidInput: If an argument is invalid.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> study = optuna.create_study(sampler=HaltuneSampler(seed=0))
        >>> study.optimize(lambda trial: (trial.suggest_float("x", -2, 2) - 1) ** 2, n_trials=25)
        >>> study.best_value < 0.01
        True
    """

    def __init__(
        self,
        *,
        max_epochs: int | None = None,
        seed: int | None = None,
        initial: int = 10,
        deviations: float = 1.0,
        candidates: int = 300,
        independent_sampler: optuna.samplers.BaseSampler | None = None,
    ) -> None:
        if max_epochs is not None:
            check_whole("HaltuneSampler", 1, max_epochs=max_epochs)
        check_whole("HaltuneSampler", 1, initial=initial)
        check_whole("HaltuneSampler", 3, candidates=candidates)
        check_counts(seed=seed)
        if not (is_number(deviations) and 0 <= deviations < np.inf):
            raise InvalidInput(f"HaltuneSampler(deviations={deviations!r}): use a number of at least 0")
        self._max_epochs, self._initial = max_epochs, initial
        self._deviations, self._candidates = deviations, candidates
        self._seed = secrets.randbits(32) if seed is None else seed
        self._independent = independent_sampler
        self._warned = False  # that trainings are longer than max_epochs
        self._models: Memo[SearchModel] = Memo(4)  # each caches its last fit
        self._lock = Lock()  # for the trials of several threads

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Distribution]:
        """See optuna.samplers.BaseSampler. Returns the parameters that all ended trials have."""
        self._need_one_objective(study)
        over = all_trials(study, WHOLE)
        shared = optuna.search_space.intersection_search_space(over, include_pruned=True)
        return {name: d for name, d in shared.items() if not d.single() and _known(name, d)}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, Distribution]
    ) -> dict[str, Any]:
        self._need_one_objective(study)
        if not search_space:
            return {}
        translated = Translated.of_distributions(search_space)
        rng = np.random.default_rng([self._seed, _RELATIVE, trial.number])
        with self._lock, undisturbed, one_thread, undisturbed.heard:
            trials = all_trials(study, (*WHOLE, TrialState.RUNNING))
            others = [t for t in trials if t.number != trial.number]
            config = self._chosen(self._problem(study, translated, others), translated, others, rng)
            params = translated.outward(config or translated.space.sample(1, rng)[0])
            choose(study, trial, params, translated)
        return params

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: Distribution
    ) -> Any:
        self._need_one_objective(study)
        drawn = self._independent
        if drawn is None:
            key = [self._seed, _INDEPENDENT, trial.number, crc32(param_name.encode())]
            drawn = optuna.samplers.RandomSampler(int(np.random.default_rng(key).integers(2**32)))
        return drawn.sample_independent(study, trial, param_name, param_distribution)

    def _need_one_objective(self, study: optuna.Study) -> None:
        if len(study.directions) > 1:
            raise InvalidInput(
                f"HaltuneSampler has one objective, but the study has {len(study.directions)}. Use a sampler for "
                "several objectives, such as NSGAIISampler()."
            )

    def reseed_rng(self) -> None:
        """See optuna.samplers.BaseSampler. The seed of a trial is its number, so only the other sampler is reseeded."""
        if self._independent is not None:
            self._independent.reseed_rng()

    def _problem(self, study: optuna.Study, translated: Translated, trials: Sequence[FrozenTrial]) -> Problem:
        kind = Maximize if study.direction is optuna.study.StudyDirection.MAXIMIZE else Minimize
        from_zero = any(0 in t.intermediate_values for t in trials)
        longest = max([1, *(max(t.intermediate_values) + from_zero for t in trials if t.intermediate_values)])
        if self._max_epochs is not None and longest > self._max_epochs and not self._warned:
            self._warned = True
            warn(
                f"A trial reported epoch {longest}, but a full training has {self._max_epochs} epochs. The sampler "
                f"ignores later values. Use HaltuneSampler(max_epochs={longest}) or more. A step is an epoch."
            )
        return Problem(translated.space, kind("value"), self._max_epochs or longest)

    def _chosen(
        self, problem: Problem, translated: Translated, trials: Sequence[FrozenTrial], rng: np.random.Generator
    ) -> dict[str, Any] | None:
        """Return the candidate with the highest upper bound, an untried one if there is one; None if data are few."""
        history, rows = history_of(problem, trials, translated, self._seed)
        if len(history) - len(history.pending) < self._initial:
            return None
        epochs, dim = stage_epochs(problem.max_epochs or 1), problem.space.dim
        model = self._models((epochs, dim), lambda: SearchModel(Stages(epochs, dim)))
        kernel = model.kernel(history, rows) or StageKernel(model.stages, model.stages.mean)  # while rows are few
        if (posterior := model.posterior(kernel, history, rows)) is None:
            return None
        points = candidates(history, rows, self._candidates, rng)
        points = points[uncrowded(points, history.points[[t.id for t in history.trials if not t.complete]])]
        mean, deviation = posterior[0].ends(points)
        space, value = problem.space, mean + self._deviations * deviation
        found = best_allowed(space, points, value, history.tried) or best_allowed(space, points, value, ())
        return None if found is None else found[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_models")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": Lock(), "_models": Memo(4)}


def _known(name: str, distribution: Distribution) -> bool:
    """Return whether the model supports a parameter; it does not support choices among objects, or a name " lr"."""
    try:
        Translated.of_distributions({name: distribution})
    except InvalidSpace:
        return False
    return True
