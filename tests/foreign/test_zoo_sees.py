"""The zoo's harness on programs that are wrong on purpose: each breaks the truth that it should."""

import contextlib
import types

import numpy as np
import pytest
import zoo

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from haltune import Float, HaltuneWarning, Minimize  # noqa: E402

TRUE = {
    "resumed": True, "loads": True, "all_batches": True, "own": True, "saves": "last", "advice": None, "after": 0,
    "hidden": False,
}  # fmt: skip
x = torch.linspace(-1, 1, 32)[:, None]
y = 3 * x + 1


def program(**changed):
    """A plain loop of three epochs; `changed` says what it does wrong."""
    does = types.SimpleNamespace(**TRUE | changed)
    last = {}  # weights of the trial before

    def build(lr):
        net = torch.nn.Linear(1, 1)
        if not does.own and last:  # a little changed, so that haltune does not know them
            net.load_state_dict({name: weight + 0.001 for name, weight in last.items()})
        return net, torch.optim.SGD(net.parameters(), lr, momentum=0.5)

    def search(study):
        for trial in study:
            with trial:
                net, sgd = build(**trial.config)
                passes = int(trial.epoch) if does.resumed else 0
                if trial.checkpoint and does.loads:
                    state = torch.load(trial.checkpoint)
                    net.load_state_dict(state["net"])
                    sgd.load_state_dict(state["sgd"])
                if does.advice and not does.after:
                    trial.warn(does.advice)
                for epoch in trial.epochs():
                    order, passes = torch.Generator().manual_seed(epoch if does.resumed else passes), passes + 1
                    for rows in torch.randperm(32, generator=order).split(8 if does.all_batches else 16):
                        sgd.zero_grad()
                        torch.nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
                        sgd.step()
                    trial.report(torch.nn.functional.mse_loss(net(x), y).item(), epoch)
                    state = {"net": net.state_dict(), "sgd": sgd.state_dict()}
                    if does.saves == "first" and epoch == 3:
                        state["net"] = torch.nn.Linear(1, 1).state_dict()
                    trial.save(lambda path, state=state: torch.save(state, path))
                    if does.advice and does.after == epoch:
                        trial.warn(does.advice)
                last.update(net.state_dict())

    def evaluate(path, config):
        net, _ = build(**config)
        net.load_state_dict(torch.load(path)["net"])
        return torch.nn.functional.mse_loss(net(x), y).item()

    declared = zoo.Declaration(
        ["torch"], space={"lr": Float(0.001, 1.0)}, goal=Minimize("val_loss"), max_epochs=3,
        trials=[{"lr": 0.1}, {"lr": 0.03}], updates=4, hidden=does.hidden,
        says=["advice"] if does.advice else [],
    )  # fmt: skip
    return zoo.Program("made up", search, evaluate, declared, "for trial in study: fit(ckpt_path=trial.checkpoint)")


def broken(runs):
    found = set()
    for truth in zoo.TRUTHS:
        try:
            zoo.holds(truth, runs)
        except AssertionError:
            found.add(truth)
    return found


@pytest.mark.parametrize(
    ("changed", "truths"),
    [
        ({}, set()),
        ({"resumed": False}, {"resumed", "said"}),  # haltune hints at `passes`
        pytest.param({"loads": False}, {"resumed"}, marks=pytest.mark.slow),
        ({"all_batches": False}, {"counted"}),
        ({"own": False}, {"own", "resumed"}),
        ({"saves": "first"}, {"kept"}),
        pytest.param({"advice": "some advice: pass ckpt_path=trial.checkpoint"}, {"said"}, marks=pytest.mark.slow),
        ({"advice": "some advice: Maximize('val_loss')"}, {"said"}),
        pytest.param({"advice": "some advice: monitor='val_acc'"}, {"said"}, marks=pytest.mark.slow),
        pytest.param({"advice": "some advice", "after": 1}, set(), marks=pytest.mark.slow),
        pytest.param({"advice": "some advice", "after": 2}, {"said"}, marks=pytest.mark.slow),
        pytest.param({"hidden": True}, {"counted"}, marks=pytest.mark.slow),
    ],
)
def test_a_wrong_program_breaks_its_truth_and_a_right_one_none(changed, truths):
    assert broken(zoo.train_all(program(**changed))) == truths


@pytest.mark.parametrize("exact", [pytest.param(True, marks=pytest.mark.slow), False])
def test_weights_that_differ_are_seen_without_torch_where_curves_are_equal(exact):
    linear_model = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    import joblib

    def search(study):
        for trial in study:
            with trial:
                model = linear_model.SGDRegressor(random_state=0, **trial.config)
                if trial.checkpoint:
                    model = joblib.load(trial.checkpoint)
                    model.coef_ *= 1.0 if exact else 1.001
                for epoch in trial.epochs():
                    model.partial_fit(np.arange(32.0)[:, None] / 32, np.arange(32.0) / 8)
                    trial.report(0.5, epoch)
                    trial.save(lambda path, model=model: joblib.dump(model, path), ".joblib")

    declared = zoo.Declaration(
        ["sklearn"], space={"alpha": Float(1e-6, 0.1, log=True)}, goal=Minimize("loss"), max_epochs=3,
        trials=[{"alpha": 0.01}, {"alpha": 0.001}], counts="sklearn.linear_model:SGDRegressor.partial_fit",
    )  # fmt: skip
    runs = zoo.train_all(zoo.Program("made up", search, lambda *_: 0.5, declared))
    with contextlib.nullcontext() if exact else pytest.raises(AssertionError, match="weights do not"):
        zoo.resumed(runs)


def reports_alone(study):
    for trial in study:
        trial.warn("nobody expects this")
        trial.report(0.5, 3)


def test_a_training_without_weights_is_not_compared():
    runs = zoo.train_all(zoo.Program("made up", reports_alone, lambda *_: 0.5, program().declared))
    with pytest.raises(AssertionError, match="no weights were seen"):
        zoo.own(runs)


def test_a_warning_that_is_not_declared_is_seen():
    runs = zoo.train_all(zoo.Program("made up", reports_alone, lambda *_: 0.5, program().declared))
    assert all("nobody expects this" in ran.lines for ran in (runs.straight, runs.paused, runs.alone))
    with pytest.raises(AssertionError, match="nobody expects this"):
        zoo.said(runs)


def test_an_error_of_a_program_is_raised_and_a_refusal_after_an_update_is_none():
    def search(study):
        trial = study.ask()
        with trial:
            weight = torch.nn.Parameter(torch.zeros(1))
            sgd = torch.optim.SGD([weight], 0.1)
            weight.sum().backward()
            sgd.step()
            raise HaltuneWarning("too late")

    declared = zoo.Declaration(["torch"], space={"lr": Float(0.001, 1.0)}, trials=[{"lr": 0.1}], refuses="too late")
    runs = zoo.train_all(zoo.Program("made up", search, lambda *_: 0.0, declared))
    with pytest.raises(HaltuneWarning, match="too late"):
        zoo.own(runs)
    with pytest.raises(AssertionError):
        zoo.refused(runs)
