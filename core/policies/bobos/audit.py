"""Audit: a share of the runs, drawn before they start, trains on where the rule would stop it.

How often a stop was wrong no log can tell: what was stopped has no end. An audited run has one. It is declared in the
event that starts it; the report at which it would have been stopped records so, with the numbers of that decision, and
the rule is not asked of it again. `haltune.study.telling.audit` counts what became of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from haltune._utils.checks import is_number
from haltune.errors import InvalidInput
from haltune.log.decisions import AUDIT, Action, Move, Start, Verdict, go_on
from haltune.log.events import Event, Reported, Started
from haltune.log.history import History

Audited = Mapping[
    int, float | None
]  # trial -> the epoch at which it would have been stopped; None: not so far


def check_share(owner: str, share: Any) -> None:
    """Raises InvalidInput for what is no share of runs."""
    if not (is_number(share) and 0.0 <= share <= 1.0):
        raise InvalidInput(
            f"{owner}(audit={share!r}): the share of runs that train on where they would be stopped, from 0 to 1; "
            "0.05 is one in twenty"
        )


def audit_spec(share: float) -> dict[str, float]:
    """What a spec says of it: nothing without an audit, as in logs from before there was one."""
    return {AUDIT: share} if share else {}


def declare(move: Move, share: float, history: History) -> Move:
    """The same move; a new run that is drawn for the audit says so."""
    drawn = share > 0.0 and history.rng("audit", len(history)).random() < share
    if not drawn or not isinstance(move, Start) or AUDIT in move.evidence:
        return move
    words = f"drawn for the audit of {100.0 * share:.3g}% of the runs: it trains on where it would be stopped"
    reason = f"{move.reason}; {words}" if move.reason else words
    return replace(move, reason=reason, evidence={**move.evidence, AUDIT: share})


def fold_audited(audited: Audited, event: Event, share: float) -> Audited:
    """The runs that were declared, and where each would have been stopped first.

    None without a share: a rule that audits nothing may be asked what it had done in an audited search.
    """
    if not share:
        return audited
    if isinstance(event, Started) and AUDIT in event.evidence:
        return {**audited, event.trial: None}
    if not isinstance(event, Reported) or AUDIT not in event.verdict.evidence:
        return audited
    first = event.trial in audited and audited[event.trial] is None
    return {**audited, event.trial: event.epoch} if first else audited


def trains_on(verdict: Verdict, epoch: float) -> Verdict:
    """What an audited run is told instead of a STOP; any other verdict as it is."""
    if verdict.action is not Action.STOP:
        return verdict
    reason = f"audit: would stop here, {verdict.reason}; trains on to see whether that is right"
    return Verdict(Action.CONTINUE, reason, {**verdict.evidence, AUDIT: float(epoch)})


def trained_on(epoch: float) -> Verdict:
    """What an audited run is told after the epoch at which it would have been stopped."""
    reason = f"audit: would have been stopped at epoch {epoch:g}; trains on to see whether that is right"
    return go_on(reason, **{AUDIT: epoch})
