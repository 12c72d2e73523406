"""Commands that act: run, resume, stop, enqueue, watch in a browser, track, and build value maps."""

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
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from haltune.display import duration, plural
from haltune.errors import HaltuneError, InvalidInput, NotSupported, installing
from haltune.launch.crew import Options
from haltune.launch.programs import Program
from haltune.launch.scripts import run_program
from haltune.log.problem import Budget
from haltune.policies.from_spec import policy_from
from haltune.report import summary
from haltune.store.studies import hold, if_allowed, known, lift, note_on, recorded_problem
from haltune.study import Study
from haltune.study.view import RecordedStudy, first_event, follow_study, read_study
from haltune.trackers import MLflow, TensorBoard, WandB
from haltune.trackers import track as tracking
from haltune.trackers.tracker import Tracker

from .common import STOPPED, Name, Places, Where, errors, find, say, studies_of, study_of
from .study_file import read

Workers = Annotated[
    int | None, typer.Option(help="number of trials that train at the same time; by default the file's, or 1")
]
Words = Annotated[
    list[str] | None, typer.Argument(help="the study file; after --: the program that trains", show_default=False)
]


def run(
    words: Words = None,
    study: Annotated[Path | None, typer.Option(help="the study file, if it is not the first word")] = None,
    workers: Workers = None,
    gpus: Annotated[str, typer.Option(help="'auto', 'none', or a list such as 0,1 to share among workers")] = "auto",
    trial_timeout: Annotated[str | None, typer.Option(help="time limit of a trial, such as 30min")] = None,
    memory_limit: Annotated[str | None, typer.Option(help="memory limit of a trial, such as 8GB")] = None,
    logs: Annotated[
        Path | None, typer.Option(help="folder for the output of trials; by default next to the store")
    ] = None,
    price: Annotated[float | None, typer.Option(help="price of a worker per hour; by default HALTUNE_PRICE")] = None,
) -> None:
    """Train a search's trials: [bold]haltune run digits.toml -- python train.py --lr {lr}[/]

    A program as it is gets its configuration by placeholders; the table metrics of the study file names what it logs.
    Or the program gets its trial from haltune.current_trial() and reports to it. Press Ctrl-C once to finish and save
    the current epochs, twice to stop at once. The same command continues the search.
    """
    command = list(words or ())
    if study is None:
        if not command or not command[0].endswith(".toml"):
            other = ""
            if command and command[0].endswith(".db"):
                log = command[0]
                other = f" To continue the search in {log}: haltune resume {log} -- python train.py."
            raise InvalidInput(f"Name the study file first: haltune run search.toml -- python train.py.{other}")
        study = Path(command.pop(0))
    limits = {"trial_timeout": trial_timeout, "memory_limit": memory_limit, "logs": logs}
    file = read(study)
    program = file.program_of(command)
    program.check(file.problem)
    opened = file.open()
    opened.session.set_price(price)
    _train(opened, program, workers, gpus, **limits)


def resume(
    where: Where,
    command: Annotated[list[str] | None, typer.Argument(help="after --: the program that trains")] = None,
    name: Name = None,
    time: Annotated[str | None, typer.Option(help="budget: total time, such as 2h")] = None,
    trials: Annotated[int | None, typer.Option(help="budget: total trials")] = None,
    trials_without_gain: Annotated[int | None, typer.Option(help="budget: trials in a row without gain")] = None,
    epochs: Annotated[
        float | None,
        typer.Option("--epochs", "--steps", "--tokens", help="budget: total epochs, or the study's other unit"),
    ] = None,
    workers: Workers = None,
    gpus: Annotated[str, typer.Option(help="'auto', 'none', or a list such as 0,1")] = "auto",
) -> None:
    """Resume a stopped search. With a program after --, or in the study file, train its trials on this machine.

    Without a budget option the budget of the study file counts.
    """
    study = study_of(where, name, writing=True)
    budget = Budget(trials, epochs, time, trials_without_gain=trials_without_gain)
    file = read(where) if where.endswith(".toml") else None
    if command and file is None and (near := _with_metrics(where, study.name)) is not None:
        raise InvalidInput(
            f"{near} names the metrics that the program writes, and {where} does not, so all trials would fail. Write "
            f"haltune resume {near} in place of {where}."
        )
    if command or (file is not None and file.program.command):
        program = Program(command or []) if file is None else file.program_of(command or [])
        program.check(study.problem if file is None else file.problem)
        lift(study.store, study.name, study.history)
        given = None if budget.unlimited else budget
        opened = _reopened(study, given) if file is None else file.open(given, study.name)
        _train(opened, program, workers, gpus)
    else:
        say(_lifted(study, budget))


