"""Live trainings (benchmarks/search/live.py): a slot trains as if it were alone, and resumes as if it never paused."""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from documents import ROOT

pytest.importorskip("torch")
pytest.importorskip("sklearn")
sys.path.append(str(ROOT / "benchmarks/search"))

from live_trainings.control import Control
from live_trainings.engine import Slots
from live_trainings.families import FAMILIES
from live_trainings.instances import Instance
from live_trainings.peers import PEERS, finite
from live_trainings.results import regrets
from live_trainings.runs import together
from live_trainings.searches import OWN, Limits, Search, Turn


def short(family: str, searched: str = "lr") -> Instance:
    """The first instance with few steps that needs no data folder and searches a hyperparameter."""
    for number in range(100):
        try:
            instance = FAMILIES[family](number, "/nowhere")
        except SystemExit:  # its table is not scikit-learn's
            continue
        if instance.steps <= 12 and searched in instance.domains:
            return instance
    raise AssertionError(f"all instances of {family} need a data folder or many steps")


def test_an_instance_for_the_page_needs_its_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # as the script sets it, so that it is undone
    spec = importlib.util.spec_from_file_location("live_of_benchmarks", ROOT / "benchmarks/search/live.py")
    assert spec is not None
    assert spec.loader is not None
    live = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(live)
    monkeypatch.setattr(sys, "argv", ["live.py", "--families", "ranking", "--instances", "98-100"])
    with pytest.raises(SystemExit):
        live.main()
    assert "Pass --fresh" in capsys.readouterr().err


def tiny() -> Instance:
    """Three evaluations of two steps each."""
    instance = short("regression", searched="width")
    instance.horizon, instance.steps = 3, 2
    return instance


def filled(instance: Instance, count: int) -> tuple[Slots, list[dict]]:
    """Slots with a random configuration each."""
    configs = instance.space.sample(count + 1, np.random.default_rng(1))
    slots = Slots(instance, count)
    for slot in range(count):
        slots.start(slot, configs[slot], seed=slot)
    return slots, configs


@pytest.mark.parametrize("family", FAMILIES)
def test_a_slot_that_was_saved_and_loaded_equals_one_that_never_paused(family: str) -> None:
    instance = short(family)
    through, configs = filled(instance, 2)
    paused, _ = filled(instance, 2)
    values = [through.train()[0][0] for _ in range(3)]
    first = paused.train()[0][0]
    state = paused.save(0)
    paused.start(0, configs[2], seed=9)
    paused.train()
    paused.load(0, state)
    later = [paused.train()[0][0] for _ in range(2)]
    assert [first, *later] == pytest.approx(values, rel=0, abs=0, nan_ok=True)
    np.testing.assert_array_equal(paused.save(0).memory, through.save(0).memory)
    assert len({*values}) > 1 or math.isnan(values[0])  # it trained


