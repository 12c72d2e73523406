"""A decision of optimal stopping in words and numbers, and what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from haltune._utils.words import plural
from haltune.log.decisions import Verdict, go_on, stop

from .induction import Losses, StopDecision


@dataclass(frozen=True)
class Receipt:
    """A decision, None before the first table; the epoch it was solved at, and the runs beside that it rests on."""

    decision: StopDecision | None
    solved: int = 0  # epoch
    beside: int = 0  # runs known beyond it
    full: int = 0  # of them, known to the end

    def verdict(self, best: float, epoch: int, losses: Losses) -> Verdict:
        """CONTINUE or STOP, with its reason and evidence. best: the incumbent, raw."""
        d = self.decision
        if d is None:
            return go_on(f"epoch {epoch}: too early to judge", incumbent=best)
        evidence = {
            "p_win": d.p_win, "bound": d.bound, "loss_stop": d.loss_stop,
            "loss_continue": d.loss_continue, "loss_win": d.loss_win, "incumbent": best,
            "basis": d.basis, "solved_at": self.solved, "K1": losses.K1, "K2": losses.K2, "c": losses.c,
            "paths": d.paths, "beside": self.beside, "beside_full": self.full,
        }  # fmt: skip
        return (stop if d.d == "stop" else go_on)(self._sentence(d, best, epoch), **evidence)

    def _sentence(self, d: StopDecision, best: float, epoch: int) -> str:
        if d.basis == "saturated" and d.d == "stop":
            return (
                f"the score was the worst possible in all {epoch} epochs: it counts as losing to {best:.4g}"
            )
        if math.isnan(d.p_win):
            return f"P(beats {best:.4g}) is not known at epoch {epoch}: too few simulated curves look like this one"
        chance = f"P(beats {best:.4g}) {told(d.p_win, d.paths)} at epoch {epoch}, from {self._basis()}"
        if d.d == "stop":
            return (
                f"{chance}; expected loss of stopping {d.loss_stop:.3g} <= {d.loss_continue:.3g} of going on"
            )
        if d.d == "win":
            return f"{chance}: likely to win, so it goes on"
        return f"{chance}; expected loss of going on {d.loss_continue:.3g} < {d.loss_stop:.3g} of stopping"

    def _basis(self) -> str:
        """What the simulated curves were drawn from."""
        own = f"its own {plural(self.solved, 'epoch')}"
        if not self.beside:
            return own
        return f"{own} and {plural(self.beside, 'run')} known beyond, {self.full} of them to the end"


def told(p: float, paths: int) -> str:
    """A probability that so many simulated curves tell, to the digit that is nearest to its standard error.

    Where none of them wins, at most 3 / paths at 95% (the rule of three).
    """
    n = max(paths, 1)
    digits = min(4, max(1, round(-math.log10(math.sqrt(max(p * (1.0 - p), 1.0 / n) / n)))))
    least = 10.0**-digits
    if p < 0.5 * least:
        return (
            f"< {max(least, min(1.0, math.ceil(3.0 / n / least) * least)) if p == 0.0 else least:.{digits}f}"
        )
    return f"= {p:.{digits}f}"
