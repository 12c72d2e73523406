"""Scheduling by brackets: the questions of a policy, answered from the rungs of successive halving.

A free worker gets, in this order: a winner that waits to go on, in the oldest bracket first; a new
configuration where a first rung has places; the next bracket (section 6.1: nobody idles); else it waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from haltune._utils.words import amount, ordinal, plural
from haltune.log import events as ev
from haltune.log.decisions import FULL, Action, Finish, Move, Resume, Start, Verdict, Wait, go_on, stop
from haltune.log.events import Event, Status
from haltune.log.history import History
from haltune.log.records import TrialRecord

from .brackets import Bracket
from .persistent import Sparse
from .plan import Begun, Plan
from .rungs import OUT, Member, Open, comparison, judged, refused, score_counted, score_of, until
from .sampler import Sampler


@dataclass(frozen=True, slots=True)
class Halves:
    """The brackets under way."""

    sign: float  # of the goal
    peaks: bool = False  # runs count for their best epochs
    horizon: int | None = None  # epochs of a full training, as the problem says
    min_epochs: int = 0  # below which nobody is compared, as the problem says
    opened: int = 0  # brackets so far
    open: tuple[Open, ...] = ()  # oldest first
    aims: Sparse[float] = field(default_factory=Sparse)  # in seconds: the last rung a trial trained towards
    begun: Begun = field(default_factory=Begun)
    short: tuple[Bracket, ...] = ()  # that closed with fewer than planned: they run again when more may begin

    def holding(self, trial: int) -> Open | None:
        """The bracket in which a trial may still go on."""
        return next((b for b in self.open if b.member(trial) is not None), None)

    def put(self, number: int, bracket: Open | None) -> Halves:
        """Another state of one bracket; None: it is over."""
        before = next((b for b in self.open if b.number == number), None)
        short = self.short
        if before is not None and before.planned is not None and (bracket is None or bracket.rung):
            short = (*short, before.planned)
            bracket = bracket and replace(bracket, planned=None)
        rest = tuple(bracket if b.number == number else b for b in self.open)
        return replace(self, open=tuple(b for b in rest if b is not None), short=short)


@dataclass(frozen=True)
class Halver:
    """Synchronous successive halving over the brackets of a plan.

    unit: "epochs" or "seconds", counted here; another name: handed to the training as trial.resource.
    resume: winners go on from their checkpoint; else they are trained again from the beginning. ends: the last rung
    of a bracket is a full training; else there may be another bracket that trains further.
    """

    plan: Plan
    sampler: Sampler
    unit: str = "epochs"
    resume: bool = True
    ends: bool = True

    @cached_property
    def counted(self) -> bool:
        """True when the resource is seen here, report by report."""
        return self.unit in ("epochs", "seconds")

    @cached_property
    def goes_on(self) -> bool:
        """True when winners go on from where they are; else another trial begins with their configuration."""
        return self.resume and self.counted

    # -- the fold ------------------------------------------------------------------------

    def fold(self, state: Halves, event: Event) -> Halves:
        """The brackets after `event`."""
        state, begun = self._folded(state, event), state.begun.after(event)
        if begun is state.begun:
            return state
        state = replace(state, begun=begun)
        for bracket in state.open:
            state = state.put(bracket.number, bracket.bounded(begun.no_more))
        return state

    def _folded(self, state: Halves, event: Event) -> Halves:
        if isinstance(event, ev.Started):
            return self._started(state, event)
        if not isinstance(event, ev.TrialEvent) or (bracket := state.holding(event.trial)) is None:
            return state
        moved = self._moved(bracket, state, event)
        return self._aimed(state.put(bracket.number, moved), moved, event.trial)

    def _aimed(self, state: Halves, bracket: Open | None, trial: int) -> Halves:
        """The record of a trial tells its aim in epochs; one in seconds that goes on at once is told here."""
        if self.unit != "seconds" or bracket is None or bracket.members.get(trial) is None:
            return state
        aim = bracket.at.resource
        return state if state.aims.get(trial) == aim else replace(state, aims=state.aims.put(trial, aim))

    def _started(self, state: Halves, e: ev.Started) -> Halves:
        number, of = self.plan.number(e), e.tags.get("of")
        if number >= state.opened:
            again = self._again(state, number)
            opened = Open.new(number, again or self.plan(number), self.goes_on)
            short = state.short[1:] if again else state.short
            state = replace(state, opened=number + 1, open=(*state.open, opened), short=short)
        bracket = next((b for b in state.open if b.number == number), None)
        if bracket is None:
            return state
        bracket = bracket.enter(e.trial, Member(1), of)
        return self._aimed(state.put(number, bracket), bracket, e.trial)

    def _again(self, state: Halves, number: int) -> Bracket | None:
        """What runs once more under a number beyond the plan: a bracket that could not be filled."""
        ends = self.plan.ends
        return state.short[0] if state.short and ends is not None and number >= ends else None

    def _moved(self, bracket: Open, state: Halves, e: ev.TrialEvent) -> Open | None:
        member = bracket.member(e.trial)
        assert member is not None
        if isinstance(e, ev.Resumed):
            return self._resumed(bracket, member, e)
        if not isinstance(e, ev.AttemptEvent) or e.attempt != member.attempt:
            return bracket  # superseded
        if isinstance(e, ev.Reported) and member.held:
            return self._reported(bracket, member, state, e)
        if isinstance(e, ev.Checkpointed):
            return bracket.update(e.trial, member.checkpointed())
        if isinstance(e, ev.Ended | ev.Expired):
            return self._over(bracket.update(e.trial, replace(member, held=False)), e)
        return bracket

    def _resumed(self, bracket: Open, member: Member, e: ev.Resumed) -> Open:
        again = member.again(e.attempt, e.anew)
        return bracket.enter(e.trial, again) if e.by_policy else bracket.update(e.trial, again)

    def _reported(self, bracket: Open, member: Member, state: Halves, e: ev.Reported) -> Open | None:
        last, had = score_of(state.sign, e.value), self.had(member, e.epoch, e.seconds)
        score = score_counted(member.last, last, state.peaks)
        goes_on = self.goes_on and e.verdict.action is Action.CONTINUE
        if e.trial in bracket.queue and goes_on:
            bracket = bracket.enter(e.trial, member)
        if bracket.members.get(e.trial) is None or e.epoch < state.min_epochs:
            return bracket.update(e.trial, replace(member, last=score, had=had))
        stopped = e.verdict.action is Action.STOP
        if stopped and e.verdict.resumable:
            had = min(had, math.nextafter(bracket.at.resource, 0.0))  # cut by the budget: nobody judged it
        out = stopped and not e.verdict.resumable and (self.goes_on or had < bracket.at.resource)
        out = out or (last == OUT and had >= bracket.at.resource)
        after = bracket.report(e.trial, score, had, out)
        if after is not None and goes_on and (won := after.past.get(e.trial)) is not None:
            return after.enter(e.trial, won)  # the last to arrive, it goes on at once
        return after

    def _over(self, bracket: Open, e: ev.Ended | ev.Expired) -> Open | None:
        if e.trial in bracket.queue and not self.goes_on:
            return bracket  # another trial goes on in its place
        if e.status is Status.COMPLETED:
            return bracket.done(e.trial)
        member = bracket.members.get(e.trial)
        if e.status is Status.STOPPED and not self.goes_on and member and member.result is not None:
            return bracket  # it had its resource
        return bracket.leave(e.trial) if e.status in (Status.STOPPED, Status.FAILED) else bracket

    def had(self, member: Member, epoch: float, seconds: float) -> float:
        """The resource of a trial after a report."""
        if not self.counted:
            return 0.0  # it arrives when it is over
        return member.after(self.unit, epoch, seconds)

    # -- the questions -------------------------------------------------------------------

    def propose(self, state: Halves, history: History) -> Move:
        """A winner, a new configuration, the next bracket, or a wait."""
        for bracket in state.open:
            if (move := self._promotion(bracket, history)) is not None:
                return move
            if bracket.free:
                return self._new(bracket, history)
        if state.begun.no_more:
            return Wait("no new trial may begin, and those that continue are still trained")
        again = self._again(state, state.opened)
        if again or self.plan.has(state.opened, history):
            return self._new(Open.new(state.opened, again or self.plan(state.opened)), history)
        if not state.open:
            count = state.opened
            return Finish(
                "the one bracket is complete" if count == 1 else f"all {count} brackets are complete"
            )
        first = state.open[0]
        return Wait(f"rung {first.rung} of bracket {first.number} waits for trials that are still trained")

    def _promotion(self, bracket: Open, history: History) -> Move | None:
        for id in bracket.queue:
            trial = history.trial(id)
            if self.goes_on and trial.status is not Status.PAUSED:
                continue  # still with its worker, or given back: the study offers it again
            resource = bracket.at.resource
            tags = {"bracket": bracket.number, "rung": bracket.rung}
            before = amount(bracket.bracket.rungs[bracket.rung - 1].resource, self.unit)
            reason = f"among the best {bracket.places} after {before}: on to {amount(resource, self.unit)}"
            if self.goes_on:
                return Resume(id, until(resource, self.unit, history), resource, tags, reason)
            tags["of"] = id
            end = until(resource, self.unit, history)
            return Start(trial.config, end, resource, tags, reason, partial=self._partial(bracket))
        return None

    def _new(self, bracket: Open, history: History) -> Start:
        drawn = self.sampler.draw(history, bracket.number, bracket.bracket, bracket.members.size, self.unit)
        resource = bracket.at.resource
        tags = {"bracket": bracket.number, "rung": 0}
        reason = f"{drawn.reason}; bracket {bracket.number}, {comparison(bracket.bracket, 0, self.unit)}"
        return Start(
            drawn.config, until(resource, self.unit, history), resource, tags, reason, drawn.evidence,
            self._partial(bracket),
        )  # fmt: skip

    def _partial(self, bracket: Open) -> bool:
        """True for a trial of this rung that is no full training, though nobody cuts it: on few samples, say."""
        return not self.counted and not (bracket.last and self.ends)

    def _full(self, bracket: Open) -> dict[str, bool]:
        """What the verdict says that ends a run at this rung."""
        return {FULL: True} if bracket.last and self.ends else {}

    def judge(self, state: Halves, history: History, trial: TrialRecord) -> Verdict:
        """On to the rung; there PAUSE until it is complete; then on as a winner, or STOP."""
        bracket = state.holding(trial.id)
        if bracket is None:
            return self._alone(state, trial)
        member = bracket.member(trial.id)
        assert member is not None
        had = self.had(member, trial.epoch, float(trial.seconds[-1]))
        score = judged(state.sign, trial, history.problem.goal)
        if trial.id in bracket.queue:
            if not self.goes_on:  # another trial goes on in its place
                return self._alone(state, trial)
            if score == OUT:
                return stop("offered again, its value is not finite any more: it never continues")
            return self._on(bracket, "it was among the best of its rung", history)
        if not self.counted or had < bracket.at.resource:
            return go_on(f"on to {amount(bracket.at.resource, self.unit)}")
        if not self.goes_on:
            return stop(f"trained its {amount(bracket.at.resource, self.unit)}", **self._full(bracket))
        return self._arrival(bracket, trial.id, score, had, history)

    def _alone(self, state: Halves, trial: TrialRecord) -> Verdict:
        """Its bracket went on without it: it was offered again after a crash, and regains what it had."""
        in_epochs = self.unit == "epochs"
        had = trial.epoch if in_epochs else float(trial.seconds.sum())
        target = (trial.until if in_epochs else state.aims.get(trial.id)) or 0.0
        if not self.counted or had < target:
            return go_on(f"offered again: on to the {amount(target, self.unit)} that it had before")
        last = self.plan(int(trial.tags["bracket"])).rungs[-1].resource
        full = {FULL: True} if self.ends and target >= last else {}
        return stop("its rung is complete, and it is not among those that continue", **full)

    def _arrival(self, bracket: Open, trial: int, score: float, had: float, history: History) -> Verdict:
        member, resource = bracket.members.get(trial), bracket.at.resource
        assert member is not None
        if (verdict := refused(score, member)) is not None:
            return verdict
        if member.result is None:
            member = replace(member, last=score, had=had, result=score)
        here = bracket.update(trial, member)
        rank = here.rank(trial, score if member.result is None else member.result)
        place = f"{ordinal(rank)} of {here.arrived} after {amount(resource, self.unit)}"
        evidence = {
            "rank": rank, "arrived": here.arrived, "places": bracket.places, "go_on": bracket.going_on,
            "bracket": bracket.number, "rung": bracket.rung,
        }  # fmt: skip
        if bracket.last:
            return stop(f"{place}: the last rung of its bracket", **evidence, **self._full(bracket))
        after = here.settled()
        if after is not None and trial in after.queue:
            why = f"{place}, the last to arrive: among the best {bracket.going_on}"
            return replace(self._on(after, why, history), evidence=evidence)
        those = plural(bracket.going_on, "continues", "continue")
        if after is not None and after.member(trial) is not None:
            reason = f"{place}; once {bracket.places} are there, {those}"
            return Verdict(Action.PAUSE, reason, evidence)
        return stop(f"{place}: {those}", **evidence)

    def _on(self, bracket: Open, why: str, history: History) -> Verdict:
        resource, reason = bracket.at.resource, f"{why}; on to {amount(bracket.at.resource, self.unit)}"
        return Verdict(Action.CONTINUE, reason, {}, until(resource, self.unit, history))

    def alive(self, state: Halves) -> frozenset[int]:
        """The trials that may still go on."""
        return frozenset(t for b in state.open for t in (*b.members, *b.queue))
