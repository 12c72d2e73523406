"""The searches by name: haltune's policies, the baselines, and peers, with the rows published for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import peer_optuna
import peer_syne_tune
import peers_asked
from recorded import Meter, Task, search

from haltune.policies import BOBOS, GPUCB, Halting, Hyperband, Ladder, MultiFidelity, RandomSearch, SuccessiveHalving
from haltune.policies.hyperband.brackets import Bracket, Plan, Rung, hyperband

BUDGETS = (2, 5, 10, 20, 40)  # full trainings
GOAL = (0.40, 0.20, 0.08, 0.025, 0.010)
Published = tuple[float | None, ...]


@dataclass(frozen=True)
class Method:
    """One search: trains on a meter until that is full."""

    run: Callable[[Meter, int, bool], object]  # meter, seed, snapped (see recorded.search)
    published: Published | None = None  # mean regret at BUDGETS
    seeds: int = 20  # of the published row
    trains: int = 1  # epochs for each one that is counted


def of(policy: Callable[[], Any], published: Published | None = None, trains: int = 1) -> Method:
    """A policy of haltune."""

    def run(meter: Meter, seed: int, snapped: bool) -> object:
        return search(policy(), meter, seed, snapped)

    return Method(run, published, trains=trains)


def syne_tune(name: str, published: Published | None, seeds: int) -> Method:
    """One of Syne Tune's schedulers."""
    return Method(lambda meter, seed, snapped: peer_syne_tune.run(name, meter, seed), published, seeds)


@dataclass(frozen=True)
class TextbookHyperband(Hyperband):
    """Hyperband with r_i rounded to the nearest epoch, as in the published row; haltune's own rounds down."""

    def _plan(self, horizon: int | None) -> Plan:
        exact = hyperband(horizon or 1, self.eta, whole=False).brackets
        rounded = [tuple(Rung(r.n, float(max(1, round(r.resource)))) for r in b.rungs) for b in exact]
        return Plan(cycle(Bracket(rungs, len(rungs) - 1) for rungs in rounded))


METHODS: dict[str, Method] = {
    "random": of(RandomSearch, (0.850, 0.691, 0.551, 0.417, 0.281)),
    "random_2x": of(RandomSearch, trains=2),  # with twice the budget
    "hyperband": of(lambda: Hyperband(rounds=None)),
    "hyperband_textbook": of(lambda: TextbookHyperband(rounds=None), (0.481, 0.317, 0.272, 0.185, 0.134)),
    "halving27": of(lambda: SuccessiveHalving(n=27, rounds=None), (0.391, 0.249, 0.154, 0.079, 0.027)),
    "halving81": of(lambda: SuccessiveHalving(n=81, rounds=None), (0.611, 0.222, 0.146, 0.068, 0.020)),
    "asha_promote": of(lambda: SuccessiveHalving(n=10**6, rounds=None, asynchronous=True)),
    "asha_stop": of(lambda: SuccessiveHalving(n=10**6, rounds=None, asynchronous="stop")),
    "multifidelity": of(MultiFidelity),  # the default
    "gpucb": of(GPUCB),
    "bobos": of(BOBOS),
    "halting_random": of(lambda: Halting(RandomSearch())),
    "ladder": of(Ladder),
    "optuna": Method(peer_optuna.run, (0.786, 0.556, 0.438, 0.222, 0.052), seeds=2),
    "optuna_median": Method(partial(peer_optuna.run, pruner="median")),
    "smac": Method(peers_asked.smac, (0.526, 0.339, 0.284, 0.139, None), seeds=4),
    "dehb": Method(peers_asked.dehb),
    "priorband": Method(peers_asked.priorband),
    **{
        f"syne_tune_{name}": syne_tune(name, published, seeds)
        for name, published, seeds in (
            ("asha", (0.775, 0.482, 0.229, 0.124, 0.034), 20),
            ("asha_promotion", (0.601, 0.397, 0.213, 0.111, 0.046), 10),
            ("hyperband", (0.589, 0.209, 0.169, 0.134, 0.080), 10),
            ("mobster", (0.524, 0.383, 0.315, 0.105, None), 1),
            ("dyhpo", (0.303, 0.127, 0.074, 0.023, 0.007), 7),
            ("asha_cqr", None, 20),
            ("asha_bore", None, 20),
            ("bohb", None, 20),
        )
    },
}


def after(
    method: Method,
    task: Task,
    seed: int,
    snapped: bool,
    budgets: tuple[int, ...],
    timed: bool = False,
    workers: int = 1,
) -> list[float]:
    """The regrets of one search, at each budget of full trainings, in epochs or in mean seconds."""
    training = method.trains * Meter(task, 0, timed).training
    meter = Meter(task, max(budgets) * training, timed, workers)
    method.run(meter, 100 * seed + task.number, snapped)
    return [float(r) for r in meter.after([b * training for b in budgets])]
