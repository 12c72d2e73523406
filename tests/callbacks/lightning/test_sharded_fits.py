"""Processes over which Lightning spreads a model: pauses, resumes and kept models."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from haltune.callbacks.sharded import consolidate  # noqa: E402
from haltune.study.view import read_study  # noqa: E402

SCRIPT = Path(__file__).with_name("sharded_fits.py")
SUPPORT = Path(__file__).parents[2] / "support"
ZERO = ("zero1", "zero2", "zero3")  # of DeepSpeed
BOTH = ("fsdp2", "tensors", "whole")  # of ModelParallelStrategy


def on_gpus(devices, *strategies):
    here = pytest.mark.skipif(torch.cuda.device_count() < devices, reason=f"there are no {devices} CUDA devices")
    return [pytest.param((strategy, "gpu", devices), marks=[pytest.mark.gpu, here]) for strategy in strategies]


FITS = [*((strategy, "cpu", 2) for strategy in (*BOTH, *ZERO)), *on_gpus(1, *BOTH), *on_gpus(2, *BOTH, "fsdp1", *ZERO)]


def start(folder, strategy, accelerator="cpu", devices=2, program="fits", killed=None):
    """Run a program; return what each process saw, or None if one of them was to be killed."""
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder), "PYTHONWARNINGS": "ignore", "HALTUNE_RANK_TIMEOUT": "60", "USE_LIBUV": "0",
        "KILLED": str(killed or 0),
    }  # fmt: skip
    environment.pop("HALTUNE_RUN", None)
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), strategy, str(folder), accelerator, str(devices), program],
            env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(500)
        finally:
            if killed is not None or process.poll() is None:  # the other processes may live longer
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    assert (code == 0) == (killed is None), (folder / "output").read_text()[-4000:]
    return None if code else [json.loads((folder / f"{rank}.json").read_text()) for rank in range(devices)]


@pytest.fixture(scope="module", params=FITS, ids=str)
def fits(request, tmp_path_factory):
    """What each process saw."""
    strategy, *where = request.param
    if strategy in ZERO:
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    return start(tmp_path_factory.mktemp(strategy), strategy, *where)


@pytest.mark.slow
def test_a_paused_fit_resumes_digit_for_digit_on_every_process(fits):
    for told in fits:
        straight, paused = told["straight"], told["paused"]
        assert (straight["attempts"], paused["attempts"]) == (1, 3)
        assert (straight["values"], straight["weights"]) == (paused["values"], paused["weights"])


@pytest.mark.slow
def test_the_kept_model_is_that_of_the_best_epoch_and_becomes_one_file(fits, tmp_path):
    checkpoint, value, epoch = fits[0]["best"]["best"]
    path = Path(checkpoint)
    file = consolidate(path, tmp_path / "best.ckpt") if path.is_dir() else path
    found = torch.load(file, map_location="cpu", weights_only=True)
    assert (found["epoch"] + 1, found["hyper_parameters"].keys()) == (epoch, {"lr"})
    assert found["state_dict"].keys() >= {"net.0.weight", "net.1.running_mean", "net.4.bias"}
    assert "optimizer_states" not in found
    assert [t.numel() for t in found["state_dict"].values() if t.dim() == 2] == [24, 32, 4]
    assert value == min(fits[0]["best"]["values"])


@pytest.mark.slow
def test_a_fit_whose_processes_have_other_running_means_says_whose_the_kept_model_has(fits, request):
    strategy, _, devices = request.node.callspec.params["fits"]
    said = [sentence for sentence in fits[0]["best"]["said"] if "different values of net.1.running_mean" in sentence]
    assert ["study.best.checkpoint has those of rank 0, so its value can differ" in s for s in said] == [True] * (
        strategy != "tensors" and devices > 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_that_is_killed_while_it_saves_leaves_the_checkpoint_before(killed, tmp_path):
    start(tmp_path, "fsdp2", program="killed", killed=killed)
    assert [trial.checkpoint_epoch for trial in read_study(str(tmp_path / "killed.db")).trials] == [1]
    for told in start(tmp_path, "fsdp2", program="killed"):
        assert (told["killed"]["values"], told["killed"]["weights"]) == (
            told["straight"]["values"], told["straight"]["weights"],
        )  # fmt: skip


@pytest.mark.slow
def test_a_fit_of_two_processes_resumes_in_one_with_its_weights_and_says_what_differs(tmp_path):
    ended = start(tmp_path, "fsdp2", program="another")[0]["another"]
    paused = torch.load(consolidate(ended["checkpoint"], tmp_path / "paused.ckpt"))["state_dict"]
    begun = start(tmp_path, "fsdp2", devices=1, program="another")[0]["another"]
    assert begun["first"] == {name: paused[name].flatten().tolist() for name in begun["first"]}
    assert (begun["attempts"], len(begun["values"])) == (2, 4)
    assert [sentence for sentence in begun["said"] if "paused on 2 ranks and resumes on 1" in sentence]
