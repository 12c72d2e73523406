"""One search on all ranks of a training: rank 0 decides, the others get the same answers."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rank_scenes import SCENES, a_study, train_again_elsewhere, train_elsewhere, train_fold_elsewhere
from two_ranks import SUPPORT, run_ranks
from whims import PROBLEM, Whims

from haltune import Float, Problem, Study, Trial
from haltune.errors import NotSupported
from haltune.log.events import Created, Ended, Reported, Started
from haltune.ranks.place import Mark, Place, ThisProcess, place
from haltune.store.open import open_sql

Ranks = Callable[..., list[list[Any]]]
Scenes = tuple[dict[str, list[Any]], dict[str, list[Any]], Path]


# -- which process this is


def mark(environment: dict[str, str]) -> Mark:
    """Return the entry in the environment after the import of haltune."""
    ThisProcess(environment)
    found = Mark.of(environment["HALTUNE_RUN"])
    assert found is not None
    return found


def inherits(parent: dict[str, str], **more: str) -> Place:
    """The place of what a process starts, once that has imported haltune."""
    left = mark(parent)
    return place({**parent, **more}, left, "me")


TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
            "MASTER_ADDR": "localhost", "MASTER_PORT": "29", "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0"}  # fmt: skip
SECOND = {**TORCHRUN, "RANK": "1", "LOCAL_RANK": "1"}
FIT = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29"}


def test_a_new_node_of_torchrun_meets_one_that_has_restarted() -> None:
    nodes = {"LOCAL_WORLD_SIZE": "1", "HALTUNE_RUN_FOLDER": "/shared/run"}
    first = place({**TORCHRUN, **nodes, "TORCHELASTIC_RESTART_COUNT": "1"}, None, "a")
    second = place({**SECOND, **nodes, "LOCAL_RANK": "0"}, None, "b")
    assert (first.run, first.rank, second.rank, first.nodes) == (second.run, 0, 1, True)


def test_restarts_of_torchrun_that_share_a_store_are_advised_against(monkeypatch: Any, caplog: Any) -> None:
    restarts = {"WORLD_SIZE": "2", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for change, told in (({}, 1), ({"TORCHELASTIC_MAX_RESTARTS": "0"}, 0), ({"TORCHELASTIC_USE_AGENT_STORE": "0"}, 0)):
        for name, value in (restarts | change).items():
            monkeypatch.setenv(name, value)
        caplog.clear()
        with caplog.at_level(logging.INFO, "haltune"):
            Study({"x": Float(0.0, 1.0)}, "loss", budget="1 trial", max_epochs=2)
        assert caplog.text.count("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1") == told


@pytest.mark.parametrize("name", ["SLURM_PROCID", "LOCAL_RANK"])
def test_a_rank_without_a_world_is_none(name: str) -> None:
    assert place({name: "1", "SLURM_NTASKS": "2"}, None, "me") == place({}, None, "me")


def test_all_ranks_of_torchrun_meet_in_one_run_and_a_restart_in_another() -> None:
    first, second = place(TORCHRUN, None, "a"), place(SECOND, None, "b")
    assert (first.rank, second.rank, first.world) == (0, 1, 2)
    assert first.run == second.run
    assert first.run != place({**SECOND, "TORCHELASTIC_RESTART_COUNT": "1"}, None, "b").run
    assert first.run != place({**SECOND, "MASTER_PORT": "30"}, None, "b").run


def test_the_ranks_that_a_fit_starts_follow_the_process_that_runs_it() -> None:
    main: dict[str, str] = {}
    left = mark(main)
    child = place({**main, **FIT}, left, "me")
    assert (child.rank, child.run, child.launcher) == (1, left.run, left.holder)


@pytest.mark.parametrize(
    "environment",
    [TORCHRUN, SECOND, {}, {"LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "29"}],
    ids=["rank 0", "rank 1", "by itself", "in a fit"],
)
def test_what_a_rank_starts_for_something_else_is_no_rank(environment: dict[str, str]) -> None:
    parent = dict(environment)
    child = inherits(parent)
    assert (child.rank, child.world) == (0, None)
    assert child.run != Mark.of(parent["HALTUNE_RUN"]).run  # type: ignore[union-attr]


def test_nodes_need_a_folder_that_all_can_see(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = [{**SECOND, "LOCAL_WORLD_SIZE": "1"}, {**FIT, "NODE_RANK": "1"}, {**TORCHRUN, "LOCAL_WORLD_SIZE": "1"}]
    for environment in nodes:
        found = place(environment, None, "me")
        monkeypatch.delenv("HALTUNE_RUN_FOLDER", raising=False)
        with pytest.raises(NotSupported, match=r"several nodes.*HALTUNE_RUN_FOLDER"):
            _ = found.folder
        monkeypatch.setenv("HALTUNE_RUN_FOLDER", str(tmp_path))
        assert found.folder.parent == tmp_path


# -- two processes, started together


PRELUDE = """
import json, os, sys
from haltune import *
from whims import PROBLEM, Whims
rank = int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", 0)))
def say(*words): print(json.dumps(words, default=str), flush=True)
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Run a script in two processes that are ranks of one training."""
    return lambda source, **options: run_ranks(["-c", PRELUDE + source], tmp_path, **options)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    """Return the observations of rank 0 and rank 1 in each scene, and their folder; one run for all tests."""
    where = tmp_path_factory.mktemp("scenes")
    # no rank may wait until its patience ends
    first, second = run_ranks([str(SUPPORT / "rank_scenes.py")], where, seconds=100, HALTUNE_RANK_TIMEOUT="200")
    return first[0], second[0], where


@pytest.mark.parametrize("scene", [scene.__name__ for scene in SCENES])
def test_all_ranks_see_the_same(scenes: Scenes, scene: str) -> None:
    first, second, _ = scenes
    assert first[scene] == second[scene]


def test_a_training_that_starts_again_is_a_new_attempt_on_every_rank(scenes: Scenes) -> None:
    first = [[0, 1, 1], [0, 1, 2], [0, 2, 1], [0, 2, 2], [0, 3, 1, "completed"]]
    assert scenes[1]["a_training_that_starts_again"][:5] == first


def test_a_loop_that_all_ranks_leave_is_kept_and_one_that_rank_0_fails_in_is_not(scenes: Scenes) -> None:
    *trials, best = scenes[0]["a_loop_left_by_break"]
    assert trials == [[0, "completed", True], [1, "completed", True], [2, "completed", True], [3, "failed", False]]
    assert "trial=2" in best[0]
    assert best[1] == "state"


def test_only_rank_0_writes(scenes: Scenes) -> None:
    log = list(open_sql(f"sqlite:///{scenes[2]}/search.db").read("search"))
    counts = [sum(isinstance(e, kind) for e in log) for kind in (Created, Started, Reported, Ended)]
    assert counts == [1, 4, 16, 4]
    assert min(e.value for e in log if isinstance(e, Reported)) == 0.1


def test_a_stop_a_pause_and_a_resumed_trial_hold_on_the_other_rank(scenes: Scenes) -> None:
    lines = scenes[1]["stop_pause_and_resume"]
    assert [line[:5] for line in lines] == [
        [0, 1, 2, "paused", True],
        [0, 2, 4, "stopped", False],
        [1, 1, 1, "stopped", False],
    ]


def test_a_plain_loop_that_cannot_save_a_pause_trains_on_with_all_ranks(scenes: Scenes) -> None:
    lines = scenes[1]["a_plain_loop_at_a_full_disk"]
    assert [line for line in lines if line[0] not in ("epoch", "step")] == [["completed", 1, 3]] * 5


@pytest.mark.parametrize("scene", ["failures_everywhere", "failures_of_rank_0"])
def test_a_tolerated_failure_is_swallowed_and_the_last_one_raised(scenes: Scenes, scene: str) -> None:
    assert scenes[1][scene] == [[0, "completed"], [1, "failed"], [2, "diverged"]]


def test_what_rank_0_cannot_do_is_raised_by_its_name(scenes: Scenes) -> None:
    _, seen, _ = scenes
    assert seen["nowhere_to_write"][0][0] == "StoreError"
    assert seen["errors_while_deciding"] == [["ZeroDivisionError", "in judge"], ["OverflowError", "in propose"]]


def test_a_configuration_of_the_users_is_enqueued_once_and_started_first_on_all_ranks(scenes: Scenes) -> None:
    first, (kind, _), *trained = scenes[1]["the_users_own_first"]
    assert (first, kind, len(trained)) == ([True, False, 1], "InvalidInput", 3)
    assert trained == [[True, 0], [False, 0], [False, 0]]


def test_a_space_is_widened_on_all_ranks(scenes: Scenes) -> None:
    *_, (configs, problem, points) = scenes[1]["a_wider_space"]
    assert len(configs) == points == 8
    assert "Float(-1.0, 1000.0)" in problem
    assert any("m" in config for config in configs)
    assert [[config] for config in configs] == [line for line in scenes[1]["a_wider_space"] if len(line) == 1]


def test_a_training_loop_declines_a_pause_and_takes_the_next_on_all_ranks(scenes: Scenes) -> None:
    lines = [line[:4] for line in scenes[1]["a_training_loop"] if len(line) == 5]
    assert lines == [[0, 1, 3, "paused"], [0, 2, 4, "stopped"], [1, 1, 1, "stopped"]]


def test_a_rank_follows_the_reports_and_states_of_rank_0_alone(scenes: Scenes) -> None:
    seen = scenes[1]["rank_0_alone_reports_and_saves"]
    assert [line[:3] for line in seen] == [
        [kind, 4, True] for kind in ("epochs", "left by break", "TrainingLoop", "optimize")
    ]
    assert all([end[:2] for end in ends] == [["paused", 2], ["stopped", 4]] for *_, (*ends, _) in seen[:3])


def test_reports_of_folds_come_once_on_all_ranks(scenes: Scenes) -> None:
    once = [1, [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]]
    expected = [[kind, all_ranks, *once] for kind in ("TrainingLoop", "epochs") for all_ranks in (True, False)]
    assert [found["folds_of_three_epochs"] for found in scenes[:2]] == [expected] * 2


def test_each_rank_draws_on_after_a_fold_that_rank_0_alone_reported(scenes: Scenes) -> None:
    starts = [[1, 0, 0, True], ["paused", 0.5], [2, 0, 1, False], ["paused", 1], [3, 1, 0, True], ["completed", 2]]
    assert [found["folds_that_rank_0_reports"] for found in scenes[:2]] == [[[4, True], *starts]] * 2


def test_folds_pause_within_and_between_on_all_ranks(scenes: Scenes) -> None:
    same, *seen, (_, values) = scenes[1]["folds"]
    assert same == [4, True]
    starts = [[1, 0, 0, True], ["paused", 0.5], [2, 0, 1, False], ["paused", 1], [3, 1, 0, True], ["completed", 2]]
    assert seen == starts
    assert values == [0.75, 0.5]


def test_a_rank_left_alone_says_what_it_waits_for(ranks: Ranks) -> None:
    _, second = ranks("""
