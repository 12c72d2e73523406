"""Folders that go with the process that made them, and what killed processes leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from two_ranks import SUPPORT

from haltune._utils.process import Scratch, base, new_holder, sweep
from haltune.store.memory import MemoryStore


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the folder for temporary files of this process and its children."""
    sys.audit("subprocess.Popen")  # what studies of other tests keep for programs is written, elsewhere
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("HALTUNE_RUN_FOLDER", raising=False)
    monkeypatch.delenv("HALTUNE_RUN", raising=False)
    return tmp_path


def run(source: str, *, killed: bool = False) -> str:
    """Return the output of a program that kills itself at its end or ends normally."""
    path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    end = "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)" if killed else ""
    done = subprocess.run(
        [sys.executable, "-c", source + end], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
    return done.stdout.strip()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if not path.is_dir())


PROGRAMS = {
    "a study in memory with a checkpoint": (
        "from haltune import *\nfrom whims import *\n"
        "study = Study(PROBLEM, Whims(), budget=Budget(trials=2))\n"
        "trial = study.ask(); trial.report(0.5); trial.save(lambda path: path.write_text('state'))"
    ),
    "a launcher": (
        "from haltune import *\nfrom whims import *\nfrom haltune.launch.crew import Crew, Options\n"
        "study = Study(PROBLEM, Whims(), 'search.db', budget=Budget(trials=2))\n"
        "crew = Crew(study, Options.of(1, None, None, None, False, None), None)\ncrew._leave('asked to')"
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_killed_process_leaves_goes_with_the_next_start_of_any(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.chdir(temporary)
    run(PROGRAMS[program], killed=True)
    assert files(base()) != []
    run("from haltune import *\nfrom whims import *\nStudy(PROBLEM, Whims())")
    assert [path.name for path in base().iterdir()] == []


def test_it_is_gone_when_its_owner_is_or_the_process_ends(temporary: Path) -> None:
    scratch = Scratch()
    path = scratch.make()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o700, 0o700)
    (path / "file").touch()
    del scratch
    assert not path.exists()
    said = run("from haltune._utils.process import Scratch\nkept = Scratch()\nprint(kept.make())")
    assert said.startswith(str(temporary))
    assert not Path(said).exists()


def test_nothing_of_a_process_that_may_live_is_removed(temporary: Path) -> None:
    mine = Scratch().path
    gone = run("from haltune._utils.process import new_holder\nprint(new_holder())")
    host, boot, space, pid, started, nonce = gone.split("/")
    living = [
        new_holder(), f"elsewhere/{boot}/{space}/{pid}/{started}/{nonce}", f"{host}/{boot}/77/{pid}/{started}/{nonce}",
        f"{host}/another-boot/{space}/{pid}/{started}/{nonce}", "nobody", f"{host}/{boot}/{space}/²/1/0", "",
    ]  # fmt: skip
    names = {f"work-{quote(holder, safe='')}" for holder in [*living, gone]} | {"mine", "work"}
    for name in names:
        (base() / name).mkdir()
    sweep()
    assert {path.name for path in base().iterdir()} == names - {f"work-{quote(gone, safe='')}"}
    assert not mine.exists()  # never made


def test_where_another_user_made_the_folder_nothing_is_written_or_removed_there(temporary: Path) -> None:
    theirs = temporary / "theirs"
    (theirs / "work-x").mkdir(parents=True)
    base().symlink_to(theirs)
    scratch = Scratch()
    assert scratch.make().parent == temporary
    scratch = MemoryStore().folder
    assert scratch is not None
    assert scratch.parent == temporary
    assert [path.name for path in theirs.iterdir()] == ["work-x"]
