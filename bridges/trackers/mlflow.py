"""MLflow: a parent run for the search, and a nested run for each trial, found again by their tags."""

from __future__ import annotations

import math
import posixpath
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from haltune.errors import installing
from haltune.log.events import Status
from haltune.log.records import TrialRecord

from .tracker import Point, Search

_STATUS = {
    Status.COMPLETED: "FINISHED",
    Status.STOPPED: "FINISHED",  # a stopped trial did not fail
    Status.PAUSED: "SCHEDULED",
    Status.INTERRUPTED: "KILLED",
    Status.FAILED: "FAILED",
}
_AT_ONCE = 500  # metrics per request; the server's limit is 1000
_MOST_RUNS = 50_000  # found by a search; the server's limit
_LONGEST_TAG = 5000  # characters of a tag
_LONGEST_NAME = 250  # characters of the name of a parameter or a metric


class MLflow:
    """Tracker for MLflow: one parent run for the search, and a nested run for each trial.

    A stopped trial is a finished run, a paused one is scheduled; its verdict, reason and P(beats) are tags. In names of
    metrics and hyperparameters, characters that MLflow refuses become "_": "hit@10" is "hit_10". If two names are then
    the same, the second one gets a number at its end, from its letters.

    Args:
        uri: URI of the server or of a database: "http://localhost:5000", "sqlite:///mlflow.db". Default: None,
            MLflow's setting.
        experiment: Name of the experiment. Default: None, the study's name.

    Raises:
        ImportError: If MLflow is not installed.

    Example:
        ::

            from haltune import Float, Study
            from haltune.trackers import MLflow, track

            study = Study({"lr": Float(0.01, 1.0)}, "loss", "search.db", max_epochs=5, budget="10 trials")
            with track(study, MLflow("sqlite:///mlflow.db")):
                for trial in study:
                    for epoch in trial.epochs():
                        trial.report(trial.config["lr"] / epoch)
    """

    def __init__(self, uri: str | None = None, experiment: str | None = None) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise ImportError(f"haltune.trackers.MLflow needs MLflow: {installing('mlflow')}") from error
        self._client: Any = MlflowClient(uri)
        self._experiment = experiment
        self.place = f"{self._client.tracking_uri} {experiment or ''}"

    def open(self, search: Search) -> int:
        self._search = search  # the tracker may have sent another one
        self._runs: dict[int, str] = {}  # trial -> id of its run
        self._names: dict[str, str] = {}  # as MLflow accepts it -> name
        name = self._experiment or search.name
        found = self._client.get_experiment_by_name(name)
        self._id = str(found.experiment_id if found else self._client.create_experiment(name))
        goal = search.problem.goal
        tags = {
            "haltune.study": search.name,
            "haltune.policy": search.policy,
            "haltune.goal": f"{type(goal).__name__}({goal.metric})",
        }
        self._parent = self._run("study", search.name, tags)
        position = self._client.get_run(self._parent).data.tags.get("haltune.position", "0")
        self._client.update_run(self._parent, status="RUNNING")
        return int(position)

    def _run(self, of: str, name: str, tags: Mapping[str, str], start: float | None = None) -> str:
        """Return the run of the search or of a trial; create it if there is none. Of several, the first counts."""
        own = {"haltune.id": self._search.id, "haltune.run": of}
        asked = " and ".join(f"tags.`{key}` = '{value}'" for key, value in own.items())
        if found := self._client.search_runs([self._id], asked, order_by=["attributes.start_time ASC"]):
            return str(found[0].info.run_id)
        all_tags = {**own, "mlflow.runName": name, **tags}
        when = None if start is None else _milliseconds(start)
        return str(self._client.create_run(self._id, start_time=when, tags=all_tags).info.run_id)

    def start(self, trial: TrialRecord) -> None:
        from mlflow.entities import Param

        known = trial.id in self._runs
        run = self._of(trial)
        if not known:
            params = [Param(self._accepted(name), str(value)) for name, value in trial.config.items()]
            for i in range(0, len(params), 100):
                self._client.log_batch(run, params=params[i : i + 100])
        self._client.update_run(run, status="RUNNING")

    def _of(self, trial: TrialRecord) -> str:
        if trial.id not in self._runs:
            parent = {"mlflow.parentRunId": self._parent, "haltune.trial": str(trial.id)}
            self._runs[trial.id] = self._run(str(trial.id), f"trial {trial.id}", parent, trial.started)
        return self._runs[trial.id]

    def report(self, trial: TrialRecord, points: Sequence[Point]) -> None:
        """See Tracker. Values that are not finite are left out, because some servers reject them."""
        from mlflow.entities import Metric

        metrics = [
            Metric(self._accepted(name), float(value), _milliseconds(point.at), point.step)
            for point in points
            for name, value in point.values.items()
            if math.isfinite(value)
        ]
        for i in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self._of(trial), metrics=metrics[i : i + _AT_ONCE])

    def end(self, trial: TrialRecord, status: Status, tags: Mapping[str, str]) -> None:
        self._tag(self._of(trial), tags)
        self._client.set_terminated(self._of(trial), _STATUS[status])

    def _accepted(self, name: str) -> str:
        """Return a name that MLflow accepts: it would refuse "hit@10", and with it all that follows."""
        path = posixpath.normpath(re.sub(r"[^/\w.\- :]", "_", name)).lstrip("/")
        path = re.sub(r"^\.+", "_", path)[:_LONGEST_NAME]
        if self._names.setdefault(path, name) != name:
            path = f"{path[: _LONGEST_NAME - 11]}_{zlib.crc32(name.encode())}"
        return path

    def _tag(self, run: str, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        self._client.log_batch(run, tags=[RunTag(name, text[:_LONGEST_TAG]) for name, text in tags.items()])

    def save_position(self, position: int) -> None:
        self._client.set_tag(self._parent, "haltune.position", str(position))

    def close(self, tags: Mapping[str, str], over: bool) -> None:
        """See Tracker. If the search has finished, paused trials are finished too, also those of earlier programs."""
        paused = f"tags.`haltune.id` = '{self._search.id}' and attributes.status = '{_STATUS[Status.PAUSED]}'"
        for run in self._client.search_runs([self._id], paused, max_results=_MOST_RUNS) if over else ():
            self._client.set_terminated(run.info.run_id, "FINISHED")
        self._tag(self._parent, tags)
        self._client.set_terminated(self._parent, "FINISHED" if over else "SCHEDULED")


def _milliseconds(seconds: float) -> int:
    return int(1000 * seconds)
