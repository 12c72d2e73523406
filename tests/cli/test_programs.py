"""haltune run over programs that nobody edited: their command line, their logs, their checkpoints, their end."""

import errno
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from processes import ends
from trainings import wait_for
from typer.testing import CliRunner

from examples import quickly
from haltune import load_study
from haltune._utils import disk
from haltune.cli import doctor as frameworks
from haltune.cli.app import app
from haltune.errors import HaltuneWarning, StoreError
from haltune.launch import program_checkpoints, unedited
from haltune.launch.log_formats import WandbRuns
from haltune.log.decisions import Action
from haltune.log.events import Checkpointed, Ended, Reported, Resumed, Status
from haltune.store.sqlite import SqliteStore

STUDY = """
[study]
max_epochs = 4
seed = 3
[goal]
maximize = "val_acc"
[space]
lr = { float = [1e-3, 1.0], log = true }
depth = { int = [1, 4] }
[policy]
name = "RandomSearch"
trials = 2
"""
CSV = """
[metrics]
csv = "log.csv"
position = "epoch"
"""
HALVING = STUDY.replace('name = "RandomSearch"\ntrials = 2', 'name = "Hyperband"\neta = 2') + "[budget]\ntrials = 4\n"
TWO = 'name = "SuccessiveHalving"\nn = 2\neta = 2\nmin_resource = 1\nrounds = 1'
PRINTED = "[metrics]\npattern = 'val_acc=(?P<val_acc>.*)'\n"
RESUMES = HALVING + CSV + '[program]\ncheckpoint = "at-{epoch}.json"\n'

# Programs as their authors write them. They import little, so that a test starts many in a second.
TRAIN = """
import argparse, json, os, sys
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float); p.add_argument("--depth", type=int)
p.add_argument("--out", default="."); p.add_argument("--epochs", type=int, default=4); p.add_argument("--resume")
a = p.parse_args()
state = {"epoch": 0, "lr": a.lr}
if a.resume:
    state = json.load(open(a.resume))
    assert state["lr"] == a.lr  # its own
path = a.out + "/log.csv"
with open(path, "a") as log:
    if not os.path.getsize(path):
        log.write("epoch,loss,val_acc\\n")
    while state["epoch"] < a.epochs:
        state["epoch"] += 1
        log.write(f"{state['epoch']},{a.lr},{a.lr * state['epoch'] + a.depth}\\n")
        log.flush()
        json.dump(state, open(f"{a.out}/at-{state['epoch']}.json", "w"))
        if HOOK:
            exec(HOOK)
print("trained", state["epoch"])
"""
WORDS = ("--lr", "{lr}", "--depth", "{depth}", "--out", "{folder}")


@pytest.fixture
def search(tmp_path, monkeypatch, caplog):
    """Run a study file with a program, both texts; return the exit code, and the output with what haltune logs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")
    caplog.set_level("INFO", "haltune")

    def run(study, program=TRAIN, words=WORDS, hook="", options=()):
        (tmp_path / "search.toml").write_text(study)
        (tmp_path / "train.py").write_text(f"HOOK = {hook!r}\n{program}")
        command = [sys.executable, "-I", "-S", "train.py", *words] if words is not None else []
        done = CliRunner().invoke(app, ["run", "search.toml", *options, "--", *command])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output + caplog.text

    return run


def trials(folder):
    return load_study(folder / "search.db").trials


def right(trial):
    """Whether a curve is that of one training of this configuration, from its first epoch."""
    lr, depth = trial.config["lr"], trial.config["depth"]
    whole = list(trial.epochs) == list(range(1, len(trial.epochs) + 1))
    return whole and list(trial.values) == [lr * epoch + depth for epoch in trial.epochs]


# -- a search ------------------------------------------------------------------------------------------------------


def test_a_script_with_a_csv_log_is_searched_as_it_is(search, tmp_path):
    code, said = search(STUDY + CSV)
    assert code == 0, said
    assert [(t.status, t.epoch, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, 4, True)] * 2
    assert list(trials(tmp_path)[0].metrics["loss"]) == [trials(tmp_path)[0].config["lr"]] * 4
    assert {path.read_text() for path in tmp_path.glob("search.logs/*/trial-*.log")} == {"trained 4\n"}


def test_it_pauses_at_its_own_checkpoint_and_resumes_there_and_no_row_counts_twice(search, tmp_path):
    code, said = search(RESUMES, words=(*WORDS, "--resume", "{checkpoint}"), hook="import time; time.sleep(0.1)")
    assert code == 0, said
    found = trials(tmp_path)
    assert all(map(right, found))
    assert {t.status for t in found} >= {Status.PAUSED, Status.COMPLETED}
    assert any(t.attempt > 1 and t.status is Status.COMPLETED for t in found)
    study = load_study(tmp_path / "search.db")
    reports = [(e.trial, e.epoch) for e in study.events() if isinstance(e, Reported)]
    assert len(reports) == len(set(reports))
    assert not [e.path for e in study.events() if isinstance(e, Checkpointed) and os.path.isabs(e.path)]
    kept = json.loads(Path(study.best.checkpoint).read_text())
    assert kept == {"epoch": 4, "lr": study.best.config["lr"]}


def test_without_a_checkpoint_a_promoted_trial_trains_again_from_its_start_and_haltune_says_so(search, tmp_path):
    code, said = search(HALVING + CSV, hook="import time; time.sleep(0.1)")
    assert code == 0, said
    assert all(map(right, trials(tmp_path)))
    again = [t for t in trials(tmp_path) if t.attempt > 1]
    assert again
    assert {f"run-{n}" for n in range(1, again[0].attempt + 1)} >= {
        p.name for p in tmp_path.glob(f"*/*/trial-{again[0].id}/*-*")
    }


@pytest.mark.slow
def test_a_program_that_ignores_its_checkpoint_starts_its_curve_again(search, tmp_path):
    ignores = TRAIN.replace("if a.resume:", "if False:")
    with pytest.warns(HaltuneWarning, match="how the command gives it {checkpoint}"):
        code, said = search(RESUMES, ignores, (*WORDS, "--resume", "{checkpoint}"), hook="import time; time.sleep(0.1)")
    assert code == 0, said
    assert all(map(right, trials(tmp_path)))


@pytest.mark.slow
def test_a_curve_starts_again_although_the_store_fails_once(search, tmp_path, monkeypatch):
    append, failed = SqliteStore.append, []

    def fails(store, name, events, **options):
        if [type(event) for event in events] == [Ended, Resumed] and not failed:
            failed.append(events)
            raise StoreError("disk I/O error")
        return append(store, name, events, **options)

    monkeypatch.setattr(SqliteStore, "append", fails)
    ignores = TRAIN.replace("if a.resume:", "if False:")
    study = RESUMES.replace('name = "Hyperband"\neta = 2', TWO)
    study = study.replace("[policy]", "[[start]]\nlr = 0.1\ndepth = 4\n[[start]]\nlr = 0.1\ndepth = 1\n[policy]")
    with pytest.warns(HaltuneWarning, match="how the command gives it {checkpoint}"):
        code, said = search(study, ignores, (*WORDS, "--resume", "{checkpoint}"), hook="import time; time.sleep(0.2)")
    assert code == 0, said
    assert failed
    assert [(t.attempt, t.epoch, right(t)) for t in trials(tmp_path)] == [(3, 4, True), (1, 1, True)]


def test_a_program_that_continues_but_counts_its_epochs_from_1_again_is_refused(search, tmp_path):
    counts = TRAIN.replace("{state['epoch']},{a.lr}", "{state['epoch'] - first},{a.lr}")
    counts = counts.replace("path = a.out", "first = state['epoch']\npath = a.out", 1)
    code, said = search(RESUMES, counts, (*WORDS, "--resume", "{checkpoint}"), hook="import time; time.sleep(0.1)")
    assert code == 2
    assert "its log starts at epoch 1 again" in said
    assert all(map(right, trials(tmp_path)))


@pytest.mark.slow
def test_without_the_checkpoint_under_program_a_paused_trial_of_an_earlier_start_trains_again(search, tmp_path):
    noisy = TRAIN.replace("+ a.depth}", "+ a.depth + noise}")  # as on a GPU: no training repeats another to the digit
    noisy = noisy.replace("path = a.out", "open('starts', 'a').write('.')\npath = a.out", 1)
    noisy = noisy.replace("path = a.out", "noise = 1e-6 * os.path.getsize('starts')\npath = a.out", 1)
    counts = noisy.replace("{state['epoch']},{a.lr}", "{state['epoch'] - first},{a.lr}")
    counts = counts.replace("path = a.out", "first = state['epoch']\npath = a.out", 1)
    hook = "import time; time.sleep(0.1)"
    code, said = search(RESUMES, counts, (*WORDS, "--resume", "{checkpoint}"), hook=hook)
    assert code == 2
    assert "or leave checkpoint out under [program]" in said
    with pytest.warns(HaltuneWarning, match=r"trains again from its start.*\[program\] names no checkpoint any more"):
        code, said = search(HALVING + CSV, counts, hook=hook)
    assert code == 0, said
    assert all(list(trial.epochs) == list(range(1, len(trial.epochs) + 1)) for trial in trials(tmp_path))


@pytest.mark.slow
def test_a_checkpoint_that_is_not_there_at_the_pause_lets_the_trial_train_on(search, tmp_path):
    study = RESUMES.replace("at-{epoch}.json", "none-{epoch}.json")
    code, said = search(study, words=(*WORDS, "--resume", "{checkpoint}"), hook="import time; time.sleep(0.05)")
    assert code == 0, said
    assert said.count("no checkpoint of it, none-{epoch}.json") == 1
    assert all(map(right, trials(tmp_path)))
    assert {t.attempt for t in trials(tmp_path)} == {1}


@pytest.mark.slow
def test_rows_that_come_together_are_judged_at_the_last_one_and_trials_can_still_pause(search, tmp_path):
    study = STUDY.replace("max_epochs = 4", "max_epochs = 9").partition("[policy]")[0] + "[budget]\ntrials = 4\n"
    writes = TRAIN.replace("        log.flush()", "        state['epoch'] % 2 or log.flush()").replace("=4)", "=9)", 1)
    study += CSV + '[program]\ncheckpoint = "at-{epoch}.json"\n'
    words = (*WORDS, "--resume", "{checkpoint}")
    code, said = search(study, writes, words, hook="import time; time.sleep(0.3)")
    assert code == 0, said
    assert "trials cannot pause in this study" not in said
    verdicts = {e.epoch: e.verdict for e in load_study(tmp_path / "search.db").events() if isinstance(e, Reported)}
    assert not any(e.status is Status.STOPPED for e in trials(tmp_path)), verdicts
    assert {t.status for t in trials(tmp_path)} >= {Status.PAUSED, Status.COMPLETED}
    assert all(map(right, trials(tmp_path)))


DIES = """
import pathlib, time
e, died = state['epoch'], pathlib.Path('died')
open('trained', 'a').write(f'{e} ')
pathlib.Path(f'{a.out}/at-{e - 1}.json').unlink(missing_ok=True)
if e == 3 and not died.exists():
    died.touch()
    os.kill(os.getpid(), 9)
while e == 2 and not any(b'at-2.json' in p.read_bytes() for p in pathlib.Path().glob('search.db*')):
    time.sleep(0.05)  # until it is recorded
