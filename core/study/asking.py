"""From a free worker's question to a move: offered again, proposed by the policy, or the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from haltune._utils.process import surely_gone
from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.display import plural, settings
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.decisions import ENQUEUED, Finish, Move, Resume, Start, Wait
from haltune.log.events import Status, plain
from haltune.log.history import History
from haltune.log.outcomes import OUTCOMES, outcome_of
from haltune.log.points import move_in_unit
from haltune.log.problem import Budget
from haltune.log.records import TrialRecord
from haltune.log.spending import Outcome
from haltune.store.base import CLAIM, Conflict, Lease
from haltune.store.studies import enqueued

from .attempt import Decides, Log, MonotonicClock
from .replica import PRICE, Replica

WORTH = 0.05  # seconds; where the last decision took less, claiming would cost more than deciding twice
TERM = 60.0  # seconds a claim holds, or five times the last decision


class Elsewhere(Exception):
    """Another worker decides at this moment: look again soon. Never reaches a user."""


@contextmanager
def claimed(replica: Replica) -> Iterator[None]:
    """Decide inside the block, one worker at a time, so that no decision is made in vain.

    Two workers that propose from the same log come to moves of which one is refused, and is made again. A claim in
    the store's lease table lets the second wait instead. It is a courtesy, not a lock: whatever happens to it, the
    compare-and-append of the move decides. Reports never look at it. The move that is appended in the block ends the
    claim, or else the end of the block.

    Raises Elsewhere while another worker decides, Conflict when one has moved since the last sync.
    """
    history = replica.history
    moves, deciding, moved = history.moves, history.deciding, False
    if deciding < WORTH:
        yield
        return
    store, name, me = replica.store, replica.name, replica.holder()
    found, now = store.claimed(name), replica.now()
    if found is not None and found.holder != me and found.expires >= now and not surely_gone(found.holder):
        raise Elsewhere
    mine = Lease(CLAIM, 0, me, now + max(TERM, 5.0 * deciding), now)
    if not store.claim(name, mine, found):
        raise Elsewhere
    try:
        if replica.sync().moves != moves:  # a move that was made before the claim
            raise Conflict
        yield
        moved = replica.history.moves != moves
    finally:
        if not moved:  # whatever came in between: others must not wait for who decides nothing
            store.claim(name, None, mine)


Taken = tuple[int, int]  # a trial and its attempt, as appended for this worker


def answer(replica: Replica, budget: Budget, max_retries: int, clock: MonotonicClock) -> TrialRecord | Wait | Finish:
    """A trial that now belongs to this worker, or why there is none.

    First the log says all that must be said before: workers lost, a new scale, a new budget. A trial that was
    interrupted comes before the policy's own proposals.

    Raises Conflict, to be called again, when another worker moved, or this one lost its trial because it slept between
    the append and what it read after; Elsewhere while another worker decides; InvalidInput for a move that makes no
    sense.
    """
    if not replica.history.reports:  # until the first report another program may make it anew
        replica.need_own()
    budget = replica.sync().wishes.extended(budget)
    if replica.expire(max_retries) or replica.rescale() or _refuse(replica):
        raise Conflict
    if budget.money is not None and budget.price is None and replica.price is None:
        raise InvalidInput(
            f"A budget of {budget.money:g} of money needs the price of this worker for an hour. Write Budget(money="
            f"{budget.money:g}, price=2.1) or '$50 at 2.10/h', or set {PRICE}=2.1 in the worker's environment."
        )
    replica.budget(budget)
    history = replica.history
    if (over := outcome(replica, budget)).over:
        return Finish(over.reason)
    if budget.cost is not None:
        _heed_costs(replica, history, budget.cost)
    full = _full(replica, history, budget)
    if interrupted := history.interrupted:
        found: Taken | Wait | Finish = _offer_again(replica, interrupted[0])
    elif full is not None and not _may_go_on(replica):
        found = Wait(f"{full}; other workers still train")
    else:
        with claimed(replica):
            found = _decide(replica, None if full is None else f"{full}; other workers still train", clock)
    if isinstance(found, Finish):
        return found
    if isinstance(found, Wait):
        running = history.with_status(Status.RUNNING)
        if not running or any((t.id, t.attempt) not in replica.handed_out for t in running):
            return found
        # nobody but this process trains: it may wait for trials that its program has forgotten to end
        names = ", ".join(str(t.id) for t in running)
        named = f"trial {names} is" if len(running) == 1 else f"trials {names} are"
        return Wait(
            f"{found.reason}; {named} open in this process: study.tell(trial, value) or trial.finish() ends one"
        )
    record = replica.history.trial(found[0])
    if record.attempt != found[1] or record.status is not Status.RUNNING:
        raise Conflict
    return record


def _decide(replica: Replica, full: str | None, clock: MonotonicClock) -> Taken | Wait | Finish:
    """What the policy says. full: why no trial is started any more."""
    began, history = clock(), replica.history
    move = propose(replica.fold)
    deciding = clock() - began
    if isinstance(move, Start):
        if "warning" in move.evidence:
            replica.warn_once(str(move.evidence["warning"]))
        return _start(replica, move, deciding) if full is None or move.goes_on else Wait(full)
    if isinstance(move, Resume):
        return _resume(replica, move, deciding, by_policy=True)
    if isinstance(move, Finish):
        replica.append(ev.Finished(at=replica.now(), reason=move.reason, seen=history.position), None)
        replica.tidy()
        if history.queue:
            replica.warn_once(f"the policy ended the search{_left(history)}: {move.reason}")
    return move


def _heed_costs(replica: Replica, history: History, limit: float) -> None:
    """Warn of a budget that nothing is ever charged to."""
    if history.spent.cost > 0.0:
        return
    ended = (id for id in range(len(history)) if history.trial(id).status is Status.COMPLETED)
    free = next((id for id in ended if history.cost(id) is None), None)  # a trial may well cost 0
    if free is not None:
        replica.warn_once(
            f"Budget(cost={limit:g}) limits what trials report as their cost, and trial {free} reported none: "
            "trial.report(value, cost=...), or limit time, worker_time, epochs or trials",
            about="cost",
        )


def propose(log: Decides) -> Move:
    """The next move: the policy's; a new configuration of its own makes way for the first that the user enqueued."""
    history = log.judged
    with undisturbed, one_thread, undisturbed.heard:
        move = log.policy.propose(log.state, history, history.rng("propose", history.moves))
    if (grid := history.problem.grid) is not None:
        move = move_in_unit(move, grid)
    if not history.queue or not isinstance(move, Start) or move.repeats:
        return move
    reason = f"enqueued by you, in the place of: {move.reason or 'one that the policy would begin'}"
    return replace(move, config=history.queue[0], reason=reason, evidence={**move.evidence, ENQUEUED: True})


