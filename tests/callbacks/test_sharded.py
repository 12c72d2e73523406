"""Trainings whose model is spread over ranks: in one process, and on two processes over gloo (or on two GPUs)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from paused_studies import pausing_study
from two_ranks import run_program

from haltune import Minimize
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported
from haltune.study.view import read_study

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sharded_nets import X, layers, train, value  # noqa: E402

from haltune.callbacks.sharded import ShardedLoop, consolidate  # noqa: E402

WAYS = ("fsdp2", "fsdp1", "flat", "tensors", "plain")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PLACES = [("cpu", 2), *(pytest.param(("cuda", ranks), marks=pytest.mark.gpu) for ranks in (1, 2))]


def test_an_epoch_without_an_update_is_said():
    net = layers()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    with (
        pausing_study(at=(), epochs=3, verbose=0).ask() as trial,
        pytest.warns(HaltuneWarning, match="made no update from epoch 1 to 2"),
    ):
        for epoch in (loop := ShardedLoop(trial, net, sgd)):
            if epoch != 2:
                net(X).pow(2).mean().backward()
                sgd.step()
            loop.report(value(net))


def paused(tmp_path, **options):
    study = pausing_study(tmp_path / "sharded.db", at=(2,), keep=1, verbose=0, **options)
    with study.ask() as trial:
        train(trial)
    return study


def test_a_folder_names_its_trial_configuration_and_position(tmp_path):
    trial = paused(tmp_path).ask()
    mark = json.loads(Path(trial.checkpoint, "haltune.json").read_text())
    assert (mark["trial"], mark["config"], mark["position"], mark["ranks"]) == (0, trial.configuration, 2.0, 1)


@pytest.mark.parametrize(
    ("of", "said"), [({"trial": 7}, "a state of trial 7"), ({"config": "[]"}, "a state of trial 0 of another study")]
)
def test_the_folder_of_another_trial_is_refused(of, said, tmp_path):
    trial = paused(tmp_path).ask()
    mark = Path(trial.checkpoint, "haltune.json")
    mark.write_text(json.dumps(json.loads(mark.read_text()) | of))
    with pytest.raises(NotSupported, match=f"trial 0 loaded {said}"):
        train(trial)


def test_a_model_with_the_weights_of_another_trial_is_refused(tmp_path):
    study, net = pausing_study(at=(), trials=2, verbose=0), layers()
    with pytest.raises(NotSupported, match="trial 1 loaded a state of trial 0"):
        for trial in study:
            with trial:
                copy = layers()
                copy.load_state_dict(net.state_dict())
                optimizer = torch.optim.SGD(copy.parameters(), 0.1)
                for _ in (loop := ShardedLoop(trial, copy, optimizer)):
                    copy(X).pow(2).mean().backward()
                    optimizer.step()
                    loop.report(value(copy))
                net = copy
    assert [len(t.values) for t in study.trials] == [4, 0]


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: os.truncate(file, file.stat().st_size // 2)])
@pytest.mark.parametrize("file", ["__0_0.distcp", ".metadata", "0.parts", "haltune.json"])
def test_a_folder_that_lacks_a_part_says_so_before_it_trains(tmp_path, file, harm):
    trial = paused(tmp_path).ask()
    harm(Path(trial.checkpoint, file))
    with pytest.raises(InvalidInput, match=r"no complete sharded checkpoint .*trial\.fail"):
        train(trial)


@pytest.mark.parametrize("file", ["__0_0.distcp", "0.random"])
def test_a_trial_whose_folder_lost_a_part_before_it_resumes_starts_again(tmp_path, file):
    study = paused(tmp_path)
    (checkpoint,) = [path for path in study.checkpoints.of(0).iterdir() if path.is_dir()]
    (checkpoint / file).unlink()
    with pytest.warns(
        HaltuneWarning, match=f"checkpoint of trial 0, .* has lost its file {file}.* starts from scratch"
    ):
        trial = study.ask()
    with trial:
        train(trial)
    (record,) = study.trials
    assert (record.attempt, [*record.epochs], trial.checkpoint is None) == (2, [1, 2], False)


def test_a_loop_with_other_parts_names_both(tmp_path):
    trial = paused(tmp_path).ask()
    with pytest.raises(NotSupported, match=r"states of average, model, schedule, but this loop has model, schedule"):
        train(trial, parts=("schedule",))


def test_a_part_without_a_state_is_refused_at_once(tmp_path):
    with pytest.raises(InvalidInput, match=r"'place': \.\.\.\}: list has no state_dict"):
        ShardedLoop(pausing_study().ask(), layers(), also={"place": [1]})
    with pytest.raises(InvalidInput, match=r"'model': \.\.\.\}: this name is taken"):
        ShardedLoop(pausing_study().ask(), layers(), also={"model": layers()})


def test_a_state_that_torch_does_not_load_by_default_declines_the_pause():
    class Counter:
        def state_dict(self):
            return {"of": Path("here")}

        def load_state_dict(self, state):
            raise AssertionError(state)

    net, trial = layers(), pausing_study(verbose=0).ask()
    loop = ShardedLoop(trial, net, torch.optim.SGD(net.parameters(), 0.1), also={"counter": Counter()})
    with pytest.warns(HaltuneWarning, match=r"a state of also= has other things .*keeps training"):
        for epoch in loop:
            loop.report(1 / epoch)
    assert (trial.epoch, trial.checkpoint) == (4, None)


def test_a_trial_does_not_pause_where_its_checkpoint_would_lack_the_count_of_its_optimizer():
    net, trial = layers(), pausing_study(verbose=0).ask()
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    sgd.state["k"] = torch.tensor([0])  # as MADGRAD has it
    with pytest.warns(HaltuneWarning, match=r"because SGD has a state that belongs to no weight.*keeps training"):
        for epoch in (loop := ShardedLoop(trial, net, sgd)):
            loop.report(1 / epoch)
    assert (trial.epoch, trial.checkpoint) == (4, None)


def test_a_part_that_does_not_reach_the_disk_leaves_the_earlier_checkpoint_and_no_rest(tmp_path, monkeypatch):
    study, seen = pausing_study(tmp_path / "sharded.db", at=(2, 3), verbose=0), {}
    with study.ask() as trial:
        train(trial)
    with pytest.warns(HaltuneWarning, match=r"Trial 0: .*No space left.*keeps training"), study.ask() as trial:
        first = Path(trial.checkpoint)
        monkeypatch.setattr("haltune.callbacks.loop.force", full_disk)
        train(trial, watch=lambda epoch: seen.update({epoch: [trial.checkpoint, *os.listdir(first.parent)]}))
    assert {key: [found[0], *sorted(found[1:])] for key, found in seen.items()} == {
        key: [str(first), first.name, f"{first.name}.parts", f"{first.name}.start"] for key in (3, 4)
    }


def full_disk(path):
    raise OSError(28, "No space left on device")


def test_the_kept_model_is_one_ordinary_file_on_demand(tmp_path):
    study = pausing_study(tmp_path / "best.db", at=(), metric=Minimize("val_loss", of="best"), keep=1, verbose=0)
    for trial in study:
        with trial:
            train(trial)
    file = consolidate(study.best.checkpoint, tmp_path / "best.pt")
    found, net = torch.load(file), layers()
    average = torch.optim.swa_utils.AveragedModel(layers())
    average.load_state_dict(found.pop("average"))
    net.load_state_dict(found)
    assert value(net) == study.best.value
    with pytest.raises(InvalidInput, match="cannot write"):
        consolidate(study.best.checkpoint, tmp_path / "nowhere" / "best.pt")
    with pytest.raises(InvalidInput, match="no complete sharded checkpoint"):
        consolidate(tmp_path, tmp_path / "other.pt")


def test_the_model_of_the_best_epoch_is_written_behind_the_training(tmp_path):
    study = pausing_study(tmp_path / "best.db", at=(), metric=Minimize("val_loss", of="best"), keep=1, verbose=0)
    with study.ask() as trial:
        torch.manual_seed(0)
        net = layers()
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        for epoch in (loop := ShardedLoop(trial, net, sgd, background=True)):
            if epoch > 1:  # the file has a copy from before
                with torch.no_grad():
                    net[0].weight.add_(100.0)
            loop.report(value(net))
    assert study.best.epoch == 1
    net = layers()
    net.load_state_dict(torch.load(consolidate(study.best.checkpoint, tmp_path / "best.pt")))
    assert value(net) == study.best.value


@pytest.mark.parametrize("of", ["best", "last"])
def test_a_model_that_trains_after_its_report_is_kept_as_it_was_there_and_resumes_exactly(of, tmp_path):
    found = []
    for pauses in ((), (2,)):
        study = pausing_study(tmp_path / f"{pauses}.db", pauses, metric=Minimize("val_loss", of=of), keep=1, verbose=0)
        for trial in study:
            with trial:
                torch.manual_seed(trial.attempt)
                net = layers()
                sgd = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
                for _ in (loop := ShardedLoop(trial, net, sgd)):
                    loop.report(value(net))
                    (net(X) - X.sum(1, keepdim=True)).pow(2).mean().backward()
                    sgd.step()
                    sgd.zero_grad()
        found.append([parameter.tolist() for parameter in net.parameters()])
        net.load_state_dict(torch.load(consolidate(study.best.checkpoint, tmp_path / "best.pt")))
        assert value(net) == study.best.value
    assert found[0] == found[1]


# two ranks


def need_devices(device, ranks):
    if device == "cuda" and torch.cuda.device_count() < ranks:
        pytest.skip(f"there are no {ranks} CUDA devices")


@pytest.fixture(scope="module", params=PLACES, ids=str)
def ranks(request, tmp_path_factory):
    """What each rank of every program tells."""
    device, number = request.param
    need_devices(device, number)
    return start(tmp_path_factory.mktemp("sharded"), "ways", device, codes=(0,) * number)


def start(folder, program, *device, **options):
    return run_program("sharded_loops.py", folder, program, *device, **options)


def of_way(told, way):
    if f"{way} kept" not in told:
        pytest.skip("FSDP of the first version does not shard on one rank")
    return [told[f"{way} {name}"] for name in ("straight", "paused", "kept")]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_ranks_resume_digit_for_digit(ranks, way):
    for told in ranks:
        (once, *straight), (attempts, *paused), _ = of_way(told, way)
        assert (once, attempts, straight) == (1, 3, paused)
    assert len({str(told[f"{way} paused"][-1]) for told in ranks}) == len(ranks)  # each has its own part


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS[:4])
def test_the_kept_model_of_ranks_has_the_value_of_its_trial(ranks, way, tmp_path):
    *_, (checkpoint, best) = of_way(ranks[0], way)
    net = layers()
    net.load_state_dict(torch.load(consolidate(checkpoint, tmp_path / "best.pt"), map_location="cpu"))
    assert value(net) == pytest.approx(best, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("library", ["accelerated", "deepspeed"])
def test_accelerate_resumes_a_sharded_model_digit_for_digit(library, device, tmp_path):
    pytest.importorskip("accelerate", reason="Accelerate is not installed")
    if library == "deepspeed":
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    need_devices(device, 2)
    for told in start(tmp_path, library, device):
        ways = [name.removesuffix(" kept") for name in told if name.endswith(" kept")]
        assert len(ways) == (4 if device == "cuda" and library == "accelerated" else 3)
        late = [f"{way} late" for way in ways if library == "accelerated"]  # its optimizer starts after the pauses
        for way in [*ways, *late]:
            straight, paused = told[f"{way} straight"], told[f"{way} paused"]
            attempts = 1 if way == "2 FULL_STATE_DICT late" else 3
            assert (straight[0], paused[0], straight[1:]) == (1, attempts, paused[1:]), way
    for way in ways:
        net, (checkpoint, best) = layers(), told[f"{way} kept"]
        net.load_state_dict(torch.load(consolidate(checkpoint, tmp_path / "best.pt"), map_location="cpu"))
        assert value(net) == pytest.approx(best, rel=1e-5)


@pytest.mark.slow
def test_ranks_do_not_wait_for_one_that_is_still_writing_behind_the_training(tmp_path):
    told = start(tmp_path, "behind")
    assert [rank[0] for rank in told] == [[], [True]]
    _, epoch, best, checkpoint = told[0]
    net = layers()
    net.load_state_dict(torch.load(consolidate(checkpoint, tmp_path / "best.pt")))
    assert (epoch, value(net)) == (1, pytest.approx(best, rel=1e-6))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrote", "reads", "why"),
    [(2, 1, "paused on 2 ranks and resumes on 1"), (1, 2, "paused on 1 rank and resumes on 2")],
)
@pytest.mark.parametrize("program", ["another", "another under Accelerate"])
def test_a_trial_resumes_on_another_number_of_ranks_with_its_weights_and_says_what_differs(
    program, wrote, reads, why, tmp_path
):
    if "Accelerate" in program:
        pytest.importorskip("accelerate", reason="Accelerate is not installed")
    ended = start(tmp_path, program, codes=(0,) * wrote)[0]
    assert (ended["first"][0], ended["said"]) == (1, [])
    begun = start(tmp_path, program, codes=(0,) * reads)[0]
    assert begun["first"] == [3, ended["last"]]
    (said,) = begun["said"]
    assert why in said


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("program", ["killed", "killed behind", "killed under Accelerate"])
def test_a_rank_that_is_killed_while_it_saves_leaves_the_checkpoint_before(program, killed, tmp_path):
    if "Accelerate" in program:
        pytest.importorskip("accelerate", reason="Accelerate is not installed")
    start(tmp_path, program, codes=(1, -9) if killed else (-9, 1), KILLED=str(killed))
    (store,) = tmp_path.glob("*killed.db")
    assert [t.checkpoint_epoch for t in read_study(str(store)).trials] == [2]
    for weights, straight in start(tmp_path, program, KILLED=str(killed)):
        assert weights == straight


@pytest.mark.slow
def test_a_full_disk_of_one_rank_declines_the_pause_on_all_and_costs_nothing(tmp_path):
    full = start(tmp_path, "full")
    assert [attempt for attempt, _, _ in full] == [2, 2]  # the first pause succeeded
    assert "File too large" in full[0][1][-1]
    assert "keeps training" in full[0][1][-1]
    assert [weights for *_, weights in full] == start(tmp_path, "straight")