"""


def test_a_program_that_deletes_its_checkpoint_for_the_next_one_and_is_killed_then_loses_no_recorded_epoch(
    search, tmp_path
):
    study = STUDY.replace("trials = 2", "trials = 1") + CSV + '[program]\ncheckpoint = "at-{epoch}.json"\n'
    code, said = search(study, words=(*WORDS, "--resume", "{checkpoint}"), hook=DIES)
    assert code == 0, said
    assert (tmp_path / "trained").read_text() == "1 2 3 3 4 "
    assert [(t.status, t.attempt, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, 2, True)]
    assert json.loads(Path(load_study(tmp_path / "search.db").best.checkpoint).read_text())["epoch"] == 4
    assert len(list(tmp_path.glob("search.checkpoints/*/trial-0/linked/*"))) <= 2


@pytest.mark.slow
def test_a_checkpoint_that_was_put_back_only_in_part_is_put_back_again(search, tmp_path, monkeypatch):
    copy, cut = shutil.copy2, []

    def cuts(source, to, **options):
        if not cut:
            cut.append(to)
            Path(to).write_bytes(Path(source).read_bytes()[:9])
            raise OSError(errno.ENOSPC, "No space left on device")
        return copy(source, to, **options)

    monkeypatch.setattr(shutil, "copy2", cuts)
    study = STUDY.replace("trials = 2", "trials = 1") + CSV + '[program]\ncheckpoint = "at-{epoch}.json"\n'
    code, said = search(study, words=(*WORDS, "--resume", "{checkpoint}"), hook=DIES)
    assert code == 2, said
    assert cut
    assert "No space left on device" in said
    code, said = search(study, words=(*WORDS, "--resume", "{checkpoint}"), hook=DIES)
    assert code == 0, said
    assert (tmp_path / "trained").read_text() == "1 2 3 3 4 "
    assert [(t.status, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, True)]


@pytest.mark.slow
def test_a_trial_that_ends_by_itself_while_the_search_ends_keeps_its_model(search, tmp_path):
    hook = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if state['epoch'] == 2:
    here = pathlib.Path()
    try:
        os.mkdir('here')
    except FileExistsError:  # the other has come first, and goes on once this one has failed
        while len(list(here.glob('search.checkpoints/*/*/linked/*/at-2.json'))) < 2:  # of both: their rows are read
            time.sleep(0.01)
        sys.exit('no luck')
    while not any('luck' in p.read_text() for p in here.glob('search.logs/*/*')):
        time.sleep(0.01)
    time.sleep(1)  # until the search ends
    log.flush = lambda: None  # the last rows come together
if state['epoch'] == 4:
    del log.flush
"""
    study = STUDY + CSV + '[program]\ncheckpoint = "at-{epoch}.json"\nworkers = 2\n'
    code, said = search(study, words=(*WORDS, "--resume", "{checkpoint}"), hook=hook)
    assert code == 1, said
    assert "is not kept" not in said
    assert json.loads(Path(load_study(tmp_path / "search.db").best.checkpoint).read_text())["epoch"] == 4


def test_a_checkpoint_that_counts_from_another_number_than_the_log_is_named(search, tmp_path):
    program = TRAIN.replace("at-{state['epoch']}", "at-{500 * state['epoch']}")
    study = STUDY.replace("trials = 2", "trials = 1") + CSV + '[program]\ncheckpoint = "at-{epoch}.json"\n'
    code, said = search(study, program, (*WORDS, "--resume", "{checkpoint}"))
    assert code == 0, said
    assert (
        "no checkpoint at-{epoch}.json of its last epoch, 4, only at-1000.json, at-1500.json, at-2000.json (if they do "
        "not count epochs, write * for the number), so" in said
    )


@pytest.mark.parametrize(
    ("log", "file", "hook", "seen"),
    [
        (" - 1", "", "", "at-4.json, counts as that of epoch 5"),  # Keras' CSVLogger and ModelCheckpoint
        ("", " - 1", "", "at-3.json, counts as that of epoch 3"),  # Ultralytics' results.csv and epoch3.pt
        (" - 1", " - 1", "", None),
        ("", "", "", None),
        ("", "", "if state['epoch'] == 4: os.remove(a.out + '/at-4.json')", None),  # the best ones alone
    ],
)
def test_checkpoints_that_count_from_another_number_than_the_log_are_pointed_out(search, log, file, hook, seen):
    program = TRAIN.replace("{state['epoch']},{a.lr},", f"{{state['epoch']{log}}},{{a.lr}},")
    program = program.replace("at-{state['epoch']}", f"at-{{state['epoch']{file}}}")
    study = STUDY.replace("trials = 2", "trials = 1") + CSV + ("first = 0\n" if log else "")
    study += '[program]\ncheckpoint = "at-{epoch}.json"\n'
    code, said = search(study, program, (*WORDS, "--resume", "{checkpoint}"), hook)
    assert code == 0, said
    assert ("counts as that of epoch" in said) == (seen is not None)
    assert seen is None or seen in said


