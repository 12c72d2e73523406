"""What is said of a choice: the numbers behind it, and a sentence."""

from __future__ import annotations

from typing import Any

from haltune._utils.words import plural
from haltune.log.history import History
from haltune.policies.bayesopt import chosen_to

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
    seen = " and ".join(known)
    why = f"chosen by what is known of prior studies: {seen}"
    if "mean" in evidence:
        why = chosen_to(history, evidence["mean"], evidence["sd"], seen)
    compared = compared_from(evidence["compared_from"], evidence["foretells"], history.problem.max_epochs)
    return f"{why}; {compared}"


def drawn_at_random(kernel: StageKernel, base: int, history: History) -> str:
    """The same of one that no model chose, once it is learnt from where on runs are compared."""
    learnt = compared_from(
        kernel.stages.epochs[base], float(kernel.foretells[base]), history.problem.max_epochs
    )
    return f"drawn at random; {learnt}"


def compared_from(epoch: int, foretells: float, horizon: int | None) -> str:
    """From where on runs are compared, as the study has learnt; foretells: the correlation of an epoch with the end."""
    if epoch == horizon:
        return "trials are compared only at the end: earlier epochs do not predict the final order"
    return (
        f"trials are compared from epoch {epoch}: the order there predicts the final order well "
        f"(estimated correlation {foretells:.2f})"
    )