from haltune.errors import RankLost
study = Study(PROBLEM, Whims(), budget=Budget(trials=2))
trial = study.ask()
if rank == 0:
    sys.exit()
try:
    trial.report(0.5)
except RankLost as error:
    say(str(error))
""")
    assert "Rank 1 waits for rank 0, which has left, to write" in second[0][0]
    assert "trial 0, attempt 1 reports epoch 1" in second[0][0]


def test_a_rank_that_does_not_report_in_a_study_of_steps_says_so_instead_of_training_on(ranks: Ranks) -> None:
    _, second = ranks("""
from haltune.errors import LeaseLost, NotSupported
problem = Problem(PROBLEM.space, PROBLEM.goal, 10, unit="step")
for value, name in ((0.5, "a"), (0.25, "b")):
    for trial in Study(problem, Whims(), budget=Budget(trials=1), name=name):
        try:
            with trial:
                for step in trial.steps():
                    if rank == 0 and step == 3 and trial.report(value).stops:
                        break
        except (NotSupported, LeaseLost) as error:
            say(step, str(error), *getattr(error, "__notes__", ()))
            break
for trial in Study(problem, Whims(), budget=Budget(trials=1), name="all"):
    with trial:
        for step in trial.steps():
            trial.report(0.5)
    say(trial.epoch)
