"""What the default search's model believes of an Optuna study: its trials as a history, and as the rows it learns from.

Only what the model looks at is told: of each curve the values at epochs 1, 3, 9, 27, ... and the last. A complete trial
counts for what its objective returned, at the end of training; failed ones are passed over, as by Optuna's samplers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from haltune.errors import InvalidSpace
from haltune.log import events as ev
from haltune.log.codec import plain
from haltune.log.decisions import Action, Verdict
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.problem import Problem
from haltune.policies.multifidelity.curve_rows import CurveRows

from .curves import ENDS, FrozenTrial, TrialState, curve_of
from .library import PREFIX, optuna
from .spaces import Translated

_CHOSEN = f"{PREFIX}relative"  # attribute of a trial that runs
_TOLD = Verdict(Action.UNJUDGED, "reported to Optuna")
ConfiguredTrial = tuple[dict[str, Any], FrozenTrial]  # a trial and its configuration


def longest(trials: Sequence[FrozenTrial]) -> int:
    """Epochs of the trial that was trained longest."""
    from_zero = any(0 in t.intermediate_values for t in trials)
    return max([1, *(max(t.intermediate_values) + from_zero for t in trials if t.intermediate_values)])


@dataclass(frozen=True)
class CurveHistory:
    """A history, and the rows of its curves."""

    history: History
    rows: CurveRows

    @classmethod
    def of(
        cls, problem: Problem, trials: Sequence[FrozenTrial], translated: Translated, seed: int
    ) -> CurveHistory:
        """Of trials that are over, or run; of those that lie in the space."""
        known = [(config, t) for t in trials if (config := _config(t, translated)) is not None]
        known.sort(key=lambda pair: pair[1].state is TrialState.RUNNING)  # these are pending
        history, rows = History(problem), CurveRows(problem.goal)
        for event in _events(problem, known, seed):
            history.apply(event)
            rows.take(event)
        return cls(history, rows)


def _config(trial: FrozenTrial, translated: Translated) -> dict[str, Any] | None:
    params = _chosen(trial, translated) | trial.params
    if not translated.counterparts.keys() <= params.keys():
        return None
    try:
        return translated.inward(params)
    except InvalidSpace:
        return None


def choose(study: optuna.Study, trial: FrozenTrial, params: dict[str, Any], translated: Translated) -> None:
    """Tell other workers what a trial will train: Optuna stores a parameter when it is suggested, some time later."""
    told = {
        name: translated.counterparts[name].distribution.to_internal_repr(v) for name, v in params.items()
    }
    study._storage.set_trial_system_attr(trial._trial_id, _CHOSEN, told)  # there is no public way


def _chosen(trial: FrozenTrial, translated: Translated) -> dict[str, Any]:
    if trial.state is not TrialState.RUNNING:
        return {}
    kept = {name: c.distribution for name, c in translated.counterparts.items()}
    told = trial.system_attrs.get(_CHOSEN, {}).items()
    return {n: kept[n].to_external_repr(v) for n, v in told if n in kept and kept[n]._contains(v)}


def _events(problem: Problem, known: Sequence[ConfiguredTrial], seed: int) -> Iterator[Event]:
    from_zero = any(0 in t.intermediate_values for _, t in known)
    yield ev.Created(at=0.0, problem=plain(problem.to_json()), policy={}, seed=seed)
    for number, (config, trial) in enumerate(known):
        yield ev.Started(
            at=0.0, trial=number, config=plain(config), until=problem.max_epochs, resource=None, tags={},
            reason="", evidence={}, seen=0, deciding=0.0, worker="optuna",
        )  # fmt: skip
        if trial.state is TrialState.RUNNING:
            continue
        for epoch, value in _marked(trial, problem.max_epochs or 1, from_zero):
            yield ev.Reported(
                at=0.0, trial=number, attempt=1, epoch=float(epoch), value=float(value), seconds=0.0,
                verdict=_TOLD, seen=0,
            )  # fmt: skip
        yield ev.Ended(at=0.0, trial=number, attempt=1, status=ENDS[trial.state])


def _marked(trial: FrozenTrial, horizon: int, from_zero: bool) -> Iterator[tuple[int, float]]:
    """The first epochs at or after 1, 3, 9, ..., and the last, within the horizon."""
    curve = {n: v for n, v in curve_of(trial, from_zero).items() if n <= horizon}
    if trial.state is TrialState.COMPLETE and trial.value is not None:
        curve[horizon] = trial.value
    mark, last = 1, max(curve, default=0)
    for epoch, value in curve.items():
        if epoch >= mark or epoch == last:
            yield epoch, value
            mark = 3 ** (math.floor(math.log(epoch, 3) + 1e-9) + 1)
