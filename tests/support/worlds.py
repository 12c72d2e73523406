"""Worlds to search in: deterministic learning curves, every policy in a quick form, and stores that die."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from curves import accuracy

import haltune
import haltune.policies as of
from haltune import Budget, Choice, Constraint, Finish, Float, Int, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.log.events import Event
from haltune.policies.several_goals import SeveralGoals
from haltune.store.base import Lease, Release
from haltune.store.memory import MemoryStore
from haltune.study import replica

EPOCHS = 6


@cache
def quick() -> haltune.policies.OptimalStopping:
    """Solve 6 epochs at 2 or 3, and 4, as scaled from 51."""
    return haltune.policies.OptimalStopping(paths=2000, first=20, resolve_at=(30,))


@cache
def earlier() -> dict[str, Any]:
    """Return the log's copy of a prior study of `SPACE` whose early epochs predict nothing."""
    runs = [
        {
            "config": {"lr": 0.8 ** (i + 1), "layers": 1 + i % 4, "kernel": "rbf"},
            "epochs": [1, 3, 6],
            "targets": [-1 - math.sin(37 * i), -1 - math.sin(51 * i), -abs(i - 15) / 15],
        }
        for i in range(30)
    ]
    return {"name": "earlier", "horizon": 6, "trials": 40, "runs": runs}


# policies are imported when they are made: processes that tests start import these worlds for one of them
POLICIES: dict[str, Callable[[], Any]] = {
    "random": lambda: of.RandomSearch(trials=5),
    "gpucb": lambda: of.GPUCB(initial=2, refit_every=2),
    "autobct": lambda: of.AutoBCT(gamma=1e-3, min_trainings=40),
    "halting-autobct": lambda: of.Halting(of.AutoBCT(gamma=1e-3, initial=1, min_trainings=40), quick()),
    "ei": lambda: of.EI(initial=3),
    "ei-per-cost": lambda: of.EI(cost="per", initial=3),
    "ei-cooled": lambda: of.EI(cost="cooled", initial=3),
    "rollout": lambda: of.Rollout(initial=3, points=24),
    "rollout-3": lambda: of.Rollout(3, 0.9, "terminate", initial=3, paths=8, points=16),
    "truvar": lambda: of.TruVaR(initial=2, representers=32),
    "truvar-level-set": lambda: of.TruVaR(
        threshold=0.7,
        initial=2,
        representers=32,
        cost_model="gp",
        levels=[haltune.policies.Level("quick", 0.01), haltune.policies.Level("careful", 1e-3, 4)],
    ),
    "truvar-grid": lambda: of.TruVaR(
        grid=3, kernel="se", noise=1e-4, initial=1, monotone=True, anticipate=True, candidates=20, cost=moving
    ),
    "level-set-search": lambda: of.TruVaR(0.7, rule="gchk", initial=2, representers=32),
    "bobos": lambda: of.BOBOS(initial=2, refit_every=2, stopping=quick()),
    "bobos-faithful": lambda: of.BOBOS(
        initial=2, stopping=haltune.policies.OptimalStopping(mode="faithful", paths=2000, first=20), kappa=math.inf
    ),
    "halting-random": lambda: of.Halting(of.RandomSearch(trials=5), quick()),
    "halting-audit": lambda: of.Halting(of.RandomSearch(trials=5), quick(), audit=0.6),
    "bobos-audit": lambda: of.BOBOS(initial=2, refit_every=2, stopping=quick(), audit=0.6),
    "halving": lambda: of.SuccessiveHalving(n=5, eta=2, rounds=9),
    "hyperband": lambda: of.Hyperband(eta=2, rounds=9),
    "hyperband-retrains": lambda: of.Hyperband(eta=2, rounds=9, resume=False, sampler="lhs"),
    "hyperband-seconds": lambda: of.Hyperband(4.0, eta=2, rounds=None, resource="seconds"),
    "hyperband-samples": lambda: of.Hyperband(4, eta=2, rounds=None, resource="samples"),
    "hyperband-gp": lambda: of.Hyperband(eta=2, rounds=9, sampler=of.GPUCB(initial=2)),
    "hyperband-rollout": lambda: of.Hyperband(eta=2, rounds=9, sampler=of.Rollout(1, initial=2, points=16)),
    "hyperband-growing": lambda: of.Hyperband(eta=2, schedule="growing", sampler="sobol"),
    "asha": lambda: of.Hyperband(eta=2, rounds=9, brackets="most_exploratory", asynchronous=True),
    "asha-stopping": lambda: of.SuccessiveHalving(n=5, eta=2, rounds=9, asynchronous="stop"),
    "infinite-hyperband": lambda: of.InfiniteHyperband(),
    "ladder": lambda: of.Ladder(2, 2, 2, min_trials_per_rung=2),
    "multifidelity": lambda: of.MultiFidelity(4, 1.0, 2, 2, min_trials_per_rung=2, candidates=24),
    "multifidelity-taught": lambda: of.MultiFidelity(
        4, 1.0, 2, 2, min_trials_per_rung=2, candidates=24, learn_from=[earlier()]
    ),
    "halting-ladder": lambda: of.Halting(of.Ladder(2, 2, 2, min_trials_per_rung=2), quick()),
    "halting-hyperband": lambda: of.Halting(of.Hyperband(eta=2, rounds=9), quick()),
    "halting-gpucb": lambda: of.Halting(of.GPUCB(initial=2), quick(), kappa=2.0, epoch_cost="seconds"),
}


