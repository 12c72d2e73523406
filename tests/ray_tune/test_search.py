"""HaltuneSearch and HaltuneScheduler by the calls that Tune makes: one study or two, curves with holes, restoring."""

import math
import pickle
from types import SimpleNamespace

import pytest
from tuned import accuracy, driven

tune = pytest.importorskip("ray.tune", reason="Ray Tune is not installed")

import numpy as np  # noqa: E402
from ray.tune.search import ConcurrencyLimiter, Repeater  # noqa: E402

from haltune import Choice, Float, Int, Space, Study  # noqa: E402  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput, InvalidSpace  # noqa: E402
from haltune.policies import MultiFidelity, RandomSearch  # noqa: E402
from haltune.ray_tune import HaltuneScheduler, HaltuneSearch, fixed, nested_config, space_of  # noqa: E402  # noqa: E402
from haltune.tuners import UNLIMITED  # noqa: E402

SPACE = {"lr": Float(0.001, 0.3, log=True)}
FIRST = MultiFidelity(initial=4)


def search(**options):
    return HaltuneSearch(SPACE, "acc", "max", **{"max_epochs": 9, "seed": 0, "policy": FIRST} | options)


def lengths(trained):
    return [len(values) for _, values in trained.values()]


def test_search_and_scheduler_are_one_study_that_decides_as_a_loop_of_haltunes_that_cannot_pause():
    s = search()
    trained = driven(s, HaltuneScheduler(), trials=14, at_once=1)
    plain = Study(SPACE, s.study.problem.goal, max_epochs=9, seed=0, policy=FIRST, budget=UNLIMITED, verbose=0)
    seen = []
    for _, trial in zip(range(14), plain, strict=False):
        seen.append((trial.config, []))
        while trial.epoch < 9 and not (trial.verdict and trial.verdict.stops):
            trial.report(accuracy(trial.config, trial.epoch + 1))
            if trial.id == 0:
                trial.decline_pause()
        trial.finish()
    assert [config for config, _ in trained.values()] == [config for config, _ in seen]
    assert [list(r.values) for r in s.study.trials] == [list(r.values) for r in plain.trials]
    assert min(lengths(trained)) < 9 == max(lengths(trained))


def test_a_scheduler_alone_stops_by_optimal_stopping_and_says_why():
    names = iter(range(10))
    other = SimpleNamespace(
        suggest=lambda name: {"lr": (0.1, 0.1, 0.09, 0.3, 0.29, 0.05, 0.28, 0.3, 0.25, 0.27)[next(names)]},
        on_trial_result=lambda *a: None, on_trial_complete=lambda *a: None, FINISHED="FINISHED",
    )  # fmt: skip
    scheduler = HaltuneScheduler(12, metric="acc", mode="max")
    trained = driven(other, scheduler, trials=10, epochs=12)
    stopped = {name for name, (_, values) in trained.items() if len(values) < 12}
    assert stopped
    assert stopped == scheduler.reasons.keys()
    assert all("beats" in reason for reason in scheduler.reasons.values())
    assert not {trained[name][0]["lr"] for name in stopped} & {0.1, 0.09}
    assert len(scheduler.study.trials) == 10
    assert f"{len(stopped)} trials" in scheduler.debug_string()


def test_no_trial_is_stopped_before_min_epochs_of_the_search_or_of_a_scheduler_alone():
    s = search(min_epochs=4)
    trained = lengths(driven(s, HaltuneScheduler(), trials=14, at_once=1))
    assert 4 <= min(trained) < 9
    alone = HaltuneScheduler(9, min_epochs=3, metric="acc", mode="max")
    for epoch in (1, 2, 3):  # two epochs that are not finite end a trial, but not before min_epochs
        result = {"acc": math.nan, "training_iteration": epoch}
        assert alone.on_trial_result(None, SimpleNamespace(trial_id="a"), result) == (
            alone.STOP if epoch == 3 else alone.CONTINUE
        )
    for kind in (search, lambda **options: HaltuneScheduler(9, **options)):
        with pytest.raises(InvalidInput, match="min_epochs=10 is above max_epochs=9"):
            kind(min_epochs=10)


