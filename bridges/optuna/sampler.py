"""HaltuneSampler: the model of haltune's default search where Optuna asks for a configuration."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from threading import Lock
from typing import Any
from zlib import crc32

import numpy as np

from haltune._utils.checks import check_counts, check_whole
from haltune._utils.memo import Memo
from haltune._utils.threads import one_thread
from haltune.errors import InvalidInput, InvalidSpace
from haltune.log.problem import Maximize, Minimize, Problem
from haltune.policies import MultiFidelity
from haltune.policies.multifidelity.curve_rows import candidates, first_untried
from haltune.policies.multifidelity.prior_studies import Model
from haltune.policies.multifidelity.stage_process import StageKernel, Stages

from .counterparts import Distribution, inward
from .curve_history import CurveHistory, choose, longest
from .curves import WHOLE, FrozenTrial, TrialState
from .library import optuna
from .spaces import Translated

_RELATIVE, _INDEPENDENT = 1, 2  # streams of randomness


class HaltuneSampler(optuna.samplers.BaseSampler):
    """Chooses what is most promising by the values that trials have reached at all epochs, pruned ones included.

    The model is that of haltune's default search, `haltune.policies.MultiFidelity`: one Gaussian process of what runs
    reach at each stage of training, which learns how much early epochs say of the end. Parameters that all trials have
    are chosen together; what only some have, or have in other ranges, is drawn at random. Each choice follows from the
    trials in the storage, the number of the new one and the seed, with threads and with several processes, too.

    Args:
        max_epochs: Epochs of a full training. Default: None, those of the longest trial so far.
        seed: Of what is random. Default: None, drawn.
        initial: Trials that are drawn at random before the model chooses. Default: 10.
        deviations: Of the model that are added to its mean where it chooses. Default: 1, for trials are few here.
        candidates: Points that are compared for a trial. Default: 300.
        independent_sampler: What draws the parameters that not all trials have. Default: None, at random.

    Raises:
        InvalidInput: For arguments outside these.

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
        if not 0 <= deviations < np.inf:
            raise InvalidInput(f"HaltuneSampler(deviations={deviations!r}): a number that is not negative")
        self._max_epochs, self._initial = max_epochs, initial
        self._deviations, self._candidates = deviations, candidates
        self._seed = secrets.randbits(32) if seed is None else seed
        self._independent = independent_sampler
        self._models: Memo[Model] = Memo(4)  # each keeps what it learnt last
        self._lock = Lock()  # of the trials of several threads

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Distribution]:
        """See optuna.samplers.BaseSampler: what all trials have that are over."""
        self._raise_error_if_multi_objective(study)
        over = _trials(study, WHOLE)
        shared = optuna.search_space.intersection_search_space(over, include_pruned=True)
        return {name: d for name, d in shared.items() if not d.single() and _known(name, d)}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, Distribution]
    ) -> dict[str, Any]:
        self._raise_error_if_multi_objective(study)
        if not search_space:
            return {}
        translated = Translated.of_distributions(search_space)
        rng = np.random.default_rng([self._seed, _RELATIVE, trial.number])
        with self._lock, one_thread():
            trials = _trials(study, (*WHOLE, TrialState.RUNNING))
            others = [t for t in trials if t.number != trial.number]
            config = self._chosen(self._problem(study, translated, others), translated, others, rng)
            params = translated.outward(config or translated.space.sample(1, rng)[0])
            choose(study, trial, params, translated)
        return params

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: Distribution
    ) -> Any:
        self._raise_error_if_multi_objective(study)
        drawn = self._independent
        if drawn is None:
            key = [self._seed, _INDEPENDENT, trial.number, crc32(param_name.encode())]
            drawn = optuna.samplers.RandomSampler(int(np.random.default_rng(key).integers(2**32)))
        return drawn.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """See optuna.samplers.BaseSampler: what is drawn here goes by the number of the trial."""
        if self._independent is not None:
            self._independent.reseed_rng()

    def _problem(self, study: optuna.Study, translated: Translated, trials: Sequence[FrozenTrial]) -> Problem:
        kind = Maximize if study.direction is optuna.study.StudyDirection.MAXIMIZE else Minimize
        return Problem(translated.space, kind("value"), self._max_epochs or longest(trials))

    def _chosen(
        self,
        problem: Problem,
        translated: Translated,
        trials: Sequence[FrozenTrial],
        rng: np.random.Generator,
    ) -> dict[str, Any] | None:
        """The candidate of the highest upper bound that was not tried; None while too little is known, or all was."""
        known = CurveHistory.of(problem, trials, translated, self._seed)
        history, rows = known.history, known.rows.table
        if len(history) - len(history.pending) < self._initial:
            return None
        stages = Stages(MultiFidelity().rungs(problem.max_epochs or 1), problem.space.dim)
        model = self._models(stages, lambda: Model(stages, self._initial))
        scale = model.scale(history, rows)
        if scale is None:
            return None
        kernel = model.kernel(history, rows) or StageKernel(stages, stages.mean)  # while rows are few
        points = candidates(history, rows, self._candidates, rng)
        mean, deviation = model.process(kernel, history, rows, scale).ends(points)
        found = first_untried(history, points, mean + self._deviations * deviation)
        return None if found is None else found[1]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_models")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": Lock(), "_models": Memo(4)}


def _known(name: str, distribution: Distribution) -> bool:
    """Whether the model has a counterpart of a distribution: of choices among objects it has none."""
    try:
        inward(name, distribution)
    except InvalidSpace:
        return False
    return True


def _trials(study: optuna.Study, states: tuple[TrialState, ...]) -> list[FrozenTrial]:
    """All of them: with HyperbandPruner a sampler is shown those of one bracket, and the model compares them all."""
    return study._storage.get_all_trials(study._study_id, deepcopy=False, states=states)
