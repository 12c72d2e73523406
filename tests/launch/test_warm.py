"""Runs that begin in a fork of a process that has imported: what they find is what a fresh process finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import ends
from trainings import a_study

from haltune.launch import run_script, zygote
from haltune.launch.warm import program_of

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="runs begin warm on Linux alone")
QUIET = {"progress": False, "gpus": None}
TELLS = """
import sys, os
warm = "numpy" in sys.modules
import json, pickle, random
import numpy as np
import haltune

class Held: pass

def finds(trial):
    return {
        "warm": warm, "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "argv": sys.argv,
        "orig": sys.orig_argv[1:], "name": __name__, "file": __file__, "path": sys.path[0], "folder": os.getcwd(),
        "flags": list(sys.flags), "word": os.environ.get("WORD"), "main": sys.modules["__main__"].__dict__ is globals(),
        "random": [random.random(), float(np.random.random())], "spec": __spec__ and __spec__.name,
        "held": type(pickle.loads(pickle.dumps(Held()))) is Held, "fds": len(os.listdir("/proc/self/fd")),
        "stdin": os.readlink("/proc/self/fd/0"), "package": __package__, "modules": "json" in dir(),
        "handlers": [str(signal_of(n)) for n in (2, 13, 15, 17)],
    }

def signal_of(n):
    import signal
    return signal.getsignal(n)

if __name__ == "__main__":
    with haltune.current_trial() as trial:
        for epoch in trial.epochs():
            trial.report(0.5, epoch, seconds=1.0)
    print(json.dumps(finds(trial)))
"""


@pytest.fixture
def found(tmp_path, monkeypatch):
    """What the runs of a program find, one after the other."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.chdir(tmp_path)

    def found(*words, text=TELLS, trials=2, name="study", **options):
        Path("train.py").write_text(text)
        study = a_study(tmp_path, trials, name=name)
        run_script(study, [sys.executable, *words], **QUIET, **options)
        logs = sorted(tmp_path.glob(f"search.logs/{name}-*/trial-*.log"))
        return [json.loads(log.read_text().splitlines()[-1]) for log in logs]

    return found


CHANGES = ("warm", "pid", "parent", "session", "random")


@pytest.mark.parametrize("words", [("-O", "train.py", "--lr", "-m"), ("-m", "train", "2")])
def test_a_run_finds_what_a_fresh_process_finds_but_what_is_imported(found, words, monkeypatch):
    monkeypatch.setenv("WORD", "of the launcher")
    warm, fresh = found(*words), found(*words, name="fresh", fresh=True, trials=1)
    assert [f["warm"] for f in (*warm, *fresh)] == [True, True, False]
    for one in (*warm, *fresh):
        assert one["session"] == one["pid"]
        assert {k: v for k, v in one.items() if k not in CHANGES} == {
            k: v for k, v in fresh[0].items() if k not in CHANGES
        }
    assert {f["parent"] for f in fresh} == {os.getpid()}
    assert len({f["parent"] for f in warm} - {os.getpid()}) == 1  # one process imported for both
    numbers = [n for f in warm for n in f["random"]]
    assert len(set(numbers)) == len(numbers)


def test_each_fork_draws_numbers_of_its_own_with_torch_too():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    drawn = set()
    for _ in range(3):
        torch.manual_seed(0)  # as the process that imported stands before each fork
        zygote.sow()
        drawn.add(float(torch.rand(())))
    assert len(drawn) == 3