def test_a_search_alone_stops_nothing_and_learns_from_what_another_stops():
    s = search()
    assert set(lengths(driven(s, trials=6))) == {9}
    assert [r.status for r in s.study.trials] == ["completed"] * 6
    driven(s, trials=2, epochs=3, start=6)  # the other scheduler's
    assert [(r.status, len(r.epochs)) for r in s.study.trials[6:]] == [("stopped", 3)] * 2
    assert len({r.config["lr"] for r in s.study.trials}) == 8


def test_a_trial_that_ends_by_itself_is_completed_if_no_other_scheduler_stops_trials():
    s = search()
    trained = driven(s, HaltuneScheduler(), trials=8, epochs=5, at_once=1)
    ended = [len(values) == 5 for _, values in trained.values()]
    assert any(ended)
    assert [r.status == "completed" for r in s.study.trials] == ended


def test_mode_says_what_is_better_and_the_seed_repeats_a_search():
    def loss(config, epoch):
        return -accuracy(config, epoch)

    def run(seed, mode, curve):
        s = HaltuneSearch(SPACE, "height", mode, max_epochs=9, seed=seed, policy=FIRST)
        driven(s, HaltuneScheduler(), curve=curve, trials=12, metric="height")
        return [(r.config, len(r.values)) for r in s.study.trials]

    ups, downs = run(1, "max", accuracy), run(1, "min", loss)
    assert ups == run(1, "max", accuracy)
    assert [config for config, _ in ups][:4] == [config for config, _ in downs][:4]  # drawn at random
    assert [n for _, n in ups] == [n for _, n in downs]
    assert ups != run(2, "max", accuracy)


@pytest.mark.parametrize("hole", [math.nan, "a text"])
def test_values_that_are_none_and_metrics_that_are_missing_stop_no_other_trial(hole):
    def curve(config, epoch):
        return hole if epoch % 3 == 1 and config["lr"] < 0.05 else accuracy(config, epoch)

    s = search()
    trained = driven(s, HaltuneScheduler(), trials=8, curve=curve)
    assert len(trained) == 8
    assert math.isfinite(s.study.best_value)
    s.on_trial_result("trial-0", {"other": 1})
    s.on_trial_complete("unknown", {"acc": 0.3, "training_iteration": 1})


def test_an_error_is_a_failure_and_others_continue():
    s, scheduler = search(), HaltuneScheduler(9, metric="acc", mode="max")
    trial = SimpleNamespace(trial_id="a", status="RUNNING", should_recover=lambda: False)
    for one in ("a", "b"):
        s.suggest(one)
    s.on_trial_complete("a", error=True)
    scheduler.on_trial_result(None, trial, {"acc": 0.1, "training_iteration": 1})
    scheduler.on_trial_error(None, trial)
    scheduler.on_trial_remove(None, SimpleNamespace(trial_id="never began"))
    assert [r.status for r in s.study.trials] == ["failed", "running"]
    assert [r.error for r in scheduler.study.trials] == ["the trial failed in Ray Tune"]
    assert s.suggest("b") == s.suggest("b")


def test_a_failed_trial_that_a_restored_tuner_trains_again_does_not_count_and_it_says_so():
    s = search()
    s.suggest("a")
    s.on_trial_result("a", {"acc": 0.1, "training_iteration": 1})
    s.on_trial_complete("a", error=True)
    with pytest.warns(HaltuneWarning, match="Trial a has failed, and trains again, so its results do not count"):
        s.on_trial_result("a", {"acc": 0.2, "training_iteration": 2})
    assert [list(r.epochs) for r in s.study.trials] == [[1]]


def test_a_trial_that_tune_tries_again_is_one_trial():
    scheduler = HaltuneScheduler(9, metric="acc", mode="max")
    trial = SimpleNamespace(trial_id="a", status="RUNNING", should_recover=lambda: True)
    for epoch in (1, 2, 2, 3):
        scheduler.on_trial_result(None, trial, {"acc": 0.1 * epoch, "training_iteration": epoch})
        if epoch == 2:
            scheduler.on_trial_error(None, trial)
    scheduler.on_trial_complete(None, trial, {"acc": 0.3, "training_iteration": 3})
    assert [(r.status, list(r.epochs)) for r in scheduler.study.trials] == [("completed", [1, 2, 3])]


