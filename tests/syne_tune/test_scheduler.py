"""HaltuneScheduler in real Tuners of Syne Tune's: simulated from a table, and by processes of this machine."""

import json
import math
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

theirs = pytest.importorskip("syne_tune.config_space", reason="Syne Tune is not installed")

import dill  # noqa: E402
import pandas as pd  # noqa: E402
from paused_studies import PausesAt  # noqa: E402
from syne_tune import StoppingCriterion, Tuner  # noqa: E402
from syne_tune.backend import LocalBackend  # noqa: E402
from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback  # noqa: E402
from syne_tune.blackbox_repository.blackbox_tabular import BlackboxTabular  # noqa: E402
from syne_tune.blackbox_repository.simulated_tabular_backend import UserBlackboxBackend  # noqa: E402

from haltune import Choice, Constant, Float, Int, Space, Study, load_study  # noqa: E402  # noqa: E402
from haltune.errors import InvalidInput, InvalidSpace, NotSupported  # noqa: E402
from haltune.policies import Hyperband, MultiFidelity, RandomSearch  # noqa: E402
from haltune.syne_tune import HaltuneScheduler, fixed, space_of  # noqa: E402

EPOCHS, RATES = 9, [round(0.01 * k, 2) for k in range(1, 31)]
SPACE = {"lr": theirs.ordinal(RATES, kind="equal"), "width": theirs.choice(["a", "b"]), "gpus": 1}
FIRST = MultiFidelity(initial=4)


def accuracy(lr, epoch):
    return (0.95 - 3.0 * abs(lr - 0.1)) * epoch / (epoch + 1.0)


def scheduler(**options):
    quick = {"max_epochs": EPOCHS, "random_seed": 0, "policy": FIRST, "do_minimize": False}
    return HaltuneScheduler(SPACE, "acc", **quick | options)


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """Run a Tuner on a table of curves."""
    monkeypatch.setenv("SYNETUNE_FOLDER", str(tmp_path / "syne"))

    def run(s, trials=20):
        rows = [{"lr": lr, "width": width} for lr in RATES for width in ("a", "b")]
        curves = [[[accuracy(row["lr"], e), 10.0 * e] for e in range(1, EPOCHS + 1)] for row in rows]
        table = BlackboxTabular(
            pd.DataFrame(rows), {name: SPACE[name] for name in ("lr", "width")}, {"epoch": theirs.randint(1, EPOCHS)},
            np.array(curves)[:, None], objectives_names=["acc", "elapsed_time"],
        )  # fmt: skip
        tuner = Tuner(
            UserBlackboxBackend(table, "elapsed_time"), s, StoppingCriterion(max_num_trials_finished=trials),
            n_workers=2, sleep_time=0, callbacks=[SimulatorCallback()], save_tuner=False, print_update_interval=1e9,
        )  # fmt: skip
        tuner.run()
        return tuner

    return run


def curves(study):
    return [(r.config, list(r.values), r.status) for r in study.trials]


def test_a_simulated_search_is_stopped_and_has_the_curves_of_the_table(simulated):
    s = scheduler()
    tuner = simulated(s)
    lengths = [len(r.values) for r in s.study.trials]
    assert min(lengths) < EPOCHS == max(lengths)
    for record in s.study.trials:
        assert list(record.values) == [accuracy(record.config["lr"], e) for e in range(1, len(record.values) + 1)]
    stopped = {str(i) for i, status in tuner.tuning_status.last_trial_status_seen.items() if status == "Stopped"}
    under_way = {name for name, n in s.conductor.numbers.items() if s.study.trials[n].status == "running"}
    assert stopped - under_way == s.reasons.keys()  # those the Tuner stopped as it ended
    assert abs(s.study.best_params["lr"] - 0.1) <= 0.03
    assert tuner.best_config()[1]["gpus"] == 1


def test_runs_that_can_pause_are_paused_and_resumed_in_the_same_trial(simulated):
    s = scheduler(pauses=True)
    tuner = simulated(s, trials=2)
    resumed = [r for r in s.study.trials if r.attempt > 1]
    assert resumed
    for record in s.study.trials:  # a run that continues reports on: its epochs are not trained again
        assert list(record.epochs) == list(range(1, len(record.epochs) + 1))
        assert list(record.values) == [accuracy(record.config["lr"], e) for e in record.epochs]
    assert len(s.conductor.numbers) == len(s.study.trials)
    assert len(tuner.tuning_status.last_trial_status_seen) >= len(s.study.trials) - 1


