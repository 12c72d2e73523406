"""A decision of optimal stopping in words and numbers, and what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from haltune._utils.words import chance, plural
from haltune.log.decisions import Verdict, go_on, stop

from .induction import Losses, StopDecision


@dataclass(frozen=True)
class Receipt:
    """A decision, None before the first table; the epoch it was solved at, and the runs beside that it rests on."""

    decision: StopDecision | None
    solved: int = 0  # epoch
    seen: int = 0  # the last epoch of its own that it rests on; of long trainings only some are looked at
    beside: int = 0  # runs trained further than `solved` that its curves were drawn by
    full: int = 0  # of them, trained to the end
    known: int = 0  # runs trained further than `solved`

    def verdict(self, best: float, epoch: int, losses: Losses) -> Verdict:
        """CONTINUE or STOP, with its reason and evidence. best: the incumbent, raw."""
        d = self.decision
        if d is None:
            return go_on(f"epoch {epoch}: too early to judge", incumbent=best)
        evidence = {
            "p_win": d.p_win, "bound": d.bound, "loss_stop": d.loss_stop,
            "loss_continue": d.loss_continue, "loss_win": d.loss_win, "incumbent": best,
            "basis": d.basis, "solved_at": self.solved, "K1": losses.K1, "K2": losses.K2, "c": losses.c,
            "paths": d.paths, "beside": self.beside, "beside_full": self.full, "beside_known": self.known,
        }  # fmt: skip
        return (stop if d.d == "stop" else go_on)(self._sentence(d, best, epoch), **evidence)

    def _sentence(self, d: StopDecision, best: float, epoch: int) -> str:
        if d.basis == "saturated" and d.d == "stop":
            return (
                f"the score was the worst possible in all {epoch} epochs: it counts as losing to {best:.4g}"
            )
        if math.isnan(d.p_win):
            return f"P(beats {best:.4g}) is not known at epoch {epoch}: too few simulated curves look like this one"
        told = f"P(beats {best:.4g}) {chance(d.p_win, d.paths)} at epoch {epoch}, from {self._basis(epoch)}"
        if d.d == "stop":
            return (
                f"{told}; expected loss of stopping {d.loss_stop:.3g} <= {d.loss_continue:.3g} of training on"
            )
        if d.d == "win":
            return f"{told}: likely to win, so it continues"
        return f"{told}; expected loss of training on {d.loss_continue:.3g} < {d.loss_stop:.3g} of stopping"

    def _basis(self, epoch: int) -> str:
        """What it was seen from, and what the simulated curves were drawn by."""
        own = f"its {'own' if self.seen == epoch else 'first'} {plural(self.seen, 'epoch')}"
        known = plural(self.beside, "run")
        if self.known > self.beside:
            known = f"{self.beside} of {plural(self.known, 'run')}"
        known += f" trained further, {self.full or 'none'} of them to the end"
        if self.full == self.known:
            known = f"{plural(self.beside, 'run')} trained to the end"
        if self.solved == self.seen:
            return f"{own} and {known}" if self.beside else own
        return f"{own}, by curves drawn at epoch {self.solved}{f' from {known}' if self.beside else ''}"
