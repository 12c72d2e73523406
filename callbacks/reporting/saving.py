"""When a training's state is saved: for a pause, and for the user where it is the best; and when it cannot be.

- A PAUSE that cannot be saved is declined: the training goes on, with one warning, and later reports are judged again.
- A best model that cannot be kept costs nothing but one warning a study.
- Ctrl-C and SIGTERM wait for the end of an epoch that was reported, whose state is saved as for a pause.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from haltune._utils.words import one_line
from haltune.errors import LeaseLost, NotSupported
from haltune.log.decisions import Action, Verdict
from haltune.study import Trial

from .clock import Clock
from .interruption import Interruption


class Saving:
    """The half of a Reporter that saves."""

    trial: Trial
    clock: Clock
    verdict: Verdict | None  # the first STOP or PAUSE
    _ended: bool
    _last: float  # the epoch reported last
    _interruption: Interruption | None  # while signals may wait
    _leaves: bool  # one did, until an epoch's end

    @property
    def pausing(self) -> bool:
        """True when the loop should save its state before it ends: the trial may go on later."""
        return self.verdict is not None and self.verdict.resumable and not self._ended

    @property
    def leaving(self) -> bool:
        """True when the loop should save its state and end for Ctrl-C or SIGTERM, and for nothing else."""
        return self._leaves and not self._ended and not self.stopping

    @property
    def saves(self) -> bool:
        """True when the state after this epoch should be saved to go on from."""
        return self.pausing or (self.leaving and self.trial.epoch == self._last)

    def hear(self, interruption: Interruption) -> None:
        """From now on signals wait until `heed`, and are heard in `leave`, or after `postpone`."""
        self.postpone()
        self._leaves, self._interruption = False, interruption.__enter__()

    def heed(self, epoch: float | None) -> None:
        """So many epochs are trained: the loop may end here, if the last was reported."""
        if self._interruption is not None and self._interruption.waits and epoch == self._last:
            self._leaves = True

    def leave(self) -> None:
        """The loop has ended in order. Raises what waited."""
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            interruption.__exit__(None, None, None)

    def postpone(self) -> None:
        """The loop has failed: what waited comes right after."""
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            interruption.postpone()

    @property
    def keeps(self) -> bool:
        """True when the final state should be saved, too: the trial is among the best whose checkpoints stay."""
        with suppress(Exception):  # a study out of reach
            return not self._ended and self.trial.keeps_checkpoint
        return False

    @property
    def keeps_epoch(self) -> bool:
        """True when the state after the epoch just reported should be saved: the trial counts for it, so far."""
        with suppress(Exception):
            return not self._ended and self.trial.keeps_epoch
        return False

    def save(self, write: Callable[[Path], object], suffix: str = ".ckpt", over: bool = False) -> bool:
        """Save the state after the last epoch; when that fails the pause is declined, and False returned.

        over: see `decline`.
        """
        return self.attempt(lambda: self.trial.save(write, suffix), over, keeps=not self.saves)

    def keep(self, write: Callable[[Path], object], suffix: str = ".ckpt") -> bool:
        """Save the state after an epoch that `keeps_epoch`; False when that fails."""
        return self.attempt(lambda: self.trial.save(write, suffix, keep=True), keeps=True)

    def attempt(self, saving: Callable[[], object], over: bool = False, keeps: bool = False) -> bool:
        """`save` for loops that write by themselves: `saving` raises what went wrong; `over`: see `decline`.

        keeps: the state is for the user alone, and no pause depends on it.
        """
        try:
            saving()
        except LeaseLost as error:
            self._let_go(error)
        except Exception as error:
            always = isinstance(error, NotSupported)
            why = str(error) if always else f"its state could not be saved ({one_line(error)})"
            if keeps:
                self.advise(
                    f"the model of trial {self.trial.id}, the best so far, is not kept: {why}", "kept"
                )
            else:
                self.decline(why, over, always)
        else:
            self.clock.restart()
            return True
        return False

    def decline(self, why: str, over: bool = False, always: bool = False) -> None:
        """A pause cannot be carried out: the trial goes on. What the budget cut short ends all the same.

        over: the loop has ended already, so the trial is offered again, and is not paused then.
        always: that holds for every trial of the study, and is said once.
        """
        consequence = "a later attempt begins further back"
        if self.forgo():
            consequence = "it trains on instead of losing its work"
            if over:
                self.trial.cannot_save(why)
                self.end("interrupted")
                consequence = "its training had ended: it begins again further back, not paused then"
        if always:
            self.advise(f"a trial cannot be paused, as {why}; {consequence}")
        else:
            self.warn_once("save", f"trial {self.trial.id}: {why}; {consequence}")

    def forgo(self) -> bool:
        """Take a PAUSE back, where there was one: later reports are judged again."""
        paused = self.verdict is not None and self.verdict.action is Action.PAUSE
        if paused:
            self.verdict = None
            self.trial.go_on()
        return paused

    @property
    def stopping(self) -> bool:
        raise NotImplementedError

    def end(self, status: str | None = None) -> None:
        raise NotImplementedError

    def advise(self, sentence: str, about: str | None = None) -> None:
        raise NotImplementedError

    def warn_once(self, topic: str, sentence: str) -> None:
        raise NotImplementedError

    def _let_go(self, error: LeaseLost) -> None:
        raise NotImplementedError
