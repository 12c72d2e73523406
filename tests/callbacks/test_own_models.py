"""A trial trains no model that another trial has trained: refused before an update, in every torch loop."""

import asyncio
import copy
import os
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fits import FITS  # noqa: E402
from paused_studies import pausing_study  # noqa: E402

from haltune.callbacks.loop import TrainingLoop  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported  # noqa: E402

X = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x, labels=None):
        out = self.layer(x)
        return out if labels is None else {"loss": (out.squeeze(-1) - labels).pow(2).mean(), "logits": out}


class Experiment:
    """A program that keeps its parts as attributes."""

    def __init__(self, net):
        self.net, self.sgd = net, torch.optim.SGD(net.parameters(), 0.1)

    def train(self, trial):
        for _ in trial.epochs():
            trial.report(step(self.net, self.sgd))


def step(net, sgd):
    sgd.zero_grad()
    loss = (net(X) - X.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    sgd.step()
    return loss.item()


@contextmanager
def warned():
    """Yield a list that has the texts of haltune's warnings in the block after it."""
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [str(one.message) for one in caught if issubclass(one.category, HaltuneWarning)]


def plain(trial, net):
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for _ in trial.epochs():
        if trial.report(step(net, sgd)).stops:
            break


def training_loop(trial, net):
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for _ in (loop := TrainingLoop(trial)):
        loop.report(step(net, sgd))


def by_lightning(trial, net):
    lib = FITS["lightning"]()
    lib.attempt(trial, *lib.callbacks(trial), net=lambda: net)


def by_transformers(trial, net):
    lib = FITS["transformers"]()
    lib.attempt(trial, *lib.callbacks(trial), model=lambda: net)


def by_fastai(trial, net):
    lib = FITS["fastai"]()
    learn = lib.learner()
    learn.model = net
    learn.fit(trial.max_epochs, 0.05, cbs=[lib.callback(trial, "valid_loss")])


def lightning_net():
    from lightning_nets import Net

    return Net()


def by_range(trial, net):
    """Count epochs itself, and keep the net in a dict."""
    parts = {"net": net}
    parts["sgd"] = torch.optim.SGD(parts["net"].parameters(), 0.1)
    for epoch in range(1, trial.max_epochs + 1):
        if trial.report(step(**parts), epoch=epoch).stops:
            break


LOOPS = {
    "plain": (plain, Net),
    "range": (by_range, Net),
    "attributes": (lambda trial, net: Experiment(net).train(trial), Net),
    "TrainingLoop": (training_loop, Net),
    "lightning": (by_lightning, lightning_net),
    "transformers": (by_transformers, Net),
    "fastai": (by_fastai, Net),
}


@pytest.fixture(params=LOOPS)
def program(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if request.param in ("lightning", "transformers", "fastai"):
        if request.param not in FITS:
            pytest.skip(f"{request.param} is not installed")
        FITS[request.param]()
    train, make = LOOPS[request.param]
    metric = "eval_loss" if request.param == "transformers" else "val_loss"
    torch.manual_seed(0)
    return train, make, pausing_study(at=(), epochs=2, trials=3, metric=metric, verbose=0)


def test_a_model_object_that_another_trial_has_trained_is_refused(program):
    train, make, study = program
    net = make()
    with study.ask() as first:
        train(first, net)
    trained = copy.deepcopy(net.state_dict())
    second = study.ask()
    with second, pytest.raises(NotSupported, match=r"trial 0.*Build a model for each trial"):
        train(second, net)
    assert study.trials[1].values.tolist() == []
    assert all(torch.equal(value, trained[name]) for name, value in net.state_dict().items())


def test_the_weights_of_another_trial_are_refused_in_a_model_of_its_own(program):
    train, make, study = program
    net, other = make(), make()
    with study.ask() as first:
        train(first, net)
    other.load_state_dict(net.state_dict())
    second = study.ask()
    with second, pytest.raises(NotSupported, match=r"(loaded a state|starts with the weights) of trial 0"):
        train(second, other)


@pytest.mark.filterwarnings("ignore:Trial 1 trains the same model object:haltune.errors.HaltuneWarning")
def test_a_model_whose_weights_are_reset_for_each_trial_is_trained(program):
    train, make, study = program
    net = make()
    start = copy.deepcopy(net.state_dict())
    for trial in (study.ask(), study.ask()):
        with trial:
            net.load_state_dict(start)
            train(trial, net)
    assert [t.status for t in study.trials] == ["completed"] * 2


def test_a_model_that_the_program_keeps_of_another_trial_is_none_that_this_one_trains():
    study = pausing_study(at=(), epochs=2, trials=2, verbose=0)
    for trial in study:
        with trial:
            net = Net()
            sgd = torch.optim.SGD(net.parameters(), 0.1)
            for _ in trial.epochs():
                trial.report(step(net, sgd))
            if trial.id == 0:
                best, its_sgd = net, sgd
    assert [t.status for t in study.trials] == ["completed"] * 2
    assert its_sgd.param_groups[0]["params"][0] is best.layer.weight


def test_a_model_object_that_another_fold_has_trained_is_refused(program):
    train, make, study = program
    net, trial = make(), study.ask()
    with trial, pytest.raises(NotSupported, match="fold 1 of trial 0 starts with the weights of fold 0"):
        for fold in trial.folds(2):
            train(fold, net)
    assert study.trials[0].epoch == 1  # fold 0 alone


@pytest.mark.parametrize("shared", ["a part of the model", "the optimizer", "a file of an earlier epoch"])
def test_what_trials_share_of_a_training_is_refused_before_an_update(shared, tmp_path):
    study = pausing_study(at=(), epochs=3, trials=2, verbose=0)
    base, file = torch.nn.Linear(3, 4), tmp_path / "best.pt"
    start = copy.deepcopy(base.state_dict())
    adam = torch.optim.Adam(base.parameters(), 0.1)

    def train(trial):
        if shared == "a file of an earlier epoch":
            layers = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        else:
            layers = base, torch.nn.Linear(4, 1)
        net = torch.nn.Sequential(*layers)
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        if shared == "the optimizer":
            base.load_state_dict(start)
            optimizer = adam
        elif file.exists():
            net.load_state_dict(torch.load(file))
        for epoch in trial.epochs():
            loss = step(net, optimizer)
            if shared == "a file of an earlier epoch" and epoch == 2:
                torch.save(net.state_dict(), file)
            trial.report(loss)

    with study.ask() as first:
        train(first)
    said = "with the Adam object of trial 0" if shared == "the optimizer" else "starts with the weights of trial 0"
    with study.ask() as second, pytest.raises(NotSupported, match=said):
        train(second)
    assert [len(t.values) for t in study.trials] == [3, 0]


def test_a_base_that_the_first_trial_prepares_is_every_trials_start():
    study = pausing_study(at=(), epochs=2, trials=3, verbose=0)
    base = None
    for trial in study:
        with trial:
            if base is None:
                base = Net()
                sgd = torch.optim.SGD(base.parameters(), 0.1)
                step(base, sgd)
            net = copy.deepcopy(base)
            trained = torch.nn.Linear(3, 1) if trial.id == 0 else net  # the first does not train the base
            sgd = torch.optim.SGD(trained.parameters(), 0.1)
            for _ in trial.epochs():
                trial.report(step(trained, sgd))
    assert [t.status for t in study.trials] == ["completed"] * 3


def test_trials_that_train_alike_may_make_an_optimizer_for_each_epoch():
    study = pausing_study(at=(1,), epochs=2, trials=2, verbose=0)
    waiting = [study.ask(), study.ask()]
    for trial in waiting:
        with trial:
            torch.manual_seed(0)
            net = Net()
            for _ in trial.epochs():
                trial.report(step(net, torch.optim.SGD(net.parameters(), 0.1)))
    assert {t.status for t in study.trials} <= {"paused", "stopped", "completed"}


def test_trials_of_one_thread_that_overlap_have_their_own_optimizers():
    async def search(study):
        async def train(trial):
            with trial:
                net = Net()
                sgd = torch.optim.SGD(net.parameters(), 0.1)
                for _ in trial.epochs():
                    trial.report(step(net, sgd))
                    await asyncio.sleep(0)

        await asyncio.gather(*(train(study.ask()) for _ in range(2)))

    study = pausing_study(at=(), epochs=3, trials=2, verbose=0)
    asyncio.run(search(study))
    assert [t.status for t in study.trials] == ["completed"] * 2


def test_a_second_model_without_positions_starts_the_curve_again_once():
    study = pausing_study(at=(), epochs=3, trials=1, verbose=0)
    trial = study.ask()
    with trial, pytest.warns(HaltuneWarning, match="trains again"):
        for fails in (True, False):
            try:
                net = Net()
                sgd = torch.optim.SGD(net.parameters(), 0.1)
                for epoch in trial.epochs():
                    loss = step(net, sgd)
                    if fails and epoch == 2:
                        raise RuntimeError("out of memory")
                    trial.report(loss)
            except RuntimeError:
                continue
    assert len(study.trials[0].values) == 3


def test_a_refused_program_ends_the_search_and_its_trial_is_offered_again():
    study, net = pausing_study(at=(), epochs=2, trials=3, verbose=0), Net()
    with pytest.raises(NotSupported, match="starts with the weights of trial 0"):
        study.optimize(lambda trial: plain(trial, net))
    assert [t.status for t in study.trials] == ["completed", "interrupted"]
    study.optimize(lambda trial: plain(trial, Net()))
    assert [(t.status, len(t.values)) for t in study.trials] == [("completed", 2)] * 3


@pytest.mark.parametrize("loop", ["epochs", "TrainingLoop", "folds", "folds by trial"])
def test_a_program_that_saves_but_does_not_load_is_refused_when_a_trial_resumes(loop, tmp_path):
    def train(trial, loads):
        for part in trial.folds(1) if "folds" in loop else (trial,):
            net = Net()
            sgd = torch.optim.SGD(net.parameters(), 0.1)
            at = trial if loop == "folds by trial" else part
            if loads and at.checkpoint is not None:
                net.load_state_dict(torch.load(at.checkpoint))

            def save(path, net=net):
                torch.save(net.state_dict(), path)

            if loop == "TrainingLoop":
                for _ in (steps := TrainingLoop(part, save=save)):
                    steps.report(step(net, sgd))
            else:
                for _ in part.epochs():
                    if part.report(step(net, sgd)).stops:
                        part.save(save)

    study = pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=4, trials=1, verbose=0)
    with pytest.raises(NotSupported, match=r"after epoch 2, but its program has not read (trial|fold)\.checkpoint"):
        study.optimize(lambda trial: train(trial, loads=False))
    assert study.trials[0].epochs.tolist() == [1, 2]
    study.optimize(lambda trial: train(trial, loads=True))
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("handler", ["loads nothing", "reads trial.checkpoint", "keeps the loaded state"])
@pytest.mark.parametrize("over_folds", [False, True])
def test_what_handles_an_error_of_a_resumed_trial_loads_its_state_again(handler, over_folds, tmp_path):
    def train(part, state, fails):
        net = Net()
        if state is not None:
            net.load_state_dict(state)
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        for epoch in part.epochs():
            if fails and epoch == 4:
                raise RuntimeError("out of memory")
            if part.report(step(net, sgd)).stops:
                part.save(lambda path: torch.save(net.state_dict(), path))

    def handled(part):
        state = torch.load(part.checkpoint) if part.checkpoint else None
        try:
            train(part, state, fails=True)
        except RuntimeError:
            if handler == "reads trial.checkpoint":
                state = torch.load(part.checkpoint)
            train(part, None if handler == "loads nothing" else state, fails=False)

    def both(trial):
        for part in trial.folds(1) if over_folds else (trial,):
            handled(part)

    study = pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=4, trials=1, verbose=0)
    refused = pytest.raises(NotSupported, match=r"starts again after epoch 2, but with new weights")
    with refused if handler == "loads nothing" else nullcontext(), pytest.warns(HaltuneWarning, match="trains again"):
        study.optimize(both)
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4][: 2 if handler == "loads nothing" else 4]


