"""Return the next task of a free worker: an interrupted trial, the policy's proposal, or the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.display import clipped, plural, settings
from haltune.errors import InvalidInput, TrainingFailed
from haltune.log import events as ev
from haltune.log.decisions import ENQUEUED, Finish, Move, Resume, Start, Wait
from haltune.log.events import Status, plain
from haltune.log.history import History
from haltune.log.outcomes import OUTCOMES, outcome_of
from haltune.log.points import move_in_unit
from haltune.log.problem import Budget
from haltune.log.records import TrialRecord
from haltune.log.spending import Outcome
from haltune.store.base import CLAIM, Conflict, Lease, holder_is_gone

from .attempt import Attempt, Decides, Log, MonotonicClock
from .messages import none_finite
from .replica import PRICE, Replica

# times max_failures: trials that may diverge before any has a finite value. Where half of a space diverges, ten do so
# by chance once in 1,000 searches; if the data or the loss has NaN, all do
DIVERGED = 2
WORTH = 0.05  # seconds; if the last decision took less, a claim costs more than to decide twice
TERM = 60.0  # seconds that a claim lasts, or five times the last decision


class Elsewhere(Exception):
    """Another worker is deciding; try again soon. Never reaches a user."""


@contextmanager
def claimed(replica: Replica) -> Iterator[None]:
    """Let only one worker decide inside the block, so that no decision is wasted.

    If two workers propose from the same log, one of the moves is refused and must be made again. With a claim in the
    store's lease table the second worker waits instead. The claim only saves time: correctness depends on the
    compare-and-append of the move. Reports ignore it. The claim ends when a move is appended, or with the block.

    Raises Elsewhere while another worker decides, Conflict if one has appended a move since the last sync.
    """
    history = replica.history
    moves, deciding, moved = history.moves, history.deciding, False
    if deciding < WORTH:
        yield
        return
    store, name, me = replica.store, replica.name, replica.holder()
    found, now = store.claimed(name), replica.now()
    if found is not None and found.holder != me and found.expires >= now and not holder_is_gone(store, found.holder):
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
        if not moved:  # after an error too: others must not wait for a worker that decides nothing
            store.claim(name, None, mine)


Taken = tuple[int, int]  # a trial and its attempt, as appended for this worker


def answer(
    replica: Replica, budget: Budget, max_retries: int, max_failures: int, clock: MonotonicClock
) -> TrialRecord | Wait | Finish:
    """Return a trial that this worker now holds, or why there is none.

    Lost workers, a new scale and a new budget are logged first. An interrupted trial comes before the policy's
    proposals.

    Raises Conflict, and must be called again, if another worker appended a move, or if this one lost its trial because
    it slept after the append; Elsewhere while another worker decides; InvalidInput for an invalid move; TrainingFailed
    if all trials diverge.
    """
    if not replica.history.reports:  # until the first report another program may create the study again
        replica.need_own()
    history = replica.sync()
    budget = history.wishes.extended(budget)
    if replica.expire(max_retries) or replica.rescale() or _refuse(replica, history):
        raise Conflict
    if budget.money is not None and budget.price is None and replica.price is None:
        raise InvalidInput(
            f"A budget of {budget.money:g} of money needs the price of this worker for an hour. Write Budget(money="
            f"{budget.money:g}, price=2.1) or '$50 at 2.10/h', or set {PRICE}=2.1 in the worker's environment."
        )
    replica.log_budget(budget)
    history = replica.history
    asked: dict[int, tuple[Move, float]] = {}  # position of the log -> the policy's move there, and seconds for it

    def ask() -> tuple[Move, float]:
        if (position := replica.history.position) not in asked:
            began = clock()
            move = propose(replica.fold)
            asked[position] = move, clock() - began
        return asked[position]

    if (over := outcome(replica, budget, lambda: ask()[0])).over:
        return Finish(over.reason)
    _need_finite(replica, history, max_failures)
    if budget.cost is not None:
        _heed_costs(replica, history, budget.cost)
    limit = _full(replica, budget)
    full = None if limit is None else f"{limit}; other workers still train"
    if interrupted := history.interrupted:
        found: Taken | Wait | Finish = _offer_again(replica, interrupted[0])
    elif full is not None and not _may_continue(replica):
        found = Wait(full)
    else:
        with claimed(replica):
            found = _append_move(replica, full, *ask())
    if isinstance(found, Finish):
        return found
    if isinstance(found, Wait):
        running = history.with_status(Status.RUNNING)
        if not running or any((t.id, t.attempt) not in replica.handed_out for t in running):
            return found
        # only this process trains, so it may wait for trials that its program forgot to end
        names = ", ".join(str(t.id) for t in running)
        named = f"trial {names} is" if len(running) == 1 else f"trials {names} are"
        return Wait(
            f"{found.reason}; {named} open in this process. End a trial with study.tell(trial, value) or trial.finish()"
        )
    record = replica.history.trial(found[0])
    if record.attempt != found[1] or record.status is not Status.RUNNING:
        raise Conflict
    return record


def _need_finite(replica: Replica, history: History, max_failures: int) -> None:
    """Raise TrainingFailed if many trials have ended and none counts with a finite value.

    If the program is started again, perhaps after a repair, each further trial of this kind ends it again.
    """
    if history.top is not None:
        return
    diverged = history.diverged
    if replica.diverged is None:
        replica.diverged = diverged
    many = diverged > replica.diverged and diverged >= DIVERGED * max_failures
    if many and (why := none_finite(history, 1)) is not None:
        raise TrainingFailed(
            f"{why} Then start the program again: the search continues. If such values are to be expected, pass a "
            f"larger max_failures= than {max_failures}."
        )


def _append_move(replica: Replica, full: str | None, move: Move, deciding: float) -> Taken | Wait | Finish:
    """Append the policy's move, and return it. full: why no more trials start. deciding: seconds for the move."""
    if isinstance(move, Start):
        if "warning" in move.evidence:
            replica.warn_once(str(move.evidence["warning"]))
        return _start(replica, move, deciding) if full is None or move.promotes else Wait(full)
    if isinstance(move, Resume):
        return _resume(replica, move, deciding, by_policy=True)
    if isinstance(move, Finish):
        history = replica.history
        replica.append(ev.Finished(at=replica.now(), reason=move.reason, seen=history.position), None)
        replica.tidy()
        if history.queue:
            replica.warn_once(f"the policy ended the search{_left(history)}: {move.reason}")
    return move