@pytest.mark.parametrize("pauses", [False, True])
def test_no_trial_is_stopped_or_paused_before_min_epochs(simulated, pauses):
    s = scheduler(pauses=pauses, min_epochs=5)
    simulated(s, trials=4)
    lengths = [len(r.values) for r in s.study.trials if r.status != "running"]
    assert 5 <= min(lengths) < EPOCHS
    with pytest.raises(InvalidInput, match="min_epochs=10 is above max_epochs=9"):
        scheduler(min_epochs=10)


def test_the_seed_repeats_a_search_and_the_mode_says_what_is_better(simulated):
    one, two = scheduler(), scheduler()
    simulated(one)
    simulated(two)
    assert curves(one.study) == curves(two.study)
    up = HaltuneScheduler(SPACE, "acc", False, max_epochs=EPOCHS, random_seed=0, policy=RandomSearch())
    simulated(up, 6)
    assert up.study.best_value == max(r.values[-1] for r in up.study.trials if r.status == "completed")


LOCAL = """
import os, sys
sys.argv = [a for a in sys.argv]
lr = float(sys.argv[sys.argv.index("--lr") + 1])
from syne_tune import Reporter
report = Reporter()
if lr == 0.02:
    raise ValueError("a bug")
for epoch in range(1, 10):
    report(epoch=epoch, acc=float("nan") if lr == 0.03 else (0.95 - 3 * abs(lr - 0.1)) * epoch / (epoch + 1))
"""


@pytest.mark.slow  # a process a trial
def test_processes_of_this_machine_are_searched(tmp_path, monkeypatch):
    monkeypatch.setenv("SYNETUNE_FOLDER", str(tmp_path / "syne"))
    (tmp_path / "train.py").write_text(LOCAL)
    points = [{"lr": lr, "width": "a", "gpus": 1} for lr in (0.1, 0.02, 0.03, 0.09, 0.3, 0.29)]
    s = scheduler(points_to_evaluate=points, store=tmp_path / "s.db", policy=RandomSearch())
    tuner = Tuner(
        LocalBackend(str(tmp_path / "train.py")), s, StoppingCriterion(max_num_trials_finished=6), n_workers=2,
        sleep_time=0.2, save_tuner=True, max_failures=2,
    )  # fmt: skip
    tuner.run()
    study = load_study(tmp_path / "s.db")
    assert [r.config["lr"] for r in study.trials][:6] == [p["lr"] for p in points]
    statuses = {r.config["lr"]: r.status.value for r in study.trials[:6]}
    assert statuses == {0.1: "completed", 0.02: "failed", 0.03: "stopped", 0.09: "completed", 0.3: "completed",
                        0.29: "completed"}  # fmt: skip
    assert study.best_params["lr"] == 0.1
    assert json.loads((tuner.tuner_path / "metadata.json").read_text())["metric_mode"] == "max"
    again = Tuner.load(str(tuner.tuner_path)).scheduler
    assert str(curves(again.study)) == str(curves(study))  # NaN is no NaN


def drive(s, first, last):
    """Trials one after the other, by the calls of a Tuner."""
    for k in range(first, last):
        suggestion = s.suggest()
        trial = SimpleNamespace(trial_id=k, config={})
        s.on_trial_add(trial)
        for epoch in range(1, EPOCHS + 1):
            result = {"acc": accuracy(suggestion.config["lr"], epoch), "epoch": epoch, "st_worker_time": 1.0}
            if s.on_trial_result(trial, result) != "CONTINUE":
                s.on_trial_remove(trial)
                break
        else:
            s.on_trial_complete(trial, result)


