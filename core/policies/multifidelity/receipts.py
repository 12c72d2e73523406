"""What is said of a choice: the numbers behind it, and a sentence."""

from __future__ import annotations

import math
from typing import Any

from haltune._utils.words import amount, plural
from haltune.log.history import History

from .lessons import earlier_in_words
from .log_regret import LogRegret
from .stage_kernel import StageKernel


def expected(
    scale: LogRegret | None, mean: float, deviation: float, ucb: float | None = None
) -> dict[str, Any]:
    """What is expected, in the metric's unit, once there is a value that says what that is."""
    if scale is None:
        return {}
    told = {"mean": scale.value(mean), "sd": scale.deviation(mean, deviation)}
    return told if ucb is None else {**told, "ucb": scale.value(ucb)}


def chosen_because(history: History, evidence: dict[str, Any]) -> str:
    """Why a configuration begins, from the numbers behind it."""
    known = [plural(evidence["rows"], "value")] if evidence["rows"] else []
    known += [earlier_in_words(**earlier) for earlier in evidence.get("earlier", ())]
    from_what = f"from {' and '.join(known)}"
    if "mean" in evidence:
        from_what = f"{_foretold(history, evidence['mean'], evidence['sd'])} in full training, {from_what}"
    compared = compared_from(evidence["compared_from"], evidence["foretells"], history.problem.max_epochs)
    return f"most promising: {from_what}; {compared}"


def _foretold(history: History, mean: float, deviation: float) -> str:
    """What is expected, within the bounds there are; nothing is where a deviation to both sides is as wide as these."""
    name, bounds = history.problem.goal.metric, history.problem.goal.bounds
    low, high = bounds or (-math.inf, math.inf)
    if bounds and 2 * deviation >= high - low:
        return f"any {name} from {low:g} to {high:g} may come of it"
    return f"{name} {min(max(mean, low), high):.4g} ± {deviation:.2g} expected"


def drawn_at_random(kernel: StageKernel, base: int, history: History) -> str:
    """The same of one that no model chose, once it is learnt from where on runs are compared."""
    learnt = compared_from(
        kernel.stages.epochs[base], float(kernel.foretells[base]), history.problem.max_epochs
    )
    return f"drawn at random; {learnt}"


def compared_from(epoch: int, foretells: float, horizon: int | None) -> str:
    """From where on runs are compared, as the study has learnt; foretells: the correlation of an epoch with the end."""
    if epoch == horizon:
        return "compared with other runs only at its end, for earlier epochs tell too little of it"
    since = amount(epoch, "epochs")
    return f"compared with other runs from {since} on, as these tell enough of the end (correlation {foretells:.2f})"