""")
    (at, alone), (then, _, note), last = second
    assert (at, then, last) == (3, 3, [10])
    assert "Rank 0 has reported step 3 of trial 0 alone" in alone
    assert "report on all ranks" in alone
    assert "report on all ranks" in note


def test_a_rank_notices_that_rank_0_was_killed(ranks: Ranks) -> None:
    _, second = ranks("""
import signal
from haltune.errors import RankLost
study = Study(PROBLEM, Whims(), budget=Budget(trials=2))
trial = study.ask()
if rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    study.ask()
except RankLost as error:
    say(str(error))
""", codes=(-9, 0), left=1)  # fmt: skip
    assert "which is gone, to write" in second[0][0]


def test_a_rank_notices_that_rank_0_cannot_write_for_it(ranks: Ranks) -> None:
    _, second = ranks("""
import resource
from pathlib import Path
from haltune.errors import RankLost
study = Study(PROBLEM, Whims(), budget=Budget(trials=2))
trial, read = study.ask(), Path(os.environ["TMPDIR"], "read")
if rank == 1:
    read.touch()
if rank == 0:
    while not read.exists():
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    trial.report(0.5)
except RankLost as error:
    say(str(error))
except OSError:
    while not list(Path(os.environ["TMPDIR"]).rglob("left-1-*")):
        pass  # it is alive