def test_a_scheduler_that_is_pickled_with_its_tuner_continues_exactly():
    whole, broken = scheduler(), scheduler()
    for s in (whole, broken):
        drive(s, 0, 6)
        config = s.suggest().config
        s.on_trial_add(SimpleNamespace(trial_id=6, config={}))
        s.on_trial_result(SimpleNamespace(trial_id=6, config={}), {"acc": accuracy(config["lr"], 1), "epoch": 1})
    back = pickle.loads(pickle.dumps(broken))
    for s in (whole, back):
        s.on_trial_complete(SimpleNamespace(trial_id=6, config={}), {"acc": accuracy(config["lr"], 9), "epoch": 9})
        drive(s, 7, 12)
    assert curves(back.study) == curves(whole.study)
    assert back.reasons == whole.reasons
    assert pickle.loads(pickle.dumps(scheduler())).suggest().config == scheduler().suggest().config


def test_it_answers_as_syne_tune_asks_of_its_own_schedulers():
    """Suggestions before any trial is known, results after a stop, an error after the end, and dill."""
    s = scheduler(policy=RandomSearch())
    configs = [s.suggest().config for _ in range(4)]
    assert all(config.keys() == SPACE.keys() for config in configs)
    trials = [SimpleNamespace(trial_id=k, config=config) for k, config in enumerate(configs)]
    for trial in reversed(trials):
        s.on_trial_add(trial)
    for trial in trials:
        decisions = {s.on_trial_result(trial, {"acc": math.nan, "epoch": e}) for e in range(1, EPOCHS + 1)}
        assert decisions <= {"CONTINUE", "PAUSE", "STOP"}
    s.on_trial_error(trials[0])
    for trial in trials:
        s.on_trial_complete(trial, {"acc": 0.1, "epoch": EPOCHS})
    known = {name: s.study.trials[number].config["lr"] for name, number in s.conductor.numbers.items()}
    assert known == {str(trial.trial_id): trial.config["lr"] for trial in trials}
    back = dill.loads(dill.dumps(s))
    assert str(curves(back.study)) == str(curves(s.study))


@pytest.mark.parametrize("hole", [math.nan, "a text"])
def test_holes_in_the_metric_and_errors_stop_no_other_trial(hole):
    s = scheduler(policy=RandomSearch())
    trial = SimpleNamespace(trial_id=0, config={})
    s.suggest()
    s.on_trial_add(trial)
    assert s.on_trial_result(trial, {"acc": hole, "epoch": 1}) == "CONTINUE"
    assert s.on_trial_result(trial, {"epoch": 2}) == "CONTINUE"
    s.on_trial_error(trial)
    drive(s, 1, 3)
    assert [r.status for r in s.study.trials] == ["failed", "completed", "completed"]


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: HaltuneScheduler(SPACE, "acc", max_epochs=0), InvalidInput, "max_epochs"),
        (lambda: HaltuneScheduler({"a": 1}, "loss", max_epochs=9), InvalidSpace, "nothing to search"),
        (lambda: HaltuneScheduler(SPACE, ["a", "b"], max_epochs=9), InvalidInput, "one metric"),
    ],
)
def test_what_cannot_be_searched_is_said(make, error, said):
    with pytest.raises(error, match=said):
        make()


def test_a_policy_that_waits_for_others_is_refused_when_it_does():
    s = scheduler(policy=Hyperband(), pauses=True)
    with pytest.raises(NotSupported, match=r"Hyperband waits for other trials.*MultiFidelity"):
        for k in range(100):
            s.suggest()
            s.on_trial_add(SimpleNamespace(trial_id=k, config={}))


def test_a_scheduler_that_is_saved_while_a_resumed_trial_trains_accepts_its_next_epoch():
    s = scheduler(policy=PausesAt(1, at=(2,)), pauses=True)
    trial = SimpleNamespace(trial_id=0, config=s.suggest().config)
    s.on_trial_add(trial)
    assert [s.on_trial_result(trial, {"acc": 0.1 * e, "epoch": e}) for e in (1, 2)] == ["CONTINUE", "PAUSE"]
    s.on_trial_remove(trial)
    assert s.suggest().checkpoint_trial_id == 0
    s = pickle.loads(pickle.dumps(s))
    assert s.on_trial_result(trial, {"acc": 0.3, "epoch": 3}) == "CONTINUE"
    assert list(s.study.trials[0].epochs) == [1, 2, 3]


