"""Two processes over which Lightning spreads a model: pauses, resumes and kept models."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from haltune.callbacks.sharded import consolidate  # noqa: E402

SCRIPT = Path(__file__).with_name("sharded_fits.py")
SUPPORT = Path(__file__).parents[2] / "support"
GPUS = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")]
ZERO = ("zero1", "zero2", "zero3")  # of DeepSpeed
FITS = [
    *((strategy, "cpu") for strategy in ("fsdp2", "tensors", "whole", *ZERO)),
    *(pytest.param((strategy, "gpu"), marks=GPUS) for strategy in ("fsdp2", "tensors", "whole", "fsdp1", *ZERO)),
]  # fmt: skip


@pytest.fixture(scope="module", params=FITS, ids=str)
def fits(request, tmp_path_factory):
    """What each process saw."""
    strategy, accelerator = request.param
    if strategy in ZERO:
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    folder = tmp_path_factory.mktemp(strategy)
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]), "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder), "PYTHONWARNINGS": "ignore", "HALTUNE_RANK_TIMEOUT": "60", "USE_LIBUV": "0",
    }  # fmt: skip
    environment.pop("HALTUNE_RUN", None)
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), strategy, str(folder), accelerator],
            env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(500)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, (folder / "output").read_text()[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


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
    (strategy, _) = request.node.callspec.params["fits"]
    said = [sentence for sentence in fits[0]["best"]["said"] if "different values of net.1.running_mean" in sentence]
    assert ["study.best.checkpoint has those of rank 0, so its value can differ" in s for s in said] == [True] * (
        strategy != "tensors"
    )