def test_tunes_own_wrappers_limit_it_and_repeat_its_trials():
    limited = ConcurrencyLimiter(search(), 1)
    first = limited.suggest("a")
    assert limited.suggest("b") is None
    scheduler = HaltuneScheduler()
    trial, controller = (SimpleNamespace(trial_id="a"), SimpleNamespace(search_alg=SimpleNamespace(searcher=limited)))
    scheduler.on_trial_add(controller, trial)
    scheduler.on_trial_result(controller, trial, {"acc": 0.5, "training_iteration": 1})
    (record,) = limited.searcher.study.trials
    assert (record.config, list(record.values)) == (first, [0.5])
    repeated = Repeater(search(), repeat=2)
    for name in "ab":
        repeated.suggest(name)
    for name, value in (("a", 0.2), ("b", 0.4)):
        repeated.on_trial_complete(name, {"acc": value, "training_iteration": 9})
    (record,) = repeated.searcher.study.trials
    assert (list(record.epochs), list(record.values), record.status) == ([9], [pytest.approx(0.3)], "completed")


def test_a_search_that_is_saved_and_restored_continues_exactly(tmp_path):
    whole, broken = search(), search()
    for s in (whole, broken):
        driven(s, HaltuneScheduler(), trials=5)
        config = s.suggest("half")
        s.on_trial_result("half", {"acc": accuracy(config, 1), "training_iteration": 1})
    broken.save_to_dir(str(tmp_path), "now")
    assert [p.name for p in tmp_path.iterdir()] == ["searcher-state-now.json"]
    back = HaltuneSearch(max_epochs=9)
    back.restore_from_dir(str(tmp_path))
    copied = pickle.loads(pickle.dumps(broken))  # Tune pickles what it is given
    assert (back.metric, back.mode) == ("acc", "max")
    for s in (whole, back, copied):
        for epoch in range(1, 10):
            s.on_trial_result("half", {"acc": accuracy(config, epoch), "training_iteration": epoch})
        s.on_trial_complete("half", {"acc": accuracy(config, 9), "training_iteration": 9})
        driven(s, HaltuneScheduler(), trials=5, start=6)
    logs = [[(r.config, list(r.values), r.status) for r in s.study.trials] for s in (whole, back, copied)]
    assert logs[0] == logs[1] == logs[2]


def test_what_another_searcher_saved_is_not_unpickled(tmp_path):
    for content in (pickle.dumps({"held": {}}), b"[]"):
        (tmp_path / "state").write_bytes(content)
        with pytest.raises(InvalidInput, match=r"not a state of (haltune|HaltuneSearch)"):
            s = search()
            s.restore(str(tmp_path / "state"))
            s.study  # noqa: B018


def test_the_tuner_says_space_metric_and_number_of_samples():
    s = HaltuneSearch(max_epochs=9, seed=0)
    config = {"opt": {"lr": tune.loguniform(0.001, 0.3)}, "width": tune.randint(1, 9), "seed": 3}
    assert s.set_search_properties("acc", "max", config, num_samples=20)
    suggested = s.suggest("a")
    assert set(suggested) == {"opt", "width"}
    assert 1 <= suggested["width"] < 9
    assert s.study.budget.trials == 20
    given = HaltuneSearch({"lr": tune.loguniform(0.001, 0.3), "kind": "net"}, max_epochs=9)
    assert given.set_search_properties("acc", "max", {"seed": 3}, num_samples=-1)
    assert given.suggest("a")["kind"] == "net"
    assert not given.set_search_properties("acc", "max", config)  # Tune says then that there are two spaces


