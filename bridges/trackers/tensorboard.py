"""TensorBoard: a folder for each trial, with its configuration as HParams; during a search, or as an export."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.records import TrialRecord
from haltune.study.view import RecordedStudy

from .tracker import Bookmark, Point, Search, step_of

_log = logging.getLogger("haltune")
_OVER = {Status.COMPLETED: "STATUS_SUCCESS", Status.STOPPED: "STATUS_SUCCESS", Status.FAILED: "STATUS_FAILURE"}


def write_runs(study: RecordedStudy, folder: Path) -> Path:
    """Write a run for each trial, `trial-7`, with its finite values. Return the folder.

    Raises ImportError without TensorBoard, InvalidInput if the folder cannot be written or has other runs.
    """
    tracker = TensorBoard(folder)
    taken = [f"trial-{t.id}" for t in study.trials if (folder / f"trial-{t.id}").exists()]
    if taken:
        raise InvalidInput(f"{folder} already has a run {taken[0]}. Use another folder.")
    try:
        # before any run: TensorFlow, if installed, would raise its own errors
        folder.mkdir(parents=True, exist_ok=True)
        for t in study.trials:
            columns = {study.history.problem.goal.metric: t.values, **t.metrics}
            at, points = t.started, []
            for i, epoch in enumerate(t.epochs):
                at += float(t.seconds[i])
                values = {n: float(c[i]) for n, c in columns.items() if math.isfinite(c[i])}
                points.append(Point(epoch, at, values, step_of(study.history.problem, epoch)))
            tracker.start(t)
            tracker.report(t, points)
            tracker.end(t, t.status, {})
    except OSError as error:
        raise InvalidInput(f"Cannot write {folder}: {error.strerror or error}.") from error
    return folder


class TensorBoard:
    """Tracker that writes TensorBoard runs: one for each trial, `trial-7`, with its configuration as HParams.

    Verdict, reason and P(beats) are text of the run.

    Args:
        folder: Folder of the runs: `tensorboard --logdir folder`. If it has the runs of another search, a new folder in
            it.

    Raises:
        ImportError: If TensorBoard is not installed.

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
            raise ImportError("haltune.trackers.TensorBoard needs TensorBoard: pip install tensorboard") from error
        self._writer: Any = EventFileWriter
        self._folder = Path(folder).absolute()  # the training code may change the working directory
        self.place = str(self._folder)
        self._runs: dict[int, Any] = {}

    def open(self, search: Search) -> int:
        self._folder = Path(self.place)  # the tracker may have sent another search
        self._bookmark = Bookmark(self._folder, search)
        if self._bookmark.is_of_another():  # its runs have the same names, and TensorBoard would join their curves
            self._folder /= search.id
            self._bookmark = Bookmark(self._folder, search)
            _log.info("The TensorBoard runs of %r are in %s.", search.name, self._folder)
        self.save_position(position := self._bookmark.read())
        return position

    def start(self, trial: TrialRecord) -> None:
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        start = plugin_data_pb2.SessionStartInfo(start_time_secs=trial.started, group_name=f"trial-{trial.id}")
        for name, value in trial.config.items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, (int, float)):
                start.hparams[name].number_value = value
            else:
                start.hparams[name].string_value = str(value)
        data = plugin_data_pb2.HParamsPluginData(session_start_info=start)
        self._session(trial, trial.started, 0, metadata.SESSION_START_INFO_TAG, data)

    def report(self, trial: TrialRecord, points: Sequence[Point]) -> None:
        for point in points:
            for name, value in point.values.items():
                self._add(trial, point.at, point.step, name, simple_value=value)
        self._runs[trial.id].flush()

    def end(self, trial: TrialRecord, status: Status, tags: Mapping[str, str]) -> None:
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
        from tensorboard.plugins.text import metadata as text

        at, step = trial.started + float(trial.seconds.sum()), round(trial.epoch)
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        for name, words in tags.items():
            tensor = TensorProto(dtype="DT_STRING", string_val=[words.encode()], tensor_shape=shape)
            shown = text.create_summary_metadata(display_name=name, description="")
            self._add(trial, at, step, name, metadata=shown, tensor=tensor)
        state = api_pb2.Status.Value(_OVER.get(status, "STATUS_RUNNING"))
        ended = plugin_data_pb2.SessionEndInfo(status=state, end_time_secs=at)
        data = plugin_data_pb2.HParamsPluginData(session_end_info=ended)
        self._session(trial, at, step, metadata.SESSION_END_INFO_TAG, data)
        self._runs.pop(trial.id).close()

    def _session(self, trial: TrialRecord, at: float, step: int, tag: str, data: Any) -> None:
        from tensorboard.plugins.hparams import metadata

        shown = metadata.create_summary_metadata(data)
        self._add(trial, at, step, tag, metadata=shown, tensor=metadata.NULL_TENSOR)

    def _add(self, trial: TrialRecord, at: float, step: int, tag: str, **value: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if trial.id not in self._runs:
            self._runs[trial.id] = self._writer(str(self._folder / f"trial-{trial.id}"))
        summary = Summary(value=[Summary.Value(tag=tag, **value)])
        self._runs[trial.id].add_event(Event(wall_time=at, step=step, summary=summary))

    def save_position(self, position: int) -> None:
        self._bookmark.write(position)

    def close(self, tags: Mapping[str, str], over: bool) -> None:
        for writer in self._runs.values():
            writer.close()
        self._runs.clear()
