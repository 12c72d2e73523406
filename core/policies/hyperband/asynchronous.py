"""Asynchronous successive halving: nobody waits for a rung to be complete (Li et al. 2020, ASHA).

A trial goes on as soon as it is in the top 1 / eta of those that have arrived at its rung so far. In the
promotion form it pauses there until it is; in the stopping form it is decided on arrival, for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType

from haltune._utils.words import amount, ordinal, plural
from haltune.log import events as ev
from haltune.log.decisions import FULL, Action, Finish, Move, Resume, Start, Verdict, Wait, go_on, stop
from haltune.log.events import OVER, Event, Status
from haltune.log.history import History
from haltune.log.records import TrialRecord

from .brackets import Bracket
from .climb import Climb, OnRung, RungState, key_of
from .persistent import Key
from .plan import Plan
from .rungs import OUT, Member, comparison, judged, refused, score_counted, score_of, until
from .sampler import Sampler


@dataclass(frozen=True)
class Climber:
    """Asynchronous successive halving over the brackets of a plan.

    unit: "epochs" or "seconds". eta: one in so many of a rung goes on; first: of the first rung, as of the others
    if None. stops: the stopping form; else the promotion form. min_trials_per_rung: trials that arrive at the first
    rung before any goes on. ends: the last rung of a bracket is a full training. base: the rung that counts as
    the first; below it nobody is compared, and all go on. rising: what has come to no more than at the rung before goes
    on only if it leads; else it is idle, only counted, and the places go to others.
    """

    plan: Plan
    sampler: Sampler
    unit: str
    eta: Fraction
    stops: bool = False
    first: Fraction | None = None
    min_trials_per_rung: int = 1
    ends: bool = True
    base: int = 0
    rising: bool = False

    # -- the fold ------------------------------------------------------------------------

    def fold(self, state: Climb, event: Event) -> Climb:
        """What is known after `event`."""
        begun = state.begun.after(event)
        return self._folded(state if begun is state.begun else replace(state, begun=begun), event)

    def _folded(self, state: Climb, event: Event) -> Climb:
        if isinstance(event, ev.Started):
            return self._started(state, event)
        if not isinstance(event, ev.TrialEvent) or (on := state.trials.get(event.trial)) is None:
            return state
        if isinstance(event, ev.Resumed):
            return self._resumed(state, on, event)
        if not isinstance(event, ev.AttemptEvent) or event.attempt != on.member.attempt:
            return state  # superseded
        if isinstance(event, ev.Reported) and on.member.held:
            return self._reported(state, on, event)
        if isinstance(event, ev.Checkpointed):
            return state.at(event.trial, replace(on, member=on.member.checkpointed()))
        if isinstance(event, ev.Ended | ev.Expired):
            on = replace(on, member=replace(on.member, held=False))
            state = state.at(event.trial, on)
            return self._over(state, on, event.trial, event.status) if event.status in OVER else state
        return state

    def _started(self, state: Climb, e: ev.Started) -> Climb:
        number = self.plan.number(e)
        bracket, ladders = self.plan(number), state.ladders
        if bracket not in ladders:
            ladders = MappingProxyType({**ladders, bracket: tuple(RungState() for _ in bracket.rungs)})
        started = state.started + 1 if number == state.number else 1
        state = replace(state, number=number, started=started, ladders=ladders)
        return state.at(e.trial, OnRung(bracket, 0, Member(1)))

    def _resumed(self, state: Climb, on: OnRung, e: ev.Resumed) -> Climb:
        on = replace(on, member=on.member.again(e.attempt, e.anew))
        return self._climb(state, e.trial, on) if e.by_policy else state.at(e.trial, on)

    def _climb(self, state: Climb, trial: int, on: OnRung) -> Climb:
        """On to the next rung."""
        step = state.step(on)
        waiting = step.waiting.drop(key_of(on.member, trial))
        member, result = on.member, on.member.result
        member = replace(member, result=None, before=OUT if result is None else result, idle=False)
        above = replace(on, rung=on.rung + 1, member=member)
        return state.put(on, replace(step, waiting=waiting)).at(trial, above)

    def _reported(self, state: Climb, on: OnRung, e: ev.Reported) -> Climb:
        last, had = score_of(state.sign, e.value), on.member.after(self.unit, e.epoch, e.seconds)
        stopped = e.verdict.action is Action.STOP
        member = replace(on.member, last=score_counted(on.member.last, last, state.peaks), had=had)
        there = had >= on.needed and e.epoch >= state.min_epochs
        arrives = there and on.member.result is None and not (stopped and e.verdict.resumable)
        on = replace(on, member=member)
        if arrives:
            member = replace(member, result=member.last if last > OUT else OUT)
            *below, on = on.passing(had)
            for at in (*below, on):
                step = state.step(at)
                member = replace(member, idle=self._idle(at, step, member, e.trial))
                counts = last > OUT and not member.idle
                state = state.put(at, step.arrive(key_of(member, e.trial) if counts else None))
            on = replace(on, member=member)
        state = state.at(e.trial, on)
        if member.result is None or had < on.needed or on.last:
            return state  # on its way, for the first time or again after a crash
        # at the horizon nobody is asked: a CONTINUE that says nothing of the next rung
        if e.verdict.action is Action.CONTINUE and (e.verdict.evidence or e.verdict.until is not None):
            return self._climb(state, e.trial, on)
        if arrives and e.verdict.action is Action.PAUSE and not member.idle:
            step = state.step(on)
            return state.put(on, replace(step, waiting=step.waiting.add(key_of(member, e.trial))))
        return state

    def _idle(self, on: OnRung, step: RungState, member: Member, trial: int) -> bool:
        """Whether a run that arrives at a rung has come to no more than at the one before, and does not lead."""
        stays = self.rising and member.result is not None and member.result <= member.before
        return stays and not on.last and step.arrived.rank(key_of(member, trial)) > 0

    def _over(self, state: Climb, on: OnRung, trial: int, status: Status) -> Climb:
        """It arrives where it did not: with its value if it ended by itself, else only counted."""
        step, member = state.step(on), on.member
        if member.result is not None:
            return state.put(on, replace(step, waiting=step.waiting.drop(key_of(member, trial))))
        counts = status is Status.COMPLETED and member.last > OUT
        member = replace(member, result=member.last if counts else OUT)
        state = state.put(on, step.arrive(key_of(member, trial) if counts else None))
        return state.at(trial, replace(on, member=member))

    # -- the questions -------------------------------------------------------------------

    def propose(self, state: Climb, history: History) -> Move:
        """The promotion at the highest rung, or a new configuration."""
        for bracket, steps in state.ladders.items():
            for rung in range(len(steps) - 2, self.base - 1, -1):
                top = self._top(steps[rung], rung)
                if (id := self._promotable(steps[rung], top, history)) is not None:
                    why = self._place(state, bracket, rung, id)
                    return self._promotion(bracket, rung + 1, id, why, history)
        return self._closing(state, history) if state.begun.no_more else self._new(state, history)

    def _top(self, step: RungState, rung: int) -> int:
        """How many of those that arrived at a rung go on."""
        if rung < self.base:
            return step.count
        if rung == self.base and step.count < self.min_trials_per_rung:
            return 0
        return max(int(self.stops), step.count // self._cut(rung))

    def _cut(self, rung: int) -> Fraction:
        """One in so many of a rung goes on."""
        return self.eta if self.first is None or rung > self.base else self.first

    def _promotable(self, step: RungState, top: int, history: History) -> int | None:
        leading = (id for id in step.leading(top) if history.trial(id).status is Status.PAUSED)
        return next(leading, None)

    def _place(self, state: Climb, bracket: Bracket, rung: int, id: int) -> str:
        """A paused trial's place among those that arrived at a rung."""
        step, on = state.ladders[bracket][rung], state.trials.get(id)
        assert on is not None
        rank = step.arrived.rank(key_of(on.member, id)) + 1
        return f"{ordinal(rank)} of {step.count} after {amount(bracket.rungs[rung].resource, self.unit)}"

    def _promotion(self, bracket: Bracket, rung: int, id: int, why: str, history: History) -> Resume:
        resource = bracket.rungs[rung].resource
        tags = {**history.trial(id).tags, "rung": rung}
        reason = f"{why}: on to {amount(resource, self.unit)}"
        return Resume(id, until(resource, self.unit, history), resource, tags, reason)

    def _closing(self, state: Climb, history: History) -> Move:
        """Nothing new begins: a rung that nobody is on the way to any more sends on its share, one at least."""
        coming = state.coming()
        for bracket, steps in state.ladders.items():
            for rung, step in enumerate(steps[:-1]):
                top = max(1, step.count // self._cut(rung))
                if (bracket, rung) in coming:
                    break
                if (id := self._promotable(step, top, history)) is not None:
                    why = f"nothing new begins, and it is {self._place(state, bracket, rung, id)}"
                    return self._promotion(bracket, rung + 1, id, why, history)
                if any(step.leading(top)):
                    break  # with its worker yet, or given back: the study offers it again
        return self._last(state, history)

    def _last(self, state: Climb, history: History) -> Move:
        """When all that went on failed, the best that is left goes on: one is to be trained in full."""
        steps = [(b, rung, step) for b, all in state.ladders.items() for rung, step in enumerate(all)]
        full = any(step.arrived.size for b, rung, step in steps if rung == len(b.rungs) - 1)
        if not (full or history.running or history.interrupted):
            left = [
                (-b.rungs[rung].resource, key, b, rung) for b, rung, s in steps for key in s.waiting.best(1)
            ]
            left += list(self._idlers(state, history))
            for _, key, bracket, rung in sorted(left, key=lambda at: at[:2])[:1]:
                return self._promotion(
                    bracket, rung + 1, key[1], "nothing new begins, and it is the best left", history
                )
        return Wait("no new trial may begin, and those that continue are still trained")

    def _idlers(self, state: Climb, history: History) -> Iterator[tuple[float, Key, Bracket, int]]:
        for id in state.trials if self.rising else ():
            on = state.trials.get(id)
            if on is not None and on.member.idle and history.trial(id).status is Status.PAUSED:
                yield -on.needed, key_of(on.member, id), on.bracket, on.rung

    def _new(self, state: Climb, history: History) -> Move:
        number, index = state.number, state.started
        if index >= self.plan(number).rungs[0].n:
            number, index = number + 1, 0
        bracket = self.plan(number)
        if not self.plan.has(number, history):
            if history.running:
                return Wait(
                    "all configurations are started; some are still trained, and may let others continue"
                )
            return Finish("all configurations are started, and none is to continue")
        drawn = self.sampler.draw(history, number, bracket, index, self.unit)
        resource, tags = bracket.rungs[0].resource, {"bracket": number, "rung": 0}
        compared = until(bracket.rungs[self.base].resource, self.unit, history)
        reason = f"{drawn.reason}; {comparison(bracket, self.base, self.unit)}"
        return Start(drawn.config, compared, resource, tags, reason, drawn.evidence)

    def judge(self, state: Climb, history: History, trial: TrialRecord) -> Verdict:
        """On to the rung; there on, PAUSE or STOP by its rank among those that arrived."""
        on = state.trials.get(trial.id)
        if on is None:
            return go_on("no schedule started this trial")
        had = on.member.after(self.unit, trial.epoch, float(trial.seconds[-1]))
        if had < on.needed:
            return go_on(f"on to {amount(on.needed, self.unit)}")
        score = judged(state.sign, trial, history.problem.goal)
        if (verdict := refused(score, on.member)) is not None:
            return verdict
        if on.member.result is None:
            *_, on = on.passing(had)
        if on.last:
            full = {FULL: True} if self.ends else {}
            return stop(f"trained its {amount(on.needed, self.unit)}", **full)
        return self._ranked(state, history, replace(on, member=replace(on.member, had=had)), trial.id, score)

    def _ranked(self, state: Climb, history: History, on: OnRung, trial: int, score: float) -> Verdict:
        step, member = state.step(on), on.member
        if member.result is None:
            member = replace(member, result=score)
            member = replace(member, idle=self._idle(on, step, member, trial))
            step = step.arrive(None if member.idle else key_of(member, trial))
        if on.rung < self.base:
            compared = on.bracket.rungs[self.base].resource
            text = f"on to {amount(compared, self.unit)}, where runs are first compared"
            evidence = {"rung": on.rung, "first_rung": self.base}
            return Verdict(Action.CONTINUE, text, evidence, until(compared, self.unit, history))
        rank, top = step.arrived.rank(key_of(member, trial)), self._top(step, on.rung)
        evidence = {"rank": rank + 1, "arrived": step.count, "go_on": top, "rung": on.rung}
        after = amount(member.had if self.unit == "epochs" else on.needed, self.unit)
        place = f"{ordinal(rank + 1)} of {step.count} after {after}"
        going = f"the best {plural(top, 'continues', 'continue')}" if top else "too few yet to continue any"
        if member.idle:
            going = f"no better than after {amount(on.bracket.rungs[on.rung - 1].resource, self.unit)}"
        text = f"{place}{'; ' if top or member.idle else ', '}{going}"
        if rank < top and not member.idle:
            following = on.bracket.rungs[on.rung + 1].resource
            return Verdict(Action.CONTINUE, text, evidence, until(following, self.unit, history))
        return Verdict(Action.STOP if self.stops else Action.PAUSE, text, evidence)

    def alive(self, state: Climb) -> frozenset[int] | None:
        """The trials that may still go on; None: any paused one, when more arrive at its rung."""
        number, full = state.number, state.started >= self.plan(state.number).rungs[0].n
        if self.plan.ends is None or number + full < self.plan.ends or state.coming():
            return None
        ladders = state.ladders.values()
        steps = [(step, self._top(step, rung)) for steps in ladders for rung, step in enumerate(steps)]
        return frozenset(id for step, top in steps for id in step.leading(top))