def _heed_costs(replica: Replica, history: History, limit: float) -> None:
    """Warn if the budget limits the cost but trials do not report it."""
    if history.spent.cost > 0.0:
        return
    ended = (id for id in range(len(history)) if history.trial(id).status is Status.COMPLETED)
    free = next((id for id in ended if history.cost(id) is None), None)  # a trial may well cost 0
    if free is not None:
        replica.warn_once(
            f"Budget(cost={limit:g}) limits the cost that trials report, but trial {free} reported none. Report it: "
            "trial.report(value, cost=...); or limit time, worker_time, epochs or trials.",
            about="cost",
        )


def propose(log: Decides) -> Move:
    """Return the policy's next move. The first enqueued configuration replaces a new one of the policy."""
    history = log.judged
    with undisturbed, one_thread, undisturbed.heard:
        move = log.policy.propose(log.state, history, history.rng("propose", history.moves))
    if (grid := history.problem.grid) is not None:
        move = move_in_unit(move, grid)
    if not history.queue or not isinstance(move, Start) or move.repeats:
        return move
    reason = f"enqueued by you, in place of one {move.reason or 'of the policy'}"
    return replace(move, config=history.queue[0], reason=reason, evidence={**move.evidence, ENQUEUED: True})


def outcome(log: Log, budget: Budget, ask: Callable[[], Move] | None = None) -> Outcome:
    """Return whether the policy or a limit of the budget has ended the search.

    ask: returns the policy's next move. Default: None, by `propose`.
    """
    history = log.history
    budget = history.wishes.extended(budget)
    unfinished = history.running + len(history.interrupted)
    ended = None if log.policy.plans and history.has_new_budget(budget, log.logged_budget) else history.finished
    limit = None if ended else history.spent.exhausts(budget)
    if not (ended or limit or unfinished) and (full := _full(log, budget)) and not _continues(log, ask):
        limit = full
    reason = ended or (limit and f"{limit}: {_harvest(history)}")
    if reason is not None or history.held is not None:
        return Outcome(True, reason or history.held or "", held=reason is None)
    if not len(history):
        return Outcome(False, "nothing has been trained yet")
    if history.failures_in_a_row and not unfinished:  # perhaps the program ended by its exception
        failed = history.with_status(Status.FAILED)[-1]
        error = (failed.error or "no error was recorded").partition("\n")[0]
        return Outcome(False, f"the search can continue, but trial {failed.id} failed: {clipped(error, 200)}")
    trained = f", with {plural(unfinished, 'unfinished trial')}" if unfinished else ""
    return Outcome(False, f"the search {'continues' if history.running else 'can continue'}{trained}")


