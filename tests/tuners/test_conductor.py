"""A study that manages another tuner's trials: its answers, tolerated errors, and its state after a kill."""

import json
import math
import random
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from paused_studies import PausesAt

from haltune import Action, Budget, Finish, Float, Maximize, Problem, Space, Study
from haltune.errors import HaltuneWarning, installing
from haltune.policies import BOBOS, Hyperband, MultiFidelity, RandomSearch
from haltune.study.session import clocked
from haltune.tuners import UNLIMITED, Conductor, conductor_of, state_of

SPACE = Space({"lr": Float(0.001, 1.0, log=True)})


def conductor(policy=None, store=None, trials=None, epochs=9, seed=0):
    problem = Problem(SPACE, Maximize("acc"), max_epochs=epochs)
    budget = UNLIMITED if trials is None else Budget(trials=trials)
    return Conductor(Study(problem, policy, store, seed=seed, budget=budget, verbose=0))


def value(config, epoch):
    return (1.0 - abs(math.log10(config["lr"]) + 1.0) / 3.0) * epoch / (epoch + 1.0)


def trained(c, name, epochs=9):
    """Start a trial, train it until the verdict is to stop, and return its epochs."""
    trial = c.begin(name)
    for epoch in range(1, epochs + 1):
        if c.report(name, value(trial.config, epoch), epoch).stops:
            break
    c.end(name)
    return epoch


def curves(c):
    return [(r.config, list(r.values), r.status) for r in c.study.trials]


@pytest.mark.parametrize(
    "policy", [Hyperband(), pytest.param(BOBOS(initial=2), marks=pytest.mark.slow)], ids=lambda p: type(p).__name__
)
def test_it_decides_as_a_loop_over_the_same_study_that_pauses_nothing_at_first_and_saves_nothing_later(policy):
    c, plain, declined = conductor(policy), conductor(policy).study, None
    for k in range(12):
        trained(c, f"t{k}")
    for _, trial in zip(range(12), plain, strict=False):
        while (epoch := trial.epoch + 1) <= 9:
            verdict = trial.report(value(trial.config, epoch))
            if verdict.action is Action.PAUSE and declined in (None, trial.id):
                declined = trial.id
                trial.decline_pause()
            elif verdict.stops:
                break
        trial.finish()
    assert curves(c) == curves(Conductor(plain))
    assert any(status == "stopped" or status == "paused" for _, _, status in curves(c))
    assert c.reasons.keys() <= c.numbers.keys()


def test_random_numbers_of_the_process_that_only_judges_are_not_taken_for_those_of_a_training(caplog):
    caplog.set_level("INFO", "haltune")
    problem = Problem(SPACE, Maximize("acc"), max_epochs=9)
    c = Conductor(Study(problem, Hyperband(), seed=0, budget=UNLIMITED), pauses=True)
    for k in range(30):
        if not isinstance(trial := c.begin(f"t{k}"), Finish):
            for epoch in range(int(trial.epoch) + 1, 10):
                random.random()  # as a scheduler may
                if c.report(f"t{k}", value(trial.config, epoch), epoch).stops:
                    break
            c.end(f"t{k}")
    assert any(r.attempt > 1 for r in c.study.trials)
    assert "random state" not in caplog.text


def test_a_run_that_is_paused_and_resumed_is_a_further_trial_there():
    c, k = conductor(Hyperband()), 0
    while not isinstance(c.begin(f"t{k}"), Finish):
        trained(c, f"t{k}")
        k += 1
    again = [name for name, number in c.numbers.items() if list(c.numbers.values()).count(number) > 1]
    assert again
    assert max(r.attempt for r in c.study.trials) > 1


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"accuracy": 0.5, "epoch": 1}, "A trial ended, but none of its results has a number 'acc'.*has 'accuracy'"),
        ({"acc": 0.5, "step": 1}, "Results without a number 'epoch' are ignored.*has 'acc', 'step'.*time_attr="),
        ({"acc": 0.5, "epoch": 0}, "Results with epoch=0 are ignored, because epochs count from 1"),
        ({"loss": 0.5, "epoch": 1}, None),  # before the first evaluation
    ],
)  # fmt: skip
def test_results_that_never_have_the_metric_or_an_epoch_are_named_once(result, said):
    c = conductor(RandomSearch())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("a", "b"):
            c.begin(name)
            assert c.read(name, result, "epoch", lambda key: False) is None
            if not said:
                c.report(name, **c.read(name, {"acc": 0.5, "epoch": 2}, "epoch", lambda key: False))
            c.end(name)
    texts = [str(w.message) for w in caught]
    assert len(texts) == bool(said)
    assert not said or re.search(said, texts[0])


