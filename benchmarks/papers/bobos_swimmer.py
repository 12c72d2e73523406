"""Figure 3 of BO-BOS (Dai et al. 2019): a linear policy for MuJoCo's swimmer, best return by steps in the environment.

    python benchmarks/papers/bobos_swimmer.py [--seeds 3] [--trainings 16] [--methods NAME ...] [--keep FILE] [--svg]
    python benchmarks/papers/bobos_swimmer.py --curves 60
    python benchmarks/papers/bobos_swimmer.py --stops

The state has 8 numbers, an action 2, a policy is a matrix of 16 in [-1, 1] (the paper names no range). A trial is
five episodes of 1,000 steps side by side, each from a start of its own, an epoch 1,000 / N of their steps, and its
value the mean discounted return so far: the reward of an epoch is clipped to [0, 0.4] a step, weighs as
gamma^(n - 1), and the sum is scaled to [0, 1]. What is drawn is the return without clipping and discounting, the mean
of the five episodes.

Methods: BO-BOS as the paper sets it (K1 = 100 / 0.95^(t-1)) with N = 50 and gamma = 0.9, 0.75 and 1, and with
N = 100 and gamma = 0.9; GP-UCB with gamma = 0.9 and 1; Hyperband, random search and BO-BOS as it comes, with N = 50
and gamma = 0.9. --curves: figure 11 in numbers, for so many random policies the shape of their curves by gamma, and how
far off the paper's exponential decay predicts the ends. --stops: after how many steps the paper's rule stops policies
of constant reward, by N, gamma and c; without MuJoCo. Needed: MuJoCo, and the XML of Gymnasium (haltune's extra
`bench` has both, or pip install 'gymnasium[mujoco]'). Steps are those of Swimmer-v5, taken without its Python. A seed
takes about three minutes.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from bobos_searches import SHARES, Trainings, along, counted, mean, over_seeds, parser, row, ticks
from paired import differences

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.log.policy import Policy
from haltune.models.curves import conditional_paths
from haltune.policies import BOBOS, GPUCB, Hyperband, OptimalStopping, RandomSearch
from haltune.policies.bobos.optimal_stopping import DecisionTable

STEPS, EPISODES, PART = 1_000, 5, 10  # steps are kept in parts of so many
FRAMES, CONTROL = 4, 1e-4  # simulated a step; what a unit of squared action costs
TOP = 0.4  # reward a step above which none counts: the best linear policies known come close to it
SPACE = Space({f"w{i}{j}": Float(-1.0, 1.0) for i in range(8) for j in range(2)})


@dataclass(frozen=True)
class Method:
    """A policy, and the problem as it sees it."""

    policy: Policy[Any]
    epochs: int = 50  # N
    gamma: float = 0.9

    @property
    def problem(self) -> Problem:
        """The discounted return."""
        return Problem(SPACE, Maximize("discounted return", bounds=(0, 1)), self.epochs)


PAPER = BOBOS(mode="faithful", growth=1 / 0.95)
METHODS = {
    "BO-BOS, N 50, gamma 0.9": Method(PAPER),
    "BO-BOS, N 50, gamma 0.75": Method(PAPER, gamma=0.75),
    "BO-BOS, N 100, gamma 0.9": Method(PAPER, 100),
    "BO-BOS, N 50, gamma 1": Method(PAPER, gamma=1.0),
    "GP-UCB, gamma 0.9": Method(GPUCB()),
    "GP-UCB, gamma 1": Method(GPUCB(), gamma=1.0),
    "Hyperband": Method(Hyperband(eta=3)),
    "random search": Method(RandomSearch()),
    "BO-BOS, robust": Method(BOBOS()),
}


@dataclass
class Run:
    """One search: after each epoch the steps so far, and the best return of a trial."""

    steps: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    trials: int = 0
    full: int = 0


def swims(seed: int) -> Any:
    """Rewards of the five episodes, of so many steps each, policy by policy."""
    import gymnasium
    import mujoco

    xml = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / "swimmer.xml"
    alt = mujoco.MjSpec.from_file(str(xml))
    alt.memory = 2**17  # bytes of a world, which has 13 MB otherwise
    model = alt.compile()

    def rewards(config: dict[str, float]) -> Iterator[list[float]]:
        policy = np.array(list(config.values())).reshape(8, 2)
        rng = np.random.default_rng([seed, zlib.crc32(policy.tobytes())])
        worlds = [mujoco.MjData(model) for _ in range(EPISODES)]
        for world in worlds:
            world.qpos[:] += rng.uniform(-0.1, 0.1, model.nq)
            world.qvel[:] += rng.uniform(-0.1, 0.1, model.nv)
            mujoco.mj_forward(model, world)
        while True:
            yield [sum(step(world, policy) for _ in range(PART)) for world in worlds]

    def step(world: Any, policy: np.ndarray) -> float:
        action = world.qpos[2:] @ policy[:3] + world.qvel @ policy[3:]
        np.minimum(np.maximum(action, -1.0, out=action), 1.0, out=action)  # np.clip takes as long as a step
        before = float(world.qpos[0])
        world.ctrl[:] = action
        mujoco.mj_step(model, world, nstep=FRAMES)
        return (float(world.qpos[0]) - before) / (FRAMES * model.opt.timestep) - CONTROL * float(action @ action)

    return rewards


def search(method: Method, seed: int, trainings: int, swum: Trainings) -> Run:
    """One search through a study, until its steps are spent."""
    n = method.epochs
    each, parts = STEPS // n, STEPS // n // PART
    weights = method.gamma ** np.arange(n)
    study = Study(method.problem, method.policy, seed=seed, budget=Budget(epochs=trainings * n), verbose=0)
    run, returns = Run(), {}
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                gained = np.sum(
                    [swum.at(trial.config, (epoch - 1) * parts + part + 1)[0] for part in range(parts)], axis=0
                )
                value, total = returns.get(trial.id, (0.0, 0.0))
                value += weights[epoch - 1] * float(np.clip(gained / (TOP * each), 0.0, 1.0).mean())
                total += float(gained.mean())
                returns[trial.id] = value, total
                run.steps.append((len(run.steps) + 1.0) * each * EPISODES)
                run.best.append(max(total, run.best[-1]) if run.best else total)
                if trial.report(min(1.0, value / weights.sum())).resumable:
                    trial.checkpointed(f"swim-{trial.id}")
    run.trials, run.full = len(study.trials), sum(t.epoch == n for t in study.trials)
    return run


def stops() -> None:
    """Print after how many steps the paper's rule stops a policy of constant reward, by N, gamma and c.

    The incumbent's reward is constant, too. Without condition C2, and with 4,000 simulated curves in 40 cells.
    """
    shares = (0.25, 0.5, 0.75, 0.9)
    print(
        f"steps until the rule stops a policy\n{'reward / incumbent':26s}" + "".join(f"{share:8g}" for share in shares)
    )
    for n, gamma, c in ((50, 0.9, 1.0), (100, 0.9, 1.0), (100, 0.9**0.5, 1.0), (100, 0.9, 0.5), (50, 0.75, 1.0)):
        weights, rule = gamma ** np.arange(n), OptimalStopping("faithful", paths=4_000, cells=40, c=c)
        rise = 0.5 * np.cumsum(weights) / weights.sum()
        at = [stopped(1.0 - share * rise, rule) * STEPS // n for share in shares]
        print(f"{f'N {n}, gamma {gamma:.3g}, c {c:g}':26s}" + "".join(f"{steps:8d}" for steps in at), flush=True)


def stopped(errors: np.ndarray, rule: OptimalStopping) -> int:
    """Return the epoch at which a curve is stopped that has to beat an error of 0.5, or its last."""

    @cache
    def table(at: int) -> DecisionTable:
        return rule.solve_at(errors[:at], len(errors), 0.5, rule.losses(), np.random.default_rng(at))

    for epoch in range(1, len(errors)):
        decision, _ = rule.decide(errors[:epoch], len(errors), table)
        if decision is not None and decision.d == "stop":
            return epoch
    return len(errors)


def shapes(count: int) -> None:
    """Print the share of a curve's rise in the first half of the epochs, and the error of its predicted end."""
    configs, rewards = SPACE.sample(count, np.random.default_rng(0)), swims(0)
    parts = np.array([[*islice(rewards(config), STEPS // PART)] for config in configs])  # (count, parts, episodes)
    gained = parts.reshape(count, 50, -1, EPISODES).sum(axis=2)
    found = {}
    for gamma in (0.9, 0.75, 1.0):
        weights = gamma ** np.arange(50)
        shares = np.clip(gained * 50 / (TOP * STEPS), 0.0, 1.0).mean(axis=2) * weights / weights.sum()
        curves = np.cumsum(shares, axis=1)
        rise = (curves[:, 24] - curves[:, 0]) / np.maximum(curves[:, -1] - curves[:, 0], 1e-9)
        paths = [conditional_paths(1 - curve[:8], 50, 500, np.random.default_rng(1)).values for curve in curves]
        off = np.abs([1 - path[-1].mean() - curve[-1] for path, curve in zip(paths, curves, strict=True)])
        found[f"gamma {gamma:g}"] = np.column_stack([rise, off])
    print(
        f"{count} random policies: share of the rise in the first half, and error of the end predicted after 8 epochs"
    )
    for name, values in found.items():
        print(row(name, values))
    differences(found, "gamma 0.9", ["rise", "error"])


def report(runs: dict[str, list[Run]], trainings: int) -> None:
    """Print the table, and what the first method has more than the others, seed by seed."""
    total, base = trainings * STEPS * EPISODES, next(iter(runs))
    marks = np.array([total * share for share in SHARES])
    print(
        f"best return so far, mean of {counted(len(runs[base]))} ± standard error, by steps of {EPISODES} episodes\n"
        f"{'':26s}{''.join(f'{mark / 1000:15g}k' for mark in marks)}  trials  in full"
    )
    found = {}
    for name, of in runs.items():
        found[name] = along([run.steps for run in of], [run.best for run in of], marks)
        trials, full = np.mean([(run.trials, run.full) for run in of], axis=0)
        print(f"{row(name, found[name])}{trials:8.1f}{full:9.1f}")
    differences(found, base, [f"{mark / 1000:g}k" for mark in marks])


def draw(runs: dict[str, list[Run]], trainings: int) -> None:
    """Figure 3."""
    from drawn import Sheet, legend, means, panel, write

    total = trainings * STEPS * EPISODES
    at = np.linspace(0, total, 100)[1:]
    curves = {n: along([run.steps for run in of], [run.best for run in of], at) for n, of in runs.items()}
    top = 20.0 * np.ceil(1.05 * max(mean(values)[0][-1] for values in curves.values()) / 20)
    alt = "Best-found return of the swimmer by steps in the environment, for each method."
    sheet = Sheet("bobos_swimmer", alt, height=420)
    made = panel(sheet, 56, 680, (0, total / 1000), (0, top), rows=3)
    title = f"Swimmer with a linear policy, {counted(len(next(iter(runs.values()))))}"
    made.axes(title, "thousand steps", "best-found return", ticks(0, total / 1000), ticks(0, top))
    means(made, at / 1000, curves)
    legend(sheet, curves)
    write(sheet)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser(__doc__, seeds=3, trainings=16, methods=METHODS)
    options.add_argument("--curves", type=int, help="random policies: their curves alone, no search")
    options.add_argument("--stops", action="store_true", help="when the rule stops constant rewards, no search")
    given = options.parse_args(arguments)
    if given.stops:
        stops()
        return
    try:
        import gymnasium  # noqa: F401
        import mujoco  # noqa: F401
    except ImportError:
        sys.exit("MuJoCo and its swimmer are needed: pip install 'gymnasium[mujoco]'")
    if given.curves:
        shapes(given.curves)
        return

    def found(name: str, seed: int, swum: Trainings) -> dict[str, Any]:
        return asdict(search(METHODS[name], seed, given.trainings, swum))

    every = over_seeds(given, swims, found)
    runs = {name: [Run(**one) for one in of] for name, of in every.items()}
    report(runs, given.trainings)
    if given.svg:
        draw(runs, given.trainings)


if __name__ == "__main__":
    main()