@pytest.mark.parametrize("handler", ["keeps its net", "loads it", "restarts", "makes another net"])
@pytest.mark.parametrize("over_folds", [False, True])
def test_what_handles_an_error_after_a_report_continues_with_its_own_weights_only(handler, over_folds, tmp_path):
    def train(part, net, fails):
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        for epoch in part.epochs():
            part.report(step(net, sgd))
            part.save(lambda path: torch.save(net.state_dict(), path))
            if fails and epoch == 2:
                raise RuntimeError("out of memory")

    def handled(part):
        try:
            train(part, net := Net(), fails=True)
        except RuntimeError:
            if handler != "keeps its net":
                net = Net()
            if handler == "loads it":
                net.load_state_dict(torch.load(part.checkpoint))
            if handler == "restarts":
                part.restart()
            train(part, net, fails=False)

    def both(trial):
        for part in trial.folds(1) if over_folds else (trial,):
            handled(part)

    study = pausing_study(f"{tmp_path}/s.db", at=(), epochs=4, trials=1, verbose=0)
    refused = pytest.raises(NotSupported, match=r"starts again after epoch 2, but with new weights.*\.restart\(\)")
    restarts = pytest.warns(HaltuneWarning, match="trains again from its start")
    with {"makes another net": refused, "restarts": restarts}.get(handler, nullcontext()):
        study.optimize(both)
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4][: 2 if handler == "makes another net" else 4]


@pytest.mark.parametrize("handler", ["asks only whether there is a state", "loads it"])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_handler_that_only_asks_whether_there_is_a_state_has_not_loaded_it(handler, resumed, tmp_path):
    def train(trial, path, fails):
        torch.manual_seed(0)  # the weights with which the trial has started
        net = torch.nn.Linear(8, 4)
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        if path is not None:
            net.load_state_dict(torch.load(path))
        for epoch in trial.epochs():
            if fails and epoch == 4:
                raise RuntimeError("out of memory")
            net(torch.ones(1, 8)).sum().backward()
            sgd.step()
            verdict = trial.report(0.5)
            trial.save(lambda path: torch.save(net.state_dict(), path))
            if verdict.stops:
                break

    def handled(trial):
        try:
            train(trial, trial.checkpoint, fails=True)
        except RuntimeError:
            assert trial.checkpoint is not None
            train(trial, trial.checkpoint if handler == "loads it" else None, fails=False)

    study = pausing_study(f"{tmp_path}/s.db", at=(2,) if resumed else (), epochs=5, trials=1, verbose=0)
    refused = pytest.raises(NotSupported, match="starts again after epoch 3, but with new weights")
    with nullcontext() if handler == "loads it" else refused:
        study.optimize(handled)
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4, 5][: 5 if handler == "loads it" else 3]


