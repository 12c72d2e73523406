"""TensorBoard: a folder for each trial, with its configuration as HParams; while a search runs, and as an export."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.records import TrialRecord
from haltune.study.view import RecordedStudy

from .tracker import Bookmark, Point, Search

_OVER = {
    Status.COMPLETED: "STATUS_SUCCESS",
    Status.STOPPED: "STATUS_SUCCESS",
    Status.FAILED: "STATUS_FAILURE",
}


def write_runs(study: RecordedStudy, folder: Path) -> Path:
    """A run for each trial, `trial-7`: its curves, and its configuration. Returns the folder.

    Raises ImportError without TensorBoard, InvalidInput for a folder that cannot be written or holds other runs.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise ImportError("runs of TensorBoard are written with it: pip install tensorboard") from None
    taken = [f"trial-{t.id}" for t in study.trials if (folder / f"trial-{t.id}").exists()]
    if taken:
        raise InvalidInput(f"{folder} has a run {taken[0]} already: name another folder")
    metric = study.history.problem.goal.metric
    try:
        # beforehand: TensorFlow, where it is there, raises its own errors
        folder.mkdir(parents=True, exist_ok=True)
        for t in study.trials:
            writer = EventFileWriter(str(folder / f"trial-{t.id}"))
            writer.add_event(Event(wall_time=t.started, summary=session_start(t)))
            for at, step, name, value in _scalars(t, metric):
                writer.add_event(Event(wall_time=at, step=step, summary=hparam_scalar(name, value)))
            writer.add_event(Event(wall_time=t.started + float(t.seconds.sum()), summary=ended(t, t.status)))
            writer.close()
    except OSError as error:
        raise InvalidInput(f"cannot write {folder}: {error.strerror or error}") from error
    return folder


def _scalars(t: TrialRecord, metric: str) -> list[tuple[float, int, str, float]]:
    """(time, step, name, value) of each finite number that was reported, in its order."""
    found, at = [], t.started
    for i, epoch in enumerate(t.epochs):
        at += float(t.seconds[i])
        told = {metric: t.values[i], **{name: column[i] for name, column in t.metrics.items()}}
        found += [(at, round(epoch), n, float(v)) for n, v in told.items() if math.isfinite(v)]
    return found


def hparam_scalar(name: str, value: float) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary(value=[Summary.Value(tag=name, simple_value=value)])


def session_start(t: TrialRecord) -> Any:
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    told = plugin_data_pb2.SessionStartInfo(start_time_secs=t.started, group_name=f"trial-{t.id}")
    for name, value in t.config.items():
        if isinstance(value, bool):
            told.hparams[name].bool_value = value
        elif isinstance(value, (int, float)):
            told.hparams[name].number_value = value
        else:
            told.hparams[name].string_value = str(value)
    data = plugin_data_pb2.HParamsPluginData(session_start_info=told)
    return _about(metadata.SESSION_START_INFO_TAG, data)


def ended(t: TrialRecord, status: Status) -> Any:
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    state = api_pb2.Status.Value(_OVER.get(status, "STATUS_RUNNING"))
    told = plugin_data_pb2.SessionEndInfo(status=state, end_time_secs=t.started + float(t.seconds.sum()))
    return _about(metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=told))


def _about(tag: str, data: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    told = metadata.create_summary_metadata(data)
    return Summary(value=[Summary.Value(tag=tag, metadata=told, tensor=metadata.NULL_TENSOR)])


def text(name: str, words: str) -> Any:
    """A sentence, as the text dashboard shows it."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.plugins.text import metadata

    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[words.encode()], tensor_shape=shape)
    told = metadata.create_summary_metadata(display_name=name, description="")
    return Summary(value=[Summary.Value(tag=name, metadata=told, tensor=tensor)])


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