def test_what_is_reported_twice_late_or_beyond_the_horizon_changes_nothing():
    c = conductor(RandomSearch(), epochs=3)
    c.begin("a")
    assert not c.report("a", 0.1, 1).stops
    c.report("a", 0.9, 1)  # as a trial that continued from an older checkpoint does
    assert not c.report("unknown", 0.5, 1).stops
    for epoch in (2, 3):
        c.report("a", 0.2, epoch)
    with pytest.warns(HaltuneWarning, match="max_epochs=4 or more"):
        c.report("a", 0.3, 4)
    c.end("a")
    assert not c.report("a", 0.5, 3).stops
    c.end("a")
    assert curves(c) == [({"lr": c.study.trials[0].config["lr"]}, [0.1, 0.2, 0.2], "completed")]


def test_the_end_of_a_trial_is_sent():
    c = conductor(RandomSearch())
    for name in ("failed", "silent", "cut", "alone"):
        c.begin(name)
        if name != "silent":
            c.report(name, 0.5, 1)
    c.end("failed", "it broke")
    c.end("silent")
    c.end("cut", cut=True)
    c.end("alone")
    records = [c.study.trials[c.numbers[name]] for name in c.numbers]
    assert [r.status for r in records] == ["failed", "failed", "stopped", "completed"]
    assert [r.error for r in records[:2]] == ["it broke", "ended without a report of the metric"]


def test_a_long_epoch_renews_the_leases_of_all(tmp_path):
    ticks = iter(range(0, 100_000, 200))
    problem = Problem(SPACE, Maximize("acc"), max_epochs=9)
    with clocked(lambda: float(next(ticks))):
        study = Study(problem, RandomSearch(), tmp_path / "s.db", budget=UNLIMITED, verbose=0)
    c = Conductor(study)
    renewed = []
    for name in ("a", "b"):
        c.begin(name).heartbeat = lambda name=name: renewed.append(name)
    c.report("a", 0.1, 1)
    assert {"a", "b"} <= set(renewed)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_search_that_is_read_back_continues_where_it_was_and_decides_alike(kind, tmp_path):
    def made(name):
        return conductor(MultiFidelity(initial=3), None if kind == "memory" else tmp_path / f"{name}.db", seed=3)

    whole = made("whole")
    for k in range(10):
        trained(whole, f"t{k}")
    c = made("broken")
    for k in range(5):
        trained(c, f"t{k}")
    trial = c.begin("t5")
    c.report("t5", value(trial.config, 1), 1)
    state = state_of(c)
    assert json.loads(json.dumps(state, allow_nan=False)) == state
    assert ("events" in state) == (kind == "memory")
    del c, trial
    back = conductor_of(state)
    assert set(back.held) == {"t5"}
    (trial,) = back.held.values()
    assert (trial.attempt, trial.epoch) == (whole.study.trials[trial.id].attempt, 1)
    for epoch in range(1, 10):  # the other tuner starts it again: its first epoch is known
        if back.report("t5", value(trial.config, epoch), epoch).stops:
            break
    back.end("t5")
    for k in range(6, 10):
        trained(back, f"t{k}")
    assert curves(back) == curves(whole)
    assert (back.numbers, back.reasons) == (whole.numbers, whole.reasons)


def test_trials_that_started_after_the_state_was_written_are_offered_again(tmp_path):
    c = conductor(RandomSearch(), tmp_path / "s.db")
    kept = c.begin("a").config
    state = state_of(c)
    lost = c.begin("b").config
    trained(c, "c")
    back = conductor_of(state)
    assert {name: trial.config for name, trial in back.held.items()} == {"a": kept}
    assert back.begin("d").config == lost
    trained(back, "e")
    assert [r.status for r in back.study.trials] == ["running", "running", "completed", "completed"]