def test_a_fold_that_has_trained_is_saved_after_its_report(tmp_path):
    def train(trial):
        net = Net()
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        for fold in trial.folds(1):
            for epoch in fold.epochs():
                if epoch == 2:
                    fold.save(lambda path: torch.save(net.state_dict(), path))  # that of epoch 1
                value = step(net, sgd)
                if epoch == 2:
                    with pytest.raises(InvalidInput, match=r"has trained since epoch 1, .* Save after fold.report"):
                        fold.save(lambda path: torch.save(net.state_dict(), path))
                fold.report(value)
                fold.save(lambda path: torch.save(net.state_dict(), path))

    study = pausing_study(f"{tmp_path}/s.db", at=(), epochs=2, trials=1, verbose=0)
    study.optimize(train)
    assert study.trials[0].checkpoint_epoch == 2


@pytest.mark.parametrize("saved", ["in a dict", "as one vector", "by pickle"])
@pytest.mark.parametrize("handler", ["loads nothing", "keeps the loaded net"])
def test_so_does_what_handles_one_before_the_first_step_in_another_process(saved, handler, tmp_path):
    def save(net, path):
        if saved == "by pickle":
            path.write_bytes(pickle.dumps(net.state_dict()))
        else:
            vector = torch.nn.utils.parameters_to_vector(net.parameters())
            torch.save({"net": net.state_dict()} if saved == "in a dict" else vector.detach(), path)

    def load(net, path):
        if saved == "as one vector":
            torch.nn.utils.vector_to_parameters(torch.load(path), net.parameters())
        else:
            found = pickle.loads(Path(path).read_bytes()) if saved == "by pickle" else torch.load(path)["net"]
            net.load_state_dict(found)

    def train(trial, net, fails):
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        for epoch in trial.epochs():
            if fails and epoch == 3:
                raise RuntimeError("out of memory")
            net(torch.ones(1, 8)).sum().backward()
            sgd.step()
            trial.report(0.5)
            trial.save(lambda path: save(net, path))
            if fails:
                raise KeyboardInterrupt

    def handled(trial):
        net = torch.nn.Linear(8, 4)
        if trial.checkpoint is not None:
            load(net, trial.checkpoint)
        try:
            train(trial, net, fails=True)
        except RuntimeError:
            train(trial, net if handler == "keeps the loaded net" else torch.nn.Linear(8, 4), fails=False)

    for _ in range(2):
        with suppress(KeyboardInterrupt):
            pausing_study(f"{tmp_path}/s.db", at=(), verbose=0).optimize(handled)
    study = pausing_study(f"{tmp_path}/s.db", at=(), verbose=0)  # as in another process
    seen = handler == "loads nothing" and saved == "in a dict"
    refused = pytest.raises(NotSupported, match=r"starts again after epoch 2, but with new weights")
    with refused if seen else nullcontext():
        study.optimize(handled)
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4][: 2 if seen else 4]


@pytest.mark.parametrize(
    "program",
    ["loads", "loads nothing", "loads after a probe", "saves an optimizer only", "trains a new net each epoch"],
)
def test_a_trial_that_resumes_in_another_process_warns_if_its_optimizer_starts_with_other_weights(program, tmp_path):
    def new():
        net = torch.nn.Linear(8, 4)
        return net, torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def step(net, sgd):
        net(torch.ones(1, 8)).sum().backward()
        sgd.step()

    def train(trial, ends):
        net, sgd = new()
        if (path := trial.checkpoint) is not None and program.startswith("loads") and program != "loads nothing":
            net.load_state_dict(torch.load(path)["net"])
        if program == "loads after a probe":
            step(*new())
        for epoch in trial.epochs():
            if program == "trains a new net each epoch" and epoch > 1:
                net, sgd = new()
            step(net, sgd)
            trial.report(0.5)
            state = {"sgd": sgd.state_dict()} if program == "saves an optimizer only" else {"net": net.state_dict()}
            trial.save(lambda path: torch.save(state, path))  # noqa: B023
            if epoch == ends:
                raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        pausing_study(f"{tmp_path}/s.db", at=(), verbose=0).optimize(lambda trial: train(trial, 2))
    study = pausing_study(f"{tmp_path}/s.db", at=(), verbose=0)  # as in another process
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        study.optimize(lambda trial: train(trial, None))
    seen = [
        w for w in found if "resumed after epoch 2, but its SGD started with weights that it did not" in str(w.message)
    ]
    assert len(seen) == (program == "loads nothing")


@pytest.mark.parametrize("loop", ["epochs", "range"])
@pytest.mark.parametrize("load", ["in full", "names that do not match", "into a model that is not trained"])
def test_a_resumed_trial_warns_once_if_its_optimizer_starts_with_other_weights(load, loop, tmp_path):
    study = pausing_study(f"{tmp_path}/s.db", at=(2, 3), epochs=4, trials=2, verbose=0)
    with warned() as found:
        for trial in study:
            with trial:
                net = Net()
                sgd = torch.optim.SGD(net.parameters(), 0.1)
                if trial.checkpoint is not None:
                    state = torch.load(trial.checkpoint)
                    if load == "names that do not match":
                        state = {f"module.{name}": weight for name, weight in state.items()}
                    other = Net() if load == "into a model that is not trained" else net
                    other.load_state_dict(state, strict=False)
                for epoch in trial.epochs() if loop == "epochs" else range(int(trial.epoch) + 1, 5):
                    stops = trial.report(step(net, sgd), epoch).stops
                    trial.save(lambda path, net=net: torch.save(net.state_dict(), path))
                    if stops:
                        break
    assert len(found) == (load != "in full")
    assert all("resumed after epoch 2, but its SGD started with weights that it did not have" in text for text in found)


@pytest.mark.parametrize("saves", ["the net", "the net and the loss", "the net, and the loss in another file"])
def test_a_resumed_trial_warns_once_if_its_optimizer_has_weights_that_were_not_saved(saves, tmp_path):
    study = pausing_study(f"{tmp_path}/s.db", at=(2, 3), epochs=4, trials=2, verbose=0)
    with warned() as found:
        for trial in study:
            with trial:
                net, loss = torch.nn.Linear(8, 4), torch.nn.Linear(4, 4)
                sgd = torch.optim.SGD([*net.parameters(), *loss.parameters()], 0.1)
                if trial.checkpoint is not None:
                    net.load_state_dict(torch.load(trial.checkpoint)["net"])
                    if saves != "the net":
                        other = trial.folder / "loss.pt" if "another file" in saves else trial.checkpoint
                        loss.load_state_dict(torch.load(other)["loss"])
                for _ in trial.epochs():
                    sgd.zero_grad()
                    loss(net(torch.rand(1, 8))).square().sum().backward()
                    sgd.step()
                    trial.report(0.5)
                    state = {"net": net.state_dict()} | ({"loss": loss.state_dict()} if "net and" in saves else {})
                    trial.save(lambda path, state=state: torch.save(state, path))
                    if "another file" in saves:
                        torch.save({"loss": loss.state_dict()}, trial.folder / "loss.pt")
    assert len(found) == (saves == "the net"), found
    assert all("resumed after epoch 2, but its SGD started with weights that it did not have" in text for text in found)


