"""Searches with two ranks under each way in which Lightning starts them; gloo on the CPU."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from callback_fakes import FakeTrial

from haltune.callbacks.lightning.checks import same_trial
from haltune.errors import NotSupported
from haltune.log.events import Ended, Reported, Started
from haltune.ranks import Group
from haltune.store.open import open_sql

SCRIPT = str(Path(__file__).with_name("distributed_search.py"))
SUPPORT = str(Path(__file__).parents[2] / "support")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


class Ran:
    """The files and output of one run of the script."""

    def __init__(self, folder):
        self.folder = folder

    def told(self, scene):
        """The messages of the study in each process of the script."""
        return [json.loads(p.read_text())[scene] for p in sorted(self.folder.glob("told-*.json"))]

    def trained(self, name):
        """The trainings of each rank in a fit, "scene-trial-attempt"."""
        return [json.loads(p.read_text()) for p in sorted(self.folder.glob(f"{name}-rank*.json"))]

    def log(self, store, kind):
        return [e for e in open_sql(f"sqlite:///{self.folder}/{store}").read("study") if isinstance(e, kind)]

    def values(self, store):
        return [(e.epoch, e.value) for e in self.log(store, Reported)]


def run(folder, command, strategy, *scenes, timeout=400):
    """Run the script, and end all processes that it started."""
    temporary = folder / "temporary"
    temporary.mkdir()
    paths = [SUPPORT, os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "TMPDIR": str(temporary),
        "DISTRIBUTED_FOLDER": str(folder), "PYTHONWARNINGS": "ignore", "HALTUNE_RANK_TIMEOUT": "60", "USE_LIBUV": "0",
    }  # fmt: skip
    environment.pop("HALTUNE_RUN", None)
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, *command, strategy, str(folder), *scenes],
            env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(timeout)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert code == 0, (folder / "output").read_text()[-4000:]
    assert not list(temporary.rglob("run-*")), "the hand-over's folder is left"
    return Ran(folder)


@pytest.fixture(scope="module")
def ddp(tmp_path_factory):
    return run(tmp_path_factory.mktemp("ddp"), [SCRIPT], "ddp", "three_trials", "misspelt", "straight", "paused",
               "failing")  # fmt: skip


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    return run(tmp_path_factory.mktemp("more"), [SCRIPT], "ddp", "three_in_memory", "straight_steps", "paused_steps",
               "only_there", "on_rank_0", "steps_on_rank_0", "noting", "averaging", "remembering")  # fmt: skip


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory):
    return run(tmp_path_factory.mktemp("torchrun"), TORCHRUN, "ddp", "three_trials", "misspelt", "paused")


@pytest.fixture(scope="module")
def fork(tmp_path_factory):
    return run(tmp_path_factory.mktemp("fork"), [SCRIPT], "ddp_fork", "three_trials", "misspelt", "memory",
               "paused")  # fmt: skip


@pytest.fixture(scope="module")
def spawn(tmp_path_factory):
    return run(tmp_path_factory.mktemp("spawn"), [SCRIPT], "ddp_spawn", "memory", "paused")


spawned = pytest.mark.slow  # each rank imports everything again for each fit
STARTED = [
    "ddp",
    pytest.param("torchrun", marks=pytest.mark.slow),
    pytest.param("fork", marks=(needs_fork, pytest.mark.slow)),
    pytest.param("spawn", marks=spawned),
]
THREE = STARTED[:3]


@pytest.fixture
def ran(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("ran", THREE, indirect=True)
def test_three_trials_of_one_script_are_the_same_on_all_ranks_and_rank_0_writes(ran):
    fits = [ran.trained(f"three-{trial}-1") for trial in range(3)]
    assert [[fit["epochs"] for fit in ranks] for ranks in fits] == [[4, 4], [2, 2], [2, 2]]  # a stop ends it on all
    assert all(first == second for first, second in fits)
    assert len({first["lr"] for first, _ in fits}) == 3
    assert len(ran.log("three.db", Started)) == 3
    assert [(e.trial, e.epoch) for e in ran.log("three.db", Reported)] == [
        *((0, epoch) for epoch in (1, 2, 3, 4)), (1, 1), (1, 2), (2, 1), (2, 2),
    ]  # fmt: skip
    assert [e.status for e in ran.log("three.db", Ended)] == ["completed", "stopped", "stopped"]
    first, *others = ran.told("three_trials")  # up to date in every process of the script
    assert all(other == first for other in others)
    assert [tuple(told[i] for i in (0, 3, 4, 5)) for told in first[:3]] == [
        (0, 4, "completed", "continue"), (1, 2, "stopped", "stop"), (2, 2, "stopped", "stop"),
    ]  # fmt: skip
    best, outcome, values = first[3]
    assert best.startswith("Best(trial=0")
    assert "over=True" in outcome
    assert [len(curve) for curve in values] == [4, 2, 2]


@pytest.mark.slow
def test_a_study_in_memory_is_known_on_all_ranks_of_ddp(more, ddp):
    first, second = more.told("three_in_memory")
    assert first == second == ddp.told("three_trials")[0]


@pytest.mark.parametrize("ran", STARTED[:2], indirect=True)
def test_a_missing_metric_raises_the_same_on_every_rank(ran):
    first, second = ran.told("misspelt")
    assert first == second
    assert first[0] == "InvalidInput"
    assert "'val_los' was not logged" in first[1]
    assert "If you mean 'val_loss'" in first[1]


@pytest.mark.slow
def test_a_metric_that_rank_0_never_sees_raises_the_same_on_every_rank(more):
    first, second = more.told("only_there")
    assert first == second
    assert (first[0], first[2]) == ("InvalidInput", "interrupted")


def test_a_save_that_fails_on_rank_0_leaves_no_rank_waiting(ddp):
    assert ddp.told("failing") == [["interrupted", 1], ["interrupted", 1]]
    assert [fit["epochs"] for fit in ddp.trained("failing-0-1")] == [1, 1]


@pytest.mark.parametrize("ran", STARTED, indirect=True)
def test_a_paused_training_equals_an_uninterrupted_one_digit_for_digit(ran, ddp):
    assert [fit["epochs"] for fit in ran.trained("paused-0-1")] == [2, 2]
    assert ran.trained("paused-0-3") == ddp.trained("straight-0-1")
    assert ran.values("paused.db") == ddp.values("straight.db")
    assert len(ran.values("paused.db")) == 8
    for told in ran.told("paused"):
        assert [line[1:2] + line[3:5] for line in told[:3]] == [
            [1, 1.5, "paused"],
            [2, 3, "paused"],
            [3, 4, "completed"],
        ]


@pytest.mark.slow
def test_a_training_paused_at_steps_equals_an_uninterrupted_one_digit_for_digit(more):
    assert more.trained("paused_steps-0-4") == more.trained("straight_steps-0-1")
    assert more.values("paused_steps.db") == more.values("straight_steps.db")
    assert [epoch for epoch, _ in more.values("paused_steps.db")] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.slow
@pytest.mark.parametrize(("scene", "pauses", "length"), [("on_rank_0", 2, 4), ("steps_on_rank_0", 3, 6)])
def test_a_metric_that_is_logged_on_rank_0_alone_leaves_no_rank_waiting(more, scene, pauses, length):
    for told in more.told(scene):
        assert [line[1:2] + line[3:5] for line in told[:2]] == [[1, pauses, "paused"], [2, length, "completed"]]
    assert [epoch for epoch, _ in more.values(f"{scene}.db")] == [*range(1, length + 1)]


@pytest.mark.slow
def test_data_that_change_on_rank_1_alone_within_an_epoch_pause_at_its_end_on_all_ranks(more, ddp):
    assert more.trained("noting-0-2") == ddp.trained("straight-0-1")
    for told in more.told("noting"):
        assert [line[1:2] + line[3:5] for line in told[:2]] == [[1, 2, "paused"], [2, 4, "completed"]]


@pytest.mark.slow
def test_the_state_of_a_callback_continues_on_each_rank(more):
    assert more.trained("remembering-0-2") == more.trained("remembering_straight-0-1")


@pytest.mark.slow
def test_weights_that_a_callback_holds_on_rank_1_alone_decline_a_pause_on_all_ranks(more):
    for told in more.told("averaging"):
        assert told[0][1:2] + told[0][3:5] == [1, 4, "completed"]


@pytest.mark.parametrize(
    "ran",
    [pytest.param("fork", marks=(needs_fork, pytest.mark.slow)), pytest.param("spawn", marks=spawned)],
    indirect=True,
)
def test_a_study_in_memory_is_refused_where_its_reports_would_be_lost(ran):
    ((kind, text, _),) = ran.told("memory")
    assert kind == "NotSupported" or "fork" in ran.folder.name
    assert "a store in memory" in text
    assert "store='sqlite:///search.db'" in text
    assert "'ddp'" in text


@spawned
def test_a_spawned_process_has_left_its_group_when_python_ends(spawn):
    """Else threads of gloo may free tensors of an interpreter that is no more: SIGABRT, now and then."""
    found = [path.read_text() for path in spawn.folder.glob("left-*")]
    assert found == ["False"] * 6  # of both ranks, in all three fits


@needs_fork
@pytest.mark.slow
def test_a_trial_stays_with_the_process_that_forks_its_ranks(fork):
    holders = {e.worker.split("/")[3] for e in fork.log("three.db", Started)}
    assert len(holders) == 1  # and no lease expired, though the ranks that reported are gone
    assert {e.attempt for e in fork.log("three.db", Reported)} == {1}


def test_ranks_that_train_different_trials_are_refused():
    def heard(value, rank):
        return [8, *value[1:]] if rank == 1 else value

    with pytest.raises(NotSupported, match=r"rank 0 trial 7, rank 1 trial 8.*HALTUNE_RUN_FOLDER"):
        same_trial(Group(0, 2, heard), FakeTrial())
    same_trial(Group(0, 2, lambda value, _: value), FakeTrial())


ON_RANK_0_ALONE = """
import os
import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringModel
from haltune import Float, Study
from haltune.callbacks.lightning import HaltuneCallback


class Net(BoringModel):
    def validation_step(self, batch, index):
        self.log("val_loss", self.step(batch), sync_dist=True)


study = Study({"lr": Float(0.01, 0.1)}, "val_loss", "search.db", max_epochs=2, budget="1 trial", verbose=0)
for trial in study:
    with trial:
        trainer = pl.Trainer(
            max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", limit_train_batches=2, limit_val_batches=1,
            callbacks=[HaltuneCallback(trial)] if os.environ["RANK"] == "0" else [], logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )
        trainer.fit(Net())
"""


@pytest.mark.slow
def test_a_callback_on_rank_0_alone_is_refused_at_the_start_of_the_fit(tmp_path):
    (tmp_path / "search.py").write_text(ON_RANK_0_ALONE)
    command = [sys.executable, *TORCHRUN[:-1], "search.py"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HALTUNE_RANK_TIMEOUT": "20", "USE_LIBUV": "0"}
    environment.pop("HALTUNE_RUN", None)
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "NotSupported: Rank 0 has a HaltuneCallback(trial)" in done.stdout + done.stderr
