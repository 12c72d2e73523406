"""Two real ranks: rank 0 alone reports, both stop, pause, resume and fail together."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
SUPPORT = str(Path(__file__).parents[2] / "support")
SCRIPT = """
import json, os, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch
from callback_fakes import PAUSE, STOP, FakeTrial
from haltune.callbacks.lightning import HaltuneCallback
from haltune.errors import HaltuneError, NoRoom
from lightning.fabric.plugins import TorchCheckpointIO
from lightning_nets import Net, make_trainer, seed, shuffled

folder = Path(sys.argv[1])
other = os.fork()  # what both import is imported once: it takes longer than all that they do
rank = 0 if other else 1
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0")
found = {}

def fit(trial, monitor=None, net=None, checkpoint=None, number=0, **options):
    seed(10 * number + rank)
    net = net or Synced()
    options |= {"strategy": "ddp", "devices": 2}
    trainer = make_trainer(HaltuneCallback(trial, monitor), epochs=trial.max_epochs, **options)
    try:
        trainer.fit(net, shuffled(), shuffled(), ckpt_path=checkpoint)
    except HaltuneError as error:
        return trainer, f"{type(error).__name__}: {error}"
    return trainer, ""

class Synced(Net):
    def validation_step(self, batch, index):  # a metric whose reading is a collective
        self.log("val_loss", self.loss(batch[0]) + rank, sync_dist=True)

class Trial(FakeTrial):  # both ranks of a FakeTrial agree on where it is saved
    def begin_save(self, suffix=".ckpt", keep=False):
        self.room_for(0)
        return folder / f"part{suffix}"

def weights(trainer):
    return [round(float(p.detach().double().sum()), 12) for p in trainer.lightning_module.parameters()]

def outcome(trial, trainer, error=""):
    return [trial.epochs, trainer.current_epoch, weights(trainer), error]

trial = Trial(max_epochs=5, verdicts={2.0: STOP})
found["stop"] = outcome(trial, *fit(trial))
found["stop"].append(trial.endings)

trial = Trial(max_epochs=5)
found["misspelt"] = outcome(trial, *fit(trial, "val_los"))

straight = Trial(max_epochs=4)
trainer, _ = fit(straight)
found["straight"] = outcome(straight, trainer)

paused = Trial(max_epochs=4, verdicts={2.0: PAUSE})
fit(paused)
found["paused"] = [paused.epochs, paused.saved]
at = str(folder / "state.ckpt")
again = Trial(max_epochs=4, epoch=2.0)
trainer, _ = fit(again, checkpoint=at, number=1)
found["resumed"] = outcome(again, trainer)
found["values"] = [straight.values, paused.values + again.values]
found["states"] = len(torch.load(at, weights_only=True)["callbacks"]["haltune"]["random"])

class OnlyThere(Net):  # a metric that rank 0 never sees
    def validation_step(self, batch, index):
        if rank == 1:
            self.log("val_loss", 1.0)

trial = Trial(max_epochs=5)
found["only on rank 1"] = outcome(trial, *fit(trial, net=OnlyThere()))

failing = Trial(max_epochs=3, verdicts={1.0: PAUSE})
class Broken(TorchCheckpointIO):
    def save_checkpoint(self, *args, **kwargs):
        raise OSError("the disk broke")
trainer, error = fit(failing, plugins=[Broken()])
found["failing"] = [failing.epochs, trainer.current_epoch, error, failing.endings, failing.refused]
(folder / f"{rank}.json").write_text(json.dumps(found))
if rank == 0:
    assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 0
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the script found on each of two ranks, which find themselves as torchrun would have started them."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": "haltune",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([SUPPORT, os.environ.get("PYTHONPATH", "")]),
    }
    with (folder / "log").open("w+") as log:
        started = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder)],
            env=os.environ | shared, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = started.wait(timeout=180)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    assert code == 0, (folder / "log").read_text()[-8000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_rank_0_alone_reports_and_both_stop(ranks):
    first, second = (r["stop"] for r in ranks)
    assert first[0] == [1, 2]
    assert first[4] == [None]
    assert (second[0], second[4]) == ([], [])  # rank 1 tells the trial nothing
    assert first[1:3] == second[1:3]
    assert first[1] == 2


def test_a_missing_metric_raises_the_same_on_every_rank(ranks):
    for case in ("misspelt", "only on rank 1"):
        errors = [r[case][3] for r in ranks]
        assert errors[0].startswith("InvalidInput: The metric 'val_los")
        assert errors[0] == errors[1]


def test_a_paused_training_of_two_ranks_goes_on_digit_for_digit(ranks):
    first, second = ranks
    assert first["paused"] == [[1, 2], [2]]
    assert second["paused"] == [[], []]
    assert first["resumed"][0] == [3, 4]
    assert first["values"][0] == first["values"][1]
    for found in ranks:
        assert found["resumed"][1:] == found["straight"][1:]
        assert found["states"] == 2  # every rank's random state


def test_a_save_that_fails_on_rank_0_leaves_no_rank_waiting(ranks):
    for found in ranks:
        assert found["failing"][1] == 1  # both ended after the epoch
        assert found["failing"][2] == ""
    assert ranks[0]["failing"][3] == ["interrupted"]
    assert "the disk broke" in ranks[0]["failing"][4]