@pytest.mark.parametrize(
    "behind", [pytest.param(0, marks=pytest.mark.slow), 100]
)  # seconds that the clock of the disk is behind
@pytest.mark.parametrize("script", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_program_may_write_one_checkpoint_when_it_gets_sigterm(search, tmp_path, monkeypatch, script, behind):
    monkeypatch.setattr(disk, "clock_ahead", lambda folder: -behind)
    handler = (
        'import signal, time\nsave = lambda *_: (json.dump(state, open(a.out + "/last.json", "w")), '
        f'os.utime(a.out + "/last.json", 2 * [time.time() - {behind}]), sys.exit())\n'
        "signal.signal(signal.SIGTERM, save)\n"
    )
    at_the_end = TRAIN.replace("path = a.out", handler + "path = a.out", 1)
    at_the_end = at_the_end.replace('json.dump(state, open(f"{a.out}/at-{state[\'epoch\']}.json", "w"))', "pass")
    study = RESUMES.replace("at-{epoch}.json", "last.json") + "saves_on_sigterm = true\n"
    words = (*WORDS, "--resume", "{checkpoint}")
    if script:  # a shell ends at SIGTERM at once, before its program
        (tmp_path / "train.sh").write_text(f'{sys.executable} -I -S train.py "$@"\necho trained\n')
        study, words = study + f"command = {json.dumps(['bash', 'train.sh', *words])}\n", None
    code, said = search(study, at_the_end, words, hook="import time; time.sleep(0.2)")
    assert code == 0, said
    assert all(map(right, trials(tmp_path)))
    assert any(t.attempt > 1 for t in trials(tmp_path))
    assert "no complete checkpoint" not in said


def test_two_searches_do_not_read_the_output_of_each_other(search, tmp_path):
    (tmp_path / "out").mkdir()
    study, prints = STUDY.replace("trials = 2", "trials = 1") + PRINTED, "print(f'val_acc={a.lr}', flush=True)"
    with (tmp_path / "out" / "trial-0.log").open("ab") as output:
        fcntl.flock(output, fcntl.LOCK_EX)  # as a program of another search has it
        code, said = search(study, hook=prints, options=("--logs", "out"))
    assert code != 0
    assert "own folder: --logs" in said
    code, said = search(study, hook=prints, options=("--logs", "out"))
    assert code == 0, said
    assert [len(t.epochs) for t in trials(tmp_path)] == [4]


def test_a_program_starts_at_once_on_a_disk_without_locks(search, tmp_path, monkeypatch):
    tries = []

    def lacks(*_):
        tries.append(1)
        assert len(tries) < 20, "it waits for a lock"
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", lacks)
    code, said = search(STUDY + PRINTED, hook="print(f'val_acc={a.lr}', flush=True)")
    assert code == 0, said
    assert [len(t.epochs) for t in trials(tmp_path)] == [4, 4]


@pytest.mark.slow
def test_a_trial_whose_metrics_are_printed_resumes_in_the_worker_that_has_paused_it(search, tmp_path):
    study = HALVING.replace('name = "Hyperband"\neta = 2', TWO) + PRINTED + "[program]\nworkers = 2\n"
    study = study.replace("[policy]", "[[start]]\nlr = 0.1\ndepth = 4\n[[start]]\nlr = 0.1\ndepth = 1\n[policy]")
    hook = "import time; time.sleep(2 if a.depth == 1 else 0.2)\n"  # the first one waits for the second
    hook += "print(f\"val_acc={a.lr * state['epoch'] + a.depth}\", flush=True)"
    code, said = search(study, hook=hook)
    assert code == 0, said
    assert [(t.status, t.attempt, right(t)) for t in trials(tmp_path)] == [
        (Status.COMPLETED, 2, True), (Status.STOPPED, 1, True),
    ]  # fmt: skip


@pytest.mark.slow
def test_rows_before_a_checkpoint_at_sigterm_count_although_the_store_fails_once(search, tmp_path, monkeypatch):
    epoch_after = TRAIN.replace(
        'json.dump(state, open(f"{a.out}/at-{state[\'epoch\']}.json", "w"))',
        "import signal\n        signal.signal(signal.SIGTERM, lambda *_: globals().update(asked=True))\n"
        '        if "asked" in globals():\n            json.dump(state, open(a.out + "/last.json", "w")); sys.exit()',
    )
    study, append, failed = RESUMES.replace("at-{epoch}.json", "last.json"), SqliteStore.append, set()

    def fails(store, name, events, **options):
        (event, *_) = events
        if isinstance(event, Reported) and event.verdict.action is Action.UNJUDGED:
            known, _ = (event.trial, event.epoch) in failed, failed.add((event.trial, event.epoch))
            if not known:
                raise StoreError("disk I/O error")
        return append(store, name, events, **options)

    monkeypatch.setattr(SqliteStore, "append", fails)
    words = (*WORDS, "--resume", "{checkpoint}")
    code, said = search(study + "saves_on_sigterm = true\n", epoch_after, words, hook="import time; time.sleep(0.3)")
    assert code == 0, said
    assert failed
    assert all(map(right, trials(tmp_path)))


@pytest.mark.slow
def test_a_checkpoint_that_a_program_was_killed_in_the_middle_of_is_not_used(search, tmp_path):
    slowly = TRAIN.replace(
        'json.dump(state, open(f"{a.out}/at-{state[\'epoch\']}.json", "w"))',
        "import signal, time\n        signal.signal(signal.SIGTERM, lambda *_: [\n"
        '            (open(a.out + "/last.json", "a").write("["), time.sleep(0.01)) for _ in range(9999)])',
    )
    study = RESUMES.replace("at-{epoch}.json", "last.json") + "saves_on_sigterm = true\ngrace = 0.3\n"
    code, said = search(study, slowly, (*WORDS, "--resume", "{checkpoint}"), hook="import time; time.sleep(0.2)")
    assert code == 0, said
    assert "wrote no complete checkpoint last.json within 0.3 s" in said
    assert all(map(right, trials(tmp_path)))
    assert {t.status for t in trials(tmp_path)} >= {Status.COMPLETED}


SAVE = 'json.dump(state, open(f"{a.out}/at-{state[\'epoch\']}.json", "w"))'
SLOW_SAVES = {
    "a folder": "os.makedirs(path, exist_ok=True); json.dump(state, open(path + '/a', 'w')); time.sleep(GAP); "
    "open(path + '/b', 'w')",
    "an open file": "f = open(path, 'w'); f.write('{'); f.flush(); time.sleep(GAP); json.dump(state, f); f.close()",
    "an empty file": "open(path, 'w').close(); time.sleep(GAP); json.dump(state, open(path, 'w'))",
    "an open log": "os.makedirs(path, exist_ok=True); json.dump(state, open(path + '/a', 'w')); "
    "open(path + '/b', 'w'); kept = [*globals().get('kept', ()), open(path + '/log', 'w', 1)]; kept[-1].write('1\\n')",
}


@pytest.mark.parametrize("how", quickly(SLOW_SAVES, "an open file"))
def test_a_program_is_not_ended_in_the_middle_of_a_save(search, tmp_path, monkeypatch, how):
    monkeypatch.setattr(program_checkpoints, "_SETTLED_FOLDER", (3.0, 3.0), raising=False)
    if how == "an open log":
        monkeypatch.setattr(program_checkpoints, "_OPEN", 0.5)
        monkeypatch.setattr(program_checkpoints, "_SETTLED_FOLDER", (1.0, 1.0))
    save = "path = f\"{a.out}/at-{state['epoch']}.json\"; import time; " + SLOW_SAVES[how].replace(
        "GAP", "0.8 * (state['epoch'] == 1)"
    )
    program = TRAIN.replace(SAVE, save + "; time.sleep(state['epoch'] < 3)")
    if how == "an open file":
        program = program.replace("json.load(open(a.resume))", "json.loads(open(a.resume).read()[1:])")
    if how in ("a folder", "an open log"):
        program = program.replace(
            "json.load(open(a.resume))", "json.load(open(a.resume + '/a'))\n    open(a.resume + '/b')"
        )
    study = RESUMES.replace('name = "Hyperband"\neta = 2', TWO)
    study = study.replace("[policy]", "[[start]]\nlr = 0.1\ndepth = 4\n[[start]]\nlr = 0.1\ndepth = 1\n[policy]")
    code, said = search(study, program, (*WORDS, "--resume", "{checkpoint}"))
    assert code == 0, said
    assert [(t.status, t.attempt, right(t)) for t in trials(tmp_path)] == [
        (Status.COMPLETED, 2, True), (Status.STOPPED, 1, True),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_checkpoint_that_a_program_completes_after_it_was_recorded_is_recorded_again(search, tmp_path, monkeypatch):
    monkeypatch.setattr(program_checkpoints, "_SETTLED_FOLDER", (0.1, 0.1), raising=False)
    save = "path = f\"{a.out}/at-{state['epoch']}.json\"; import time; " + SLOW_SAVES["a folder"].replace(
        "GAP", "1.2 * (state['epoch'] == 2)"
    )
    program = TRAIN.replace(SAVE, save)
    program = program.replace(
        "json.load(open(a.resume))", "json.load(open(a.resume + '/a'))\n    open(a.resume + '/b')"
    )
    hook = "open('trained', 'a').write(f\"{state['epoch']} \")\n"
    hook += "if state['epoch'] == 2: import shutil; time.sleep(1); shutil.rmtree(path); os.kill(os.getpid(), 9)"
    study = STUDY.replace("trials = 2", "trials = 1") + CSV + '[program]\ncheckpoint = "at-{epoch}.json"\n'
    code, said = search(study, program, (*WORDS, "--resume", "{checkpoint}"), hook=hook)
    assert code == 0, said
    assert (tmp_path / "trained").read_text() == "1 2 3 4 "
    assert [(t.status, t.attempt, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, 2, True)]


@pytest.mark.slow
def test_a_checkpoint_without_a_number_is_copied_if_it_is_written_after_every_epoch(search, tmp_path):
    program = TRAIN.replace("at-{state['epoch']}.json", "last-v1.2.weights.h5")
    study = RESUMES.replace("at-{epoch}.json", "last-v1.2.weights.h5")
    code, said = search(study, program, (*WORDS, "--resume", "{checkpoint}"), hook="import time; time.sleep(1.2)")
    assert code == 0, said
    assert all(map(right, trials(tmp_path)))
    assert any(t.attempt > 1 and t.status is Status.COMPLETED for t in trials(tmp_path))
    best = load_study(tmp_path / "search.db").best
    assert json.loads(Path(best.checkpoint).read_text()) == {"epoch": 4, "lr": best.config["lr"]}
    assert re.search(r"-[0-9a-f]{8}\.weights\.h5$", best.checkpoint)  # its whole ending, which Keras looks at


@pytest.mark.slow
def test_short_epochs_do_not_make_a_pause_wait_longer_for_a_folder_without_a_number(search, tmp_path):
    save = "path = a.out + '/last'; os.makedirs(path, exist_ok=True); json.dump(state, open(path + '/a', 'w'))"
    program = TRAIN.replace(SAVE, save).replace("json.load(open(a.resume))", "json.load(open(a.resume + '/a'))")
    two = TWO.replace("min_resource = 1", "min_resource = 4")
    study = (
        RESUMES.replace("max_epochs = 4", "max_epochs = 5")
        .replace("at-{epoch}.json", "last")
        .replace('name = "Hyperband"\neta = 2', two)
    )
    study = study.replace("[policy]", "[[start]]\nlr = 0.1\ndepth = 4\n[[start]]\nlr = 0.1\ndepth = 1\n[policy]")
    hook = "import time; time.sleep(2 if state['epoch'] == 4 else 0.8)"
    code, said = search(study, program, (*WORDS, "--epochs", "{epochs}", "--resume", "{checkpoint}"), hook=hook)
    assert code == 0, said
    assert [(t.status, t.attempt, right(t)) for t in trials(tmp_path)] == [
        (Status.COMPLETED, 2, True), (Status.STOPPED, 1, True),
    ]  # fmt: skip


def test_a_checkpoint_for_which_the_quota_has_no_room_does_not_end_the_search(search, tmp_path):
    program = TRAIN.replace("at-{state['epoch']}.json", "last.json")
    study = STUDY.replace("= 4", '= 1\ncheckpoints = { disk_quota = "0.001KB" }').replace("trials = 2", "trials = 1")
    study += CSV + '[program]\ncheckpoint = "last.json"\n'
    code, said = search(study, program, (*WORDS, "--epochs", "{epochs}", "--resume", "{checkpoint}"))
    assert code == 0, said
    assert "last.json could not be copied: NoRoom" in said
    assert [(t.status, t.epoch) for t in trials(tmp_path)] == [(Status.COMPLETED, 1)]


@pytest.mark.slow
def test_a_pause_for_which_the_quota_has_no_room_is_declined_at_once_with_its_reason(search, tmp_path, monkeypatch):
    copied, tries = unedited.copy_unchanged, []
    monkeypatch.setattr(unedited, "copy_unchanged", lambda *paths: tries.append(paths) or copied(*paths))
    quota = 'max_epochs = 2\ncheckpoints = { disk_quota = "0.001KB", keep = 0 }'
    study = RESUMES.replace("at-{epoch}.json", "last.json").replace("max_epochs = 4", quota)
    study = study.replace('name = "Hyperband"\neta = 2', TWO)
    program = TRAIN.replace("at-{state['epoch']}.json", "last.json")
    words = (*WORDS, "--epochs", "{epochs}", "--resume", "{checkpoint}")
    code, said = search(study, program, words, hook="import time; time.sleep(1.2)")
    assert code == 0, said
    reports = [e for e in load_study(tmp_path / "search.db").events() if isinstance(e, Reported)]
    assert len(tries) == sum(e.verdict.action is Action.PAUSE for e in reports) > 0
    assert (
        "is not paused at epoch 1, because its checkpoint could not be copied (NoRoom: checkpoints would take" in said
    )
    assert "before the next row" not in said


def test_a_program_that_a_full_disk_ends_fails_no_trial(search, tmp_path):
    hook = "if os.path.exists('full'): raise OSError(28, 'No space left on device')\n"
    hook += "if state['epoch'] == a.epochs: open('full', 'w')"
    code, said = search(STUDY + CSV, hook=hook)
    assert code == 1
    assert "No space left on device\nAfter you have made room, the same command continues the search." in said
    assert [t.status for t in trials(tmp_path)] == [Status.COMPLETED, Status.INTERRUPTED]
    (tmp_path / "full").unlink()
    code, said = search(STUDY + CSV)
    assert code == 0, said
    assert [(t.status, t.attempt, right(t)) for t in trials(tmp_path)] == [
        (Status.COMPLETED, 1, True), (Status.COMPLETED, 2, True),
    ]  # fmt: skip


def test_a_trial_that_another_worker_took_while_its_checkpoint_was_copied_does_not_end_the_search(
    search, tmp_path, monkeypatch
):
    copied, taken = unedited.copy_unchanged, []

    def taking(*paths):
        if not taken:
            other = load_study(tmp_path / "search.db", verbose=0)
            taken.append(other.take(0, 1, "another worker", lambda: None))
            taken[0].mark_lost("it did not answer")
        return copied(*paths)

    monkeypatch.setattr(unedited, "copy_unchanged", taking)
    program = TRAIN.replace("at-{state['epoch']}.json", "last.json")
    study = STUDY.replace("= 4", "= 1").replace("trials = 2", "trials = 1") + CSV
    words = (*WORDS, "--epochs", "{epochs}", "--resume", "{checkpoint}")
    code, said = search(f'{study}[program]\ncheckpoint = "last.json"\n', program, words)
    assert code == 0, said
    assert "last.json could not be copied: LeaseLost" in said
    assert [(t.status, t.attempt, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, 2, True)]


@pytest.mark.slow
@pytest.mark.parametrize("late", [True, False])
def test_a_checkpoint_from_before_the_epoch_is_not_taken_for_the_one_after_it(search, tmp_path, late):
    save = 'json.dump(state, open(f"{a.out}/at-{state[\'epoch\']}.json", "w"))'
    program = TRAIN.replace(save, "" if late else save).replace("    while state", f"    {save}\n    while state")
    program = program.replace("        log.write(f", "        import time; time.sleep(1.2)\n        log.write(f", 1)
    program = program.replace("at-{state['epoch']}.json", "last.json")
    hook = save.replace("at-{state['epoch']}.json", "last.json")
    hook = f"import time; time.sleep(0.8); {hook}; time.sleep(0.8)" if late else ""
    study = RESUMES.replace("at-{epoch}.json", "last.json")
    code, said = search(study, program, (*WORDS, "--resume", "{checkpoint}"), hook=hook)
    assert code == 0, said
    assert "again from its start" not in said
    assert all(map(right, trials(tmp_path)))
    resumes = [e for e in load_study(tmp_path / "search.db").events() if type(e).__name__ == "Checkpointed"]
    assert resumes
    for event in resumes:
        path = next(tmp_path.glob(f"search.checkpoints/*/{event.path}"), None)
        assert path is None or json.loads(path.read_text())["epoch"] == event.epoch


def assert_right_with_one_file(search, tmp_path, then, train=TRAIN):
    """Search with a program that saves its only file before each row, and does `then` in between."""
    save = 'json.dump(state, open(f"{a.out}/at-{state[\'epoch\']}.json", "w"))'
    first = save.replace("at-{state['epoch']}", "last") + f"; import time; {then}"
    program = train.replace(save, "").replace("        log.write(f", f"        {first}\n        log.write(f")
    study = RESUMES.replace("at-{epoch}.json", "last.json").replace("seed = 3", "seed = 5")
    study = study.replace('name = "Hyperband"\neta = 2', TWO)
    code, said = search(study, program, (*WORDS, "--resume", "{checkpoint}"))
    assert code == 0, said
    assert all(map(right, trials(tmp_path)))


@pytest.mark.slow
def test_a_checkpoint_that_the_next_epoch_has_overwritten_is_not_taken_for_that_of_the_one_before(
    search, tmp_path, monkeypatch
):
    monkeypatch.setattr(program_checkpoints, "_SCAN", 1.5)  # between two looks the program has written the next one
    slow = TRAIN.replace(
        '        state["epoch"] += 1', '        import time; time.sleep(0.7)\n        state["epoch"] += 1'
    )
    assert_right_with_one_file(search, tmp_path, "time.sleep(0.4)", slow)


@pytest.mark.slow
def test_a_checkpoint_before_a_long_evaluation_is_not_taken_for_that_of_the_epoch_before(search, tmp_path):
    assert_right_with_one_file(search, tmp_path, "time.sleep(1.2)")


@pytest.mark.slow
def test_a_checkpoint_that_a_thread_still_writes_as_the_next_row_comes_is_not_used_yet(search, tmp_path):
    hook = "import threading, time\ndef write(text, path):\n    with open(path, 'w') as file:\n"
    hook += "        for part in text: file.write(part); file.flush(); time.sleep(0.02)\n"
    hook += "threading.Thread(target=write, args=(json.dumps(state), f\"{a.out}/at-{state['epoch']}.json\")).start()\n"
    hook += "time.sleep(0.2)"
    program = TRAIN.replace('json.dump(state, open(f"{a.out}/at-{state[\'epoch\']}.json", "w"))', "pass")
    study = RESUMES.replace("= 4\nseed", "= 8\nseed")
    words = (*WORDS, "--resume", "{checkpoint}", "--epochs", "{epochs}")
    code, said = search(study, program, words, hook=hook)
    assert code == 0, said
    assert [t.error for t in trials(tmp_path)] == [None] * 4
    assert all(map(right, trials(tmp_path)))
    assert any(t.attempt > 1 for t in trials(tmp_path))


@pytest.mark.slow
def test_the_checkpoint_of_the_best_epoch_is_kept_if_that_epoch_counts(search, tmp_path):
    falls = TRAIN.replace("a.lr * state['epoch'] + a.depth", "a.lr * state['epoch'] * (state['epoch'] < 3) + a.depth")
    study = STUDY.replace("trials = 2", "trials = 1").replace("[space]", 'of = "best"\n[space]') + CSV
    study += '[program]\ncheckpoint = "at-{epoch}.json"\n'
    code, said = search(study, falls, (*WORDS, "--resume", "{checkpoint}"), hook="import time; time.sleep(0.1)")
    assert code == 0, said
    best = load_study(tmp_path / "search.db").best
    assert best.epoch == json.loads(Path(best.checkpoint).read_text())["epoch"] == 2


@pytest.mark.slow
def test_the_model_of_an_attempt_that_counts_stays_while_a_later_one_is_behind_it(search, tmp_path):
    falls = TRAIN.replace("a.lr * state['epoch'] + a.depth", "a.lr * state['epoch'] * (state['epoch'] < 3) + a.depth")
    study = STUDY.replace("trials = 2", "trials = 1").replace("[space]", 'of = "best"\n[space]') + CSV
    study += '[program]\ncheckpoint = "at-{epoch}.json"\n'
    hook = "import pathlib, time\nif state['epoch'] == 3 and not os.path.exists('sent'):\n    time.sleep(0.8)\n"
    hook += f"    open('sent', 'w').close(); os.kill({os.getpid()}, 15); time.sleep(0.7); os.kill(os.getpid(), 9)\n"
    hook += "if state['epoch'] == 1 and os.path.exists('sent'):\n    time.sleep(1)\n"
    hook += "    links = pathlib.Path().glob('search.checkpoints/*/trial-0/linked/*/at-2.json')\n"
    hook += "    open('kept', 'w').write(''.join(link.read_text() for link in links))"
    words = (*WORDS, "--resume", "{checkpoint}")
    code, said = search(study, falls, words, hook=hook)
    assert code == 143, said
    Path(trials(tmp_path)[0].checkpoint).unlink()
    with pytest.warns(HaltuneWarning, match="does not exist any more"):
        code, said = search(study, falls, words, hook=hook)
    assert code == 0, said
    assert json.loads((tmp_path / "kept").read_text())["epoch"] == 2
    assert [t.attempt for t in trials(tmp_path)] == [2]


@pytest.mark.slow
def test_two_workers_of_the_study_file_train_at_the_same_time(search, tmp_path):
    meets = "import pathlib, time; pathlib.Path(a.out + '/here').touch()\n"
    meets += "while len(list(pathlib.Path('.').glob('*.checkpoints/*/*/*/here'))) < 2: time.sleep(0.01)"
    code, said = search(STUDY + CSV + "[program]\nworkers = 2\n", hook=meets)
    assert code == 0, said
    assert all(map(right, trials(tmp_path)))


# -- the end of a program --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stopped_program_leaves_no_children_also_if_it_ignores_sigterm(search, tmp_path):
    stubborn = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
for epoch in (1, 2, 3):
    print(f"epoch {epoch} val_acc nan child {child.pid}", flush=True)
time.sleep(600)
"""
    study = STUDY.replace("trials = 2", "trials = 1") + "[program]\ngrace = 0.1\n"
    study += "[metrics]\npattern = 'epoch (?P<epoch>\\d+) val_acc (?P<val_acc>\\S+)'\nposition = 'epoch'\n"
    code, said = search(study, stubborn, ("{options}",))
    assert code == 0, said
    assert "diverged" in said
    (log,) = tmp_path.glob("search.logs/*/trial-0.log")
    assert ends(int(re.search(r"child (\d+)", log.read_text())[1]))


def test_a_program_that_fails_at_once_ends_the_search_with_what_it_printed(search, tmp_path):
    code, said = search(STUDY + CSV, "raise SystemExit('no data at /data')")
    assert code == 1
    assert "no data at /data" in said
    assert [t.error for t in trials(tmp_path)] == ["ended with exit status 1: no data at /data"]


def test_a_command_whose_python_has_no_haltune_says_which_one_to_write(search):
    code, said = search(STUDY, "raise ModuleNotFoundError(\"No module named 'haltune'\")")
    assert code == 1
    assert f"another one than haltune's. Write {sys.executable} in place of python." in said


@pytest.mark.slow
def test_a_search_that_is_over_says_how_to_continue_it(search):
    study = STUDY.replace("trials = 2", "") + CSV + "[budget]\ntrials = 1\n"
    assert "Nothing was trained" not in search(study)[1]
    code, said = search(study)
    assert code == 0
    assert "Nothing was trained. To continue it, run haltune resume ... --trials 50" in said


@pytest.mark.slow
def test_a_program_that_a_signal_ends_under_a_shell_script_starts_again_from_its_checkpoint(search, tmp_path):
    hook = "if state['epoch'] == 3 and not os.path.exists('died'): open('died', 'w'); os.kill(os.getpid(), 9)\n"
    hook += "import time; time.sleep(0.8)"
    (tmp_path / "train.sh").write_text(f'{sys.executable} -I -S train.py "$@"\nexit $?\n')
    study = STUDY.replace("trials = 2", "trials = 1") + CSV + '[program]\ncheckpoint = "at-{epoch}.json"\n'
    study += f"command = {json.dumps(['bash', 'train.sh', *WORDS, '--resume', '{checkpoint}'])}\n"
    code, said = search(study, words=None, hook=hook)
    assert code == 0, said
    assert "its process was killed by SIGKILL" in said
    assert [(t.attempt, right(t)) for t in trials(tmp_path)] == [(2, True)]


def test_a_failure_does_not_show_what_an_earlier_attempt_printed(search, tmp_path):
    dies = "import os, sys\nif os.path.exists('died'): sys.exit(3)\n"
    dies += "open('died', 'w'); print('all is well', flush=True); os.kill(os.getpid(), 9)"
    code, said = search(STUDY + CSV, dies)
    assert code == 1, said
    assert [t.error for t in trials(tmp_path)] == ["ended with exit status 3: it printed nothing"]


@pytest.mark.slow
def test_a_warning_is_a_sentence_without_a_place_in_the_code(tmp_path):
    (tmp_path / "search.toml").write_text(STUDY.replace('maximize = "val_acc"', 'minimize = "val_acc"') + CSV)
    (tmp_path / "train.py").write_text(f"HOOK = ''\n{TRAIN}")
    command = [
        sys.executable,
        "-m",
        "haltune",
        "run",
        "search.toml",
        "--",
        sys.executable,
        "-I",
        "-S",
        "train.py",
        *WORDS,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    (line,) = [line for line in done.stderr.splitlines() if "Minimize('val_acc'): the smallest" in line]
    assert line.startswith("haltune: Minimize")
    assert "HaltuneWarning" not in done.stderr


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        ("sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB')", "out of memory: ended"),
        ("sys.exit('Loss is nan, stopping training')", "ended with exit status 1: Loss is nan"),
        ("log.write('2,nan,nan\\n'); log.flush(); sys.exit('AssertionError')", "ended with exit status 1: Assert"),
    ],
)
def test_a_first_program_that_needs_too_much_memory_or_diverges_does_not_end_the_search(search, tmp_path, hook, error):
    first = "if not os.path.exists('once'): open('once', 'w').close(); "
    code, said = search(STUDY + CSV, hook=first + hook)
    assert code == 0, said
    assert [t.status for t in trials(tmp_path)] == [Status.FAILED, Status.COMPLETED]
    assert trials(tmp_path)[0].error.startswith(error)


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ("Loss is nan, stopping training", r"ended with exit status 0 and no value of 'val_acc' \(.*\): Loss is nan"),
        ("CUDA out of memory", "out of memory: ended with exit status 0"),
    ],
)
@pytest.mark.parametrize("log", ["", pytest.param("epoch,loss,val_acc\n1,nan,\n", marks=pytest.mark.slow)])
def test_a_first_program_that_gives_up_before_its_first_value_does_not_end_the_search_although_its_status_is_0(
    search, tmp_path, last, error, log
):
    first = "if not os.path.exists('once'):\n    open('once', 'w').close(); "
    first += f"open(a.out + '/log.csv', 'w').write({log!r}); print({last!r}); sys.exit(0)\n"
    code, said = search(STUDY + CSV, TRAIN.replace("path = a.out", f"{first}path = a.out", 1))
    assert code == 0, said
    assert [t.status for t in trials(tmp_path)] == [Status.FAILED, Status.COMPLETED]
    assert re.match(error, trials(tmp_path)[0].error)


@pytest.mark.parametrize("metrics", [CSV, CSV.replace('position = "epoch"\n', "")])
def test_a_wrong_name_of_the_goal_ends_the_search_although_the_program_prints_nan_last(search, tmp_path, metrics):
    code, said = search(STUDY.replace("val_acc", "acc") + metrics, f"{TRAIN}print('IoU of class 3: nan')\n")
    assert code == 1
    assert "log.csv has 'epoch', 'loss', 'val_acc'. Name one of them as the goal." in said
    assert len(trials(tmp_path)) == 1


def test_a_first_program_that_fails_in_code_with_a_nan_in_it_ends_the_search(search):
    code, said = search(STUDY + CSV, "import sys\nsys.exit('    x = df.replace(np.nan, 0)\\nKeyError')")
    assert code == 1
    assert "KeyError" in said


def test_a_later_failure_is_recorded_and_the_search_goes_on(search, tmp_path):
    hook = "if os.path.exists('once'): sys.exit('out of luck')\nif state['epoch'] == a.epochs: open('once', 'w')"
    code, said = search(STUDY + CSV, hook=hook)
    assert code == 0, said
    assert [t.status for t in trials(tmp_path)] == [Status.COMPLETED, Status.FAILED]
    assert "out of luck" in trials(tmp_path)[1].error


@pytest.mark.slow
def test_a_program_that_trains_beyond_the_full_length_ends_there(search, tmp_path):
    code, said = search(STUDY + CSV, words=(*WORDS, "--epochs", "900"), hook="import time; time.sleep(0.01)")
    assert code == 0, said
    assert "Give the program its length: {max_epochs}" in said
    assert [(t.status, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, True)] * 2


@pytest.mark.slow
def test_the_only_checkpoint_of_a_program_that_trains_beyond_the_full_length_is_not_that_of_its_last_epoch(
    search, tmp_path
):
    study = STUDY.replace("max_epochs = 4", "max_epochs = 2").replace("trials = 2", "trials = 1") + CSV
    program = TRAIN.replace("at-{state['epoch']}.json", "last.json")
    words = (*WORDS, "--epochs", "900", "--resume", "{checkpoint}")
    hook = "import time; time.sleep(0.8)"
    code, said = search(study + '[program]\ncheckpoint = "last.json"\n', program, words, hook=hook)
    assert code == 0, said
    assert [(t.status, t.epoch) for t in trials(tmp_path)] == [(Status.COMPLETED, 2)]
    (path,) = tmp_path.glob("search.checkpoints/*/trial-0/run-1/last.json")
    assert json.loads(path.read_text())["epoch"] == 3
    assert load_study(tmp_path / "search.db").best.checkpoint is None


@pytest.mark.slow
def test_a_program_that_logs_one_row_after_its_last_epoch_ends_by_itself(search, tmp_path):
    test = "if state['epoch'] == 4: log.write('5,0,0\\n'); log.flush(); import time; time.sleep(1); open('saved', 'a')"
    study = STUDY.replace("trials = 2", "trials = 1") + CSV
    code, said = search(study, words=(*WORDS, "--epochs", "{epochs}"), hook=test)
    assert code == 0, said
    assert (tmp_path / "saved").exists()
    assert "trains beyond" not in said
    assert [(t.status, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, True)]


def test_lines_with_the_metric_at_the_end_of_a_program_with_its_length_do_not_count(search, tmp_path):
    ends = "\nif state['epoch'] == a.epochs: print('best val_acc=9\\ntest val_acc=8', flush=True)"
    hook = f"print(f\"val_acc={{a.lr * state['epoch'] + a.depth}}\", flush=True){ends}"
    code, said = search(STUDY + PRINTED, words=(*WORDS, "--epochs", "{epochs}"), hook=hook)
    assert code == 0, said
    assert "beyond" not in said
    assert [(t.status, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, True)] * 2


def test_rows_that_are_no_epochs_are_an_error_if_the_program_has_its_length(search, tmp_path):
    twice = "print(f'val_acc={a.lr}', flush=True); print('val_acc=0', flush=True)"
    words = (*WORDS, "--epochs", "{epochs}")
    code, said = search(STUDY + PRINTED, words=words, hook=twice)
    assert code == 2
    assert "each row of the lines that it prints counts as one epoch. Write position" in said
    assert [t.status for t in trials(tmp_path)] == [Status.INTERRUPTED]
    named = "[metrics]\npattern = 'epoch (?P<epoch>.*) val_acc=(?P<val_acc>.*)'\nposition = 'epoch'\n"
    hook = "print(f\"epoch {state['epoch']} val_acc={a.lr * state['epoch'] + a.depth}\", flush=True)"
    code, said = search(STUDY + named, words=words, hook=hook)
    assert code == 0, said
    assert [(t.status, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, True)] * 2


@pytest.mark.parametrize(
    ("study", "named"),
    [
        (STUDY.replace("val_acc", "acc") + CSV, ("log.csv has 'epoch', 'loss', 'val_acc'",)),
        (STUDY + CSV.replace("log.csv", "logs/*.csv"), ("There is no logs/*.csv", "at-1.json", "log.csv")),
        (STUDY + CSV.replace('"epoch"', '"step"'), ("log.csv has no 'step', the position",)),
        (STUDY + "[metrics]\npattern = 'acc=(?P<val_acc>.*)'\n", ("No line that it printed matches",)),
        (
            STUDY + "[constraints]\nsize = { at_most = 5 }\n" + CSV,
            ("without a value of 'size'", "'val_acc'. Name one of them as the other goals and the constraints"),
        ),
    ],
)
def test_a_metric_that_never_comes_is_an_error_that_says_what_is_there(search, study, named):
    code, said = search(study)
    assert code == 1
    assert [name for name in named if name not in said] == []


@pytest.mark.parametrize(
    ("position", "how"), [("epoch", "Name one of them as the goal"), (None, "Name one as position under [metrics]")]
)
def test_the_columns_of_a_history_within_an_object_of_json_are_named_and_not_those_of_the_object(search, position, how):
    """A goal best_metric would have the wrong values."""
    rows = [{"epoch": 1, "acc" if position else "val_acc": 0.5}]
    state = json.dumps({"best_metric": 0.5, "epoch": 1, "log_history": rows})
    lines = "[metrics]\njsonl = 'log.csv'\n" + "position = 'epoch'\n" * (position is not None)
    code, said = search(STUDY + lines, f"import sys\nopen(sys.argv[6] + '/log.csv', 'w').write({state!r})")
    assert code == 1
    assert f"In log.csv the list 'log_history' has {', '.join(map(repr, sorted(rows[0])))}. {how}." in said
    assert "best_metric" not in said


@pytest.mark.slow
def test_a_pattern_without_a_match_is_told_while_the_program_trains(search, monkeypatch):
    monkeypatch.setattr("haltune.launch.unedited._MUTE", (0.0, 100))
    code, said = search(
        STUDY + "[metrics]\npattern = 'acc=(?P<val_acc>.*)'\n",
        "import time\nfor n in range(150):\n    print('accuracy', n, flush=True)\ntime.sleep(2)\n",
    )
    assert code == 1
    assert re.search("No line that it printed matches the pattern; .* If its first value comes later", said)


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("epoch;val_acc\n1;0,5\n", "In log.csv, 'val_acc' is '0,5', not a number such as 0.95"),
        (
            "epoch,val_acc\n1,0.5,3\n",
            "log.csv has a column 'val_acc', but no row with a number there and a cell for each",
        ),
        ("epoch,val_acc\n1/4,0.5\n", "In log.csv, 'epoch' is '1/4'"),
        ("run 3\nepochs,accuracy\n1,0.5\n", "log.csv has 'accuracy', 'epochs'. Name one of them as the goal"),
    ],
)
def test_a_column_that_is_there_but_not_read_is_an_error_that_says_why(search, written, named):
    code, said = search(STUDY + CSV, f"import sys\nopen(sys.argv[6] + '/log.csv', 'w').write({written!r})")
    assert code == 1
    assert named in said


@pytest.mark.parametrize(
    ("metrics", "printed", "named"),
    [
        (r"pattern = 'acc (?P<val_acc>\S+)'", "acc 0.9, loss 1", "In the lines that it prints, 'val_acc' is '0.9,'"),
        ('jsonl = "log.jsonl"', '{"val_acc": "tensor(0.9)"}', "In log.jsonl, 'val_acc' is 'tensor(0.9)', not a number"),
        ('jsonl = "log.jsonl"', '{"val_acc": [0.9]}', "In log.jsonl, 'val_acc' is [0.9], not a number"),
    ],
)
def test_a_metric_that_is_not_a_number_is_an_error_that_shows_it(search, metrics, printed, named):
    program = f"import sys\nprint({printed!r})\nprint({printed!r}, file=open(sys.argv[6] + '/log.jsonl', 'w'))"
    code, said = search(f"{STUDY}[metrics]\n{metrics}\n", program)
    assert code == 1
    assert named in said


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("*.csv", "They are in log.csv, train.csv: name the right one"),
        pytest.param("log.csv", "If a row is less than one epoch", marks=pytest.mark.slow),
    ],
)
def test_several_values_of_an_epoch_are_named_with_their_files(search, path, named):
    hook = "train = open(a.out + ('/train.csv' if PATH == '*.csv' else '/log.csv'), 'a')\n"
    hook += "train.write('epoch,val_acc\\n' * (state['epoch'] == 1) + f\"{state['epoch']},0.125\\n\"); train.close()"
    hook += "\nimport time; time.sleep(0.1)"
    study = STUDY.replace("trials = 2", "trials = 1") + CSV.replace("log.csv", path)
    code, said = search(study, hook=hook.replace("PATH", repr(path)))
    assert code == 0, said
    assert said.count("several values of 'val_acc' at epoch") == 1
    assert named in said


def test_rows_of_two_kinds_with_the_same_columns_are_pointed_out(search):
    program = """
import sys
with open(f"{sys.argv[-1]}/log.csv", "w") as log:
    print("time,epoch,phase,val_acc", file=log)
    for epoch in range(1, 5):
        for second, phase, acc in ((1, "train", 0.9), (9, "valid", 0.5)):
            print(f"10:0{epoch}:0{second}", epoch, phase, acc, sep=",", file=log, flush=True)
"""
    code, said = search(STUDY.replace("trials = 2", "trials = 1") + CSV, program)
    assert code == 0, said
    assert said.count("Rows differ in 'phase' ('train', 'valid')") == 1
    assert 'match their lines alone by a pattern, with file = "log.csv" under [metrics]' in said


@pytest.mark.parametrize("goal", ["val_acc", "acc"])
def test_a_log_with_a_row_for_each_metric_is_searched_by_their_names(search, tmp_path, goal):
    rows = "{state['epoch']},loss,{a.lr}\\n{state['epoch']},val_acc,{a.lr * state['epoch'] + a.depth}"
    long = TRAIN.replace("epoch,loss,val_acc", "epoch,name,value")
    long = long.replace("{state['epoch']},{a.lr},{a.lr * state['epoch'] + a.depth}", rows)
    code, said = search(STUDY.replace('"val_acc"', f'"{goal}"') + CSV, long)
    assert code == (goal == "acc"), said
    if goal == "acc":
        assert "log.csv has 'epoch', 'loss', 'val_acc'. Name one of them as the goal." in said
    else:
        assert [(t.status, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, True)] * 2
        assert list(trials(tmp_path)[0].metrics["loss"]) == [trials(tmp_path)[0].config["lr"]] * 4


def test_a_program_that_rotates_its_log_loses_no_epoch(search, tmp_path, monkeypatch):
    add = unedited.Curve.add

    def seen(curve, row):
        (tmp_path / "seen").touch()
        return add(curve, row)

    monkeypatch.setattr(unedited.Curve, "add", seen)
    hook = "import time\nwhile not os.path.exists('seen'): time.sleep(0.01)\n"
    hook += "if state['epoch'] == 2: log.close(); os.replace(path, path + '.1'); log = open(path, 'a')"
    code, said = search(STUDY.replace("trials = 2", "trials = 1") + CSV, hook=hook)
    assert code == 0, said
    assert [(t.status, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, True)]


@pytest.mark.parametrize(
    ("mode", "line", "warning"),
    [
        ("a", "", None),  # it evaluates as it likes
        ("a", '{"epoch": 3, "val_', "epoch 2, and then 5. A line there is no complete row: '{\"epoch\": 3, \"val_'"),
        ("w", "", 'epoch 2, and then 5. log.jsonl was renamed or written anew in between, so rows may be lost. .*'
         'jsonl = "log.jsonl[*]"'),
    ],
)  # fmt: skip
def test_a_gap_in_a_log_is_pointed_out_if_rows_may_be_lost(search, tmp_path, monkeypatch, mode, line, warning):
    add = unedited.Curve.add

    def seen(curve, row):
        (tmp_path / "seen").write_text(f"{row['epoch']:g}")
        return add(curve, row)

    monkeypatch.setattr(unedited.Curve, "add", seen)
    (tmp_path / "seen").touch()
    program = f"""
import os, sys, time
for epoch in (1, 2, 5, 6) if open("seen").read() != "6" else (3, 4, 5, 6):
    with open(sys.argv[-1] + "/log.jsonl", {mode!r}) as log:
        if epoch == 5 and {line!r}: print({line!r}, file=log)
        print('{{"epoch": %d, "val_acc": 0.5}}' % epoch, file=log)
    while open("seen").read() != str(epoch): time.sleep(0.01)
"""
    study = (STUDY + CSV).replace('csv = "log.csv"', 'jsonl = "log.jsonl"').replace("= 4", "= 6", 1)
    code, said = search(study, program)
    assert code == 0, said
    assert [list(t.epochs) for t in trials(tmp_path)] == [[1, 2, 5, 6], [3, 4, 5, 6]]
    assert ("and then 5" in said, "it continues another trial" in said) == (warning is not None, mode == "a")
    assert ("at epoch 3, and that of trial 0 at 1. The program renames its log" in said) == (mode == "w")
    assert warning is None or re.search(warning, said)


@pytest.mark.parametrize("fails", [False, True])
def test_an_error_behind_a_pipe_is_pointed_out(search, tmp_path, fails):
    (tmp_path / "train.sh").write_text(f'{sys.executable} -I -S train.py "$@" 2>&1 | cat\n')
    study = f"{STUDY.replace('trials = 2', 'trials = 1')}{CSV}[program]\n"
    study += f"command = {json.dumps(['sh', 'train.sh', *WORDS])}\n"
    hook = "if state['epoch'] == 2: " + ("raise MemoryError" if fails else "sys.exit()")
    code, said = search(study, words=None, hook=hook)
    assert code == 0, said
    assert [t.epoch for t in trials(tmp_path)] == [2]
    assert ("write set -o pipefail" in said, "give it its length: {max_epochs}" in said) == (fails, not fails)


def test_an_error_that_python_ignores_as_it_ends_is_none_of_the_program(search):
    ignored = "print('Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__>')\n"
    ignored += "print('Traceback (most recent call last):\\n  File \"x.py\", line 1'); sys.exit()"
    code, said = search(STUDY + CSV, hook=ignored)
    assert code == 0, said
    assert "It printed an error" not in said
    assert "give it its length" in said


@pytest.mark.parametrize("given", ["4", "{max_epochs}"])
def test_a_program_that_stops_early_and_has_its_length_is_not_advised_to_get_it(search, tmp_path, given):
    code, said = search(STUDY + CSV, hook="if state['epoch'] == 2: sys.exit()", words=(*WORDS, "--epochs", given))
    assert code == 0, said
    assert {t.status for t in trials(tmp_path)} == {"completed"}
    assert ("ended after 2 epochs of 4. If it does not stop early" in said) == (given == "4")


def test_the_last_line_that_counts_as_an_epoch_is_shown_if_a_program_ends_early(search):
    hook = "print('val_acc=0.5', flush=True)\nif state['epoch'] == 2: print('best val_acc=0.75'); sys.exit()"
    code, said = search(STUDY + PRINTED, hook=hook)
    assert code == 0, said
    assert said.count("the last one was 'best val_acc=0.75'") == 1


@pytest.mark.parametrize(("epochs", "named"), [("3", True), ("2", False)])
def test_a_log_that_ends_one_epoch_early_may_count_from_zero(search, epochs, named):
    code, said = search(STUDY + CSV, words=(*WORDS, "--epochs", epochs))
    assert code == 0, said
    assert ("If its first epoch has the number 0, write first = 0" in said) == named


def test_empty_cells_of_a_training_that_diverged_are_pointed_out(search, tmp_path):
    blank = TRAIN.replace("{a.lr * state['epoch'] + a.depth}", "{a.lr if state['epoch'] < 3 else ''}")
    study = STUDY.replace("max_epochs = 4", "max_epochs = 8").replace("trials = 2", "trials = 1") + CSV
    code, said = search(study, blank, (*WORDS, "--epochs", "{epochs}"))
    assert code == 0, said
    assert re.search("is at epoch [5-8], and has no number for 'val_acc' after epoch 2", said)
    assert said.count("na_rep='nan'") == 1
    assert "give it its length" not in said


def test_a_line_with_two_values_of_a_metric_is_shown(search):
    study = STUDY + "[metrics]\npattern = 'acc=(?P<val_acc>[\\d.]+)'\n"
    code, said = search(study, hook="print('acc=0.5, best acc=0.75', flush=True)")
    assert code == 0, said
    assert said.count("The line 'acc=0.5, best acc=0.75' has several values of 'val_acc'") == 1


AFTERWARDS = "[metrics]\npattern = ['acc (?P<val_acc>\\S+)', 'epoch (?P<epoch>\\d+)']\nposition = 'epoch'\n"


@pytest.mark.parametrize(
    ("order", "epochs", "said_so"),
    [
        ("acc .{n} epoch {n}", 4, True),  # the value, and then its number
        ("epoch {n} acc .{n}", 4, False),
        ("acc .0 epoch 1 acc .1", 1, False),  # evaluates before it trains
        ("acc .0 epoch 1 epoch 2 acc .1 epoch 3", 1, False),  # and then seldom
    ],
)
def test_a_program_that_prints_each_number_after_its_value_is_told(search, order, epochs, said_so):
    lines = order.replace(" epoch", "\nepoch").replace(" acc", "\nacc") + "\n"
    program = f"for n in range(1, {epochs + 1}):\n    print({lines!r}.format(n=n), end='', flush=True)"
    code, said = search(STUDY.replace("trials = 2", "trials = 1") + AFTERWARDS, program)
    assert code == 0, said
    assert ("each value seems to come before its epoch" in said) == said_so


def test_a_position_in_another_unit_is_an_error_at_its_first_row(search):
    code, said = search(STUDY + CSV, TRAIN.replace("{state['epoch']},", "{100 * state['epoch']},"))
    assert code == 2
    assert "has epoch 100, which is beyond max_epochs=4" in said
    assert "Give the program its length" not in said


@pytest.mark.slow
def test_rows_that_a_program_writes_only_at_its_end_all_count_and_haltune_says_that_they_came_too_late(
    search, tmp_path, monkeypatch
):
    monkeypatch.setattr(unedited, "_LATE", 0.0)
    late = TRAIN.replace("        log.flush()\n", "") + "import time; time.sleep(0.5)\n"
    code, said = search(HALVING + CSV, late)
    assert code == 0, said
    assert said.count("flush its log after each row") == 1
    assert [(t.epoch, t.attempt, right(t)) for t in trials(tmp_path)] == [(4, 1, True)] * 4


def test_a_program_that_dies_after_its_last_epoch_is_not_trained_again(search, tmp_path):
    code, said = search(STUDY + CSV, f"{TRAIN}os.kill(os.getpid(), 11)\n")
    assert code == 1
    assert "was killed by SIGSEGV" in said
    assert [(t.status, t.attempt) for t in trials(tmp_path)] == [(Status.FAILED, 1)]


def test_the_number_of_a_checkpoint_may_follow_any_text(search, tmp_path):
    study = STUDY.replace("= 4", "= 12").replace("trials = 2", "trials = 1") + CSV
    words = (*WORDS, "--epochs", "{epochs}", "--resume", "{checkpoint}")
    code, said = search(f'{study}[program]\ncheckpoint = "*{{epoch}}.json"\n', words=words)
    assert code == 0, said
    assert Path(load_study(tmp_path / "search.db").best.checkpoint).name == "at-12.json"


@pytest.mark.parametrize(("logged", "warned"), [pytest.param("val_acc", False, marks=pytest.mark.slow), ("acc", True)])
def test_a_metric_is_missed_after_a_fifth_of_the_training_not_after_some_rows_of_an_epoch(search, logged, warned):
    program = """
import json, sys, time
with open(f"{sys.argv[-1]}/log.jsonl", "w") as log:
    for quarter in range(1, 17):
        rows = [{"loss": 1.0}] + [{"NAME": 0.5}] * (quarter % 4 == 0)
        print(*(json.dumps({"epoch": quarter / 4} | row) for row in rows), sep="\\n", file=log, flush=True)
        time.sleep(0.1)
"""
    study = STUDY + CSV.replace('csv = "log.csv"', 'jsonl = "log.jsonl"')
    code, said = search(study, program.replace("NAME", logged))
    assert code == warned, said
    assert (
        ("without 'val_acc'. log.jsonl has 'acc', 'epoch', 'loss'" in said) == ("without 'val_acc'" in said) == warned
    ), said


@pytest.mark.parametrize("own", [False, True])
def test_a_program_that_continues_what_another_trial_left_is_named(search, own):
    program = TRAIN.replace(
        "if a.resume:", "a.resume = (a.out if OWN else '.') + '/last.json'\nif os.path.exists(a.resume):"
    )
    program = f"OWN = {own}\n" + program.replace("    assert state", "    pass #").replace(
        "{a.out}/at-{state['epoch']}", "{'.' if not OWN else a.out}/last"
    )
    hook = "if state['epoch'] == 2: sys.exit()"
    code, said = search(STUDY + CSV, program, hook=hook)
    assert code == 0, said
    assert ("its log starts at epoch 3, and that of trial 0 at 1" in said) == (not own)
    assert ("let it save in {folder}" in said) == (not own)


def test_epochs_that_count_from_zero_are_asked_for_at_the_first_row(search, tmp_path):
    from_zero = TRAIN.replace("{state['epoch']},{a.lr},", "{state['epoch'] - 1},{a.lr},")
    code, said = search(STUDY + CSV, from_zero)
    assert code == 2
    assert "write first = 0 under [metrics]" in said
    assert search(STUDY + CSV + "first = 0\n", from_zero)[0] == 0
    assert all(map(right, trials(tmp_path)))


def test_epochs_that_count_from_zero_are_asked_for_also_if_the_first_has_no_validation(search):
    value = "{a.lr * state['epoch'] + a.depth}"
    every_second = TRAIN.replace("{state['epoch']},{a.lr},", "{state['epoch'] - 1},{a.lr},")
    every_second = every_second.replace(value, "{a.lr if state['epoch'] % 2 == 0 else ''}")
    code, said = search(STUDY + CSV, every_second)
    assert code == 2
    assert "write first = 0 under [metrics]" in said
    assert search(STUDY + CSV + "first = 1\n", every_second)[0] == 0


# -- refused before anything is trained ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("study", "words", "named"),
    [
        (STUDY + CSV, ("--lr", "{lrr}"), ("Unknown placeholder {lrr}", "{lr}, {depth}, {folder}", "{{lrr}}")),
        (STUDY + CSV, ("--lr", "{lr}", "--out", "{folder}"), ("does not use 'depth'", "--depth {depth}")),
        (STUDY + CSV, ("--lr", "{lr}", "--depth", "{depth}"), ("does not use the trial's folder", "{folder}")),
        (STUDY + CSV, (*WORDS, "--resume", "{checkpoint}"), ("Name the program's checkpoints",)),
        (RESUMES, WORDS, ("does not use {checkpoint}",)),
        (RESUMES.replace('position = "epoch"', ""), (*WORDS, "{checkpoint}"), ("needs position",)),
        (RESUMES.replace("{epoch}", "{step}"), (*WORDS, "{checkpoint}"), ("write {epoch} for the number",)),
        (STUDY + CSV.replace("log.csv", "/tmp/log.csv"), WORDS, ("line 14", "not in the trial's folder")),
        (STUDY + CSV.replace("csv", "cvs", 1), WORDS, ("line 15: metrics.cvs", "'csv'")),
        (STUDY + "[metrics]\nposition = 'epoch'\n", WORDS, ("Name one place of the metrics",)),
        (STUDY + "[metrics]\npattern = 'acc ([0-9]+)'\n", ("{options}",), ("no named group",)),
        (STUDY + "[metrics]\npattern = 'a(?P<acc>.)'\n", ("{options}",), ("no group for the goal 'val_acc'",)),
        (STUDY + "[constraints]\nsize = { at_most = 5 }\n" + PRINTED, ("{options}",),
         ("no group for the constraint 'size'",)),
        (STUDY + CSV, ("-x{options}", "{folder}"), ("cannot be a part of",)),
        (STUDY + CSV + "[program]\nconfig = { base = 'none.yaml' }\n", ("{config}", "{folder}"), ("Cannot read",)),
        (STUDY + CSV + "[program]\nconfig = { values = { a = 1 } }\n", WORDS, ("does not use it", "--config {config}")),
        (STUDY + CSV + "[program]\nconfig = { format = 'json', values = { lr = 1 } }\n", ("{config}", "{folder}"),
         ("set 'lr'", "{lr}")),
        (STUDY + CSV.replace("log.csv", "{folder}/log.csv"), WORDS, ("line 14", "Leave {folder} out")),
        (STUDY + CSV + "[program]\ngrace = -1\n", WORDS, ("program.grace",)),
        (STUDY.replace("max_epochs", "max_steps") + CSV.replace("position = ", "#"), WORDS, ("counts steps",)),
        (RESUMES, ("--lr={lr} --depth={depth} -r {checkpoint}", "{folder}"), ("is one word", "and with it {depth}")),
        (
            STUDY.replace("[policy]", "m = { float = [0, 1], when = { depth = 2 } }\n[policy]") + CSV,
            ("--depth", "{depth}", "--opt={m},{lr}", "{folder}"),
            ("some trial has no value for {m}, and with it {lr}",),
        ),
        (STUDY + CSV + "[program]\ncwd = '{folder}'\n", WORDS, ("without train.py", "/train.py")),
        (STUDY + "[program]\ncommand = ['A=1', 'python', '{lr}{depth}']\n" + PRINTED, None, ("env = { NAME = ",)),
        (STUDY + "[program]\ncommand = 'cd a && python {lr} {depth}'\n" + PRINTED, None, ("No shell reads",)),
        (STUDY + CSV, None, ("No program is named",)),
        (STUDY + "[program]\ncommand = ['python train.py {lr} {depth}']\n" + PRINTED, None, ("quotation marks",)),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_before_anything_is_trained(search, tmp_path, study, words, named):
    code, said = search(study, words=words)
    assert code == 2, said
    assert [name for name in named if name not in said] == []
    assert not (tmp_path / "search.db").exists()


@pytest.mark.parametrize("wait", [(), ("--wait",), ("-Wblock=true",)])
def test_a_command_that_only_submits_a_job_is_refused(search, tmp_path, wait):
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\nshift {len(wait)}\nexec {sys.executable} -I -S train.py "$@"\n')
    (tmp_path / "sbatch").chmod(0o755)
    study = f"{STUDY}{CSV}[program]\ncommand = {json.dumps([str(tmp_path / 'sbatch'), *wait, *WORDS])}\n"
    code, said = search(study, words=None)
    assert code == (0 if wait else 2), said
    assert ("sbatch returns at once, and its job trains later" in said) == (not wait)


def test_a_program_whose_metrics_the_study_file_names_does_not_resume_without_it(search, tmp_path):
    assert search(STUDY + CSV)[0] == 0
    command = ["--trials", "4", "--", sys.executable, "-I", "-S", "train.py", *WORDS]
    for store in ("search.db", f"sqlite:///{tmp_path / 'search.db'}"):
        done = CliRunner().invoke(app, ["resume", store, *command])
        assert done.exit_code == 2, done.output
        assert "search.toml in place of" in done.output
    assert len(trials(tmp_path)) == 2
    assert CliRunner().invoke(app, ["resume", "search.toml", *command]).exit_code == 0
    of_another = STUDY.replace("[study]", '[study]\nname = "other"') + CSV
    (tmp_path / "search.toml").write_text(of_another)
    assert "in place of" not in CliRunner().invoke(app, ["resume", "search.db", "--trials", "6", *command[2:]]).output


@pytest.mark.parametrize("gpus", ["all", "cuda:0", "0,", "GPU 1"])
def test_a_device_that_cuda_does_not_know_is_refused(search, tmp_path, gpus):
    code, said = search(STUDY + CSV, options=("--gpus", gpus))
    assert code == 2
    assert "CUDA has no device" in said
    assert not trials(tmp_path)


def test_only_the_folder_of_a_trial_is_searched_for_checkpoints(search, tmp_path, monkeypatch):
    (tmp_path / "at-9.json").touch()
    searched, matching = [], program_checkpoints.matching
    monkeypatch.setattr(
        program_checkpoints, "matching", lambda *names: searched.append(matching(*names)) or searched[-1]
    )
    study = RESUMES.replace("at-{epoch}", "**/at-{epoch}").replace("trials = 4", "trials = 1")
    code, said = search(study, words=(*WORDS, "--resume", "{checkpoint}"))
    assert code == 0, said
    assert {path.name for found in searched for path in found} == {f"at-{n}.json" for n in (1, 2, 3, 4)}


def test_a_program_that_is_not_there_is_refused_too(search, tmp_path):
    command = shlex.join(["no-such-program", *WORDS])
    code, said = search(f"{STUDY}{CSV}[program]\ncommand = {json.dumps(command)}\n", words=None)
    assert code == 2
    assert "Cannot start 'no-such-program'" in said
    assert not (tmp_path / "search.db").exists()


def test_a_folder_that_cannot_be_made_ends_the_search_with_one_sentence(search, tmp_path):
    code, said = search(STUDY + CSV + '[program]\ncwd = "train.py/{trial}"\n')
    assert code == 2
    assert "Cannot start trial 0: NotADirectoryError" in said
    assert trials(tmp_path)[0].status is Status.INTERRUPTED


# -- how a configuration reaches a program ---------------------------------------------------------------------------

PRINTS = """
import json, os, sys
print(json.dumps({"words": sys.argv[1:], "env": os.environ.get("SIZE"), "cwd": os.getcwd()}))
print("val_acc=1")
"""
ODD = """
name = { choice = ["a b; $(touch hacked)", "'\\"{lr}"] }
degree = { int = [2, 3], when = { name = "'\\"{lr}" } }
[[start]]
lr = 0.25
depth = 2
name = "a b; $(touch hacked)"
"""


def printed(folder):
    (log,) = folder.glob("search.logs/*/trial-0.log")
    return json.loads(log.read_text().splitlines()[0])


@pytest.mark.parametrize(
    ("options", "own", "seen"),
    [
        ((), None, "3,4"),
        (("--gpus", "0,1"), None, "0,1"),
        (("--workers", "2"), None, "3"),
        (("--workers", "2"), "7", "7"),
    ],
)
@pytest.mark.parametrize("edited", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_program_sees_the_devices_that_the_user_names(search, tmp_path, monkeypatch, options, own, seen, edited):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4")
    study = STUDY.replace("trials = 2", "trials = 1") + ("" if edited else PRINTED)
    if own is not None:
        study += f'[program]\nenv = {{ CUDA_VISIBLE_DEVICES = "{own}" }}\n'
    search(
        study, 'import os; print("val_acc=1"); print(os.environ["CUDA_VISIBLE_DEVICES"])', ("{options}",), "", options
    )
    (log,) = tmp_path.glob("search.logs/*/trial-0.log")
    assert log.read_text().split()[1] == seen


def test_values_are_whole_words_and_absent_ones_take_their_option_with_them(search, tmp_path):
    study = STUDY.replace("[policy]", f"{ODD}[policy]").replace("trials = 2", "trials = 1") + PRINTED
    study += '[program]\nenv = { SIZE = "{depth}x" }\ncwd = "{folder}"\n'
    (tmp_path / "search.toml").write_text(study)
    words = (
        "--lr={lr}",
        "{name}",
        "-q",
        "--degree",
        "{degree}",
        "{depth}",
        '{"a": {trial}}',
        "${lr}",
        "{{lr}}",
        "{epochs}",
    )
    command = shlex.join([sys.executable, "-I", "-S", str(tmp_path / "train.py"), *words])
    code, said = search(f"{study}command = {json.dumps(command)}\n", PRINTS, None)
    assert code == 0, said
    (trial,) = trials(tmp_path)
    got = printed(tmp_path)
    lr, name, depth = (trial.config[n] for n in ("lr", "name", "depth"))
    assert got["words"] == [f"--lr={lr}", name, "-q", str(depth), '{"a": 0}', "${lr}", "{lr}", "4"]
    assert got["env"] == f"{depth}x"
    assert got["cwd"] == str(next(tmp_path.glob("search.checkpoints/*/trial-0/run-1")))


def test_a_word_may_have_several_values_if_those_that_it_may_take_along_are_also_in_other_words(search, tmp_path):
    when = "when = { depth = [1, 2, 3, 4] }"
    space = f"m = {{ float = [0, 1], {when} }}\nn = {{ float = [0, 1], {when} }}\n[policy]"
    study = STUDY.replace("[policy]", space).replace("trials = 2", "trials = 1") + PRINTED
    words = ("--lr", "{lr}", "--depth={depth}", "--name=t{trial}-lr{lr}-m{m}", "--betas={m},{n}")
    code, said = search(study, PRINTS, words)
    assert code == 0, said
    (trial,) = trials(tmp_path)
    lr, m, n = (trial.config[name] for name in ("lr", "m", "n"))
    assert printed(tmp_path)["words"][3:] == [f"--name=t0-lr{lr}-m{m}", f"--betas={m},{n}"]


@pytest.mark.parametrize("format", ["yaml", "json", "toml"])
def test_a_configuration_file_overlays_a_base_with_nested_names(search, tmp_path, format):
    yaml = pytest.importorskip("yaml")
    base = {"model": {"depth": 9, "width": 64}, "opts": [{"lr": 9.0}], "seed": 7}
    texts = {"yaml": yaml.safe_dump(base), "json": json.dumps(base)}
    texts["toml"] = "seed = 7\n[model]\ndepth = 9\nwidth = 64\n[[opts]]\nlr = 9.0\n"
    (tmp_path / f"base.{format}").write_text(texts[format])
    study = (
        STUDY.replace("lr =", '"opts.0.lr" =').replace("depth =", '"model.depth" =').replace("trials = 2", "trials = 1")
    )
    study += PRINTED + f'[program.config]\nbase = "base.{format}"\n'
    study += 'values = { out = "{folder}", "trainer.max_epochs" = "{max_epochs}", fast = true }\n'
    study = study.replace("[program.config]", "[program]\n[program.config]")
    code, said = search(study, PRINTS, ("--config", "{config}"))
    assert code == 0, said
    (trial,) = trials(tmp_path)
    _, path = printed(tmp_path)["words"]
    assert path.endswith(f"run-1/config.{format}")
    read = {"yaml": yaml.safe_load, "json": json.loads, "toml": tomllib.loads}[format]
    assert read(Path(path).read_text()) == {
        "model": {"depth": trial.config["model.depth"], "width": 64}, "opts": [{"lr": trial.config["opts.0.lr"]}],
        "seed": 7, "out": os.path.dirname(path), "trainer": {"max_epochs": 4}, "fast": True,
    }  # fmt: skip


def test_a_parameter_may_have_the_name_of_a_placeholder_which_it_hides(search, tmp_path):
    study = STUDY.replace("lr =", "checkpoint =").replace("depth =", "config =").replace("trials = 2", "trials = 1")
    code, said = search(study + PRINTED, PRINTS, ("{checkpoint}", "{config}"))
    assert code == 0, said
    (trial,) = trials(tmp_path)
    assert printed(tmp_path)["words"] == [str(trial.config["checkpoint"]), str(trial.config["config"])]
    assert not list(tmp_path.glob("search.checkpoints/**/config.yaml"))
    code, said = search(study.replace("seed = 3", "seed = 5") + PRINTED, PRINTS, ("{config}",))
    assert code == 2
    assert "does not use 'checkpoint'" in said


def test_a_table_of_further_entries_keeps_the_parameters_within_it(search, tmp_path):
    study = STUDY.replace("lr =", '"model.lr" =').replace("trials = 2", "trials = 1") + PRINTED
    study += '[program]\n[program.config]\nformat = "json"\n[program.config.values]\ndepth = "{depth}x"\n'
    study += "[program.config.values.model]\nwidth = 64\n"
    code, said = search(study, PRINTS, ("--config", "{config}"))
    assert code == 0, said
    (trial,) = trials(tmp_path)
    read = json.loads(Path(printed(tmp_path)["words"][1]).read_text())
    assert read == {"depth": f"{trial.config['depth']}x", "model": {"width": 64, "lr": trial.config["model.lr"]}}


def test_the_file_of_a_configuration_is_also_there_if_the_environment_names_it(search, tmp_path):
    study = STUDY + PRINTED + '[program]\nconfig = { format = "json" }\nenv = { SIZE = "{config}" }\n'
    code, said = search(study, PRINTS, ("train",))
    assert code == 0, said
    assert json.loads(Path(printed(tmp_path)["env"]).read_text()) == trials(tmp_path)[0].config


# -- the other commands ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_doctor_rehearses_a_pause_of_a_program_that_nobody_edited(search, tmp_path, monkeypatch):
    monkeypatch.setattr(frameworks, "_CALLBACKS", {})  # the doctor would import them all
    (tmp_path / "search.toml").write_text(RESUMES)
    command = [
        "doctor",
        "search.toml",
        "--",
        sys.executable,
        "-I",
        "-S",
        "train.py",
        *WORDS,
        "--resume",
        "{checkpoint}",
    ]
    cases = (
        (TRAIN, 0.1, "it reports exactly the same", 0),
        (TRAIN, 0.0, "ended before it could be paused at epoch 1, because its epochs are short", 0),
        (TRAIN.replace("= json.load", "= 0 and"), 0.1, "failed", 1),
        ("raise SystemExit('CUDA out of memory')", 0.0, "failed: out of memory", 1),
    )
    for text, seconds, found, code in cases:
        (tmp_path / "train.py").write_text(f"HOOK = 'import time; time.sleep({seconds})'\n{text}")
        done = CliRunner().invoke(app, command)
        assert found in done.output
        assert done.exit_code == code


# -- killed and interrupted ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_search_that_is_killed_or_interrupted_goes_on_and_no_program_is_left(search, tmp_path, number):
    hook = "import time; print('pid', os.getpid(), flush=True); time.sleep(0 if os.path.exists('free') else 0.5)"
    study = RESUMES.replace("[program]", "[program]\ngrace = 0.2")
    (tmp_path / "search.toml").write_text(study)
    (tmp_path / "train.py").write_text(f"HOOK = {hook!r}\n{TRAIN}")
    words = [sys.executable, "-I", "-S", "train.py", *WORDS, "--resume", "{checkpoint}"]
    first = subprocess.Popen([sys.executable, "-m", "haltune", "run", "search.toml", "--", *words], cwd=tmp_path)
    wait_for(lambda: [p for p in tmp_path.glob("search.logs/*/trial-0.log") if "pid" in p.read_text()])
    (log,) = tmp_path.glob("search.logs/*/trial-0.log")
    first.send_signal(number)
    assert first.wait(100) == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 4}[number]
    assert ends(int(re.search(r"pid (\d+)", log.read_text())[1]))
    (tmp_path / "free").touch()
    code, said = search(study, words=(*WORDS, "--resume", "{checkpoint}"), hook=hook)
    assert code == 0, said
    assert all(map(right, trials(tmp_path)))


def test_a_program_that_is_killed_with_its_launcher_while_it_saves_resumes_from_the_state_before(search, tmp_path):
    study = STUDY.replace("trials = 2", "trials = 1") + CSV + '[program]\ncheckpoint = "at-{epoch}.json"\n'
    save = "        json.dump(state, open("
    program = TRAIN.replace(save, "        if state['epoch'] == 2 and HOOK: exec(HOOK)\n" + save)
    program = program.replace("        if HOOK:\n            exec(HOOK)\n", "")
    hook = (
        "import time\nif not os.path.exists('sent'):\n    time.sleep(0.3); open(a.out + '/at-2.json', 'w').write('{')\n"
    )
    hook += f"    open('sent', 'w').close(); os.kill({os.getpid()}, 15); time.sleep(0.05); os.kill(os.getpid(), 15)\n"
    words = (*WORDS, "--resume", "{checkpoint}")
    code, said = search(study, program, words, hook=hook)
    assert code == 143, said
    assert [(t.status, t.epoch, t.checkpoint_epoch < 2) for t in trials(tmp_path)] == [(Status.INTERRUPTED, 2, True)]
    code, said = search(study, program, words, hook=hook)
    assert code == 0, said
    assert [(t.status, t.attempt, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, 2, True)]


@pytest.mark.parametrize(
    ("own", "code"),
    [
        (False, 0),
        pytest.param(True, 0, marks=pytest.mark.slow),
        pytest.param(False, 1, marks=pytest.mark.slow),
    ],  # torchrun ends with 1 after a signal
)
def test_a_program_that_the_signal_of_its_launcher_ends_too_resumes_where_it_was(search, tmp_path, own, code):
    program = TRAIN + "print(start, 'to', state['epoch'])\n"
    program = program.replace("path = a.out", "start = state['epoch']\npath = a.out", 1)
    study = STUDY.replace("trials = 2", "trials = 1") + CSV + '[program]\ncheckpoint = "at-{epoch}.json"\n'
    if own:  # it saves at SIGTERM, and not before
        save = 'json.dump(state, open(f"{a.out}/at-{state[\'epoch\']}.json", "w"))'
        handler = 'lambda *_: (json.dump(state, open(a.out + "/last.json", "w")), sys.exit())'
        program = program.replace(save, f"import signal; signal.signal(signal.SIGTERM, {handler})")
        study = study.replace("at-{epoch}.json", "last.json") + "saves_on_sigterm = true\n"
    hook = "import time\nif state['epoch'] == 2 and not os.path.exists('sent'):\n    time.sleep(0.3)\n"
    hook += f"    open('sent', 'w').close(); os.kill({os.getpid()}, 15); time.sleep(0.7)\n"
    hook += "    os.kill(os.getpid(), 15)" if own else f"    sys.exit({code})"
    words = (*WORDS, "--resume", "{checkpoint}")
    code, said = search(study, program, words, hook=hook)
    assert code == 143, said
    assert [(t.status, t.epoch, t.checkpoint_epoch) for t in trials(tmp_path)] == [(Status.INTERRUPTED, 2, 2)]
    code, said = search(study, program, words, hook=hook)
    assert code == 0, said
    assert [(t.status, t.attempt, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, 2, True)]
    (log,) = tmp_path.glob("search.logs/*/trial-0.log")
    assert "2 to 4" in log.read_text()


def test_a_program_that_saves_at_sigterm_is_asked_to_before_its_next_row_if_its_launcher_leaves(
    search, tmp_path, monkeypatch
):
    monkeypatch.setenv("HALTUNE_GRACE", "5")
    handler = 'lambda *_: (json.dump(state, open(a.out + "/last.json", "w")), sys.exit())'
    save = 'json.dump(state, open(f"{a.out}/at-{state[\'epoch\']}.json", "w"))'
    program = TRAIN.replace(save, f"import signal; signal.signal(signal.SIGTERM, {handler})")
    study = STUDY.replace("trials = 2", "trials = 1") + CSV
    study += '[program]\ncheckpoint = "last.json"\nsaves_on_sigterm = true\n'
    hook = "import time\nif state['epoch'] == 2 and not os.path.exists('sent'):\n    time.sleep(0.3)\n"
    hook += f"    open('sent', 'w').close(); os.kill({os.getpid()}, 15); time.sleep(60)\n"  # a long epoch
    words = (*WORDS, "--resume", "{checkpoint}")
    code, said = search(study, program, words, hook=hook)
    assert code == 143, said
    assert [(t.status, t.epoch, t.checkpoint_epoch) for t in trials(tmp_path)] == [(Status.INTERRUPTED, 2, 2)]
    assert "nearly over" not in said
    code, said = search(study, program, words, hook=hook)
    assert code == 0, said
    assert [(t.status, t.attempt, right(t)) for t in trials(tmp_path)] == [(Status.COMPLETED, 2, True)]


@pytest.mark.slow
def test_what_a_program_writes_after_its_launcher_was_killed_does_not_count_for_the_next_attempt(search, tmp_path):
    stubborn = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for epoch in range(1, 5 if os.path.exists("free") else 9999):
    print("val_acc", epoch, flush=True)
    time.sleep(0.05 if os.path.exists("free") else 0.5 if epoch < 4 else 0.05)
"""
    study = STUDY.replace("= 4", "= 999").replace("trials = 2", "trials = 1") + "[program]\ngrace = 8\n"
    study += "[metrics]\npattern = 'val_acc (?P<val_acc>.*)'\n"
    (tmp_path / "search.toml").write_text(study)
    (tmp_path / "train.py").write_text(stubborn)
    words = [sys.executable, "-I", "-S", "train.py", "{options}"]
    first = subprocess.Popen([sys.executable, "-m", "haltune", "run", "search.toml", "--", *words], cwd=tmp_path)
    wait_for(lambda: [p for p in tmp_path.glob("search.logs/*/trial-0.log") if "acc 3" in p.read_text()])
    first.kill()
    first.wait()
    (tmp_path / "free").touch()
    code, said = search(study, stubborn, ("{options}",))
    assert code == 0, said
    (trial,) = trials(tmp_path)
    assert trial.values.tolist() == [1.0, 2.0, 3.0, 4.0]


WANDB = """
import sys, time, wandb
lr, epochs = float(sys.argv[1]), int(sys.argv[2])
with wandb.init(project="digits") as run:
    for epoch in range(epochs):
        time.sleep(1)  # its epoch
        run.log({"val": {"acc": lr * (epoch + 1)}, "samples": list(range(20_000))})
"""


@pytest.mark.slow
def test_a_program_that_logs_to_wandb_ends_early_by_its_offline_file(search, tmp_path):
    pytest.importorskip("wandb", reason="W&B is not installed")
    study = HALVING.replace("depth = { int = [1, 4] }\n", "").replace("= 4\nseed", "= 8\nseed").replace("_acc", ".acc")
    words = f'[program]\ncommand = ["{sys.executable}", "train.py", "{{lr}}", "{{max_epochs}}"]\n'
    own = 'env = { WANDB_MODE = "offline", WANDB_SILENT = "true" }\n[metrics]\nwandb = "wandb"\nfirst = 0\n'
    code, said = search(study + words + own, WANDB, words=None)
    assert code == 0, said
    for trial in trials(tmp_path):
        assert trial.values.tolist() == [trial.config["lr"] * epoch for epoch in range(1, len(trial.values) + 1)]
    logged = []
    for path in tmp_path.glob("search.checkpoints/**/run-*/wandb/offline*/run-*.wandb"):
        logged.append(sum(1 for _ in WandbRuns().feed(path.read_bytes())))
    assert max(logged) == 8
    assert min(logged) < 8  # a program was ended while it trained


@pytest.mark.parametrize("command", ["run", "resume", "doctor"])
def test_an_option_of_a_program_that_follows_no_dashes_is_said_to_need_them(command):
    done = CliRunner().invoke(app, [command, "search.toml", "python", "train.py", "--lr", "{lr}"])
    assert done.exit_code == 2
    assert "write -- before the program" in " ".join(re.sub("[^\\w{}.,-]+", " ", done.output).split())
    assert "before the program" not in CliRunner().invoke(app, [command, "--lr", "--", "python"]).output
