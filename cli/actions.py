"""Commands that act: run a search, stop and resume it, enqueue, watch it in a browser, track it, build value maps."""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from haltune.display import duration, plural
from haltune.errors import InvalidInput, NotSupported, installing
from haltune.launch import run_script
from haltune.log.problem import Budget
from haltune.policies.from_spec import policy_from
from haltune.report import summary
from haltune.store.studies import hold, if_allowed, lift, recorded_problem
from haltune.study import Study
from haltune.study.view import RecordedStudy, follow_study, read_study
from haltune.trackers import MLflow, TensorBoard, WandB
from haltune.trackers import track as tracking
from haltune.trackers.tracker import Tracker

from .common import STOPPED, Name, Where, errors, find, say, studies_of, study_of
from .study_file import read

Fresh = Annotated[bool, typer.Option("--fresh", hidden=True, help="no effect: every trial starts in a new process")]
Command = Annotated[list[str], typer.Argument(help="after --: the program that trains", show_default=False)]


def run(
    command: Command,
    study: Annotated[Path, typer.Option(help="the study file", show_default=False)],
    workers: Annotated[int, typer.Option(help="runs that train at a time")] = 1,
    gpus: Annotated[str, typer.Option(help="'auto', 'none', or a list such as 0,1 to share among workers")] = "auto",
    trial_timeout: Annotated[str | None, typer.Option(help="a run may take so long, such as 30min")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="a run may take so much memory, such as 8GB")] = None,
    logs: Annotated[Path | None, typer.Option(help="the folder for what runs print; else beside the store")] = None,
    price: Annotated[float | None, typer.Option(help="what a worker costs for an hour; else HALTUNE_PRICE")] = None,
    fresh: Fresh = False,
) -> None:
    """Train a search's trials: [bold]haltune run --study digits.toml -- python train.py[/]

    The program calls haltune.current_trial() for its configuration and reports to it. Ctrl-C once finishes the
    epochs under way and saves them, twice leaves at once; the same command goes on.
    """
    with errors():
        limits = {"trial_timeout": trial_timeout, "memory_limit": memory_limit, "logs": logs}
        opened = read(study).open()
        opened._session.set_price(price)
        _train(opened, command, workers, gpus, **limits)


def resume(
    where: Where,
    command: Annotated[list[str] | None, typer.Argument(help="after --: the program that trains")] = None,
    name: Name = None,
    time: Annotated[str | None, typer.Option(help="a budget of time in all, such as 2h")] = None,
    trials: Annotated[int | None, typer.Option(help="a budget of trials in all")] = None,
    trials_without_gain: Annotated[int | None, typer.Option(help="a budget of trials in a row without gain")] = None,
    epochs: Annotated[
        float | None,
        typer.Option("--epochs", "--steps", "--tokens", help="a budget of epochs in all, or what the study counts"),
    ] = None,
    workers: Annotated[int, typer.Option(help="runs that train at a time")] = 1,
    gpus: Annotated[str, typer.Option(help="'auto', 'none', or a list such as 0,1")] = "auto",
    fresh: Fresh = False,
) -> None:
    """Let a search that was stopped go on; with a program after --, train it here.

    The budget is that of the study file, unless one is given.
    """
    with errors():
        study = study_of(where, name, writing=True)
        budget = Budget(trials, epochs, time, trials_without_gain=trials_without_gain)
        if command:
            lift(study.store, study.name, study.history)
            given = None if budget.unlimited else budget
            _train(_reopened(where, study.name, given), command, workers, gpus)
        else:
            say(_let_go_on(study, budget))


def stop(where: Where, name: Name = None) -> None:
    """Stop a search on all machines: runs finish their epochs, are saved, and go on after [bold]haltune resume[/]."""
    with errors():
        study = study_of(where, name, writing=True)
        outcome, training = study.outcome, study.history.running > len(study._lost)
        if (outcome.over or outcome.held) and not training:
            what = "stopped already" if outcome.held else "over, nothing is left to stop"
            say(f"{study.name} is {what}: {outcome.reason}")
            return
        hold(study.store, study.name, "stopped by `haltune stop`; `haltune resume` lets it continue")
        idle = "nobody trains now, and nobody will"
        after = "each run ends after the epoch under way" if training else idle
        say(f"{study.name} stops: {after}")


