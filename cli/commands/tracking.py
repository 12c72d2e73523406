"""Telling an experiment tracker of a search, from outside."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from haltune._utils.words import plural
from haltune.errors import InvalidInput
from haltune.study.reading import follow_study
from haltune.trackers import MLflow, TensorBoard, WandB, track
from haltune.trackers.tracker import Tracker

from ..find import errors, find
from ..options import Name, Where, say

_REFRESH = 2.0  # seconds


def tracked(
    where: Where,
    mlflow: Annotated[
        str | None, typer.Option(help="MLflow's server or database: sqlite:///mlflow.db")
    ] = None,
    experiment: Annotated[str | None, typer.Option(help="of MLflow; the study's name")] = None,
    wandb: Annotated[str | None, typer.Option(help="a project of Weights & Biases")] = None,
    offline: Annotated[
        bool, typer.Option(help="Weights & Biases writes files here, and asks nobody")
    ] = False,
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
        with track(study, *trackers, every=_REFRESH):
            while not (once or (study.outcome.over and not study.outcome.held)):
                time.sleep(_REFRESH)
                study.sync()
        say(f"told of {plural(len(study.trials), 'trial')}: {study.outcome.reason}")
