"""Summary of a search in a few lines of plain text: the best configuration and the saved epochs."""

from __future__ import annotations

from haltune.display import duration, numeral, plural, settings, short, visible
from haltune.log.folds import plus_minus
from haltune.store.checkpoints import readable
from haltune.study.messages import BEYOND, lead_of, shared_fault

from .digest import Digest, KeptCheckpoints, Source, digest

_LISTED = 20  # trials of a front
IDLE = "no process trains now, but the search is not over: start its program again to continue it"
MEANS = 0.05  # seconds; a shorter time would be written as "0.0 s"


def summary(study: Source) -> str:
    """Return a summary of a search: best configuration, trials, epochs saved by early stopping, and its state.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Returns:
        A few lines, without control characters.

    Raises:
        InvalidInput: If `study` is neither.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             _ = trial.report(trial.config["lr"] / epoch)
        >>> print(summary(study).splitlines()[2])
        3 trials: 3 trained in full
    """
    facts = digest(study, most=0)
    lines = [*_found(facts), f"{plural(facts.trials, 'trial')}: {facts.states or 'none yet'}"]
    if facts.left is not None:
        lines.append(f"  {why_left(facts)}")
    lines.append(spending(facts))
    if (error := shared_fault(facts.history)) is not None:
        lines.append(error)
    if facts.kept is not None:
        lines.append(kept(facts.kept))
    if facts.audit is not None:
        lines.append(str(facts.audit).splitlines()[0])
    if facts.outcome:
        lines.append(how_it_stands(facts))
    return visible("\n".join(lines))


def _found(facts: Digest) -> list[str]:
    if facts.problem.further:
        lead = lead_of(facts.history)
        runs = [
            f"  trial {run.trial}: {', '.join(f'{n} {short(v)}' for n, v in run.values.items())}; "
            f"{settings(run.config, 4)}"
            for run in facts.front
        ]
        more = len(runs) - _LISTED
        rest = [f"  and {plural(more, 'other')}"] if more > 0 else []
        return ["no trial has a value in every goal yet"] if lead is None else [lead, *runs[:_LISTED], *rest]
    b = facts.best
    if b is None:
        return [f"no trial has reported a finite {facts.problem.goal.metric} yet"]
    value = f"{short(b.value)}{plus_minus(b.folds)}"
    beyond = BEYOND * facts.history.beyond(b.trial)
    best = f"best {b.metric} {value} (trial {b.trial}, {facts.problem.at(b.epoch)}{beyond})"
    return [best, f"  {settings(b.config, 4)}"]


def how_it_stands(facts: Digest) -> str:
    """Return the state of the search, and what to do if it is not over but no process trains."""
    if facts.idle:
        return IDLE
    if facts.held:
        return f"the search is stopped for now: {facts.outcome}"
    return f"the search is over: {facts.outcome}" if facts.over else facts.outcome


def why_left(facts: Digest) -> str:
    low, high = facts.left or (0.0, 0.0)
    span = f"{numeral(low)} to " * (low != high) + facts.problem.reached(high)
    more = "; a larger budget may continue them" if facts.lifted else ""
    return f"not continued: paused at {facts.problem.unit} {span}, where others were ahead{more}"


def kept(found: KeptCheckpoints) -> str:
    what = f"{plural(found.count, 'checkpoint')} ({readable(found.size)})"
    return f"{what} kept in {found.folder}{', including those of paused trials' if found.waiting else ''}"


def spending(facts: Digest) -> str:
    trained = f"{facts.problem.amount(facts.trained)} trained{within(facts.seconds)}{trained_again_line(facts)}"
    budget = facts.history.wishes.extended(facts.history.recorded)
    if paid := facts.history.spent.money(budget.price):
        trained += f", for {short(paid)} of money"
    savings, parts = facts.savings, [trained]
    if savings.epochs:
        time = f" and about {duration(savings.seconds)}" if savings.seconds >= MEANS else ""
        parts.append(
            f"{savings.most}{facts.problem.amount(savings.epochs)} ({saved_share(facts)}){time} saved against full "
            "training"
        )
    return "; ".join([*parts, *[savings.left] * (savings.itself > 0.0)])


def within(seconds: float) -> str:
    """Return " in 4 min"; "" if the time is too short to matter."""
    return f" in {duration(seconds)}" if seconds >= MEANS else ""


def saved_share(facts: Digest) -> str:
    """Return the saved share of full training: 14%, below 1%."""
    return f"{facts.saved_share:.0%}" if facts.saved_share >= 0.01 else "below 1%"


def trained_again_line(facts: Digest) -> str:
    """Return the text on epochs that were trained twice, to append; "" if there are none."""
    return f"; {facts.problem.amount(facts.again)} lost and trained again" if facts.again else ""