def test_a_trial_that_the_other_tuner_does_not_know_extends_the_budget_once(tmp_path):
    c = conductor(RandomSearch(), tmp_path / "s.db", trials=5)
    trained(c, "a")
    state = state_of(c)
    trained(c, "b")
    budgets = []
    for _ in range(3):
        back = conductor_of(state)
        budgets.append(back.study.budget.trials)
        state = state_of(back)
    assert budgets == [6, 6, 6]


@pytest.mark.parametrize("ends", [False, True])
def test_a_trial_that_was_stopped_after_the_state_was_written_stops_again(tmp_path, ends):
    c = conductor(RandomSearch(), tmp_path / "s.db")
    c.begin("a")
    c.report("a", 0.5, 1)
    state = state_of(c)
    c.report("a", math.nan, 2)
    assert c.report("a", math.nan, 3).stops
    if ends:
        c.end("a")
    back = conductor_of(state)
    assert back.report("a", math.nan, 2).stops
    back.end("a")
    (record,) = back.study.trials
    assert (record.status, list(record.epochs)) == ("stopped", [1, 2, 3])
    assert back.reasons == c.reasons


@pytest.mark.parametrize("later", [False, True])
def test_a_trial_that_kept_training_instead_of_pausing_does_so_when_it_is_read_back(later, tmp_path):
    policy = PausesAt(1, at=(2,))
    c = conductor(policy, tmp_path / "s.db")
    c.begin("a")
    c.report("a", 0.1, 1)
    before = state_of(c)
    assert not c.report("a", 0.2, 2).stops
    back = conductor_of(state_of(c) if later else before, policy=policy)
    assert [back.report("a", 0.1 * e, e).action for e in (1, 2, 3)] == [Action.CONTINUE] * 3
    assert (back.declined, back.reasons) == (0, {})


HERE = str(Path(__file__).parent)
BEGUN = """
import json, sys
from haltune.tuners import state_of
sys.path[:0] = sys.argv[2:]
from test_conductor import RandomSearch, conductor
c = conductor(RandomSearch(), sys.argv[1])
c.begin("a")
c.report("a", 0.1, 1)
print(json.dumps(state_of(c)), flush=True)
"""


def test_no_other_process_takes_trials_of_a_search_that_was_read_back_after_its_process_had_ended(tmp_path):
    begun = [sys.executable, "-W", "ignore", "-c", BEGUN, str(tmp_path / "s.db"), HERE, *sys.path]
    back = conductor_of(json.loads(subprocess.run(begun, check=True, capture_output=True).stdout))
    (first,) = back.study.trials
    assert back.begin("b").config != first.config  # its trial a is not lost
    other = conductor(RandomSearch(), tmp_path / "s.db")
    assert other.begin("c").id == 2  # also before the first report
    assert not back.report("a", 0.2, 2).stops
    assert [back.report(name, 0.3, 3).stops for name in ("a", "b")] == [False, False]
    assert [t.attempt for t in back.study.trials] == [1, 1, 1]


# Where the other library is not installed, its bridge says what to install


BRIDGES = [
    ("ray_tune", "HaltuneSearch", "ray", "Ray Tune", "ray-tune"),
    ("syne_tune", "HaltuneScheduler", "syne_tune", "Syne Tune", "syne-tune"),
    ("keras_tuner", "Tuner", "keras_tuner", "Keras Tuner", "keras-tuner"),
    ("optuna", "HaltunePruner", "optuna", "Optuna", "optuna"),
]
CODE = f"""
import sys
sys.modules |= dict.fromkeys({[library for _, _, library, _, _ in BRIDGES]!r})
import haltune
for bridge, name in {[(bridge, name) for bridge, name, *_ in BRIDGES]!r}:
    try:
        getattr(getattr(haltune, bridge), name)
    except ImportError as error:
        print(error)
"""


def test_a_library_that_is_missing_is_named_with_what_to_type():
    done = subprocess.run([sys.executable, "-P", "-c", CODE], capture_output=True, text=True, check=True)
    expected = [f"haltune.{bridge} needs {called}: {installing(extra)}" for bridge, _, _, called, extra in BRIDGES]
    assert done.stdout.splitlines() == expected