def _with_metrics(where: str, name: str) -> Path | None:
    """Return the study file next to a database, if it names the metrics of a program, which the log does not have."""
    path = Path(where.removeprefix("sqlite:///"))
    near = path.with_suffix(".toml")
    with suppress(HaltuneError):
        if near.is_file():
            file = read(near)
            whose = file.store, file.name
            return near if file.program.metrics and whose == (f"sqlite:///{path.absolute()}", name) else None
    return None


def stop(where: Where, name: Name = None) -> None:
    """Stop a search on all machines.

    Trials finish their epochs and are saved. They continue after [bold]haltune resume[/].
    """
    study = study_of(where, name, writing=True)
    outcome, training = study.outcome, study.history.running > len(study.lost)
    if (outcome.over or outcome.held) and not training:
        what = "stopped already" if outcome.held else "over already"
        say(f"{study.name} is {what}: {outcome.reason}")
        return
    hold(study.store, study.name, "stopped by `haltune stop`; to continue, use `haltune resume`")
    after = "each trial ends after its current epoch" if training else "no trial trains now, and none starts"
    say(f"{study.name} stops: {after}")


_MORE = (
    "To continue it, run haltune resume ... --trials 50 -- python train.py, or set a larger budget in its program or "
    "study file and start it again."
)


def enqueue(
    where: Where,
    values: Annotated[list[str], typer.Argument(help="the whole configuration: lr=0.01 width=32", show_default=False)],
    name: Name = None,
    again: Annotated[bool, typer.Option("--again", help="also if it has started already or is enqueued")] = False,
) -> None:
    """Train a configuration of yours before the policy's next ones."""
    store, name = find(where, name, writing=True)
    study = follow_study(store, name)
    over = study.outcome.over and not study.history.held
    lifted = f"; the search is over ({study.outcome.reason}). {_MORE}" if over else ""
    config = dict(_setting(text, study.problem.space.parameters) for text in values)
    if study.enqueue(store, config, again):
        say(f"enqueued{if_allowed(study.problem)}{lifted}")
    else:
        why = known(study.history, study.problem.checked(config, "enqueue(config)"))
        say(f"{why}. To train it once more, add --again")


def note(
    where: Where,
    trial: Annotated[int, typer.Argument(help="its number", show_default=False)],
    text: Annotated[str, typer.Argument(help="the note; '' removes it", show_default=False)],
    name: Name = None,
) -> None:
    """Write a note on a trial: [bold]haltune note digits.db 7 "unstable after epoch 20 #rerun"[/]

    Its row on the page shows it, and the page's filter finds its words.
    """
    study = study_of(where, name, writing=True)
    note_on(study.store, study.name, study.history, trial, text)
    say(f"trial {trial} of {study.name} has {'this' if text.strip() else 'no'} note")


