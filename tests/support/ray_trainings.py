"""Trainings on a Ray cluster in the tests; they record their acknowledged reports."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from haltune.study import Trial


class Promise(NamedTuple):
    """A report that was acknowledged."""

    trial: int
    attempt: int
    epoch: int
    value: float
    pid: int
    node: str


class Diary:
    """Promises in a file that every process appends to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, trial: Trial, epoch: int, value: float) -> None:
        import ray

        node = ray.get_runtime_context().get_node_id()
        line = f"{trial.id} {trial.attempt} {epoch} {value.hex()} {os.getpid()} {node}\n"
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, line.encode())
        os.close(handle)

    def read(self) -> list[Promise]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        words = [line.split() for line in lines]
        return [Promise(int(t), int(a), int(n), float.fromhex(v), int(p), node) for t, a, n, v, p, node in words]


class Climb:
    """Trains by counting: the state is the epoch, which a checkpoint holds and a later attempt must find."""

    def __init__(self, diary: Diary, seconds: float = 0.1, folder: bool = False) -> None:
        self.diary, self.seconds, self.folder = diary, seconds, folder

    def __call__(self, trial: Trial) -> None:
        done = self._load(trial.checkpoint)
        if done != trial.epoch:
            raise AssertionError(f"the checkpoint holds epoch {done}, the trial goes on from {trial.epoch}")
        for epoch in trial.epochs():
            time.sleep(self.seconds)
            value = trial.config["x"] + epoch / 100
            verdict = trial.report(value, seconds=1.0)
            self.diary.write(trial, epoch, value)
            trial.save(lambda path, epoch=epoch: self._save(path, epoch))  # type: ignore[misc]
            if verdict.stops:
                return

    def _save(self, path: Path, epoch: int) -> None:
        if self.folder:
            path.mkdir()
            (path / "empty").mkdir()
            (path / "large").write_bytes(os.urandom(20 * 2**20))
            path = path / "epoch"
        path.write_text(str(epoch))

    def _load(self, path: str | None) -> int:
        if path is None:
            return 0
        where = Path(path)
        if self.folder:
            assert (where / "large").stat().st_size == 20 * 2**20
            assert (where / "empty").is_dir()
            where = where / "epoch"
        return int(where.read_text())
