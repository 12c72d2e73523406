"""Rendezvous of ranks: with any launcher, and with files of earlier starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from two_ranks import SUPPORT

from haltune._utils.process import base, new_holder
from haltune.errors import InvalidInput
from haltune.ranks import place as places
from haltune.ranks import rendezvous
from haltune.ranks.lines import Reader, Writer
from haltune.ranks.place import ThisProcess, place
from haltune.ranks.rendezvous import Rendezvous

RANK_1 = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29"}
RANK_0 = RANK_1 | {"RANK": "0"}
ELSEWHERE = "another-machine/boot/1/2/3/0a0b"


@cache
def gone() -> str:
    """A process of this machine that was."""
    found = subprocess.run(
        [sys.executable, "-c", "from haltune._utils.process import new_holder; print(new_holder())"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return found.stdout.strip()


# -- ranks that are started through wrappers


NAMES = {
    "a folder": {"HALTUNE_RUN_FOLDER": "/shared"},
    "torchrun": {"TORCHELASTIC_RUN_ID": "f00"},
    "slurm": {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"},
}


@pytest.mark.parametrize("name", NAMES)
def test_ranks_with_other_parents_are_of_one_run_where_their_job_has_a_name(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    runs = set()
    for rank in range(2):
        monkeypatch.setattr(os, "getppid", lambda rank=rank: 100 + rank)
        runs.add(place({**RANK_1, **NAMES[name], "RANK": str(rank)}, None, f"{rank}").run)
    assert len(runs) == 1


@pytest.mark.parametrize("environment", [{}, {"TORCHELASTIC_RUN_ID": "none"}])
def test_without_a_name_ranks_meet_by_their_parent(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    runs = []
    for parent in (100, 100, 101):
        monkeypatch.setattr(os, "getppid", lambda parent=parent: parent)
        runs.append(place({**RANK_1, **environment}, None, "a").run)
    assert runs[0] == runs[1] != runs[2]


def test_ranks_that_are_each_started_through_a_shell_meet_in_a_folder_again_and_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nfrom haltune import *\nfrom whims import *\n"
        "study = Study(PROBLEM, Whims(), seed=int(sys.argv[1]), budget=Budget(trials=1))\n"
        "print([(trial.config, trial.report(0.25).action) for trial in study], flush=True)\n"
    )
    twice = f"{sys.executable} {program} 1 && {sys.executable} {program} 2 && true"
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        "HALTUNE_RUN_FOLDER": str(tmp_path / "shared"), "WORLD_SIZE": "2", "HALTUNE_RANK_TIMEOUT": "60",
    }  # fmt: skip
    environment.pop("HALTUNE_RUN", None)
    started = [
        subprocess.Popen(["sh", "-c", twice], env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    first, second = (process.communicate(timeout=120)[0].splitlines() for process in started)
    assert first == second
    assert len(set(first)) == 2
    assert list((tmp_path / "shared").iterdir()) == []


# -- folders of other starts


class Scene:
    """Folders as starts of one job left them, and rank 1 of another start."""

    def __init__(self, **environment: str) -> None:
        self.me = ThisProcess(RANK_1 | environment)
        self.entrance = Rendezvous(self.me)
        self.count = 0

    def left_by(self, holder: str, *marks: str, at: float | None = None) -> Path:
        """Write the files of a rank 0, now or at another time, with the marks of other ranks."""
        self.count += 1
        prefix = self.me.place.folder
        folder = prefix.with_name(f"{prefix.name}.{self.count}")
        folder.mkdir(parents=True, mode=0o700)
        (folder / "lines").write_text(json.dumps({"topic": "here", "holder": holder}) + "\n")
        for mark in marks:
            (folder / mark).touch()
        if at is not None:
            os.utime(folder / "lines", (at, at))
        return folder

    def entered(self) -> Path | None:
        found = self.entrance.enter()
        return None if found is None else found[0]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("HALTUNE_RUN_FOLDER", str(tmp_path))
    monkeypatch.setattr(places, "_began", lambda: time.time() - 100.0)
    return Scene()


OLD = 1e9


def test_a_rank_joins_what_a_living_rank_0_wrote_before_it_started(scene: Scene) -> None:
    folder = scene.left_by(new_holder(), at=OLD)
    assert scene.entered() == folder
    assert [path.name.rpartition("-")[0] for path in folder.glob("here-*")] == ["here-1"]


def test_a_start_that_was_killed_before_is_passed_over(scene: Scene) -> None:
    scene.left_by(gone(), at=OLD)
    assert scene.entered() is None
    assert scene.entered() is None
    new = scene.left_by(new_holder())
    assert scene.entered() == new


# -- what the environment says wrongly


@pytest.mark.parametrize("end", [Writer, Reader])
@pytest.mark.parametrize("below", ["a file/in it", "/dev/null"])
def test_a_folder_that_cannot_be_made_is_said_on_every_rank_with_what_to_do(
    end: type[Writer | Reader], below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("HALTUNE_RUN_FOLDER", str(tmp_path / below))
    with pytest.raises(InvalidInput) as refused:
        end(ThisProcess(dict(RANK_0 if end is Writer else RANK_1)))
    assert str(refused.value).startswith(f"HALTUNE_RUN_FOLDER={str(tmp_path / below)!r} cannot be used as a folder")
    assert "Make it, or set HALTUNE_RUN_FOLDER to another folder that all ranks can read and write." in str(
        refused.value
    )


@pytest.mark.parametrize("end", [Writer, Reader])
def test_somebody_elses_folder_where_ranks_meet_by_default_is_said_on_every_rank(
    end: type[Writer | Reader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HALTUNE_RUN_FOLDER", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    base().symlink_to(tmp_path)
    with pytest.raises(InvalidInput, match=r"belongs to another user, or is a link.*Remove what is there, or set"):
        end(ThisProcess(dict(RANK_0 if end is Writer else RANK_1)))


@pytest.mark.parametrize("environment", [RANK_0, RANK_1, {}])
@pytest.mark.parametrize("text", ["nan", "0", "1h"])
def test_a_patience_that_is_none_is_refused_on_every_rank_and_by_a_process_alone(
    environment: dict[str, str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HALTUNE_RANK_TIMEOUT", text)
    end = Reader if environment is RANK_1 else Writer
    with pytest.raises(InvalidInput, match=rf"HALTUNE_RANK_TIMEOUT='{text}' is not a time"):
        end(ThisProcess(dict(environment)))


# -- what is left behind


def begun(monkeypatch: pytest.MonkeyPatch, folder: Path, *, shared: bool) -> list[str]:
    """Return the files of a rank 0 that has started."""
    if shared:
        monkeypatch.setenv("HALTUNE_RUN_FOLDER", str(folder))
    else:
        monkeypatch.delenv("HALTUNE_RUN_FOLDER", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        folder = base()
    made, file = rendezvous.begin(folder / "run-new")
    os.close(file)
    return sorted(path.name for path in folder.iterdir() if path != made)


@pytest.mark.parametrize("shared", [False, True])
def test_rank_0_removes_what_killed_runs_left_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    where = tmp_path
    if not shared:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        where = base()
    dead, left = gone(), '{"topic": "left"}\n'
    runs: dict[str, tuple[str, str, float]] = {
        "run-killed.1": (dead, "", 0.0),
        "run-lives.1": (new_holder(), "", 7200.0),
        "run-left-just-now.1": (dead, left, 10.0),  # a rank may start later
        "run-left-long-ago.1": (dead, left, 7200.0),
        "run-on-another-machine.1": (ELSEWHERE, "", 7200.0),
    }
    for name, (holder, more, age) in runs.items():
        (where / name).mkdir(mode=0o700, parents=True)
        lines = where / name / "lines"
        lines.write_text(json.dumps({"topic": "here", "holder": holder}) + "\n" + more)
        os.utime(lines, (time.time() - age, time.time() - age))
    for name, age in (("run-just-made.1", 10.0), ("run-killed-when-made.1", 7200.0)):
        (where / name).mkdir(mode=0o700)
        os.utime(where / name, (time.time() - age, time.time() - age))
    where.chmod(0o700)
    assert begun(monkeypatch, tmp_path, shared=shared) == [
        "run-just-made.1", "run-left-just-now.1", "run-lives.1", "run-on-another-machine.1",
    ]  # fmt: skip