def _setting(text: str, names: Collection[str]) -> tuple[str, Any]:
    """Return a parameter's name and value. Raises InvalidInput if it is not one parameter, written name=value."""
    name, found, value = text.partition("=")
    if not found:
        raise InvalidInput(f"Cannot read {text!r}. Write a parameter as name=value.")
    if any(part.partition("=")[0].strip() in names for part in value.split(",")[1:]):
        raise InvalidInput(f"Cannot read {text!r}. Write parameters with spaces between them, as in lr=0.01 width=32.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _lifted(study: RecordedStudy, budget: Budget) -> str:
    """Let a stopped search continue, without training here; return what happened, in words."""
    if not budget.unlimited:
        raise InvalidInput(f"A budget option needs a program that trains. {_MORE}")
    lifted = lift(study.store, study.name, study.history)
    study = read_study(study.store, study.name)
    if study.outcome.over:
        return f"{study.name} is over: {study.outcome.reason}. {_MORE}"
    state = "may continue" if lifted else "was not stopped"
    return f"{study.name} {state}. Run its program again, or add it here: haltune resume ... -- python train.py"


def _reopened(study: RecordedStudy, budget: Budget | None) -> Study:
    created = first_event(study.store, study.name)
    problem, policy = recorded_problem(created), policy_from(created.policy)
    if problem.space.constraints:
        raise NotSupported("The space has constraints, which a log does not keep. Resume with your own program.")
    if budget is None and policy.endless:
        raise InvalidInput(f"{type(policy).__name__} never ends by itself. Add --time 2h, --trials or --epochs.")
    return Study(problem, policy, study.store, study.name, budget=budget)


def _train(study: Study, program: Program, workers: int | None, gpus: str, **options: Any) -> None:
    if not sys.stderr.isatty():
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    named: Any = {"auto": "auto", "none": None}.get(gpus, gpus.split(","))
    study.session.logger.last_word = False  # the summary follows
    workers = program.workers if workers is None else workers
    before = study.history.position
    outcome = run_program(study, program, Options.of(workers, named, **options))
    say(summary(study))
    if outcome.over and study.history.position == before and study.history.finished is None:  # the budget is spent
        say(f"Nothing was trained. {_MORE}", err=True)
    if not outcome.over or study.history.held:
        say(outcome.reason, err=True)
        raise typer.Exit(STOPPED)


_LOCAL = ("127.0.0.1", "localhost", "::1")
_ALL = ("0.0.0.0", "::")  # every address of the machine


def watch(
    where: Places,
    name: Name = None,
    port: Annotated[int, typer.Option(help="0: any free port", min=0, max=65535)] = 8765,
    host: Annotated[
        str, typer.Option(help="address to listen on; all but the default are open to other machines")
    ] = _LOCAL[0],
    token_file: Annotated[
        Path | None,
        typer.Option(help="keep the address's token in this file, so that pages connect again after a restart"),
    ] = None,
    open: Annotated[bool, typer.Option(help="open it in a browser")] = True,
) -> None:
    """Show a running search in a browser: live curves, and buttons to stop, resume and enqueue."""
    with errors(interrupted="The page is no longer served. The search continues."):
        try:
            from haltune.report.watch.app import Board, Location, application
            from haltune.report.watch.serve import server
        except ImportError:
            raise ImportError(f"haltune watch needs Starlette and uvicorn: {installing('watch')}") from None
        listening = _socket(host, port)
        token = kept_token(token_file) if token_file else secrets.token_urlsafe(18)
        places = Board(lambda: [Location(*place) for place in studies_of(where, name)])
        listed = places.listed()
        named = socket.gethostname() if host in _ALL else f"[{host}]" if ":" in host else host
        address = f"http://{named}:{listening.getsockname()[1]}/{token}/"
        if len(listed) == 1:
            address += "0/"
        say(f"{plural(len(listed), 'study', 'studies')}: {address}")
        if host not in _LOCAL:
            say("Anyone with this address can read and control the search. Nothing is encrypted.", err=True)
        say("Press Ctrl-C to end the page. The search continues.")
        app = application(places, token, (host, *names_of(host)))
        if open:  # all users of the machine may read a program's arguments, so they get a ticket, not the token
            ticket = address.replace(token, app.ticket(), 1)
            # in a thread: a browser in the terminal returns only when it ends
            threading.Thread(target=webbrowser.open, args=(ticket,), daemon=True).start()
        server(app).run(sockets=[listening])


def names_of(host: str) -> tuple[str, ...]:
    """Return the other names of this machine, if it is open to others."""
    if host in _LOCAL:
        return ()
    name = socket.gethostname()
    return tuple(dict.fromkeys((socket.getfqdn(), f"{name}.local")))


def kept_token(path: Path) -> str:
    """Return the token in a file that only its owner may read; make the file if there is none. Raises InvalidInput."""
    try:
        with suppress(FileExistsError):
            made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(made, "w") as file:
                file.write(secrets.token_urlsafe(18) + "\n")
        with path.open(encoding="ascii") as file:
            held, token = os.fstat(file.fileno()), file.read(300).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"Cannot keep a token in {path}: {getattr(error, 'strerror', None) or error}") from error
    if os.name == "posix" and held.st_uid not in (os.getuid(), 0):
        raise InvalidInput(f"{path} belongs to another user, who can read its token. Name another file.")
    if os.name == "posix" and held.st_mode & 0o077:
        raise InvalidInput(f"Other users can read the token in {path}. Run chmod 600 {path}, or remove the file.")
    if not re.fullmatch(r"[\w-]{20,200}", token, re.ASCII):
        raise InvalidInput(f"{path} has no token of at least 20 letters and digits. Remove the file for a new one.")
    return token


