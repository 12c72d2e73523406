"""The states that a program saves: when the log gets each one, and as the state of which report.

    begins      before it is written: it is early if a report follows, and the program has trained since the last one
    commit      it is written, and the log gets it as the state of the last report; but an early one waits
    date        at a report: one that waits is of this report, unless the program has trained since it was saved
    reported    after the report: the log gets it

No attempt continues from a state that waits. One that was saved between two reports has no position, so the log never
gets it: a trial that resumed from it would train a part of an epoch twice. A further early state replaces one that
waits. Only torch's optimizers show when a program trains. Without them it has trained since the last report if it is
within an epoch that `epochs` counts, or if it had saved before its first report.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from haltune._utils.disk import discard
from haltune._utils.signals import interrupts
from haltune._utils.updates import Training
from haltune.errors import LeaseLost, StoreError
from haltune.log.decisions import Verdict
from haltune.log.events import Status
from haltune.store.checkpoints import keepers

from .attempt import Attempt
from .draws import Draws
from .session import Session, saved_epoch


@dataclass
class State:
    """A state that the program saves."""

    keep: bool | float  # see `Port.save`
    resumes_only: bool
    early: bool
    left: float | None  # the epoch that the loop had started and not reported
    path: str = ""
    seconds: float = 0.0  # that writing took
    weights: str = ""  # mark of its model, see `Port.sign`
    of: float | None = None  # position of an earlier report, if the state has its weights
    unlike: float | None = None  # `of`, or the last report if it was trained after that; None: it has the last value
    position: float | None = None  # of the report that it is of; None: the last one
    declined: Verdict | None = None  # the PAUSE that was declined, because a full disk has left it out


class States:
    """The states of a trial. draws: the random states that they have next to them."""

    training: Training | None = None  # what torch's optimizers train in the block of the trial
    waiting: State | None = None  # an early state, saved since the last report
    left_out: State | None = None  # one to resume from that a full disk has left out; None once the program trains on
    _saves_first = False  # the program had saved before the first report of this attempt
    _trains_first: bool | None = None  # torch had made steps before that report; None: there is none yet
    _steady: bool | None = None  # torch has made steps for each report so far; None: it is not known of any
    _made_before = 0  # steps of torch's optimizers until the last report
    _made_at_begin = 0  # its steps until the present epoch started
    _made_at_report: int | None = None  # its steps until the first report of this epoch, if there was one
    _saved_in_epoch = False  # a state that is of a report was saved in this epoch
    unlike: float | None = None  # see State.unlike, of the last state

    def __init__(self, session: Session, draws: Draws) -> None:
        self._session, self._draws = session, draws
        # temporary path -> a state that a loop writes itself, until it commits it; and `keep` and position at its start
        self.begun: dict[Path, tuple[bool | float, float, State]] = {}

    @property
    def trained(self) -> bool:
        """True if torch's optimizers have made steps since the last report."""
        return self._made > self._made_before

    @property
    def trained_on(self) -> bool:
        """True if torch has trained the model of the last report since then, so that it has another value now."""
        return self.training is not None and self.training.trained_after(self._made_before)

    @property
    def before_training(self) -> bool:
        """True if torch has made no step in this epoch, in a program that reports before it trains."""
        here = self.training is not None and self._made == self._made_at_begin
        return here and self._session.seen.reports_first

    @property
    def declined(self) -> Verdict | None:
        """The PAUSE that a full disk has declined; None once the program trains on."""
        return None if self.left_out is None else self.left_out.declined

    @property
    def _made(self) -> int:
        return 0 if self.training is None else self.training.made

    # a state, from its start until the log has it

    def begins(
        self, attempt: Attempt, keep: bool | float, resumes_only: bool, left: float | None, own: bool, upcoming: float,
        of: float | None,
    ) -> State:  # fmt: skip
        """Return a state that is to be written.

        left: the epoch that the loop has started and not reported. own: the loop is the user's. upcoming: the position
        of the next report. of: that of an earlier report with the present weights.
        """
        self._saves_first |= self._trains_first is None
        over = attempt.epoch == self._session.log.problem.max_epochs or attempt._stops  # no report follows
        # an epoch may make no step, also the first one, as GradScaler leaves out some
        trained = self.trained or not self._made
        early = own and not over and trained and bool(left is not None or self._saves_first or self._trains_first)
        if keep is True:
            seen = self._session.seen
            if seen.keeps_first is None and attempt.attempt == 1:  # the first epoch is the best so far
                seen.keeps_first = self._trains_first is None
            before = left is not None or self.waiting is not None or self._made or seen.keeps_first is not False
            if early and before:
                keep = upcoming
        counts = own and not early and not resumes_only
        of = of if counts else None
        unlike = of if of is not None else attempt.epoch if counts and self.trained_on else None
        if unlike is not None and self._counts_as(attempt, unlike):
            unlike = None
        keep = of if keep is True and of is not None and unlike is not None else keep
        # only a state to resume from waits
        return State(keep, resumes_only or unlike is not None, early and keep is False, left, of=of, unlike=unlike)

    def _counts_as(self, attempt: Attempt, earlier: float) -> bool:
        """Return whether the last value was also that of an earlier report: the trial reports its best so far."""
        log = self._session.log
        curve = log.history.trial(attempt.id)
        before = [v for e, v in zip(curve.epochs, curve.values, strict=True) if e == earlier < curve.epochs[-1]]
        return log.problem.goal.of == "last" and before == [curve.values[-1]]

    def path(self, attempt: Attempt, state: State, suffix: str) -> str:
        """Return a temporary path to write a state to, on rank 0. Raises OSError."""
        a, epoch = attempt, saved_epoch(attempt, state.keep)
        return str(self._session.checkpoints.begin(a.id, a.attempt, epoch, suffix, bool(state.keep), a.unit))

    def commit(self, attempt: Attempt, state: State, temporary: Path, seconds: float) -> str:
        """Give a written state its name, on rank 0, and return its path; record it unless it is early.

        seconds: that writing took. Raises as Trial.save does.
        """
        checkpoints = self._session.checkpoints
        with checkpoints.undecided(temporary):
            with self.writing(attempt, temporary):
                if state.keep is False:
                    ends = attempt.epoch == self._session.log.problem.max_epochs
                    self._draws.write(temporary, not ends, plain=self.training is not None and not attempt.stated)
                state.path, state.seconds = str(checkpoints.publish(temporary)), seconds
            if state.early:
                if self.waiting is not None and checkpoints.is_written(self.waiting.path):
                    discard(Path(self.waiting.path))
            elif not self.record(attempt, state):
                lost, handled = _lost(attempt), sys.exc_info()[1]
                if handled is None or not interrupts(handled):
                    raise lost
                # Ctrl-C, which the program handles, must come through
                last = self._session.log.history.trial(attempt.id).checkpoint_epoch
                resumes = f"after {self._session.log.problem.at(last)}, its last checkpoint" if last else "from scratch"
                self._session.warn(f"{lost} It resumes {resumes}.")
                return attempt.checkpoint or ""
        return state.path

    def saved(self, state: State, path: str | None) -> None:
        """Note a state that was saved. path: of a file of haltune's."""
        if state.keep is not False:
            return  # it is another file than the one to resume from
        self._draws.saved(path, state.path)
        self.waiting = state if state.early else None
        self._saved_in_epoch = not state.early
        self.unlike = state.unlike
        if self.training is not None:
            self.training.saves(self._made_before)

    def record(self, attempt: Attempt, state: State, own: bool = False) -> bool:
        """Append a complete state, on rank 0, and delete older ones. If it is of the best epoch, it is kept, too.

        If the trial is no longer held, return False and delete it, unless it is a file of the program's own.

        own: the program states a file of its own, on all ranks, so nothing is deleted.
        """
        session, path, t = self._session, state.path, self._session.log.history.trial(attempt.id)
        # the state to resume from is kept as that of the best epoch, and this one replaces it
        replaces = t.kept is not None and t.kept == t.checkpoint and t.checkpoint_epoch == attempt.epoch and not own
        last = state.position in (None, attempt.epoch)
        best = last and state.keep is False and not state.resumes_only and (self.keeps(attempt, True) or replaces)
        # an error may come after the append, so the file stays; the next save deletes files that the log lacks
        facts = {"resumes_only": state.resumes_only, "weights": state.weights}
        if not session.checkpointed(attempt, path, state.seconds, state.keep, state.position, **facts):
            if not own and session.checkpoints.is_written(path):
                discard(Path(path))
            return False
        if not own:
            begun = [temporary.name for temporary in self.begun]
            session.checkpoints.supersede(Path(path), session.log.history.kept(attempt.id), begun)
        if best:
            session.checkpointed(attempt, path, 0.0, True)
        elif state.of is not None and state.keep is False and self.keeps(attempt, state.of):
            session.checkpointed(attempt, path, 0.0, state.of)
        return True

    def keeps(self, attempt: Attempt, best_epoch: bool | float) -> bool:
        """See `Port.keeps`."""
        session, goal = self._session, self._session.log.problem.goal
        if best_epoch and goal.of == "last":
            return False

        def question(_: object) -> bool:
            keep, history = session.checkpoints.keep, session.log.history
            cut = attempt._stops and not (best_epoch and attempt._may_resume)
            if keep == 0 or not len(history.epochs(attempt.id)):
                return False
            best = history.present_best(attempt.id)
            epoch = attempt.epoch if isinstance(best_epoch, bool) else best_epoch
            lacks = best.checkpoint is None and (not best_epoch or best.epoch == epoch)
            return lacks and attempt.id in keepers(history, keep, attempt.id, cut)

        return session.once(attempt, "keeps its best epoch" if best_epoch else "keeps its checkpoint", read=question)

    @contextmanager
    def writing(self, attempt: Attempt, temporary: Path) -> Iterator[None]:
        """Delete a state if the block fails, which writes it: a full disk has no room for a part.

        Raises LeaseLost if it fails because another worker took the trial and deleted the temporary files.
        """
        try:
            yield
        except BaseException as error:
            discard(temporary)
            if isinstance(error, Exception):
                with suppress(StoreError):
                    self._session.sync()
                record = self._session.log.history.trial(attempt.id)
                if (record.attempt, record.status) != (attempt.attempt, Status.RUNNING):
                    raise _lost(attempt) from error
            raise

    # one that waits

    def date(self, attempt: Attempt, position: float, left: float | None, fitted: bool) -> None:
        """Note at a report that the state that waits is of it, unless the program has trained since it was saved.

        Then it is of the last report, if the program had not trained before it was saved; otherwise of none.
        fitted: by a framework, which has started since.
        """
        if (state := self.waiting) is None:
            return
        log, at = self._session.log, self._session.log.problem.at(position)
        if fitted or state.left != left or (self.training is not None and self.training.trains_on):
            self._saves_first = False
            self.ends(attempt)
            dropped, self.waiting = self.waiting, None
            # once, if an earlier report has no state either
            if dropped and self._trains_first is not None and not log.history.trial(attempt.id).checkpoint_epoch:
                self._session.hint(
                    f"Trial {attempt.id} has trained between saving its state and reporting {at}, so it has no state "
                    "to resume from: save after trial.report(value).",
                    "never saves",
                )
        elif not self._made:
            self._session.hint(
                f"Trial {attempt.id} saved a state before it reports {at}, so it counts as the state after {at}. If "
                "your program saves before it trains, save after trial.report(value) instead.",
                "saves first",
            )

    def begins_loop(self) -> None:
        """State that a loop starts, or the training again."""
        if self.training is not None:
            self.training.starts()

    def begins_epoch(self) -> None:
        """State that a loop starts an epoch."""
        self._made_at_begin, self._made_at_report, self._saved_in_epoch = self._made, None, False
        self.left_out = None

    def trains_rest(self) -> bool:
        """State that a loop is at the end of an epoch; return whether it has trained in it after it saved its state."""
        if (reported := self._made_at_report) is None or self.training is None:
            return False
        if self._made > self._made_at_begin:
            self._session.seen.reports_first = reported == self._made_at_begin
        return self._saved_in_epoch and self.trained_on and self.training.trained_since_save

    def idles(self, within: bool) -> bool:
        """State that a report comes; return whether torch made no step for it, but some for each report before.

        within: an epoch of a loop.
        """
        reported, steps = self._trains_first is not None, self._made
        if steps > self._made_before and not (reported or within):
            return False  # steps before the first report may have trained something else
        made = (reported and steps > self._made_before) or (within and steps > self._made_at_begin)
        steady, self._steady = self._steady, made and self._steady is not False
        return steady is True and not made

    def reported(self, attempt: Attempt) -> None:
        """State that the log has a report."""
        if self._trains_first is None:
            self._trains_first = self.trained
        self._made_before = made = self._made
        self.left_out = None
        self._made_at_report = made if self._made_at_report is None else self._made_at_report
        # an evaluation may have drawn, and the program may be killed before the end of the epoch
        self._draws.renews(of=self.waiting is not None)  # otherwise it is of an earlier report, within this epoch
        self._saved_in_epoch |= self.waiting is not None
        self._log_waiting(attempt)

    def ends(self, attempt: Attempt) -> None:
        """Record the state that waits if it is that of the last report, as far as that is known: no other follows."""
        if (state := self.waiting) is None:
            return
        training = self.training if self._made else None
        trained = state.left is not None if training is None else training.saved_trained  # since the last report
        if not trained:
            self._log_waiting(attempt)

    def _log_waiting(self, attempt: Attempt) -> None:
        state, self.waiting = self.waiting, None
        if state is not None and attempt.ended is None:
            self._session.once(attempt, "is recorded", partial(self.record, attempt, state))

    def restarts(self) -> None:
        """State that the training starts again, so that no report came before."""
        self._made_before, self._trains_first, self._steady = self._made, None, None


def _lost(attempt: Attempt) -> LeaseLost:
    why = f"has ended ({attempt.ended})" if attempt.ended else "was offered to another worker"
    return LeaseLost(f"Trial {attempt.id} {why}. Its state is not saved.")