def outcome(log: Log, budget: Budget) -> Outcome:
    """Whether the search is over: by its policy, or by a limit of its budget."""
    history = log.history
    budget = history.wishes.extended(budget)
    unfinished = history.running + len(history.interrupted)
    ended = None if log.policy.plans and history.has_new_budget(budget, log.told) else history.finished
    limit = None if ended else history.spent.exhausts(budget)
    if not (ended or limit or unfinished) and (full := _full(log, history, budget)) and not _goes_on(log):
        limit = full
    reason = ended or (limit and f"{limit}: {_harvest(history)}")
    if reason is not None or history.held is not None:
        return Outcome(True, reason or history.held or "", held=reason is None)
    if not len(history):
        return Outcome(False, "nothing has been trained yet")
    trained = f", with {plural(unfinished, 'unfinished trial')}" if unfinished else ""
    return Outcome(False, f"the search continues{trained}")


def _full(log: Log, history: History, budget: Budget) -> str | None:
    """Why no trial is begun any more, or None: those that began may still go on."""
    spent, said = history.spent, history.budget
    full = spent.starts_no_more(budget)
    if full is None and said is not None and log.told == budget:  # another worker has said less since
        full = spent.starts_no_more(said)
    return full


def _harvest(history: History) -> str:
    """What a budget came to, in words."""
    begun = f"{plural(len(history), 'trial')} begun"
    kinds = Counter(outcome_of(trial, history.problem).kind for trial in history.trials)
    full, itself, lost = kinds["completed"] + kinds["schedule"], kinds["itself"], kinds["failed"]
    failed = f", {lost} failed: {'each counts' if lost > 1 else 'it counts'} as one begun" if lost else ""
    if history.problem.max_epochs is None:
        return f"{begun}{_left(history)}{failed}"
    others = f", {itself} {OUTCOMES['itself'][itself > 1]}" if itself else ""
    return f"{begun}, {full or 'none'} trained in full{others}{_left(history)}{failed}"