""")
    assert "Rank 1 waits for rank 0, which could not write" in second[0][0]


@pytest.mark.slow
def test_a_killed_runs_lines_are_never_read(ranks: Ranks) -> None:
    killed = "import signal\nstudy = Study(PROBLEM, Whims(), budget=Budget(trials=2), seed=1)\nstudy.ask()\n"
    ranks(killed + "os.kill(os.getpid(), signal.SIGKILL)", codes=(-9, -9), left=1)
    slow = "import time\nif rank == 0: time.sleep(0.3)\n"
    first, second = ranks(slow + "say(Study(PROBLEM, Whims(), budget=Budget(trials=2), seed=2).ask().config)")
    assert first == second


def run_alone(where: Path, source: str, **environment: str) -> list[list[Any]]:
    """Return the output of a script that runs alone."""
    paths = {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "TMPDIR": str(where)}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + source],
        env=os.environ | paths | environment, cwd=where, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_the_folder_is_for_its_user_alone_small_and_gone_at_the_end(tmp_path: Path) -> None:
    *modes, (sizes, trials) = run_alone(
        tmp_path,
        """
import stat, subprocess
from pathlib import Path
from haltune.ranks import lines as handover
study = Study(PROBLEM, Whims(), budget=Budget(trials=200))
subprocess.run([sys.executable, "-c", ""], env=os.environ | {"LOCAL_RANK": "1"}, check=True)
with study.ask() as first:
    first.report(0.5)
for path in [*Path(os.environ["TMPDIR"]).rglob("*")]:
    say(path.name, oct(stat.S_IMODE(path.stat().st_mode)))
handover._LARGEST = 5000
sizes = []
for trial in study:
    trial.report(0.5)
    sizes.append(next(Path(os.environ["TMPDIR"]).rglob("lines")).stat().st_size)
say(sizes, len(study.trials))
""",
    )
    assert dict(modes).pop("lines") == "0o600"
    assert sorted(mode for _, mode in modes) == ["0o600", "0o700", "0o700"]
    assert max(sizes) < 7000
    assert sizes[-1] < 200
    assert trials == 200
    assert [p.name for p in tmp_path.rglob("*") if p.name.startswith(("run-", "lines"))] == []


LOOPS = {"for trial in study:": 1, "while not isinstance(trial := study.ask(), Finish):": 0}
USUAL, *OTHERS = LOOPS


@pytest.mark.parametrize("loop", [USUAL, *(pytest.param(loop, marks=pytest.mark.slow) for loop in OTHERS)])
def test_a_rank_that_comes_late_passes_over_what_is_over_or_goes_through_it_again(tmp_path: Path, loop: str) -> None:
    source = f"""{PRELUDE}