# policies that search for several goals, and within a constraint; laws that set a problem of one goal hold them to that
SEVERAL: dict[str, Callable[[], Any]] = {
    "several-multifidelity": lambda: SeveralGoals(of.MultiFidelity(4, 1.0, 2, 2, min_trials_per_rung=2, candidates=24)),
    "several-halting": lambda: SeveralGoals(of.Halting(of.GPUCB(initial=2), quick())),
}
LAWFUL = POLICIES | SEVERAL


def moving(config: dict[str, Any], previous: dict[str, Any] | None) -> float:
    """A cost that depends on what was trained before."""
    return 1.0 + abs(config.get("layers", 1) - (previous or config).get("layers", 1))


ONE_AT_A_TIME = {"autobct", "halting-autobct"}  # free workers wait while a training runs

SPACE = Space(
    {
        "lr": Float(1e-4, 1.0, log=True),
        "layers": Int(1, 4),
        "kernel": Choice(["rbf", "poly"]),
        "degree": Int(2, 4, when={"kernel": "poly"}),
    }
)


def problem(epochs: int = EPOCHS, space: Space = SPACE, bounded: bool = True) -> Problem:
    return Problem(space, Maximize("acc", (0, 1) if bounded else None), epochs)


def several(epochs: int = EPOCHS) -> Problem:
    """Two goals, one without bounds, and a constraint that one configuration in four breaks."""
    goals = [Maximize("acc", (0, 1)), Minimize("ms")]
    return Problem(SPACE, goals, epochs, constraints=[Constraint("params", at_most=3.5)])


def problem_for(policy: Any) -> Problem:
    """Return the default problem of a policy: several goals if it can."""
    while policy is not None:
        if isinstance(policy, SeveralGoals):
            return several()
        policy = getattr(policy, "policy", None)
    return problem()


def told(trial: Trial, value: float) -> Any:
    """Return a value as it is reported; with several goals, all of them."""
    if not trial.measures.others:
        return value
    layers = trial.config.get("layers", 1)
    return {trial.goal.metric: value, "ms": 3.0 * layers**1.5 + trial.config["lr"], "params": layers}


def train(trial: Trial, value: Callable[[dict[str, Any], float], float] = accuracy) -> None:
    """One attempt, epoch by epoch."""
    with trial:
        for epoch in trial.epochs():
            trial.report(told(trial, value(trial.config, epoch)), seconds=1.0 + trial.id % 3)


def search(study: Study, value: Callable[[dict[str, Any], float], float] = accuracy) -> Study:
    """Train until the search is over."""
    for trial in study:
        train(trial, value)
    return study


def small_study(policy: Any, store: Any = None, seed: int = 7, trials: int = 5, **options: Any) -> Study:
    """A study of a few trials that no policy can make endless."""
    the_problem = options.pop("problem", None) or problem_for(policy)
    budget = options.pop("budget", Budget(trials=trials))
    return Study(the_problem, policy, store, seed=seed, budget=budget, **options)


def begun(study: Study) -> Trial:
    """Its next trial."""
    trial = study.ask()
    assert isinstance(trial, Trial), trial
    return trial


def ending(study: Study) -> tuple[Any, ...]:
    """Return the results of a search that a crash must not change."""
    trials = [(dict(t.config), list(t.epochs), list(t.values), t.status) for t in study.trials]
    answer = study.ask()
    assert isinstance(answer, Finish)
    return trials, study.pareto_front(), answer.reason


class Crash(BaseException):
    """The process is gone: no handler of Exception may see it."""


class MortalStore(MemoryStore):
    """A memory store that dies at its `life`-th append, before or after writing, and stays dead."""

    def __init__(self, life: int, after: bool, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.life, self.after, self.dead = life, after, False

    def append(
        self, name: str, events: Sequence[Event], *, seen: int, about: int | None, lease: Lease | Release | None = None
    ) -> int:
        if self.dead:
            raise Crash
        self.life -= 1
        if self.life > 0 or self.after:
            position = super().append(name, events, seen=seen, about=about, lease=lease)
        if self.life <= 0:
            self.dead = True
            raise Crash
        return position

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        if self.dead:
            raise Crash
        return super().read(name, start, stop)

    def revive(self) -> None:
        """Return the state of the next process: the same log and leases, and no study."""
        self.dead, self.life = False, 10**9
        replica._of_this_process.clear()


class Clock:
    """A clock that only tests advance."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Ticks:
    """The monotonic clock of a store's clock: both advance together, unless the store's jumps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ahead = 0.0  # seconds of its own

    def __call__(self) -> float:
        return self._clock.now + self.ahead

    def sleep(self, seconds: float) -> None:
        """The machine sleeps, or the store's clock is set: it jumps, and this one does not."""
        self._clock.now += seconds
        self.ahead -= seconds