def _full(log: Log, budget: Budget) -> str | None:
    """Return why no more trials start, or None. Trials that have started may continue."""
    history = log.history
    spent, recorded = history.spent, history.budget
    full = spent.starts_no_more(budget)
    if full is None and recorded not in (None, budget) and log.logged_budget == budget:
        # another worker has recorded less since
        full = spent.starts_no_more(recorded)
    return full


def _harvest(history: History) -> str:
    """Return how many trials started, were trained in full and failed, in words."""
    started = f"{plural(len(history), 'trial')} started"
    kinds = Counter(outcome_of(trial, history.problem).kind for trial in history.trials)
    full, lost = kinds["completed"], kinds["failed"]
    failed = f", {lost} failed: {'each counts' if lost > 1 else 'it counts'} as one started" if lost else ""
    if history.problem.max_epochs is None:
        return f"{started}{_left(history)}{failed}"
    if none_finite(history, 1) is not None:
        return f"{started}, none with a finite {history.problem.goal.metric}{_left(history)}{failed}"
    others = "".join(f", {n} {OUTCOMES[kind][n > 1]}" for kind in ("schedule", "itself") if (n := kinds[kind]))
    return f"{started}, {full or 'none'} trained in full{others}{_left(history)}{failed}"


def _left(history: History) -> str:
    """Return the number of enqueued configurations that did not start, as the end of a sentence."""
    return f", {plural(len(history.queue), 'enqueued configuration')} not started" if history.queue else ""


def _may_continue(log: Log) -> bool:
    """True if the policy must be asked although no new trial may start."""
    return log.history.paused > 0 or log.policy.retrains


def _continues(log: Log, ask: Callable[[], Move] | None) -> bool:
    """True if the policy would continue a trial that has started. ask: see `outcome`."""
    if not _may_continue(log):
        return False
    move = propose(log) if ask is None else ask()
    return isinstance(move, Resume) or (isinstance(move, Start) and move.promotes)


def _start(replica: Replica, move: Start, deciding: float) -> Taken:
    history = replica.history
    lease = replica.lease(len(history), 1)
    config = plain(history.problem.space.canonical(move.config))
    event = ev.Started(**_of_leg(replica, move, lease, deciding), config=config, partial=move.partial)
    replica.append(event, None, lease)
    return lease.trial, lease.attempt


def _resume(
    replica: Replica,
    move: Resume,
    deciding: float,
    by_policy: bool,
    after: tuple[ev.Ended, ...] = (),
    anew: bool = False,
) -> Taken:
    """Append a new attempt.

    after: the end of the present one, which its program gave up, in the same append. anew: start from scratch.
    """
    r = replica.history.trial(move.trial)
    if by_policy and r.status is not Status.PAUSED:
        raise InvalidInput(f"The policy resumes trial {r.id}, which is {r.status}, not paused.")
    gone = None if anew else r.checkpoint
    damage = replica.checkpoints.damage(gone, r.content)
    if damage is not None:  # unless another worker has continued the trial and replaced this checkpoint
        position = replica.history.position
        if replica.sync().position != position:
            raise Conflict
    lease = replica.lease(r.id, r.attempt + 1)
    event = ev.Resumed(
        **_of_leg(replica, move, lease, deciding), attempt=lease.attempt, by_policy=by_policy,
        anew=anew or damage is not None, given_up=bool(after),
    )  # fmt: skip
    replica.append([*after, event], None, lease)
    if damage is not None:
        replica.warn_once(
            f"The checkpoint of trial {r.id}, {gone} in {replica.checkpoints.folder}, {damage}. The trial starts from "
            "scratch. Let all workers share the folder, Study(..., checkpoints=folder), and let nothing else delete "
            "or write its files."
        )
    elif replica.checkpoints.rewritten(gone, r.content):
        replica.warn_once(
            f"{gone}, the checkpoint of trial {r.id}, was written after it was recorded at "
            f"{replica.problem.at(r.checkpoint_epoch)}. If it holds a later state, the trial trains for longer than is "
            "counted; if the program was killed while it wrote, the file may be cut short. Write each state to a file "
            "with its own name before trial.checkpointed(path), or save with trial.save(write).",
            "rewritten",
        )
    return r.id, lease.attempt