def _left(history: History) -> str:
    """How many of the user's own configurations were not begun, to be added to a sentence."""
    return f", {plural(len(history.queue), 'enqueued configuration')} not begun" if history.queue else ""


def _may_go_on(log: Log) -> bool:
    """True when the policy need be asked though nothing new may begin."""
    return log.history.paused > 0 or log.policy.retrains


def _goes_on(log: Log) -> bool:
    """True when the policy would go on with what began."""
    if not _may_go_on(log):
        return False
    move = propose(log)
    return isinstance(move, Resume) or (isinstance(move, Start) and move.goes_on)


def _start(replica: Replica, move: Start, deciding: float) -> Taken:
    history = replica.history
    problem, id = history.problem, len(history)
    lease = replica.lease(id, 1)
    event = ev.Started(
        at=lease.renewed, trial=id, config=plain(problem.space.canonical(move.config)),
        until=_float(problem.max_epochs if move.until is None else move.until),
        resource=_float(move.resource), tags=plain(move.tags), reason=move.reason, evidence=plain(move.evidence),
        seen=history.position, deciding=deciding, worker=lease.holder,
        partial=move.partial, price=replica.price,
    )  # fmt: skip
    replica.append(event, None, lease)
    return id, lease.attempt


def _resume(replica: Replica, move: Resume, deciding: float, by_policy: bool) -> Taken:
    r = replica.history.trial(move.trial)
    if by_policy and r.status is not Status.PAUSED:
        raise InvalidInput(f"the policy resumes trial {r.id}, which is {r.status}, not paused")
    gone = r.checkpoint
    anew = replica.checkpoints.missing(gone)
    if anew:  # unless another worker went on with the trial meanwhile, and superseded what the log here names
        position = replica.history.position
        if replica.sync().position != position:
            raise Conflict
    lease = replica.lease(r.id, r.attempt + 1)
    event = ev.Resumed(
        at=lease.renewed, trial=r.id, attempt=r.attempt + 1,
        until=_float(replica.problem.max_epochs if move.until is None else move.until),
        resource=_float(move.resource), tags=plain(move.tags), reason=move.reason, evidence=plain(move.evidence),
        seen=replica.history.position, deciding=deciding, worker=lease.holder, by_policy=by_policy, anew=anew,
        price=replica.price,
    )  # fmt: skip
    replica.append(event, None, lease)
    if anew:
        replica.warn_once(
            f"the checkpoint of trial {r.id}, {gone} in {replica.checkpoints.folder}, is not there any more: "
            "the trial begins anew. Let all workers share the folder, Study(..., checkpoints=folder)"
        )
    return r.id, lease.attempt


def _float(number: float | None) -> float | None:
    """As the store gives it back: a process that lived through an event must hold what a rebuilt one does."""
    return None if number is None else float(number)


def _offer_again(replica: Replica, id: int) -> Taken:
    r = replica.history.trial(id)
    where = f"{replica.problem.at(r.checkpoint_epoch)}, its last checkpoint" if r.checkpoint else "the beginning"
    wishes = {"aside": "was paused by you", "held": "was stopped for now with the search"}
    why = wishes.get(outcome_of(r, replica.problem).kind, "was interrupted")
    reason = f"attempt {r.attempt} {why}: continues from {where}"
    return _resume(replica, Resume(id, r.until, r.resource, r.tags, reason), 0.0, by_policy=False)


def enqueue(replica: Replica, config: Mapping[str, Any], again: bool) -> bool:
    """See Study.enqueue. config: in canonical form."""
    event = enqueued(replica.sync(), replica.policy, config, again, replica.now())
    if event is not None:
        replica.append(event, None)
    return event is not None


def _refuse(replica: Replica) -> bool:
    """Log that the first of the queue is not begun, where a constraint forbids it; True when one does."""
    history = replica.history
    queue, problem = history.queue, history.problem
    if not queue or not problem.space.constraints:
        return False
    try:
        problem.checked(queue[0], f"the enqueued configuration {settings(queue[0])} is not begun")
    except InvalidInput as error:
        replica.append(ev.Refused(at=replica.now(), reason=str(error)), None)
        replica.warn_once(str(error))
        return True
    return False
