"""Running a search, holding it, going on with it."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from haltune.errors import InvalidInput, NotSupported
from haltune.launch import run_script
from haltune.log.problem import Budget
from haltune.policies.from_spec import policy_from
from haltune.report import summary
from haltune.store.studies import hold, if_allowed, lift, recorded_problem
from haltune.study import Study
from haltune.study.reading import Reading, follow_study, read_study

from ..find import STOPPED, errors, find, study_of
from ..options import Name, Where, say
from ..study_file.reader import read

_MORE = {
    True: ". A larger budget takes it up: say it in the program or the study file, and run that again",
    False: "",
    None: ". Whether a larger budget takes it up its program knows: say one there, and run it again",
}
Fresh = Annotated[
    bool, typer.Option("--fresh", help="start Python anew for each run, not from a process that has imported")
]
Command = Annotated[list[str], typer.Argument(help="after --: the program that trains", show_default=False)]


def run(
    command: Command,
    study: Annotated[Path, typer.Option(help="the study file", show_default=False)],
    workers: Annotated[int, typer.Option(help="runs that train at a time")] = 1,
    gpus: Annotated[
        str, typer.Option(help="'auto', 'none', or a list such as 0,1 to share among workers")
    ] = "auto",
    trial_timeout: Annotated[str | None, typer.Option(help="a run may take so long, such as 30min")] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="a run may take so much memory, such as 8GB")
    ] = None,
    logs: Annotated[
        Path | None, typer.Option(help="the folder for what runs print; else beside the store")
    ] = None,
    fresh: Fresh = False,
) -> None:
    """Train a search's trials: [bold]haltune run --study digits.toml -- python train.py[/]

    The program calls haltune.current_trial() for its configuration and reports to it. Ctrl-C once finishes the
    epochs under way and saves them, twice leaves at once; the same command goes on.
    """
    with errors():
        limits = {"trial_timeout": trial_timeout, "memory_limit": memory_limit, "logs": logs}
        _train(read(study).open(), command, workers, gpus, fresh=fresh, **limits)


def resume(
    where: Where,
    command: Annotated[list[str] | None, typer.Argument(help="after --: the program that trains")] = None,
    name: Name = None,
    time: Annotated[str | None, typer.Option(help="a budget of time in all, such as 2h")] = None,
    trials: Annotated[int | None, typer.Option(help="a budget of trials in all")] = None,
    epochs: Annotated[float | None, typer.Option(help="a budget of epochs in all")] = None,
    workers: Annotated[int, typer.Option(help="runs that train at a time")] = 1,
    gpus: Annotated[str, typer.Option(help="'auto', 'none', or a list such as 0,1")] = "auto",
    fresh: Fresh = False,
) -> None:
    """Let a search that was stopped go on; with a program after --, train it here.

    The budget is that of the study file, unless one is given.
    """
    with errors():
        study = study_of(where, name, writing=True)
        budget = Budget(time=time, trials=trials, epochs=epochs)
        if command:
            lift(study.store, study.name, study.history)
            given = None if budget.unlimited else budget
            _train(_reopened(where, study.name, given), command, workers, gpus, fresh=fresh)
        else:
            say(_let_go_on(study, budget))


def stop(where: Where, name: Name = None) -> None:
    """Stop a search on all machines: runs finish their epochs, are saved, and go on after [bold]haltune resume[/]."""
    with errors():
        study = study_of(where, name, writing=True)
        say(f"{study.name} {_stopped(study)}")


def _stopped(study: Reading) -> str:
    """Hold a search, unless it is over and nobody trains; what came of that."""
    outcome, training = study.outcome, study.history.running > len(study.lost)
    if outcome.held and not training:
        return f"is stopped already: {outcome.reason}"
    if outcome.over and not training:
        return f"is over, nothing is left to stop: {outcome.reason}"
    hold(study.store, study.name, "stopped by `haltune stop`; `haltune resume` lets it continue")
    if training:
        return "stops: each run ends after the epoch under way"
    return "stops: nobody trains now, and nobody will"


def enqueue(
    where: Where,
    values: Annotated[
        list[str], typer.Argument(help="the whole configuration: lr=0.01 width=32", show_default=False)
    ],
    name: Name = None,
    again: Annotated[bool, typer.Option("--again", help="though it was begun already, or waits")] = False,
) -> None:
    """Have a configuration of yours trained before any that the policy chooses."""
    with errors():
        store, name = find(where, name, writing=True)
        study = follow_study(store, name)
        over = study.outcome.over and not study.history.held
        lifted = (
            f"; the search is over ({study.outcome.reason}), and a larger budget takes it up" if over else ""
        )
        waits = study.enqueue(store, dict(map(_setting, values)), again)
        say(
            f"it waits to be trained{if_allowed(study.problem)}{lifted}"
            if waits
            else "it was begun already, or waits: nothing was done; --again does"
        )


def _setting(text: str) -> tuple[str, Any]:
    """A parameter's name and value; Raises InvalidInput for what is not written name=value."""
    name, found, value = text.partition("=")
    if not found:
        raise InvalidInput(f"{text!r}: write a parameter as name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _let_go_on(study: Reading, budget: Budget) -> str:
    """Lift what holds a search, without training it here; what came of that."""
    if not budget.unlimited:
        raise InvalidInput("a budget is for a program that trains: haltune resume ... -- python train.py")
    lifted = lift(study.store, study.name, study.history)
    study = read_study(study.store, study.name)
    if study.outcome.over:
        more = _MORE[study.goes_on_with_more()]
        return f"{study.name} is over, nothing continues: {study.outcome.reason}{more}"
    told = "continues" if lifted else "was not stopped"
    return (
        f"{study.name} {told}: run its program again, or give it here, haltune resume ... -- python train.py"
    )


def _reopened(where: str, name: str, budget: Budget | None) -> Study:
    if where.endswith(".toml"):
        return read(where).open(budget)
    store, _ = find(where, name, writing=True)
    created: Any = next(store.read(name, stop=1))
    problem, policy = recorded_problem(created), policy_from(created.policy)
    if problem.space.constraints:
        raise NotSupported("the space has constraints, which a log does not keep: resume by your own program")
    if budget is None and policy.endless:
        raise InvalidInput(
            f"{type(policy).__name__} never ends by itself: give --time 2h, --trials or --epochs"
        )
    return Study(problem, policy, store, name, budget=budget)


def _train(study: Study, command: list[str], workers: int, gpus: str, **options: Any) -> None:
    if not sys.stderr.isatty():
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    named: Any = {"auto": "auto", "none": None}.get(gpus, gpus.split(","))
    study.session.voice.last_word = False  # the summary is
    outcome = run_script(study, command, workers=workers, gpus=named, **options)
    say(summary(study))
    if not outcome.over or study.history.held:
        say(outcome.reason, err=True)
        raise typer.Exit(STOPPED)