def _of_leg(replica: Replica, move: Start | Resume, lease: Lease, deciding: float) -> dict[str, Any]:
    """Return the fields that a start and a resumption have in common."""
    history = replica.history
    pause_at = history.problem.max_epochs if move.pause_at is None else move.pause_at
    return {
        "at": lease.renewed, "trial": lease.trial, "pause_at": _float(pause_at), "resource": _float(move.resource),
        "tags": plain(move.tags), "reason": move.reason, "evidence": plain(move.evidence),
        "seen": history.position, "deciding": deciding, "worker": lease.holder, "price": replica.price,
    }  # fmt: skip


def _float(number: float | None) -> float | None:
    """Return a number as the store does, so that this process has the same bits as one that reads the log."""
    return None if number is None else float(number)


def _offer_again(replica: Replica, id: int) -> Taken:
    r = replica.history.trial(id)
    if r.checkpoint:
        how = f"continues from {replica.problem.at(r.checkpoint_epoch)}, its last checkpoint"
    elif len(r.epochs):
        how = f"starts from scratch, because no checkpoint was saved in its {replica.problem.amount(r.epoch)}"
    else:
        how = "starts from scratch, because it had reported nothing yet"
    wishes = {"aside": "was paused by you", "held": "was stopped for now with the search"}
    why = wishes.get(outcome_of(r, replica.problem).kind, "was interrupted")
    reason = f"attempt {r.attempt} {why}: {how}"
    return _resume(replica, Resume(id, r.pause_at, r.resource, r.tags, reason), 0.0, by_policy=False)


def start_again(replica: Replica, attempt: Attempt, position: float) -> bool:
    """Append that an attempt was given up, and a new one that trains from `position`; False if it is not held.

    It starts from the last checkpoint, or from scratch if `position` is before it. What the former attempt reported
    after its start no longer counts.
    """
    replica.log_sleep(attempt)
    r, before = replica.synced(attempt.id), attempt.attempt
    replica.follow(attempt)
    if (r.attempt, r.status) != (attempt.attempt, Status.RUNNING):
        return False
    if attempt.attempt > before and attempt.epoch <= position:
        return True  # the first try was stored, but had no answer
    end = ev.Ended(at=replica.now(), trial=r.id, attempt=r.attempt, status=Status.INTERRUPTED)
    reason = f"attempt {r.attempt} trains again from {replica.problem.at(position)}"
    move = Resume(r.id, r.pause_at, r.resource, r.tags, reason)
    replica.handed_out.add((r.id, r.attempt + 1))
    _resume(replica, move, 0.0, by_policy=False, after=(end,), anew=position < r.checkpoint_epoch)
    return True


def _refuse(replica: Replica, history: History) -> bool:
    """Log that the first enqueued configuration is not allowed, and return True; False if it is.

    A constraint forbids it that was unknown when it was enqueued, or the space was narrowed since.
    """
    queue, problem = history.queue, history.problem
    if not queue or not (problem.space.constraints or problem.space.inside is not problem.space):
        return False
    try:
        problem.checked(queue[0], f"the enqueued configuration {settings(queue[0])} is not started")
    except InvalidInput as error:
        replica.append(ev.Refused(at=replica.now(), reason=str(error)), None)
        replica.warn_once(str(error))
        return True
    return False
