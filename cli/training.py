"""Running a search, holding it, going on with it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from haltune.errors import InvalidInput, NotSupported
from haltune.holding import hold, lift
from haltune.launch import run_script
from haltune.policies.rebuild import policy_from
from haltune.problem import Budget
from haltune.reading import recorded_problem
from haltune.report import summary
from haltune.study import Study

from .places import STOPPED, errors, find, history_of
from .study_file import read
from .words import Name, Where

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
) -> None:
    """Train a search's trials: [bold]haltune run --study digits.toml -- python train.py[/]

    The program calls haltune.current_trial() for its configuration and reports to it. Ctrl-C once finishes the
    epochs under way and saves them, twice leaves at once; the same command goes on.
    """
    with errors():
        limits = {"trial_timeout": trial_timeout, "memory_limit": memory_limit, "logs": logs}
        _train(read(study).open(), command, workers, gpus, **limits)


def resume(
    where: Where,
    command: Annotated[list[str] | None, typer.Argument(help="after --: the program that trains")] = None,
    name: Name = None,
    time: Annotated[str | None, typer.Option(help="a budget of time in all, such as 2h")] = None,
    trials: Annotated[int | None, typer.Option(help="a budget of trials in all")] = None,
    epochs: Annotated[float | None, typer.Option(help="a budget of epochs in all")] = None,
    workers: Annotated[int, typer.Option(help="runs that train at a time")] = 1,
    gpus: Annotated[str, typer.Option(help="'auto', 'none', or a list such as 0,1")] = "auto",
) -> None:
    """Let a search that was stopped go on; with a program after --, train it here.

    The budget is that of the study file, unless one is given.
    """
    with errors():
        store, found, history = history_of(where, name)
        lifted = lift(store, found, history)
        budget = Budget(time=time, trials=trials, epochs=epochs)
        if command:
            given = None if budget.unlimited else budget
            _train(_reopened(where, found, given), command, workers, gpus)
        else:
            typer.echo(
                f"{found} goes on" if lifted else f"{found} was not stopped: nothing to do without a program"
            )


def stop(where: Where, name: Name = None) -> None:
    """Stop a search on all machines: runs finish their epochs, are saved, and go on after [bold]haltune resume[/]."""
    with errors():
        store, found = find(where, name)
        hold(store, found, "stopped by `haltune stop`; `haltune resume` lets it go on")
        typer.echo(f"{found} stops: each run ends after the epoch under way")


def _reopened(where: str, name: str, budget: Budget | None) -> Study:
    if where.endswith(".toml"):
        return read(where).open(budget)
    store, _ = find(where, name)
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
    outcome = run_script(study, command, workers=workers, gpus=named, **options)
    typer.echo(summary(study))
    if not outcome.over or study.history.held:
        typer.echo(outcome.reason, err=True)
        raise typer.Exit(STOPPED)