import subprocess
from pathlib import Path
sys.stdout = open(f"said-{{rank}}", "w")
study = Study(PROBLEM, Whims(), budget=Budget(trials=3), seed=1)
other = None
{loop}
    with trial:
        if trial.id == 1 and rank == 0:  # as a fit does
            environment = os.environ | {{"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "7"}}
            other = subprocess.Popen([sys.executable, sys.argv[0]], env=environment)
            while not list(Path(os.environ["TMPDIR"]).rglob("here-1-*")):
                pass  # the ranks of a fit wait for each other
        trial.report(0.5)
    say(trial.id, trial.config, trial.ended)
say(str(study.best))
if other: other.wait()
"""
    script = tmp_path / "script.py"
    script.write_text(source)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, str(script)], env=environment, cwd=tmp_path, check=True, timeout=60)
    first, second = (
        [json.loads(line) for line in (tmp_path / f"said-{rank}").read_text().splitlines()] for rank in (0, 1)
    )
    assert first[LOOPS[loop] :] == second
    assert [line[0] for line in first[:-1]] == [0, 1, 2]


# -- a trial that is trained in a process spawned or forked for it


def elsewhere(trial: Trial, method: str, train: Callable[[Any], None] = train_elsewhere) -> None:
    process = multiprocessing.get_context(method).Process(target=train, args=(trial,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


METHODS = [m for m in ("spawn", "fork") if m in multiprocessing.get_all_start_methods()]


@pytest.mark.parametrize("method", METHODS)
def test_what_a_process_of_its_own_reports_is_known_where_the_trial_was_asked_for(tmp_path: Path, method: str) -> None:
    study = a_study(3, store=tmp_path / "search.db")
    trial = study.ask()
    assert isinstance(trial, Trial)
    with trial:
        elsewhere(trial, method)
        other = a_study(3, store=tmp_path / "search.db").ask()
        assert isinstance(other, Trial)
        assert other.id == 1  # the lease is held by the process that lives
    assert (trial.ended, trial.epoch) == ("stopped", 2)
    assert trial.verdict is not None
    assert trial.verdict.action == "stop"
    assert [(e.trial, e.status) for e in study.events() if isinstance(e, Ended)] == [(0, "stopped")]


def test_a_training_that_starts_again_in_a_process_of_its_own_is_known_where_it_was_asked_for(tmp_path: Path) -> None:
    trial = a_study(3, store=tmp_path / "search.db").ask()
    assert isinstance(trial, Trial)
    with trial:
        elsewhere(trial, "spawn", train_again_elsewhere)
    assert (trial.ended, trial.attempt, trial.epoch) == ("completed", 2, 1)


@pytest.mark.parametrize("method", [pytest.param(m, marks=[pytest.mark.slow] * (m == "spawn")) for m in METHODS])
def test_folds_that_processes_of_their_own_train_follow_each_other(tmp_path: Path, method: str) -> None:
    study = Study(Problem(PROBLEM.space, PROBLEM.goal, 2), Whims(), tmp_path / "search.db", seed=1, budget="1 trial")
    seen = []
    for trial in study:
        with trial:
            for fold in trial.folds(3):
                seen.append((fold.index, fold.epoch, fold.checkpoint))
                elsewhere(fold, method, train_fold_elsewhere)
    assert seen == [(0, 0, None), (1, 0, None), (2, 0, None)]
    assert study.trials[0].folds(study.problem) == (0.6, 0.7, 0.8)


def test_a_study_in_memory_does_not_cross_to_a_spawned_process() -> None:
    trial = a_study(3).ask()
    assert isinstance(trial, Trial)
    with pytest.raises(NotSupported, match=r"in memory.*sqlite:///search.db.*'ddp'"):
        elsewhere(trial, "spawn")


def test_studies_and_trials_are_not_pickled_otherwise(tmp_path: Path) -> None:
    study = a_study(3, store=tmp_path / "search.db")
    for value in (study, study.ask()):
        with pytest.raises(NotSupported, match="A study cannot be pickled, because its log is its state"):
            pickle.dumps(value)