def test_epochs_are_counted_by_the_users_attribute_and_later_ones_are_reported():
    s = HaltuneSearch(SPACE, "acc", "max", max_epochs=2, time_attr="epoch", policy=RandomSearch())
    s.suggest("a")
    for epoch in (1, 2):
        s.on_trial_result(
            "a", {"acc": 0.5, "epoch": epoch, "training_iteration": 7 * epoch, "lr_now": 0.1, "done": False}
        )
    with pytest.warns(HaltuneWarning, match="max_epochs=3"):
        s.on_trial_complete("a", {"acc": 0.5, "epoch": 3})
    (record,) = s.study.trials
    assert (list(record.epochs), record.status) == ([1, 2], "completed")
    assert set(record.metrics) == {"lr_now"}


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: HaltuneSearch(max_epochs=0), InvalidInput, "max_epochs"),
        (lambda: HaltuneSearch(SPACE, "acc", "most", max_epochs=9), InvalidInput, "mode='max'"),
        (lambda: HaltuneSearch(SPACE, max_epochs=9).suggest("a"), InvalidInput, "name of one metric"),
        (lambda: HaltuneSearch(metric="acc", mode="max", max_epochs=9).suggest("a"), InvalidInput, "no space"),
        (lambda: HaltuneScheduler(metric="acc", mode="max").study, InvalidInput, "needs max_epochs="),
        (lambda: driven(search(), HaltuneScheduler(9)), InvalidInput, "Use HaltuneScheduler\\(\\)"),
        (lambda: driven(search(), HaltuneScheduler(time_attr="epoch")), InvalidInput, "pass them to HaltuneSearch"),
        (lambda: driven(search(), HaltuneScheduler(of="best", metric="acc", mode="max")), InvalidInput, "pass them"),
    ],
)  # fmt: skip
def test_what_cannot_be_searched_is_said(make, error, said):
    with pytest.raises(error, match=said):
        make()


# Ray Tune's domains as haltune's: what the one draws lies in the other, and what has no counterpart is named


SAME = [
    (tune.loguniform(1e-4, 1e-1), Float(1e-4, 1e-1, log=True)),
    (tune.quniform(0.0, 1.0, 0.1), Choice([k / 10 for k in range(11)], ordered=True)),
    (tune.randint(2, 9), Int(2, 8)),
    (tune.lograndint(2, 65), Int(2, 64, log=True)),
    (tune.qrandint(4, 9), Int(4, 9)),
    (tune.choice(["a", 3, None, True, [1, 2], (1, 3)]), Choice(["a", 3, None, True, [1, 2], (1, 3)])),
]


@pytest.mark.parametrize(("theirs", "ours"), SAME, ids=[str(ours) for _, ours in SAME])
def test_each_domain_has_its_counterpart_and_what_either_draws_lies_in_both(theirs, ours):
    space = space_of({"x": theirs})
    assert space == Space({"x": ours})
    drawn = [theirs.sample(random_state=seed) for seed in range(60)]
    for value in drawn:
        value = value.item() if hasattr(value, "item") else value
        space.canonical({"x": round(value, 9) if isinstance(value, float) else value})  # Tune's 0.6 is 0.6 + 1e-16
    values = [config["x"] for config in space.sample(200, np.random.default_rng(0))]
    if isinstance(ours, Choice):
        assert all(any(value == option and type(value) is type(option) for option in ours.options) for value in values)
    else:
        assert all(theirs.is_valid(value) for value in values)
    if isinstance(theirs.get_sampler(), type(tune.choice([1]).get_sampler())):
        assert {repr(value) for value in values} == {repr(value) for value in drawn}


def test_nested_dicts_are_named_by_their_path_and_nested_again():
    given = {"opt": {"lr": tune.uniform(0, 1), "name": "adam"}, "depth": tune.randint(1, 4), "seed": 3}
    space = space_of(given)
    assert sorted(space.names) == ["depth", "opt/lr"]
    assert fixed(given) == {"opt": {"name": "adam"}, "seed": 3}
    assert nested_config({"opt/lr": 0.5, "depth": 2}) == {"opt": {"lr": 0.5}, "depth": 2}
    assert space_of({"seed": 3}) is None


@pytest.mark.parametrize(
    ("domain", "said"),
    [
        (tune.grid_search([1, 2]), "tune.grid_search of x trains every configuration.*tune.choice"),
        (tune.randn(0, 1), "Tune's parameter 'x', Normal.*haltune supports tune.uniform"),
        (tune.quniform(0, 1, 1e-5), "more than 1000 steps"),
        (tune.choice([tune.uniform(0, 1), 3]), "a choice among ranges"),
        (tune.choice([{"a": 1}, {"a": 2}]), "JSON cannot store"),
    ],
)
def test_what_has_no_counterpart_is_named_with_what_has(domain, said):
    with pytest.raises(InvalidSpace, match=said):
        space_of({"x": domain})
