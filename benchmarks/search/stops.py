"""Stops in whole searches: which were wrong, what they saved, and how often the stated probabilities come true.

    python benchmarks/search/stops.py --data DIR [--families all] [--instances 0-4] [--methods haltune,median] [--fresh]
    python benchmarks/search/stops.py --families drawn [--instances 0-29] [--trials 30]
    python benchmarks/search/stops.py --table [--families drawn] [--fresh] [--svg]

The instances are those of live.py, or of drawn.py. Each search starts so many trials. A trial that it stops continues
outside it, so that its end is known. All searches with Optuna's random sampler and one seed
train the same trials. A number behind a method is its setting: K1, or the percentile of PercentilePruner.

A trial wins if it ends better than the best complete trial before it. `wrong`: stopped trials that would have won, as a
share of all that win. `foresight`: the epochs saved, as a share of those that stopping each losing trial after one
epoch saves. `lost`: the share of searches in which the best trial of all was stopped, `regret` what it costs: the
distance of the best complete trial to it, over the distance of the median trial. Values are as shown by the trainings,
noise included. `error`: the mean distance between stated probabilities and observed shares, over bins of them, with a
weight of 1 / horizon for each, so that trainings of many epochs do not decide alone; the rule predicts whether a trial
ends above what every earlier one had reached, stopped ones included. Errors of `wrong`
and `foresight` are over searches. Results are lines of JSON in --into.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import json
import math
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from lived import Said, binned, calibration
from numpy.typing import NDArray

from haltune import Budget, Problem, Study, Trial
from haltune.optuna import HaltunePruner
from haltune.policies import BOBOS
from haltune.policies.bobos.optimal_stopping import OptimalStopping
from haltune.ranks import alone

Array = NDArray[np.float64]
METHODS = (
    "haltune", "bobos", "median", "hyperband", "haltune-tpe", "median-tpe", "hyperband-tpe"
)  # fmt: skip
TAKES = "haltune, haltune-tpe, bobos and percentile take a number: haltune:500"


@dataclass
class Life:
    """One search: where its trials were stopped, and which probabilities of a win it stated."""

    trials: int
    seed: int
    stops: list[int] = field(default_factory=list)  # epochs; the horizon for a complete trial
    said: list[tuple[int, float]] = field(default_factory=list)  # trial, probability
    deciding: float = 0.0


Search = Generator[dict[str, Any], Array, None]  # yields a configuration, is sent what its full training shows


def of_policy(policy: Any, instance: Any, life: Life) -> Search:
    """A study of haltune."""
    problem = Problem(instance.space, instance.goal, instance.horizon)
    with alone():  # no other rank listens
        study = Study(problem, policy, seed=life.seed, budget=Budget(trials=life.trials), verbose=0)
    while isinstance(trial := study.ask(), Trial):
        curve = yield dict(trial.config)
        for epoch, value in enumerate(curve.tolist(), 1):
            verdict = trial.report(value, epoch)
            if "p_win" in verdict.evidence:
                life.said.append((trial.id, verdict.evidence["p_win"]))
            if verdict.stops:
                break
        trial.finish()
        life.stops.append(epoch)


def of_pruner(sampler: str, pruner: Callable[[], Any], instance: Any, life: Life) -> Search:
    """A study of Optuna. HaltunePruner writes its last decision on the trial."""
    import optuna
    from live_trainings.peers import finite, suggested

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers: Any = optuna.samplers
    sign = instance.goal.sign
    study = optuna.create_study(
        sampler=(samplers.TPESampler if sampler == "tpe" else samplers.RandomSampler)(seed=life.seed),
        pruner=pruner(), direction="maximize" if sign > 0 else "minimize",
        study_name=f"{instance.family} {instance.number} {life.seed}",  # by which HyperbandPruner chooses brackets
    )  # fmt: skip
    for number in range(life.trials):
        trial = study.ask()
        curve = yield suggested(trial, instance)
        values, reason = [finite(instance, value) for value in curve.tolist()], None
        for epoch, value in enumerate(values, 1):
            trial.report(value, epoch)
            pruned = epoch < len(values) and trial.should_prune()
            told = study.get_trials(deepcopy=False)[number].user_attrs
            if told.get("haltune:reason") != reason and told.get("haltune:p_beats") is not None:
                life.said.append((number, told["haltune:p_beats"]))
            reason = told.get("haltune:reason")
            if pruned:
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, sign * max(sign * v for v in values) if instance.of == "best" else values[-1])
        life.stops.append(epoch)


def search(method: str, instance: Any, life: Life) -> Search:
    """A search by its name."""
    import optuna

    name, _, number = method.partition(":")
    if name == "bobos":
        return of_policy(BOBOS(K1=float(number)) if number else BOBOS(), instance, life)
    name, _, sampler = name.partition("-")
    settings = OptimalStopping(K1=float(number)) if number else None
    pruners: dict[str, Callable[[], Any]] = {
        "haltune": lambda: HaltunePruner(instance.horizon, seed=life.seed, of=instance.of, stopping=settings),
        "median": optuna.pruners.MedianPruner,
        "percentile": lambda: optuna.pruners.PercentilePruner(float(number)),
        "hyperband": lambda: optuna.pruners.HyperbandPruner(1, instance.horizon, 3),
    }
    return of_pruner(sampler, pruners[name], instance, life)


# -- running ------------------------------------------------------------------------------------------------------


def run(instance: Any, asked: list[str], trials: int, seed: int) -> list[dict[str, Any]]:
    """Run searches of one instance trial by trial, each trained in full. Returns what is written down."""
    lives = [Life(trials, seed) for _ in asked]
    searches = [search(method, instance, life) for method, life in zip(asked, lives, strict=True)]
    trials_of: list[list[Array]] = [[] for _ in asked]
    known: dict[str, Array] = {}
    curves: list[Array | None] = [None] * len(asked)
    for number in range(trials + 1):
        configs = {}
        for at, (each, curve) in enumerate(zip(searches, curves, strict=True)):
            began = time.process_time()
            with suppress(StopIteration):
                configs[at] = each.send(curve)  # type: ignore[arg-type]
            lives[at].deciding += time.process_time() - began
        if number == trials:
            break
        keys = {at: json.dumps([number, config], default=str, sort_keys=True) for at, config in configs.items()}
        new = {keys[at]: config for at, config in configs.items() if keys[at] not in known}
        known |= dict(zip(new, trained(instance, list(new.values()), seed, number), strict=True))
        for at, key in keys.items():
            curves[at] = known[key]
            trials_of[at].append(known[key])
    return [
        {
            "family": instance.family, "instance": instance.number, "method": method, "seed": seed, "trials": trials,
            "horizon": instance.horizon, "sign": instance.goal.sign, "of": instance.of, "dim": len(instance.domains),
            "stops": life.stops, "said": [(trial, float(f"{p:.4g}")) for trial, p in life.said],
            "ends": numbers(counting(instance, curve) for curve in of),
            "had": numbers(counting(instance, curve[:stop]) for curve, stop in zip(of, life.stops, strict=True)),
            "deciding": round(life.deciding, 2),
        }
        for method, life, of in zip(asked, lives, trials_of, strict=True)
    ]  # fmt: skip


def numbers(values: Iterable[float]) -> list[float | None]:
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values]


def counting(instance: Any, curve: Array) -> float:
    """The value of a full training; not a number if it diverged."""
    known = curve[np.isfinite(curve)]
    if instance.of == "last":
        return float(curve[-1])
    return float(instance.goal.sign * (instance.goal.sign * known).max()) if len(known) else math.nan


def trained(instance: Any, configs: list[dict[str, Any]], seed: int, trial: int) -> list[Array]:
    """What full trainings of configurations show, all with the seed of this trial."""
    from live_trainings.runs import training_seed

    training = training_seed(instance, seed, trial)
    if instance.family == "drawn":
        return [instance.curve(config, training)[0] for config in configs]
    from live_trainings.engine import Slots

    if not configs:
        return []
    slots = Slots(instance, len(configs))
    for slot, config in enumerate(configs):
        slots.start(slot, config, training)
    return list(np.array([slots.train()[0] for _ in range(instance.horizon)]).T)


# -- the table ----------------------------------------------------------------------------------------------------


@dataclass
class Counts:
    """One search."""

    wins: int
    wrong: int
    saved: int
    epochs: int
    foresight: int
    lost: bool
    regret: float
    said: list[Said]
    deciding: float


def counted(line: dict[str, Any]) -> Counts:
    """Follow a search trial by trial."""
    horizon, stops = line["horizon"], line["stops"]
    ends, had = ([-math.inf if v is None else line["sign"] * v for v in line[which]] for which in ("ends", "had"))
    best, reached, wins, bars, beats = -math.inf, -math.inf, [], [], []
    for end, at_stop, stop in zip(ends, had, stops, strict=True):
        bars.append(best)
        wins.append(math.isfinite(best) and end > best)
        beats.append(end > reached)
        best, reached = max(best, end if stop == horizon else best), max(reached, at_stop)
    losing = [math.isfinite(bar) and not win for bar, win in zip(bars, wins, strict=True)]
    middle, top = float(np.median(ends)), max(ends)
    known = [e for e in ends if math.isfinite(e)]
    middle = middle if math.isfinite(middle) else min(known, default=top)
    return Counts(
        sum(wins), sum(w and s < horizon for w, s in zip(wins, stops, strict=True)),
        sum(horizon - s for s in stops), horizon * len(stops), (horizon - 1) * sum(losing),
        best < top, (top - best) / (top - middle) if top > middle else 0.0,
        [(p, beats[trial], 1.0 / horizon) for trial, p in line["said"]], line["deciding"],
    )  # fmt: skip


def ratio(over: list[float], under: list[float]) -> tuple[float, float]:
    """A ratio of sums in percent, and its error over searches."""
    a, b = np.array(over, dtype=float), np.array(under, dtype=float)
    share = a.sum() / max(b.sum(), 1e-9)
    error = math.sqrt(((a - share * b) ** 2).sum() * len(a) / max(len(a) - 1, 1)) / max(b.sum(), 1e-9)
    return 100 * share, 100 * error


def read(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def grouped(lines: list[dict[str, Any]]) -> dict[str, list[tuple[str, Counts]]]:
    found: dict[str, list[tuple[str, Counts]]] = defaultdict(list)
    for line in lines:
        found[line["method"]].append((line["family"], counted(line)))
    return found


def row(name: str, of: list[Counts]) -> str:
    wrong, wrong_error = ratio([c.wrong for c in of], [c.wins for c in of])
    share, share_error = ratio([c.saved for c in of], [c.foresight for c in of])
    regrets = [c.regret for c in of]
    error = float(np.std(regrets, ddof=1)) / math.sqrt(len(of)) if len(of) > 1 else math.nan
    said = [pair for c in of for pair in c.said]
    stated = f"{binned(said)[0]:7.3f}" if said else "       "
    return (
        f"{name:20s}{len(of):4d}{sum(c.wrong for c in of):5d} of{sum(c.wins for c in of):4d}"
        f"{wrong:7.1f} ± {wrong_error:3.1f}{share:8.1f} ± {share_error:3.1f}"
        f"{100 * np.mean([c.saved / c.epochs for c in of]):7.1f}{100 * np.mean([c.lost for c in of]):6.0f}"
        f"{np.mean(regrets):8.3f} ± {error:.3f}{stated}{np.mean([c.deciding for c in of]):8.1f}"
    )


def table(lines: list[dict[str, Any]]) -> str:
    head = (
        f"{'method':20s}{'n':>4s}{'wrong':>12s}{'%':>13s}{'foresight %':>14s}{'saved':>8s}{'lost':>6s}{'regret':>16s}"
        f"{'error':>7s}{'CPU s':>8s}"
    )
    out, methods = [head], grouped(lines)
    out += [row(name, [c for _, c in of]) for name, of in methods.items()]
    families = sorted({line["family"] for line in lines})
    for family in families if len(families) > 1 else ():
        out += ["", family]
        for name, of in methods.items():
            if own := [c for f, c in of if f == family]:
                out.append(row(name, own))
    for name, of in methods.items():
        if said := [pair for _, c in of for pair in c.said]:
            out.append(f"\n{name}\n{calibration(said)}")
    return "\n".join(out)


def draw(lines: list[dict[str, Any]]) -> None:
    """Write the figure of the page: wrong stops over the share of foresight, a curve for each setting."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "papers"))
    from drawn import Sheet, legend, looks, panel, write

    curves: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    names = {"haltune": "HaltunePruner", "percentile": "PercentilePruner", "median": "MedianPruner",
             "hyperband": "HyperbandPruner", "bobos": "BOBOS()"}  # fmt: skip
    for method, of in grouped(lines).items():
        name, _, number = method.partition(":")
        if name in names:
            counts = [c for _, c in of]
            x = ratio([c.saved for c in counts], [c.foresight for c in counts])[0]
            y = ratio([c.wrong for c in counts], [c.wins for c in counts])[0]
            curves[names[name]].append((x, y, number))
    what = "Wrong stops over saved epochs"
    sheet = Sheet("stops", what)
    high = 10 * math.ceil(max(y for points in curves.values() for _, y, _ in points) / 10)
    where = panel(sheet, 56, 690, (0.0, 100.0), (0.0, high), rows=2)
    where.axes(
        what, "share of foresight, %", "wrong stops, %", [0, 20, 40, 60, 80, 100], np.linspace(0, high, 6).tolist()
    )
    for name, look in looks(curves).items():
        points = sorted(curves[name])
        where.line([x for x, _, _ in points], [y for _, y, _ in points], look["name"], 2, look["dash"])
        for x, y, number in points:
            where.dots([x], [y], look["name"])
            if number:
                where.note(x, y, f" {number}")
    legend(sheet, curves)
    write(sheet)


