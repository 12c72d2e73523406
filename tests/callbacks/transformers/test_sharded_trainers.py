"""Trainers whose model FSDP spreads over two processes on the CPU (or on two GPUs): pauses, resumes and kept models."""

from __future__ import annotations

import json
import socket

import pytest
from two_ranks import SUPPORT, run_ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from haltune.callbacks.sharded import consolidate  # noqa: E402

WAYS = ["fsdp1", "fsdp2", "whole", pytest.param("whole1", marks=pytest.mark.gpu)]


def start(folder, *words, codes=(0, 0)):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program, *device = words
    command = ["-W", "ignore", str(SUPPORT / "sharded_trainers.py"), program, str(folder), *device]
    killed = codes != (0, 0)
    (where := folder / f"ranks {killed}").mkdir()
    run_ranks(
        command, where, codes, int(killed), seconds=500, printed=False, MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
        LOCAL_WORLD_SIZE="2",
    )  # fmt: skip
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)] if not killed else None


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def fits(request, tmp_path_factory):
    """What each rank saw."""
    if request.param == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("there are no two CUDA devices")
    return start(tmp_path_factory.mktemp("trainers"), "fits", request.param)


def of_way(told, way):
    if way not in told:
        pytest.skip("on the CPU, FSDP of the first version frees what it is to collect")
    return told[way]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("unit", ["", "steps "])
def test_a_sharded_trainer_resumes_digit_for_digit_on_every_rank(fits, way, unit):
    for told in fits:
        straight, paused = of_way(told, way)[f"{unit}straight"], told[way][f"{unit}paused"]
        assert (straight["attempts"], paused["attempts"]) == (1, 3)
        assert (straight["values"], straight["weights"]) == (paused["values"], paused["weights"])


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_kept_model_of_a_sharded_trainer_becomes_one_file(fits, way, tmp_path):
    check_kept(of_way(fits[0], way)["best"], tmp_path)


def check_kept(told, folder):
    checkpoint, value, epoch = told["best"]
    assert (told["attempts"], value) == (2, min(told["values"]))
    assert epoch == 1 + told["values"].index(value)
    found = torch.load(consolidate(checkpoint, folder / "best.pt"), map_location="cpu", weights_only=True)
    assert [tuple(t.shape) for t in found.values() if t.dim() == 2] == [(8, 3), (4, 8), (1, 4)]
    first = [value for tensor in found.values() for value in tensor.flatten().tolist()]
    assert set(told["weights"]) <= set(first) if epoch == 4 else first  # rank 0's part, and its running means


@pytest.mark.slow
def test_a_rank_that_is_killed_while_a_trainer_saves_leaves_the_checkpoint_before(tmp_path):
    start(tmp_path, "killed", codes=(1, -9))
    (folder,) = tmp_path.glob("*.checkpoints/*/trial-0")
    assert [path.name.split("-")[3] for path in folder.iterdir() if path.is_dir()] == ["1"]
    told = start(tmp_path, "killed")
    (straight := tmp_path / "straight").mkdir()
    assert [rank["weights"] for rank in told] == [rank["weights"] for rank in start(straight, "straight")]
    assert told[0]["attempts"] == 4


@pytest.mark.slow
def test_a_trainer_under_deepspeed_resumes_digit_for_digit_and_its_kept_model_becomes_one_file(tmp_path):
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    for rank, told in enumerate(start(tmp_path, "deepspeed")):
        for stage in ("1", "2", "3"):
            for unit in ("", "steps "):
                straight, paused = told[stage][f"{unit}straight"], told[stage][f"{unit}paused"]
                assert (straight["attempts"], paused["attempts"]) == (1, 3)
                assert (straight["values"], straight["weights"]) == (paused["values"], paused["weights"])
            if rank == 0:
                check_kept(told[stage]["best"], tmp_path)