def _socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(2048)  # a browser that connects now waits for the server
    except OSError as error:
        found.close()
        raise InvalidInput(
            f"Cannot listen on {host}, port {port}: {error.strerror or error}. Use --port 0 for any free port."
        ) from error
    return found


_REFRESH = 2.0  # seconds


def track(
    where: Where,
    mlflow: Annotated[str | None, typer.Option(help="MLflow's server or database: sqlite:///mlflow.db")] = None,
    experiment: Annotated[str | None, typer.Option(help="MLflow's experiment; by default the study's name")] = None,
    wandb: Annotated[str | None, typer.Option(help="a project of Weights & Biases")] = None,
    offline: Annotated[bool, typer.Option(help="Weights & Biases writes files here, without a server")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="a folder for TensorBoard")] = None,
    once: Annotated[bool, typer.Option(help="log the trials so far, then end")] = False,
    name: Name = None,
) -> None:
    """Log a running search to MLflow, Weights & Biases or TensorBoard: a run for each trial."""
    study = follow_study(*find(where, name))
    trackers: list[Tracker] = []
    if mlflow is not None:
        trackers.append(MLflow(mlflow, experiment))
    if wandb is not None:
        trackers.append(WandB(wandb, mode="offline" if offline else None))
    if tensorboard is not None:
        trackers.append(TensorBoard(tensorboard))
    if not trackers:
        raise InvalidInput("No tracker is named. Add --mlflow URI, --wandb PROJECT or --tensorboard FOLDER.")
    with tracking(study, *trackers, every=_REFRESH):
        while not (once or study.outcome.final):
            time.sleep(_REFRESH)
            study.sync()
    say(f"logged {plural(len(study.trials), 'trial')}: {study.outcome.reason}")


maps = typer.Typer(no_args_is_help=True, help="Value maps, with which AutoBCT looks further ahead.")


@maps.callback()
def _group() -> None:
    """Keep `build` a subcommand although it is the only one."""


@maps.command(no_args_is_help=True)
def build(
    out: Annotated[Path, typer.Option("--out", "-o", help="the file, such as map.npz", show_default=False)],
    dim: Annotated[int, typer.Option(help="number of hyperparameters, 1 or 2")] = 1,
    depth: Annotated[int, typer.Option(help="number of trainings to look ahead, from 3")] = 3,
    states: Annotated[
        int, typer.Option(help="number of states to learn from; more take longer and give a more exact map")
    ] = 20_000,
    seed: Annotated[int, typer.Option(help="seed of the states")] = 0,
) -> None:
    """Build a map for AutoBCT(value_map="map.npz"), which adds one exact step to it."""
    from haltune.policies.autobct.build_map import build_map  # only this command needs it

    columns = (BarColumn(), TextColumn("{task.percentage:.0f}%"), TextColumn("{task.description}"))
    with errors(), Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def tell(share: float, left: float) -> None:
            bar.update(task, completed=share, description=f"{duration(left)} left")

        built = build_map(dim, depth, states, seed, tell)
        built.save(out)
        error, worst = built.header["error"], built.header["worst"]
        say(f"{out}: depth {built.depth}; mean error {error:.4f}, above {worst:.4f} for 1% of the states")