# -- the command --------------------------------------------------------------------------------------------------


def main() -> None:
    from live import FRESH, numbers

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of spambase.csv and mnist_10k.npz")
    parser.add_argument("--families", default="all", help="of live.py, or drawn")
    parser.add_argument("--instances", type=numbers, default=numbers("0-4"))
    parser.add_argument("--methods", default=",".join(METHODS), help=TAKES)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", type=Path, default=Path("build/stops"))
    parser.add_argument("--fresh", action="store_true", help=f"instances from {FRESH} on, once, for the page")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--svg", action="store_true", help="with --table: write the figure of the page")
    args = parser.parse_args()
    lines = read(args.into)
    if args.table:
        families = args.families.split(",")
        chosen = [
            x for x in lines
            if (x["instance"] >= FRESH) == args.fresh and x["trials"] == args.trials
            and (x["family"] in families if args.families != "all" else x["family"] != "drawn")
        ]  # fmt: skip
        print(table(chosen))
        if args.svg:
            draw(chosen)
        return
    if max(args.instances) >= FRESH and not args.fresh:
        parser.error(f"instances from {FRESH} on are for the page: nothing may be chosen on them. Pass --fresh")
    warnings.simplefilter("ignore")
    done = {(x["family"], x["instance"], x["method"], x["seed"], x["trials"]) for x in lines}
    args.into.mkdir(parents=True, exist_ok=True)
    for number in args.instances:
        for family, make in instances(args).items():
            asked = [m for m in args.methods.split(",") if (family, number, m, args.seed, args.trials) not in done]
            if not asked:
                continue
            began = time.process_time()
            found = run(make(number), asked, args.trials, args.seed)
            with (args.into / f"{family}.jsonl").open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in found)
            took = time.process_time() - began
            deciding = " ".join(f"{line['method']} {line['deciding']:.1f}" for line in found)
            print(f"{family} {number}: {took:.1f} CPU s; of deciding: {deciding}", flush=True)


def instances(args: argparse.Namespace) -> dict[str, Callable[[int], Any]]:
    """How an instance of each family is made."""
    if args.families == "drawn":
        from drawn import Drawn

        return {"drawn": Drawn}
    import torch
    from live_trainings.families import FAMILIES

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    names = list(FAMILIES) if args.families == "all" else args.families.split(",")
    return {name: lambda number, name=name: FAMILIES[name](number, args.data) for name in names}


if __name__ == "__main__":
    main()