@pytest.mark.parametrize("same_process", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    ("program", "warns"),
    [
        ("saves and loads all", False),
        ("saves the weights", True),
        pytest.param("saves a folder of weights", True, marks=pytest.mark.slow),
        pytest.param("loads the weights of all that it saves", True, marks=pytest.mark.slow),
        ("trains by SGD without momentum, and saves the weights", False),
        ("makes an optimizer each epoch, and saves the weights", False),
        ("trains by Adam after epoch 2, and saves all", False),
        ("trains more layers after epoch 2, and saves all", False),
    ],
)
def test_a_resumed_trial_warns_once_if_its_optimizer_starts_without_its_moments(program, warns, same_process, tmp_path):
    def study():
        return pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=5, trials=2, verbose=0)

    def optimizer(net, epoch):
        if "Adam" in program and epoch >= 2:
            return torch.optim.Adam(net.parameters(), 0.1)
        layers = net[0] if "more layers" in program and epoch < 2 else net
        return torch.optim.SGD(layers.parameters(), 0.1, momentum=0.0 if "without momentum" in program else 0.9)

    def write(path, net, sgd):
        if "folder" in program:
            path.mkdir()
        weights = path / "weights.pt" if "folder" in program else path
        torch.save({"net": net.state_dict()} | ({"sgd": sgd.state_dict()} if "all" in program else {}), weights)

    def train(trial):
        net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
        sgd = optimizer(net, trial.epoch)
        if trial.checkpoint is not None:
            state = torch.load(f"{trial.checkpoint}/weights.pt" if "folder" in program else trial.checkpoint)
            net.load_state_dict(state["net"])
            if program == "saves and loads all":
                sgd.load_state_dict(state["sgd"])
        for epoch in trial.epochs():
            if "each epoch" in program or ("after epoch 2" in program and epoch == 3):
                sgd = optimizer(net, epoch - 1)
            sgd.zero_grad()
            net(torch.ones(1, 8)).sum().backward()
            sgd.step()
            trial.report(0.5)
            trial.save(lambda path: write(path, net, sgd))  # noqa: B023

    with warned() as found:
        if same_process:
            study().optimize(train)
        else:
            for _ in range(4):
                for trial in study():
                    with trial:
                        train(trial)
                    break
    assert len(found) == warns * (1 if same_process else 2), found
    assert all("resumed after epoch 2, but its SGD started without the momentum" in text for text in found)