@pytest.mark.parametrize("family", FAMILIES)
def test_a_slot_trains_the_same_beside_other_neighbours(family: str) -> None:
    instance = short(family)
    beside, configs = filled(instance, 3)
    alone, _ = filled(instance, 1)
    beside.start(1, {**configs[1], "lr": 1e30}, seed=1)  # diverges
    kept, single = beside.train()[1][0], alone.train()[1][0]
    assert kept == pytest.approx(single, rel=1e-4, nan_ok=True)
    np.testing.assert_allclose(beside.save(0).memory[0], alone.save(0).memory[0], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_instance_is_drawn_from_its_number_alone(family: str) -> None:
    one, again = short(family), None
    again = FAMILIES[family](one.number, "/nowhere")
    assert (one.space.parameters, one.fixed, one.horizon) == (again.space.parameters, again.fixed, again.horizon)
    config = one.space.sample(1, np.random.default_rng(0))[0]
    drawn = [i.weights(i.settings(config), np.random.default_rng(3)) for i in (one, again)]
    assert all(np.array_equal(drawn[0][name], drawn[1][name]) for name in drawn[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_cost_is_counted_in_mean_evaluations_and_grows_with_the_batch(family: str) -> None:
    instance = short(family)
    configs = instance.space.sample(300, np.random.default_rng(5))
    costs = np.array([instance.cost(config) for config in configs])
    assert costs.min() > 0
    assert costs.mean() == pytest.approx(1.0, rel=0.15)
    assert instance.cost({**configs[0], "batch": 12}) == pytest.approx(2 * instance.cost({**configs[0], "batch": 6}))


@pytest.mark.parametrize(
    "method", ["default", "optuna_tpe_median", "optuna_tpe_hyperband", "smac", "dehb", "syne_tune_asha"]
)
def test_a_search_stays_in_a_space_with_conditions_and_takes_values_that_are_not_numbers(method: str) -> None:
    instance = Control(15)
    assert any(domain.when for domain in instance.domains.values())
    try:
        search = (OWN | PEERS)[method](instance, Limits(3, False, 0))
    except ImportError as missing:
        pytest.skip(str(missing))
    turn, trials = next(search), set()
    for number in range(2 * instance.horizon):
        assert instance.space.contains(turn.config)
        trials.add(turn.trial)
        turn = search.send(math.nan if number % 7 == 0 else math.sin(number) ** 2)
    search.close()
    assert len(trials) > 1


def in_turn(instance: Instance, limits: Limits) -> Search:
    """Two trials, an evaluation each in turn."""
    for epoch in range(instance.horizon):
        for trial, config in enumerate(instance.space.sample(2, np.random.default_rng(0))):
            yield Turn(trial, config, epoch, keeps=True)


def one_by_one(instance: Instance, limits: Limits) -> Search:
    """The same, one after the other."""
    for trial, config in enumerate(instance.space.sample(2, np.random.default_rng(0))):
        for epoch in range(instance.horizon):
            yield Turn(trial, config, epoch)


def test_searches_that_pause_and_that_do_not_find_the_same() -> None:
    instance = tiny()
    turns, ones = together(instance, {"turns": in_turn, "ones": one_by_one}, [("turns", 0), ("ones", 0)], 2, False)
    assert turns.finals == ones.finals
    assert turns.shown[-1] == ones.shown[-1]
    assert len(turns.paid) == len(ones.paid) == 2 * instance.horizon


def test_where_the_last_epoch_counts_nothing_is_found_before_a_training_is_complete() -> None:
    instance = tiny()
    instance.of = "last"
    (seat,) = together(instance, {"turns": in_turn}, [("turns", 0)], 2, False)
    line = seat.line()
    assert line["true"][15] is None  # each had two evaluations
    assert line["true"][-1] == min(line["finals"])
    assert len(line["true"]) == 20


def test_a_search_by_cost_pays_the_cost_of_its_configurations() -> None:
    instance = tiny()
    (seat,) = together(instance, OWN, [("random", 0)], 2, True)
    assert seat.paid[-1] == pytest.approx(2 * instance.horizon, rel=0.4)
    assert len({round(price, 9) for price in np.diff(seat.paid)}) > 1


def test_regret_is_0_at_the_best_of_all_searches_and_1_at_the_median_of_random_search() -> None:
    def line(method: str, true: list[float | None], finals: list[float | None]) -> dict:
        return {"family": "f", "instance": 0, "method": method, "goal": "min", "true": true, "finals": finals}

    random = line("random", [None, 3.0, 3.0], [5.0, 3.0, None])
    found, left_out = regrets([random, line("other", [4.0, 2.0, 1.0], [1.0])])
    assert left_out == []
    np.testing.assert_allclose(found["random"]["f", 0], [1.0, 0.5, 0.5])
    np.testing.assert_allclose(found["other"]["f", 0], [0.75, 0.25, 0.0])
    assert regrets([line("other", [4.0], [])]) == ({}, ["f 0: random was not run"])


@pytest.fixture
def of_scripts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a script of benchmarks/search; it sets the numbers of threads, which is undone."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    pytest.importorskip("optuna")
    return importlib.import_module


def test_costs_of_a_drawn_instance_average_one_and_vary_up_to_tenfold(of_scripts: Callable[[str], Any]) -> None:
    instance = of_scripts("drawn").Drawn(3)
    costs = np.array([instance.cost(c) for c in instance.space.sample(2000, np.random.default_rng(1))])
    assert costs.mean() == pytest.approx(1.0, rel=0.05)
    assert 1.2 < costs.max() / costs.min() <= 10.0


def test_peers_are_told_what_a_drawn_share_shows(of_scripts: Callable[[str], Any]) -> None:
    instance = of_scripts("drawn").Drawn(1)
    assert instance.goal.sign > 0
    shown = np.concatenate([instance.curve(c, 0)[0] for c in instance.space.sample(50, np.random.default_rng(1))])
    told = [finite(instance, value) for value in shown]
    assert np.mean(told == shown) > 0.9
    assert np.ptp(told) > 0.1


def test_a_stop_is_wrong_if_the_trial_would_have_beaten_the_best_complete_one(of_scripts: Callable[[str], Any]) -> None:
    line = {
        "horizon": 10, "sign": 1.0, "stops": [10, 1, 10, 2, 10], "ends": [0.5, 0.9, 0.6, 0.4, 0.7],
        "had": [0.5, 0.1, 0.6, 0.3, 0.7], "said": [[1, 0.2], [3, 0.1]], "deciding": 0.0,
    }  # fmt: skip
    found = of_scripts("stops").counted(line)
    assert (found.wins, found.wrong, found.saved, found.epochs, found.foresight) == (3, 1, 17, 50, 9)
    assert found.lost
    assert found.regret == pytest.approx(2 / 3)
    assert found.said == [(0.2, True, 0.1), (0.1, False, 0.1)]  # a weight of 1 / horizon


def test_the_median_pruner_stops_what_the_percentile_50_stops(of_scripts: Callable[[str], Any]) -> None:
    instance = of_scripts("drawn").Drawn(3)
    median, percentile = of_scripts("stops").run(instance, ["median", "percentile:50"], trials=15, seed=0)
    assert median["stops"] == percentile["stops"]
    assert min(median["stops"]) < instance.horizon
    assert len(median["ends"]) == 15
