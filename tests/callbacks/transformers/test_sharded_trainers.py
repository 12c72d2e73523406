"""Trainers whose model FSDP spreads over two processes on the CPU (or on two GPUs): pauses, resumes and kept models."""

from __future__ import annotations

import pytest
from two_ranks import run_program

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from haltune.callbacks.sharded import consolidate  # noqa: E402

WAYS = ["fsdp1", "fsdp2", "whole", pytest.param("whole1", marks=pytest.mark.gpu)]
PLACES = [("cpu", 2), *(pytest.param(("cuda", ranks), marks=pytest.mark.gpu) for ranks in (1, 2))]


def start(folder, program, *device, **options):
    return run_program("sharded_trainers.py", folder, program, *device, **options)


@pytest.fixture(scope="module", params=PLACES, ids=str)
def fits(request, tmp_path_factory):
    """What each rank saw."""
    device, ranks = request.param
    if device == "cuda" and torch.cuda.device_count() < ranks:
        pytest.skip(f"there are no {ranks} CUDA devices")
    return start(tmp_path_factory.mktemp("trainers"), "fits", device, codes=(0,) * ranks)


def of_way(told, way):
    if way not in told:
        pytest.skip(
            "FSDP of the first version does not shard on one rank, and on the CPU it frees what it is to collect"
        )
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
    start(tmp_path, "killed", codes=(1, -9), KILLED="1")
    (folder,) = tmp_path.glob("*.checkpoints/*/trial-0")
    assert [path.name.split("-")[3] for path in folder.iterdir() if path.is_dir()] == ["1"]
    told = start(tmp_path, "killed", KILLED="1")
    assert [rank["weights"] for rank in told] == [rank["weights"] for rank in start(tmp_path, "straight")]
    assert told[0]["attempts"] == 4


@pytest.mark.slow
def test_a_trainer_of_two_ranks_resumes_on_one_with_its_weights_and_says_what_differs(tmp_path):
    ended, _ = start(tmp_path, "another")
    paused = torch.load(consolidate(ended["checkpoint"], tmp_path / "paused.pt"), weights_only=True)
    (begun,) = start(tmp_path, "another", codes=(0,))
    assert begun["first"] == {name: paused[name].flatten().tolist() for name in begun["first"]}
    assert (ended["epochs"], begun["epochs"]) == ([1, 2], [1, 2, 3, 4])
    assert [sentence for sentence in begun["said"] if "paused on 2 ranks and resumes on 1" in sentence]


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