def test_a_trial_that_started_again_is_resumed_under_its_last_name():
    s = scheduler(policy=PausesAt(1, at=(2, 4)), pauses=True)
    for id, epochs in ((0, (1,)), (1, (1, 2, 3, 4))):
        suggested = s.suggest()
        assert suggested.spawn_new_trial_id
        trial = SimpleNamespace(trial_id=id, config=suggested.config)
        s.on_trial_add(trial)
        for epoch in epochs:
            decision = s.on_trial_result(trial, {"acc": 0.1 * epoch + 0.01 * id, "epoch": epoch})
            if decision == "PAUSE":
                s.on_trial_remove(trial)
                if epoch == 2:
                    assert s.suggest().checkpoint_trial_id == 1
        if id == 0:  # another program takes it back
            s.conductor.held["0"].interrupt()
            s.on_trial_remove(trial)
    assert s.suggest().checkpoint_trial_id == 1


@pytest.mark.parametrize("stored", [False, True])
def test_a_trial_that_was_paused_before_the_scheduler_was_saved_is_resumed_where_it_was(stored, tmp_path):
    s = scheduler(policy=PausesAt(1, at=(2,)), pauses=True, store=tmp_path / "s.db" if stored else None)
    trial = SimpleNamespace(trial_id=0, config=s.suggest().config)
    s.on_trial_add(trial)
    assert [s.on_trial_result(trial, {"acc": 0.1 * e, "epoch": e}) for e in (1, 2)] == ["CONTINUE", "PAUSE"]
    s.on_trial_remove(trial)
    s = pickle.loads(pickle.dumps(s))
    assert s.suggest().checkpoint_trial_id == 0
    assert s.on_trial_result(trial, {"acc": 0.3, "epoch": 3}) == "CONTINUE"
    assert list(s.study.trials[0].epochs) == [1, 2, 3]


def test_the_end_of_the_search_is_the_end_of_suggestions():
    s = scheduler(policy=RandomSearch(trials=2))
    drive(s, 0, 2)
    assert s.suggest() is None
    assert isinstance(s.study, Study)
    assert (s.metric_names(), s.metric_mode()) == (["acc"], "max")
    json.dumps(s.metadata())


# Syne Tune's domains as haltune's: what the one draws lies in the other, and what has no counterpart is named


SAME = [
    (theirs.loguniform(1e-4, 1e-1), Float(1e-4, 1e-1, log=True)),
    (theirs.quniform(0.0, 1.0, 0.25), Choice([0.0, 0.25, 0.5, 0.75, 1.0], ordered=True)),
    (theirs.lograndint(2, 64), Int(2, 64, log=True)),
    (theirs.qrandint(4, 12, 4), Choice([4, 8, 12], ordered=True)),
    (theirs.choice(["a", "b"]), Choice(["a", "b"])),
    (theirs.logordinal([1, 2, 8]), Choice([1, 2, 8], ordered=True)),
    (theirs.finrange(1, 2, 5, cast_int=True), Choice([1, 2], ordered=True)),  # rounded, each once
    (theirs.choice(["a"]), Constant("a")),
]


@pytest.mark.parametrize(("domain", "ours"), SAME, ids=[repr(domain) for domain, _ in SAME])
def test_each_domain_has_its_counterpart_and_what_it_draws_lies_in_it(domain, ours):
    space = space_of({"x": domain, "seed": 3})
    assert space == Space({"x": ours})
    assert fixed({"x": domain, "seed": 3}) == {"seed": 3}
    state = np.random.RandomState(0)
    for _ in range(50):
        value = domain.sample(random_state=state)
        space.canonical({"x": value.item() if hasattr(value, "item") else value})
    for config in space.sample(50, np.random.default_rng(0)):
        values = getattr(domain, "values", None)  # a finite range
        assert domain.is_valid(config["x"]) if values is None else config["x"] in values


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        (theirs.reverseloguniform(0.5, 0.99), "use 1 - x with loguniform"),
        (theirs.qloguniform(1e-4, 1e-1, 1e-4), "steps on a log scale"),
        (theirs.finrange(0, 1, 5000), "more than 1000 values"),
        (theirs.uniform(0, 1).__class__(0, 1).normal(0.5, 0.1), "haltune supports uniform"),
    ],
)
def test_what_has_no_counterpart_is_named_with_what_has(domain, said):
    with pytest.raises(InvalidSpace, match=f"'x'.*{said}"):
        space_of({"x": domain})