def enqueue(
    where: Where,
    values: Annotated[list[str], typer.Argument(help="the whole configuration: lr=0.01 width=32", show_default=False)],
    name: Name = None,
    again: Annotated[bool, typer.Option("--again", help="though it was begun already, or waits")] = False,
) -> None:
    """Have a configuration of yours trained before any that the policy chooses."""
    with errors():
        store, name = find(where, name, writing=True)
        study = follow_study(store, name)
        over = study.outcome.over and not study.history.held
        lifted = f"; the search is over ({study.outcome.reason}), and a larger budget takes it up" if over else ""
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


def _let_go_on(study: RecordedStudy, budget: Budget) -> str:
    """Lift what holds a search, without training it here; what came of that."""
    if not budget.unlimited:
        raise InvalidInput("a budget is for a program that trains: haltune resume ... -- python train.py")
    lifted = lift(study.store, study.name, study.history)
    study = read_study(study.store, study.name)
    if study.outcome.over:
        more = "If its budget ended it, a larger one continues it: set it in the program or the study file."
        return f"{study.name} is over, nothing continues: {study.outcome.reason}. {more}"
    told = "continues" if lifted else "was not stopped"
    return f"{study.name} {told}: run its program again, or give it here, haltune resume ... -- python train.py"


def _reopened(where: str, name: str, budget: Budget | None) -> Study:
    if where.endswith(".toml"):
        return read(where).open(budget)
    store, _ = find(where, name, writing=True)
    created: Any = next(store.read(name, stop=1))
    problem, policy = recorded_problem(created), policy_from(created.policy)
    if problem.space.constraints:
        raise NotSupported("the space has constraints, which a log does not keep: resume by your own program")
    if budget is None and policy.endless:
        raise InvalidInput(f"{type(policy).__name__} never ends by itself: give --time 2h, --trials or --epochs")
    return Study(problem, policy, store, name, budget=budget)


def _train(study: Study, command: list[str], workers: int, gpus: str, **options: Any) -> None:
    if not sys.stderr.isatty():
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    named: Any = {"auto": "auto", "none": None}.get(gpus, gpus.split(","))
    study._session.logger.last_word = False  # the summary is
    outcome = run_script(study, command, workers=workers, gpus=named, **options)
    say(summary(study))
    if not outcome.over or study.history.held:
        say(outcome.reason, err=True)
        raise typer.Exit(STOPPED)


_LOCAL = ("127.0.0.1", "localhost", "::1")
_ALL = ("0.0.0.0", "::")  # every address of the machine


def watch(
    where: Annotated[list[str], typer.Argument(help="study files, databases, or URLs", show_default=False)],
    name: Name = None,
    port: Annotated[int, typer.Option(help="0: any that is free", min=0, max=65535)] = 8765,
    host: Annotated[
        str, typer.Option(help="an address to listen on; others than this machine's own are open to all")
    ] = _LOCAL[0],
    token_file: Annotated[
        Path | None,
        typer.Option(help="keep the address's token in this file, so that pages connect again after a restart"),
    ] = None,
    open: Annotated[bool, typer.Option(help="open it in a browser")] = True,
) -> None:
    """A search in a browser while it runs: curves as they grow, and buttons to stop, resume and enqueue."""
    with errors(interrupted="The page is no longer served. The search continues."):
        try:
            from haltune.report.watch.app import Board, application
            from haltune.report.watch.serve import server
        except ImportError:
            raise ImportError(f"haltune watch serves with Starlette and uvicorn: {installing('watch')}") from None
        listening = _socket(host, port)
        token = kept_token(token_file) if token_file else secrets.token_urlsafe(18)
        places = Board(lambda: _places(where, name))
        listed = places.listed()
        named = socket.gethostname() if host in _ALL else f"[{host}]" if ":" in host else host
        address = f"http://{named}:{listening.getsockname()[1]}/{token}/"
        if len(listed) == 1:
            address += "0/"
        say(f"{plural(len(listed), 'study', 'studies')}: {address}")
        if host not in _LOCAL:
            say("whoever reaches this machine and has the address may look and act; nothing is encrypted", err=True)
        say("Ctrl-C ends it; the search continues without it")
        app = application(places, token, (host, *names_of(host)))
        if open:  # whatever a program is started with, all users of the machine may read
            ticket = address.replace(token, app.ticket(), 1)
            # in a thread: a browser in the terminal returns only when it ends
            threading.Thread(target=webbrowser.open, args=(ticket,), daemon=True).start()
        server(app).run(sockets=[listening])


def names_of(host: str) -> tuple[str, ...]:
    """What a machine is called, beside its short name, where it is open to others."""
    if host in _LOCAL:
        return ()
    name = socket.gethostname()
    return tuple(dict.fromkeys((socket.getfqdn(), f"{name}.local")))


