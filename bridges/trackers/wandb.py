"""Weights & Biases: a group for the search, and a run for each trial, with a fixed id."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from haltune.errors import installing
from haltune.log.events import Status
from haltune.log.records import TrialRecord

from .tracker import Bookmark, Point, Search


class WandB:
    """Tracker for Weights & Biases: a run for each trial, in a group with the study's name.

    A stopped trial is a finished run, not a crashed one. Its verdict, reason and P(beats) are in its summary, and its
    status is a tag.

    Args:
        project: Name of the project. Default: None, the study's name.
        entity: The team or user. Default: None, your default entity.
        mode: "online", or "offline", which writes to `folder` without an account. Default: None, as wandb does:
            WANDB_MODE, or "online".
        folder: Folder for the files of Weights & Biases. Default: ".".

    Raises:
        ImportError: If wandb is not installed.

    Example:
        ::

            from haltune import Float, Study
            from haltune.trackers import WandB, track

            study = Study({"lr": Float(0.01, 1.0)}, "loss", "search.db", max_epochs=5, budget="10 trials")
            with track(study, WandB("digits", mode="offline")):
                for trial in study:
                    for epoch in trial.epochs():
                        trial.report(trial.config["lr"] / epoch)
    """

    def __init__(
        self,
        project: str | None = None,
        entity: str | None = None,
        mode: Literal["online", "offline"] | None = None,
        folder: str = ".",
    ) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ImportError(f"haltune.trackers.WandB needs wandb: {installing('wandb')}") from error
        self._wandb: Any = wandb
        self._project, self._entity, self._mode = project, entity, mode
        self._folder = str(Path(folder).absolute())  # the training code may change the working directory
        offline = (mode or os.environ.get("WANDB_MODE")) == "offline"
        self.place = f"{entity or ''} {project or ''} {self._folder if offline else ''}"

    def open(self, search: Search) -> int:
        self._search = search  # the tracker may have sent another one
        self._runs: dict[int, Any] = {}  # trial -> its open run
        self._named = self._project or re.sub(r"[/\\#?%:]", "-", search.name)  # the others are refused
        self._bookmark = Bookmark(Path(self._folder) / "wandb", search)
        return self._bookmark.read()

    def start(self, trial: TrialRecord) -> None:
        self._of(trial)

    def _of(self, trial: TrialRecord) -> Any:
        if trial.id not in self._runs:
            goal = self._search.problem.goal
            self._runs[trial.id] = run = self._wandb.init(
                project=self._named, entity=self._entity, mode=self._mode, dir=self._folder,
                group=self._search.name, job_type="trial", id=f"{self._search.id}-{trial.id}",
                name=f"trial {trial.id}", config=dict(trial.config), resume="allow", reinit="create_new",
                settings=self._wandb.Settings(silent=True),
            )  # fmt: skip
            run.define_metric(goal.metric, summary="max" if goal.sign > 0 else "min")
        return self._runs[trial.id]

    def report(self, trial: TrialRecord, points: Sequence[Point]) -> None:
        for point in points:
            self._of(trial).log({**point.values, trial.unit: point.epoch}, step=point.step)

    def end(self, trial: TrialRecord, status: Status, tags: Mapping[str, str]) -> None:
        run = self._of(trial)
        run.summary.update(dict(tags))
        others = [tag for tag in run.tags or () if tag not in set(Status)]
        run.tags = (*others, str(status))
        run.finish(exit_code=int(status is Status.FAILED))
        del self._runs[trial.id]

    def save_position(self, position: int) -> None:
        self._bookmark.write(position)

    def close(self, tags: Mapping[str, str], over: bool) -> None:
        """See Tracker. Later programs may continue these runs."""
        for run in self._runs.values():
            run.finish(exit_code=0)
        self._runs.clear()
