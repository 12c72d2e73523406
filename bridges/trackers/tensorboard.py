"""TensorBoard: a folder for each trial, with its configuration as HParams."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from haltune.log.events import Status
from haltune.log.records import TrialRecord

from .hparams import ended, hparam_scalar, session_start, text
from .tracker import Bookmark, Point, Search


class TensorBoard:
    """Writes what TensorBoard shows of a search: a run for each trial, `trial-7`, with its configuration as HParams.

    Its verdict, reason and P(beats) are text of the run.

    Args:
        folder: Of the runs: `tensorboard --logdir folder`.

    Raises:
        ImportError: Without TensorBoard, saying how to get it.

    Example:
        ::

            from haltune import Float, Study
            from haltune.trackers import TensorBoard, track

            study = Study({"lr": Float(0.01, 1.0)}, "loss", "search.db", max_epochs=5, budget="10 trials")
            with track(study, TensorBoard("runs")):
                for trial in study:
                    for epoch in trial.epochs():
                        trial.report(trial.config["lr"] / epoch)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ImportError("haltune.trackers.TensorBoard needs it: pip install tensorboard") from error
        self._writer: Any = EventFileWriter
        self._folder = Path(folder).absolute()  # a training may change its own
        self.place = str(self._folder)
        self._runs: dict[int, Any] = {}

    def open(self, search: Search) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._bookmark = Bookmark(self._folder, search)
        return self._bookmark.read()

    def begin(self, trial: TrialRecord) -> None:
        self._add(trial, trial.started, 0, session_start(trial))

    def _add(self, trial: TrialRecord, at: float, step: int, summary: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        if trial.id not in self._runs:
            self._runs[trial.id] = self._writer(str(self._folder / f"trial-{trial.id}"))
        self._runs[trial.id].add_event(Event(wall_time=at, step=step, summary=summary))

    def report(self, trial: TrialRecord, points: Sequence[Point]) -> None:
        for point in points:
            for name, value in point.values.items():
                self._add(trial, point.at, round(point.epoch), hparam_scalar(name, value))
        self._runs[trial.id].flush()

    def end(self, trial: TrialRecord, status: Status, tags: Mapping[str, str]) -> None:
        at, step = trial.started + float(trial.seconds.sum()), round(trial.epoch)
        for name, words in tags.items():
            self._add(trial, at, step, text(name, words))
        self._add(trial, at, step, ended(trial, status))
        self._runs.pop(trial.id).close()

    def told(self, position: int) -> None:
        self._bookmark.write(position)

    def close(self, tags: Mapping[str, str], over: bool) -> None:
        for writer in self._runs.values():
            writer.close()
        self._runs.clear()