def kept_token(path: Path) -> str:
    """The token in a file that its owner alone may read; made where there is none. Raises InvalidInput."""
    try:
        with suppress(FileExistsError):
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(made, "w") as file:
                file.write(secrets.token_urlsafe(18) + "\n")
        with path.open(encoding="ascii") as file:
            held, token = os.fstat(file.fileno()), file.read(300).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot keep a token in {path}: {getattr(error, 'strerror', None) or error}") from error
    if os.name == "posix" and held.st_uid not in (os.getuid(), 0):
        raise InvalidInput(f"{path} belongs to another user, who may read the token in it: name another file")
    if os.name == "posix" and held.st_mode & 0o077:
        raise InvalidInput(f"others may read the token in {path}: chmod 600 {path}, or remove it for a new one")
    if not re.fullmatch(r"[\w-]{20,200}", token, re.ASCII):
        raise InvalidInput(f"{path} holds no token of 20 letters and digits or more: remove it for a new one")
    return token


def _socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(2048)  # a browser that is opened now waits until it is served
    except OSError as error:
        found.close()
        raise InvalidInput(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; another port: --port 0 takes any"
        ) from error
    return found


def _places(where: Sequence[str], name: str | None) -> list[Any]:
    """Every study of what was named. Raises what `find` raises, where there is nothing of one."""
    from haltune.report.watch.app import Location

    return [Location(*place) for place in studies_of(where, name)]


_REFRESH = 2.0  # seconds


def track(
    where: Where,
    mlflow: Annotated[str | None, typer.Option(help="MLflow's server or database: sqlite:///mlflow.db")] = None,
    experiment: Annotated[str | None, typer.Option(help="of MLflow; the study's name")] = None,
    wandb: Annotated[str | None, typer.Option(help="a project of Weights & Biases")] = None,
    offline: Annotated[bool, typer.Option(help="Weights & Biases writes files here, and asks nobody")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="a folder for TensorBoard")] = None,
    once: Annotated[bool, typer.Option(help="as far as the search is by now")] = False,
    name: Name = None,
) -> None:
    """Tell MLflow, Weights & Biases or TensorBoard of a search while it runs: a run for each trial."""
    with errors():
        study = follow_study(*find(where, name))
        trackers: list[Tracker] = []
        if mlflow is not None:
            trackers.append(MLflow(mlflow, experiment))
        if wandb is not None:
            trackers.append(WandB(wandb, mode="offline" if offline else "online"))
        if tensorboard is not None:
            trackers.append(TensorBoard(tensorboard))
        if not trackers:
            raise InvalidInput("say whom to tell: --mlflow URI, --wandb PROJECT or --tensorboard FOLDER")
        with tracking(study, *trackers, every=_REFRESH):
            while not (once or (study.outcome.over and not study.outcome.held)):
                time.sleep(_REFRESH)
                study.sync()
        say(f"told of {plural(len(study.trials), 'trial')}: {study.outcome.reason}")


maps = typer.Typer(no_args_is_help=True, help="Value maps, with which AutoBCT looks further ahead than on the fly.")


@maps.callback()
def _group() -> None:
    """Keeps `build` a command of its own while it is the only one."""


@maps.command(no_args_is_help=True)
def build(
    out: Annotated[Path, typer.Option("--out", "-o", help="the file, such as map.npz", show_default=False)],
    dim: Annotated[int, typer.Option(help="hyperparameters, 1 or 2")] = 1,
    depth: Annotated[int, typer.Option(help="trainings that it looks ahead, from 3")] = 3,
    states: Annotated[
        int, typer.Option(help="states that it learns from: more take longer and are more exact")
    ] = 20_000,
    seed: Annotated[int, typer.Option(help="of the states")] = 0,
) -> None:
    """Build a map: AutoBCT(value_map="map.npz") takes one exact step on top of it."""
    from haltune.policies.autobct.build_map import build_map  # no other command needs it

    columns = (BarColumn(), TextColumn("{task.percentage:.0f}%"), TextColumn("{task.description}"))
    with errors(), Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def tell(share: float, left: float) -> None:
            bar.update(task, completed=share, description=f"{duration(left)} left")

        built = build_map(dim, depth, states, seed, tell)
        built.save(out)
        error, worst = built.header["error"], built.header["worst"]
        say(f"{out}: depth {built.depth}; error {error:.4f}, of one state in a hundred over {worst:.4f}")