@pytest.mark.parametrize(
    "package",
    ["import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
     "import tensorflow", "import os\nos._exit(3)", "import sys, types\nsys.modules['jax'] = types.ModuleType('jax')"],
)  # fmt: skip
def test_where_a_fork_would_not_be_as_a_fresh_process_each_run_starts_one(
    found, package, tmp_path, monkeypatch
):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "threaded.py").write_text(f"import __main__\nif '__file__' in vars(__main__) and "
                                           f"'zygote' in __main__.__file__:\n    exec({package!r})")  # fmt: skip
    (installed / "tensorflow.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(installed), prepend=os.pathsep)
    told = found("train.py", text=TELLS.replace("import json,", "import threaded, json,"), trials=1)
    assert [(f["warm"], f["parent"]) for f in told] == [(False, os.getpid())]


def test_a_process_that_holds_a_gpu_does_not_fork(tmp_path, monkeypatch):
    monkeypatch.setattr(zygote, "DEVICES", (str(tmp_path / "gpu"),))
    assert zygote.on_a_device() is None
    with (tmp_path / "gpu0").open("w"):
        assert zygote.on_a_device() == "a GPU is in use"
    assert zygote.on_a_device() is None


def test_what_cannot_be_imported_and_what_is_the_users_own_is_left_to_the_program(found, tmp_path):
    (tmp_path / "own.py").write_text("import os\nassert os.environ['HALTUNE_TRIAL']")
    text = "import own\ntry:\n    import nothing\nexcept ImportError: pass\n" + TELLS
    told = found("train.py", text=text, trials=1)
    assert [f["warm"] for f in told] == [False]  # own.py mentions os.environ
    (tmp_path / "own.py").write_text(
        "import haltune.study.joining.current\nassert haltune.study.joining.current._trials == {}"
    )
    told = found("train.py", name="b", text=text)
    assert [f["warm"] for f in told] == [True, True]


def test_an_error_is_told_as_a_fresh_process_tells_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    path = tmp_path / "train.py"
    path.write_text("import haltune\ndef fails():\n    raise ValueError('no data')\nfails()\n")
    tails = []
    for fresh in (False, True):
        study = a_study(tmp_path, 1, name=f"study-{fresh}")
        with pytest.raises(Exception, match="no data") as caught:
            run_script(study, [sys.executable, str(path)], **QUIET, fresh=fresh)
        tails.append(str(caught.value))
    assert tails[0] == tails[1]


def test_when_the_zygote_is_killed_its_run_is_offered_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "train.py").write_text(
        "import os, haltune\ntrial = haltune.current_trial()\nif trial.attempt == 1:\n"
        "    print(os.getpid(), flush=True)\n"
        "    os.kill(os.getppid(), 9)\n    import time; time.sleep(600)\nfor epoch in trial.epochs():\n"
        "    trial.report(0.5, epoch, seconds=1.0)\n"
    )
    study = a_study(tmp_path, 1)
    assert run_script(study, [sys.executable, str(tmp_path / "train.py")], **QUIET).over
    assert [(t.attempt, str(t.status)) for t in study.trials] == [(2, "completed")]
    killed = next(tmp_path.glob("search.logs/study-*/trial-0.log")).read_text().split()[0]
    assert ends(killed)


def test_a_zygote_ends_with_a_launcher_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "train.py").write_text(
        "import os, time, haltune\nfrom pathlib import Path\ntrial = haltune.current_trial()\n"
        f"Path({str(tmp_path / 'now')!r}).write_text(f'{{os.getpid()}} {{os.getppid()}}')\n"
        f"Path({str(tmp_path / 'now')!r}).rename({str(tmp_path / 'told')!r})\ntime.sleep(600)\n"
    )
    (tmp_path / "launcher.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom trainings import a_study\nfrom haltune.launch import run_script\n"
        f"run_script(a_study(Path({str(tmp_path)!r}), 1), [sys.executable, {str(tmp_path / 'train.py')!r}], "
        "progress=False, gpus=None)\n"
    )
    launcher = subprocess.Popen([sys.executable, str(tmp_path / "launcher.py")])
    while not (tmp_path / "told").exists():
        assert launcher.poll() is None
        time.sleep(0.05)
    run, zygote = map(int, (tmp_path / "told").read_text().split())
    launcher.kill()
    launcher.wait()
    followed = ends(zygote)
    os.kill(run, signal.SIGKILL)  # it would let go at its next report
    assert followed


def test_limits_are_those_of_the_run_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "train.py").write_text(
        "import haltune\ntrial = haltune.current_trial()\nfor epoch in trial.epochs():\n    trial.report(0.5)\n"
        "if trial.id == 1:\n    kept = bytearray(b'x') * 500_000_000\n    import time; time.sleep(600)\n"
    )
    study = a_study(tmp_path, 2)
    command = [sys.executable, str(tmp_path / "train.py")]
    assert program_of(command) is not None
    run_script(study, command, memory_limit="400MB", **QUIET)
    assert [str(t.status) for t in study.trials] == ["completed", "failed"]
    assert study.trials[1].error.startswith("memory_limit")
