"""Workers that cost different prices: what a search pays, and what it does without a price."""

from __future__ import annotations

import pytest
from whims import PAUSE, PROBLEM, Whims
from worlds import Clock, search, small_study, train

from haltune import Budget, Finish, Study, Trial
from haltune.errors import InvalidInput
from haltune.log.events import Resumed, Started, from_json, to_json
from haltune.log.history import History
from haltune.policies import MultiFidelity, RandomSearch, Rollout
from haltune.report import summary
from haltune.store.memory import MemoryStore
from haltune.study.messages import standing_line

HOUR = 3600.0


def worker(store: MemoryStore, own: float | None, **budget: float) -> Study:
    study = Study(PROBLEM, Whims(), store, seed=0, budget=Budget(**budget), verbose=0)  # type: ignore[arg-type]
    study.session.set_price(own)
    return study


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


def deciding(study: Study) -> list[float]:
    """Hours of the decisions that started or resumed attempts, in order: they take real time, and are paid for."""
    return [e.deciding / HOUR for e in study.events() if isinstance(e, Started | Resumed)]


def test_a_search_pays_each_worker_its_own_price_and_others_that_of_the_budget() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    workers = [worker(store, price, money=100, price=4.0) for price in (1.0, 0.0, None)]
    trials = [asked(w) for w in workers]
    clock.now += HOUR
    for trial in trials:
        trial.report(0.5, seconds=HOUR)
    workers[0].sync()
    first, _, third = deciding(workers[0])
    decisions = 1.0 * first + 4.0 * third
    assert workers[0].spent.money(4.0) == pytest.approx(1.0 + 0.0 + 4.0 + decisions)
    clock.now += HOUR
    for trial in trials:
        trial.report(0.6, seconds=HOUR)
    trials[1].finish()
    workers[0].sync()
    assert workers[0].spent.money(4.0) == pytest.approx(2 * (1.0 + 0.0 + 4.0) + decisions)


def test_a_trial_that_another_worker_resumes_costs_what_each_of_them_costs() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    cheap, expensive = worker(store, 1.0, money=100), worker(store, 10.0, money=100)
    trial = asked(cheap)
    clock.now += HOUR
    trial.report(PAUSE, seconds=HOUR)
    trial.finish()
    again = asked(expensive)
    assert (again.id, again.attempt) == (0, 2)
    clock.now += HOUR / 2
    again.report(0.5, epoch=2, seconds=HOUR / 2)
    expensive.sync()
    first, second = deciding(expensive)
    assert expensive.spent.money(None) == pytest.approx(1.0 * (1.0 + first) + 10.0 * (0.5 + second))
    prices = [e.price for e in expensive.events() if isinstance(e, Started | Resumed)]
    assert prices == [1.0, 10.0]


def test_the_money_of_all_workers_ends_the_search_at_the_next_report() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    workers = [worker(store, price, money=5.5) for price in (1.0, 4.0)]
    trials = [asked(w) for w in workers]
    clock.now += HOUR
    assert not any(trial.report(0.5, seconds=HOUR).stops for trial in trials)
    clock.now += HOUR / 4
    verdicts = [trial.report(0.6, seconds=HOUR / 4) for trial in trials]
    assert verdicts[1].stops
    assert "the budget of 5.5 of money is spent" in verdicts[1].reason
    for trial in trials:
        trial.finish()
    assert isinstance(workers[0].ask(), Finish)


def test_a_worker_reads_its_price_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALTUNE_PRICE", "2.10")
    study = small_study(RandomSearch(), budget="$50 and 2 trials")
    train(asked(study))
    study.optimize(lambda trial: train(trial), price=3)
    assert [e.price for e in study.events() if isinstance(e, Started)] == [2.1, 3.0]


@pytest.mark.parametrize("given", ["cheap", "-1", "nan", "2.10/h"])
def test_a_price_that_is_none_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("HALTUNE_PRICE", given)
    with pytest.raises(InvalidInput, match="HALTUNE_PRICE"):
        small_study(RandomSearch())


def test_a_budget_of_money_without_a_price_is_refused_before_the_first_trial() -> None:
    study = small_study(RandomSearch(), budget="$50 or 3 trials")
    with pytest.raises(InvalidInput, match=r"at 2\.10/h.*HALTUNE_PRICE"):
        study.ask()
    assert study.history.position == 1
    study.budget = "$50 at 2/h or 3 trials"
    train(asked(study))


def test_prices_are_read_back() -> None:
    store = MemoryStore()
    plain = search(small_study(RandomSearch(), store, trials=2))
    plain.budget = Budget(trials=4)
    plain.session.set_price(0)
    search(plain)
    written = [to_json(e) for e in plain.events()]
    assert [body["price"] for body in written if "price" in body] == [None, None, 0.0, 0.0]
    assert [from_json(body) for body in written] == list(plain.events())
    history = History(plain.problem)
    for body in written:
        history.apply(from_json(body))
    assert history.spent == plain.spent


def test_money_is_shown_where_it_is_spent() -> None:
    clock = Clock()
    study = worker(MemoryStore(clock), 2.0, money=8.0)
    trial = asked(study)
    clock.now += HOUR
    trial.report(0.5, seconds=HOUR)
    trial.finish()
    assert "2 of 8 of money" in standing_line(study.history, study.budget)
    assert "1 epoch trained in 1 h, for 2 of money" in summary(study)


@pytest.mark.parametrize(
    "policy", [pytest.param(Rollout(1, initial=1, points=8), marks=pytest.mark.slow), MultiFidelity(initial=2)]
)
def test_policies_plan_with_the_prices_of_the_workers(policy: object) -> None:
    """At twice the price, the same money trains as much as half of it."""

    def trained(own: float, **limits: float) -> list[float]:
        clock = Clock()
        study = small_study(policy, MemoryStore(clock), budget=Budget(**limits), verbose=0)  # type: ignore[arg-type]
        study.session.set_price(own)
        for trial in study:
            for epoch in trial.epochs():
                clock.now += 10.0
                trial.report(0.1 * epoch, seconds=10.0)
        return [t.epoch for t in study.trials]

    assert trained(2.0, money=0.16) == trained(1.0, money=0.08, price=99.0)
    assert 12 <= sum(trained(1.0, money=0.08)) <= 30  # of 288 seconds