@pytest.mark.parametrize(
    ("by", "same_process"),
    [
        pytest.param("epochs", True, marks=pytest.mark.slow),
        ("TrainingLoop", False),
        pytest.param("range", True, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    ("program", "warns"),
    [
        ("thaws in epoch 2", True),
        ("thaws in epoch 2, and saves to a file of its own", True),
        ("thaws in epoch 2, and saves the flags", False),
        ("thaws in epoch 2, and adds them to the optimizer", False),
        ("thaws from epoch 2 on", False),
        ("freezes in epoch 3", False),
        ("thaws each layer in every other epoch", False),
        ("thaws each layer in every other epoch, and starts with one frozen", False),
    ],
)
def test_a_resumed_trial_warns_once_if_weights_are_frozen_that_trained(program, warns, by, same_process, tmp_path):
    def study():
        return pausing_study(f"{tmp_path}/s.db", at=(1, 2), epochs=3, trials=2, verbose=0)

    def train(trial):
        net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
        first, second = net
        adds = "adds" in program
        if "epoch 2" in program or "starts with" in program:
            first.requires_grad_(adds and trial.epoch >= 2)
        sgd = torch.optim.SGD(second.parameters() if adds else net.parameters(), 0.1, momentum=0.9)
        if adds and trial.epoch >= 2:
            sgd.add_param_group({"params": [*first.parameters()]})
        if trial.checkpoint is not None:
            state = torch.load(trial.checkpoint)
            net.load_state_dict(state["net"])
            sgd.load_state_dict(state["sgd"])
            for weight, trains in zip(net.parameters(), state["flags"], strict=True):
                weight.requires_grad_(trains if "flags" in program else weight.requires_grad)

        def write(path):
            flags = [weight.requires_grad for weight in net.parameters()]
            torch.save({"net": net.state_dict(), "sgd": sgd.state_dict(), "flags": flags}, path)

        loop = TrainingLoop(trial, save=write) if by == "TrainingLoop" else trial
        epochs = {"epochs": trial.epochs, "range": lambda: range(int(trial.epoch) + 1, 4)}.get(by, lambda: loop)
        for epoch in epochs():
            if "in epoch 2" in program and epoch == 2:
                first.requires_grad_(True)
                if adds:
                    sgd.add_param_group({"params": [*first.parameters()]})
            elif "every other" in program:
                first.requires_grad_(epoch % 2 == 0)
                second.requires_grad_(epoch % 2 == 1)
            elif "from epoch 2" in program:
                first.requires_grad_(epoch >= 2)
            elif "freezes" in program and epoch == 3:
                first.requires_grad_(False)
            sgd.zero_grad()
            net(torch.ones(1, 8)).sum().backward()
            sgd.step()
            loop.report(0.5)
            if "own" in program and loop is trial:
                write(path := tmp_path / f"{trial.id}-{epoch}.pt")
                trial.checkpointed(str(path))
            elif loop is trial:
                trial.save(write)
            if by == "range" and trial.verdict.stops:
                break

    with warned() as found:
        if same_process:
            study().optimize(train)
        else:
            for _ in range(6):
                for trial in study():
                    with trial:
                        train(trial)
                    break
    assert len(found) == warns * (1 if same_process else 2), found
    assert all("resumed after epoch 2, but 2 weights of its SGD that trained there are frozen" in t for t in found)


@pytest.mark.parametrize("same_process", [True, False])
@pytest.mark.parametrize("adds", [True, False], ids=["adds a layer to the optimizer", "freezes a layer"])
def test_what_a_program_trains_may_change_at_the_end_of_an_epoch(adds, same_process, tmp_path):
    def study():
        return pausing_study(f"{tmp_path}/s.db", at=(1,), epochs=3, verbose=0)

    def train(trial):
        net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
        first, second = net
        sgd = torch.optim.SGD(second.parameters() if adds else net.parameters(), 0.1, momentum=0.9)

        def change():
            if adds:
                sgd.add_param_group({"params": [*first.parameters()]})
            else:
                first.requires_grad_(False)

        if trial.checkpoint is not None:
            change()
            state = torch.load(trial.checkpoint)
            net.load_state_dict(state["net"])
            sgd.load_state_dict(state["sgd"])
        for epoch in trial.epochs():
            sgd.zero_grad()
            net(torch.ones(1, 8)).sum().backward()
            sgd.step()
            trial.report(0.5)
            if epoch == 1:
                change()
            trial.save(lambda path: torch.save({"net": net.state_dict(), "sgd": sgd.state_dict()}, path))

    with warned() as found:
        if same_process:
            study().optimize(train)
        else:
            for _ in range(2):
                for trial in study():
                    with trial:
                        train(trial)
                    break
    assert (found, study().trials[0].epochs.tolist()) == ([], [1, 2, 3])


@pytest.mark.parametrize(
    ("program", "warns"),
    [
        ("nothing", True),
        ("nothing, of a schedule by batches", True),
        pytest.param("nothing, of warmup and then a cosine", True, marks=pytest.mark.slow),
        pytest.param("nothing, of a chain of schedules", True, marks=pytest.mark.slow),
        ("the schedule", False),
        pytest.param("the schedule, a chain", False, marks=pytest.mark.slow),
        ("the count, for last_epoch= of a step that is due there", True),
        pytest.param("the count, for last_epoch= of a step that is due later", False, marks=pytest.mark.slow),
        ("the count, for last_epoch= of a function", False),
        pytest.param("the count and one, for last_epoch= of a function", True, marks=pytest.mark.slow),
        ("nothing, and steps it to its place", True),  # from the loaded rate
        ("nothing, and steps it to its place, then loads the optimizer", False),
        ("the schedule, and leaves an epoch ahead of its step", True),
        ("the schedule, and leaves an epoch ahead of its step, which it makes up for", False),
        ("the schedule, an exponential, leaves an epoch ahead of its step, and adds a group later", True),
        ("nothing, and steps it by the number of the epoch", False),
        ("nothing, and steps it by the number of the epoch from NumPy", False),
        pytest.param("nothing, of a schedule that is given the first epoch", False, marks=pytest.mark.slow),
        ("nothing, of a schedule made after the optimizer is loaded", True),
        pytest.param(
            "nothing, of a schedule by epochs made after the optimizer is loaded", True, marks=pytest.mark.slow
        ),
        pytest.param("nothing, of a function made after the optimizer is loaded", True, marks=pytest.mark.slow),
        ("nothing, of a plateau", True),
        pytest.param("the schedule, a plateau", False, marks=pytest.mark.slow),
        ("the schedule, before its step", True),
        pytest.param(
            "the schedule, a warmup that is made and loaded after the optimizer", True, marks=pytest.mark.slow
        ),
        pytest.param("the schedule, made and loaded after the optimizer", False, marks=pytest.mark.slow),
        ("the schedule, with its step before those of the optimizer", False),
        ("the schedule, and sets the rates of the warmup in each step", False),
        ("nothing, of an exponential", False),
        pytest.param("nothing, of an exponential made after the optimizer is loaded", False, marks=pytest.mark.slow),
        pytest.param("nothing, and starts another schedule where it resumes", False, marks=pytest.mark.slow),
        ("nothing, of a schedule that waits for the end of a warmup by hand", False),
        ("nothing, of a constant rate", False),
    ],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter in", "ignore:Detected call of", "ignore:To get the last")
def test_a_resumed_trial_warns_once_if_its_schedule_was_forgotten(program, warns, tmp_path):
    rates = torch.optim.lr_scheduler

    def scheduled(sgd, trial, last=-1):
        if "a step that is due" in program:
            return rates.MultiStepLR(sgd, [2 if "due there" in program else 3], last_epoch=last)
        if "= of a function" in program:
            return rates.LambdaLR(sgd, lambda epoch: 0.9**epoch, last_epoch=last)
        if "warmup and" in program:
            return rates.SequentialLR(sgd, [rates.LinearLR(sgd, 0.5, 1.0, 1), rates.CosineAnnealingLR(sgd, 5)], [1])
        if "chain" in program:
            return rates.ChainedScheduler([rates.ConstantLR(sgd, 0.5, 4), rates.ExponentialLR(sgd, 0.9)])
        if "given the first" in program:
            return rates.LambdaLR(sgd, lambda epoch, first=trial.epoch: 0.9 ** (epoch + first))
        if "constant" in program:
            return rates.StepLR(sgd, 100)
        if "by epochs" in program:
            return rates.StepLR(sgd, 3)
        if "a function" in program:
            return rates.LambdaLR(sgd, lambda epoch: 0.9**epoch)
        if "plateau" in program:
            return rates.ReduceLROnPlateau(sgd, patience=3)
        if "a warmup that" in program:
            return rates.LinearLR(sgd, 0.5, 1.0, 4)
        if "exponential" in program:
            return rates.ExponentialLR(sgd, 0.9)
        return rates.CosineAnnealingLR(sgd, 20, last_epoch=last)

    def train(trial):
        net = torch.nn.Linear(8, 2)
        sgd = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        state = {} if trial.checkpoint is None else torch.load(trial.checkpoint)
        later = "last_epoch=" in program or "made" in program
        schedule = None if later and state else scheduled(sgd, trial)
        if state:
            net.load_state_dict(state["net"])
            sgd.load_state_dict(state["sgd"])
            if "made" in program:
                schedule = scheduled(sgd, trial)
            if program.startswith("the schedule"):
                schedule.load_state_dict(state["schedule"])
            for _ in range(trial.epoch if "to its place" in program else "makes up" in program):
                schedule.step()
            if "then loads" in program:
                sgd.load_state_dict(state["sgd"])
            schedule = schedule or scheduled(sgd, trial, state["count"] - ("and one" not in program))
            if "another schedule" in program:
                schedule = rates.ExponentialLR(sgd, 0.5)

        def save(path):
            state = {
                "net": net.state_dict(),
                "sgd": sgd.state_dict(),
                "count": int(vars(schedule).get("last_epoch", 0)),
            }
            saved = {"schedule": schedule.state_dict()} if program.startswith("the schedule") else {}
            torch.save(state | saved, path)

        loop = TrainingLoop(trial, save=save)
        for epoch in trial.epochs() if "before its step" in program or "leaves" in program else loop:
            if "adds a group" in program and trial.epoch == 5:
                sgd.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
            if "by hand" in program and epoch < 4:
                sgd.param_groups[0]["lr"] = 0.01 * epoch
            if "in each step" in program and epoch < 4:
                sgd.param_groups[0]["lr"] = 0.01 * epoch
            if "before those" in program:
                schedule.step()
            for _ in range(2):
                sgd.zero_grad()
                net(torch.ones(1, 8)).sum().backward()
                sgd.step()
                if "by batches" in program:
                    schedule.step()
            if "before its step" in program:
                trial.report(0.5)
                trial.save(save)
            if "leaves" in program and trial.report(0.5).stops:
                trial.save(save)
                break
            if "number of the epoch" in program:
                schedule.step(np.int64(epoch) if "NumPy" in program else epoch)
            elif "plateau" in program:
                schedule.step(0.5)
            elif "before those" not in program and ("by hand" not in program or epoch >= 4):
                schedule.step()
            if "before its step" not in program and "leaves" not in program:
                loop.report(0.5)

    at = 4 if "leaves" in program else 2  # its pace is then known
    study = pausing_study(f"{tmp_path}/s.db", at=(at,), epochs=6, trials=2, verbose=0)
    with warned() as found:
        study.optimize(train)
    assert {t.status for t in study.trials} == {"completed"}
    assert len(found) == warns, found
    assert all(
        re.search(
            f"resumed after epoch {at}, but its (optimizer has another|.* continues from step .+ instead of)", text
        )
        for text in found
    )


class Shadows:
    """An average of weights without a state_dict, whose weights take the place of the model's in a validation."""

    def __init__(self, net):
        self.net, self.shadow, self.backup = net, {n: p.data.clone() for n, p in net.named_parameters()}, {}

    def update_parameters(self, net):
        for name, weight in net.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * weight.data

    def swap(self, there):
        for name, weight in self.net.named_parameters():
            if there:
                self.backup[name], weight.data = weight.data, self.shadow[name]
            else:
                weight.data = self.backup.pop(name)


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    ("program", "warns"),
    [
        ("forgets an average", "average"),
        pytest.param("forgets an average in a dict", "average", marks=pytest.mark.slow),
        ("forgets a copy that follows", "copy"),
        pytest.param("forgets the scale of the loss", "scale", marks=pytest.mark.slow),
        ("forgets what wraps the model and its mean", "wraps"),  # as ema_pytorch.EMA, and BYOL with its target
        ("saves what wraps the model and its mean", None),
        ("forgets what wraps the model alone", None),
        ("saves an average", None),
        ("saves an average and loads it within the loop", None),
        pytest.param("saves a copy that follows", None, marks=pytest.mark.slow),
        pytest.param("saves the scale of the loss", None, marks=pytest.mark.slow),
        ("forgets a copy that it makes again in each epoch", None),
        ("forgets a copy that stays as it was at the start", None),
        pytest.param("forgets a probe of each epoch", None, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_trial_warns_once_if_an_average_or_the_like_was_forgotten(program, warns, at, tmp_path):
    swa = torch.optim.swa_utils
    study, probe = pausing_study(f"{tmp_path}/s.db", at=(at,), epochs=4, trials=2, verbose=0), None
    with warned() as found:
        for trial in study:
            with trial:
                torch.manual_seed(trial.id)
                net = Net()
                sgd = torch.optim.SGD(net.parameters(), 0.01)
                parts = {"net": net, "sgd": sgd}
                if "average" in program:
                    average = swa.AveragedModel(net, multi_avg_fn=swa.get_ema_multi_avg_fn(0.9))
                    average = parts["other"] = Shadows(net) if "dict" in program else average
                if "copy" in program:
                    other = parts["other"] = copy.deepcopy(net)
                if "wraps" in program:
                    wraps = parts["other"] = torch.nn.ModuleDict({"net": net, "head": torch.nn.Identity()})
                if "its mean" in program:
                    wraps["mean"] = copy.deepcopy(net).requires_grad_(False)
                if "scale" in program:
                    scale = parts["other"] = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
                if program.startswith("forgets"):
                    parts.pop("other", None)
                if trial.checkpoint is not None:
                    state = torch.load(trial.checkpoint)
                    for name, part in parts.items():
                        if name != "other" or "within the loop" not in program:
                            part.load_state_dict(state[name])
                    if "at the start" in program:
                        other.load_state_dict(state["start"])
                start = copy.deepcopy(other.state_dict()) if "at the start" in program else {}

                def save(path, parts=parts, start=start):
                    torch.save({name: part.state_dict() for name, part in parts.items()} | {"start": start}, path)

                for epoch in (loop := TrainingLoop(trial, save=save)):
                    if "within the loop" in program and trial.checkpoint is not None and epoch == at + 1:
                        average.load_state_dict(state["other"])
                    if "makes again" in program:
                        other.load_state_dict(net.state_dict())
                    value = step(net, sgd)
                    if "average" in program:
                        average.update_parameters(net)
                    if "dict" in program:
                        average.swap(True)
                        average.swap(False)
                    if "follows" in program:
                        for w, of_net in zip(other.parameters(), net.parameters(), strict=True):
                            w.data.lerp_(of_net.data, 0.3)
                    if "its mean" in program:
                        for w, of_net in zip(wraps["mean"].parameters(), net.parameters(), strict=True):
                            w.data.lerp_(of_net.data, 0.3)
                    if "scale" in program:
                        scale.scale(torch.ones(()))
                        scale._found_inf_per_device(sgd)
                        scale.update(scale.get_scale() * 2)
                    if "probe" in program:
                        probe = torch.nn.Linear(3, 1)
                        step(probe, torch.optim.SGD(probe.parameters(), 0.1))
                    loop.report(value)
    names = {"average": "average", "copy": "other", "scale": "scale", "wraps": "wraps"}
    assert [f"after epoch {at}, but {names[warns]} is not as it was there" in text for text in found] == [True] * (
        warns is not None
    ), found


@pytest.mark.parametrize("same_process", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    ("program", "warns"),
    [
        ("the optimizer of a TrainingLoop", True),
        ("an optimizer with a state from its start", True),
        ("one of two optimizers", None),  # in another process it is perhaps one that the training adds there
        ("an optimizer for each epoch, and two reports of each", False),
        ("nothing, after a test of learning rates", False),
        ("nothing, and thaws a pretrained body after epoch 2", False),
        ("nothing, and adds a critic after epoch 2", False),
        ("nothing, and trains by SGD after epoch 2, in a folder", False),
    ],
)
def test_a_resumed_trial_warns_only_of_a_momentum_that_it_had_before_the_pause(program, warns, same_process, tmp_path):
    def train(trial):
        torch.manual_seed(1)
        body = torch.nn.Linear(3, 4).requires_grad_("thaws" not in program or trial.epoch >= 3)
        torch.manual_seed(10 * trial.id + trial.attempt)
        net, critic = torch.nn.Sequential(body, torch.nn.Linear(4, 1)), torch.nn.Linear(3, 1)

        def optimizer(epoch):
            if "state from" in program:
                return torch.optim.Adagrad(net.parameters(), 0.1)
            if "by SGD" in program and epoch >= 2:
                return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
            return torch.optim.Adam([w for w in net.parameters() if w.requires_grad], 0.1)

        adam, other = optimizer(trial.epoch), torch.optim.Adam(critic.parameters(), 0.1)
        if "a test" in program:
            starts = copy.deepcopy([net.state_dict(), adam.state_dict()])
            step(net, adam)
            net.load_state_dict(starts[0])
            adam.load_state_dict(starts[1])

        def state():
            trained = {name: w.detach() for name, w in net.named_parameters() if w.requires_grad}
            parts = {"net": trained, "critic": critic.state_dict(), "other": other.state_dict()}
            return parts | ({"adam": adam.state_dict()} if "nothing" in program else {})

        def save(path):
            if "folder" in program:
                path.mkdir()
            torch.save(state(), path / "state.pt" if "folder" in program else path)

        if trial.checkpoint is not None:
            saved = torch.load(f"{trial.checkpoint}/state.pt" if "folder" in program else trial.checkpoint)
            net.load_state_dict(saved["net"], strict=False)
            critic.load_state_dict(saved["critic"])
            other.load_state_dict(saved["other"])
            if "nothing" in program:
                adam.load_state_dict(saved["adam"])
        if "TrainingLoop" in program:
            for _ in (loop := TrainingLoop(trial, save=save)):
                loop.report(step(net, adam))
            return
        for epoch in trial.epochs():
            if "each epoch" in program or (epoch == 3 and ("thaws" in program or "by SGD" in program)):
                body.requires_grad_(True)
                adam = optimizer(epoch - 1)
            if "one of two" in program or ("critic" in program and epoch >= 3):
                step(critic, other)
            value = step(net, adam)
            if "two reports" in program:
                trial.report(value, epoch=epoch - 0.5)
                value = step(net, adam)
            trial.report(value)
            trial.save(save)

    with warned() as found:
        for _ in range(1 if same_process else 2):
            for trial in (study := pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=5, verbose=0)):
                with trial:
                    train(trial)
                if not same_process:
                    break
    assert [t.status for t in study.trials] == ["completed"]
    assert len(found) == (same_process if warns is None else warns), found
    assert all("Trial 0 has resumed after epoch 2, but its Ada" in text for text in found)


@pytest.mark.parametrize("makes", ["a probe for the metric", "a net each epoch"])
def test_an_optimizer_of_something_else_than_the_loaded_weights_is_no_reason_to_warn(makes, tmp_path):
    study = pausing_study(f"{tmp_path}/s.db", at=(2, 3), epochs=4, trials=2, verbose=0)
    for trial in study:
        with trial:
            nets = [Net()]
            if trial.checkpoint is not None:
                nets[0].load_state_dict(torch.load(trial.checkpoint))
            sgd = torch.optim.SGD(nets[0].parameters(), 0.1)
            for _ in trial.epochs():
                probe = Net()
                loss = step(probe, torch.optim.SGD(probe.parameters(), 0.1))
                if makes == "a probe for the metric":
                    step(nets[0], sgd)
                trial.report(loss)
                trial.save(lambda path, net=nets[0]: torch.save(net.state_dict(), path))
    assert [t.status for t in study.trials] == ["completed"] * 2


@pytest.mark.parametrize("own", ["kept in memory", "a file of its own"])
def test_a_program_that_loads_its_state_from_elsewhere_resumes(own, tmp_path):
    states = {}
    study = pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=4, trials=1, verbose=0)
    for trial in study:
        with trial:
            net = Net()
            if trial.id in states:
                net.load_state_dict(states[trial.id])
            sgd = torch.optim.SGD(net.parameters(), 0.1)
            for _ in trial.epochs():
                if trial.report(step(net, sgd)).stops:
                    states[trial.id] = copy.deepcopy(net.state_dict())
                    if own == "kept in memory":
                        trial.save(lambda path: path.write_text("in memory"))
                    else:
                        torch.save(states[trial.id], trial.folder / "own.pt")
                        trial.checkpointed(str(trial.folder / "own.pt"))
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4]


def test_a_thawed_body_of_another_trial_is_refused_and_a_frozen_teacher_is_not():
    def search(thaws):
        study = pausing_study(at=(), epochs=2, trials=2, verbose=0)
        body = torch.nn.Linear(3, 4)
        for trial in study:
            with trial:
                body.requires_grad_(trial.id == 0)
                net = torch.nn.Sequential(body, torch.nn.Linear(4, 1))
                sgd = torch.optim.SGD(net.parameters(), 0.01)
                for epoch in trial.epochs():
                    if epoch == 2 and thaws:
                        body.requires_grad_(True)
                    trial.report(step(net, sgd))
        return study

    assert [len(t.values) for t in search(thaws=False).trials] == [2, 2]
    with pytest.raises(NotSupported, match="starts with the weights of trial 0"):
        search(thaws=True)


def test_networks_that_take_turns_are_one_training():
    study = pausing_study(at=(), epochs=6, trials=1, verbose=0)
    for trial in study:
        with trial:
            nets = [(net, torch.optim.SGD(net.parameters(), 0.1)) for net in (Net(), Net())]
            said = []
            for epoch in trial.epochs():
                said.append(step(*nets[epoch > 3]))
                trial.report(said[-1])
    assert study.trials[0].values.tolist() == said
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4, 5, 6]


def test_an_optimizer_of_another_fold_is_refused():
    study = pausing_study(at=(), epochs=2, trials=1, verbose=0)
    net = Net()
    start, adam = copy.deepcopy(net.state_dict()), torch.optim.Adam(net.parameters(), 0.1)
    trial = study.ask()
    with trial, pytest.raises(NotSupported, match="with the Adam object of fold 0"):
        for fold in trial.folds(2):
            net.load_state_dict(start)
            for _ in fold.epochs():
                fold.report(step(net, adam))


def test_a_fold_that_handles_a_refusal_gets_it_again_at_its_report():
    study, net = pausing_study(at=(), epochs=2, trials=1, verbose=0), Net()
    trial, said = study.ask(), []
    with trial, pytest.raises(NotSupported, match="starts with the weights of fold 0"):
        for fold in trial.folds(2):
            sgd = torch.optim.SGD(net.parameters(), 0.1)
            for _ in fold.epochs():
                with suppress(NotSupported):
                    step(net, sgd)
                fold.report(0.5)
                said.append(fold.index)
    assert said == [0, 0]


def test_a_model_that_continues_where_its_trial_starts_again_is_refused():
    study = pausing_study(at=(2,), epochs=4, trials=1, verbose=0)
    net = Net()
    with pytest.raises(NotSupported, match="saved no state, but this fit continues with weights that it has trained"):
        study.optimize(lambda trial: plain(trial, net))


@pytest.mark.filterwarnings("ignore:8 of 9 trials failed:haltune.errors.HaltuneWarning")
def test_a_program_that_handles_a_refusal_reports_nothing_and_does_not_search_for_ever():
    study, net = pausing_study(at=(), epochs=2, trials=9, verbose=0), Net()
    tried = []
    with suppress(NotSupported):
        for trial in study:
            with suppress(NotSupported), trial:
                tried.append(trial.id)
                sgd = torch.optim.SGD(net.parameters(), 0.1)
                for _ in trial.epochs():
                    with suppress(NotSupported):
                        step(net, sgd)
                    trial.report(0.5)
    assert tried[:4] == [0, 1, 1, 2]
    assert [(t.status, len(t.values)) for t in study.trials[:2]] == [("completed", 2), ("failed", 0)]


@pytest.mark.parametrize("saves", ["within its first epoch", "before it reports"])
def test_a_trial_that_starts_again_may_train_copies_of_what_it_has_saved(saves):
    study = pausing_study(at=(), epochs=2)
    for attempt in (1, 2):
        with suppress(KeyboardInterrupt), study.ask() as trial:
            torch.manual_seed(0)
            net = torch.nn.Linear(3, 4)
            sgd = torch.optim.SGD(net.parameters(), 0.1)
            for _ in trial.epochs():
                for part in range(2):
                    step(net, sgd)
                    if part or saves == "within its first epoch":
                        trial.save(lambda path: torch.save(net.state_dict(), path))  # noqa: B023
                    copied = copy.deepcopy(net)  # adapted to a task, as in MAML
                    step(copied, torch.optim.SGD(copied.parameters(), 0.1))
                if attempt == 1:
                    raise KeyboardInterrupt
                trial.report(0.5)
    assert study.trials[0].epochs.tolist() == [1, 2]


def elsewhere(path, **options):
    """Return the study of a file as another process sees it: the marks that this one knows are not shared."""
    return pausing_study(path, at=(), trials=3, verbose=0, **options)


def fits_a_line(trial, net, epochs=None, save=None):
    """Train in a loop over `range` or a given one, and call `save` after each report."""
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in epochs or trial.epochs():
        stops = trial.report(step(net, sgd), epoch).stops
        if save is not None:
            save(epoch)
        if stops:
            break


@pytest.fixture
def database(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    return f"{tmp_path}/s.db"


@pytest.mark.parametrize("loop", LOOPS)
def test_the_weights_of_a_trial_of_another_process_are_refused(loop, database):
    if loop in ("lightning", "transformers", "fastai"):
        if loop not in FITS:
            pytest.skip(f"{loop} is not installed")
        FITS[loop]()
    train, make = LOOPS[loop]
    metric = "eval_loss" if loop == "transformers" else "val_loss"
    net, other = make(), make()
    with elsewhere(database, epochs=2, metric=metric).ask() as first:
        train(first, net)
    other.load_state_dict(net.state_dict())
    study = elsewhere(database, epochs=2, metric=metric)
    with (
        study.ask() as second,
        pytest.raises(NotSupported, match=r"(loaded a state|starts with the weights) of trial 0"),
    ):
        train(second, other)
    assert [len(t.values) for t in study.trials] == [2, 0]


def test_a_shared_file_that_a_real_process_wrote_is_refused(database):
    program = """
        import sys, torch
        sys.path[:0] = {path}
        from test_own_models import Net, elsewhere, fits_a_line
        net = Net()
        with elsewhere({database!r}).ask() as trial:
            fits_a_line(trial, net, save=lambda _: torch.save(net.state_dict(), "last.pt"))
    """.format(path=[p for p in sys.path if "tests" in p] + [str(Path(__file__).parent)], database=database)
    seeded = os.environ | {"PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, env=seeded, timeout=300)
    net, study = Net(), elsewhere(database)
    net.load_state_dict(torch.load("last.pt"))
    with study.ask() as second, pytest.raises(NotSupported, match="starts with the weights of trial 0"):
        fits_a_line(second, net)


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("ends", ["ends", "runs and saves"])
def test_a_file_of_any_epoch_of_a_trial_of_another_process_is_refused(at, ends, database):
    net, states = Net(), {}

    def save(epoch):
        states[epoch] = copy.deepcopy(net.state_dict())
        if ends == "runs and saves":
            first.save(lambda path: torch.save(states[epoch], path))

    first = elsewhere(database, epochs=3).ask()
    with first:
        fits_a_line(first, net, range(1, 3) if ends == "runs and saves" else None, save)
        if ends != "runs and saves":
            first.finish()
        other, its_net = elsewhere(database, epochs=3).ask(), Net()
        its_net.load_state_dict(states[at])
        with other, pytest.raises(NotSupported, match="starts with the weights of trial 0"):
            fits_a_line(other, its_net)
        assert not other.has_reported


def test_weights_trained_after_the_last_report_are_refused_in_another_process(database):
    net = Net()
    with elsewhere(database, epochs=2).ask() as first:
        sgd = torch.optim.SGD(net.parameters(), 0.1)
        for _ in first.epochs():
            first.report(step(net, sgd))
            step(net, sgd)
    with elsewhere(database, epochs=2).ask() as other, pytest.raises(NotSupported, match="of trial 0"):
        fits_a_line(other, net)


@pytest.mark.parametrize("loop", ["plain", "TrainingLoop"])
def test_weights_of_a_trial_that_still_trains_elsewhere_are_refused_once_it_has_ended(loop, database):
    net, other, reported = Net(), Net(), []
    first, second = (elsewhere(database, epochs=4).ask() for _ in range(2))
    with first:
        fits_a_line(first, net, range(1, 3))
        other.load_state_dict(net.state_dict())
        with pytest.raises(NotSupported, match="starts with the weights of trial 0"), second:
            sgd = torch.optim.SGD(other.parameters(), 0.1)
            reporter = TrainingLoop(second) if loop == "TrainingLoop" else second
            for epoch in second.epochs() if loop == "plain" else reporter:
                reporter.report(step(other, sgd))
                reported.append(epoch)
                if epoch == 2:
                    first.finish()
    assert reported == [1, 2]


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("alike", [True, False])
def test_a_trial_continues_its_own_weights_in_another_process(alike, saves, database):
    """alike: another trial has trained equal weights."""

    def train(trial, fails):
        file, start = Path(f"{trial.id}.pt"), 0
        torch.manual_seed(0)
        net = Net()
        if trial.checkpoint or file.exists():
            state = torch.load(file)
            start = state["epoch"]
            net.load_state_dict(state["net"])

        def save(epoch):
            torch.save({"net": net.state_dict(), "epoch": epoch}, file)
            if saves:
                trial.save(lambda path: torch.save(net.state_dict(), path))
            if fails and epoch == 2:
                raise KeyboardInterrupt

        fits_a_line(trial, net, range(start + 1, 5), save)

    first = elsewhere(database).ask()
    if alike:
        with elsewhere(database).ask() as other:
            train(other, fails=False)
    with suppress(KeyboardInterrupt), first:
        train(first, fails=True)
    study = elsewhere(database)
    with warned() as texts, study.ask() as again:
        assert (again.id, again.attempt) == (0, 2)
        train(again, fails=False)
    assert texts == []
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4]
    assert study.trials[0].status == "completed"


def test_a_trial_that_continues_its_own_weights_in_another_process_but_counts_again_is_refused(database):
    net = Net()
    first = elsewhere(database).ask()
    with suppress(KeyboardInterrupt), first:
        fits_a_line(first, net, range(1, 3))
        raise KeyboardInterrupt
    study = elsewhere(database)
    with pytest.raises(NotSupported, match="that it has trained, and reports epoch 1 again"), study.ask() as again:
        fits_a_line(again, net)
    assert study.trials[0].values.tolist() == []
    with study.ask() as again:
        fits_a_line(again, Net())
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "start", ["a file trained before", "equal seeds", "a base that the first trial trains", "a frozen body"]
)
def test_what_trials_of_several_processes_may_share(start, database):
    torch.save(Net().state_dict(), "start.pt")

    def train(trial):
        torch.manual_seed(0)
        net = Net()
        if start == "a file trained before":
            net.load_state_dict(torch.load("start.pt"))
        elif start == "a base that the first trial trains":
            if not Path("base.pt").exists():
                base = Net()
                step(base, torch.optim.SGD(base.parameters(), 0.1))
                torch.save(base.state_dict(), "base.pt")
            net.load_state_dict(torch.load("base.pt"))
        elif start == "a frozen body":
            body = torch.nn.Linear(3, 3).requires_grad_(False)
            net = torch.nn.Sequential(body, Net())
        fits_a_line(trial, net)

    for _ in range(3):
        with elsewhere(database, epochs=2).ask() as trial:
            train(trial)
    assert [t.status for t in elsewhere(database, epochs=2).trials] == ["completed"] * 3


def test_trials_that_start_alike_in_several_processes_may_train_a_copy_before_they_report(database):
    for _ in range(2):
        study = elsewhere(database, epochs=2)
        with study.ask() as trial:
            torch.manual_seed(0)
            net = Net()
            for epoch in trial.epochs():
                step(net, torch.optim.SGD(net.parameters(), 0.1 if epoch == 1 else trial.config["lr"]))
                adapted = copy.deepcopy(net)
                trial.report(step(adapted, torch.optim.SGD(adapted.parameters(), 0.1)))
    assert [t.status for t in study.trials] == ["completed"] * 2
