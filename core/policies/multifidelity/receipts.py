"""What is said of a choice: the numbers behind it, and a sentence."""

from __future__ import annotations

from typing import Any

from haltune._utils.words import amount, plural
from haltune.log.history import History

from .lessons import earlier_in_words
from .log_regret import LogRegret


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
    name, told = history.problem.goal.metric, f"{evidence['foretells']:.2f}"
    known = [plural(evidence["rows"], "value")] if evidence["rows"] else []
    known += [earlier_in_words(**earlier) for earlier in evidence.get("earlier", ())]
    from_what = f"from {' and '.join(known)}"
    if "mean" in evidence:
        from_what = (
            f"{name} {evidence['mean']:.4g} ± {evidence['sd']:.2g} expected in full training, {from_what}"
        )
    since = amount(evidence["compared_from"], "epochs")
    compared = f"runs are compared from {since} on, believed to tell {told} of the end"
    return f"most promising: {from_what}; {compared}"
