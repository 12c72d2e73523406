"""The table: normalised regrets, paired differences, and when a search reaches what another has at its end."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

BUDGETS = (2, 5, 10, 20)  # full trainings
TARGET = "optuna_tpe_median"
Key = tuple[str, int]  # family, instance


def regrets(lines: list[dict[str, Any]], value: str = "true") -> tuple[dict[str, dict[Key, np.ndarray]], list[str]]:
    """For each method and instance the curve of regrets, mean over seeds; and what was left out.

    0 is the best value seen by any search of the instance, 1 the median of random search's full trainings.
    """
    grouped: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        grouped[line["family"], line["instance"]].append(line)
    found: dict[str, dict[Key, np.ndarray]] = defaultdict(dict)
    left_out = []
    for key, of in sorted(grouped.items()):
        sign = -1.0 if of[0]["goal"] == "max" else 1.0

        def loss(values: Any, sign: float = sign) -> np.ndarray:
            return np.array([math.inf if v is None else sign * v for v in values])

        finals = [loss(line["finals"]) for line in of if line["method"].startswith("random")]
        best = min(loss(line[value]).min() for line in of)
        middle = float(np.median(np.concatenate(finals))) if finals else math.nan
        if not math.isfinite(middle):
            ends = np.concatenate([*finals, [math.inf]])
            middle = float(np.max(ends[np.isfinite(ends)], initial=-math.inf)) if finals else math.nan
        if not middle > best:
            left_out.append(f"{key[0]} {key[1]}: " + ("all values are equal" if finals else "random was not run"))
            continue
        curves = defaultdict(list)
        for line in of:
            curves[line["method"]].append(np.clip((loss(line[value]) - best) / (middle - best), 0.0, 1.0))
        for method, runs in curves.items():
            shortest = min(map(len, runs))
            found[method][key] = np.mean([run[:shortest] for run in runs], axis=0)
    return found, left_out


def table(lines: list[dict[str, Any]], against: str | None, value: str = "true") -> str:
    """All of it as text."""
    found, left_out = regrets(lines, value)
    out = [f"left out, {what}" for what in left_out]
    families = sorted({key[0] for of in found.values() for key in of})
    most = max((len(c) for of in found.values() for c in of.values()), default=0)
    budgets = [b for b in BUDGETS if 10 * b <= most]
    head = "".join(f"{f'after {b}':>16s}" for b in budgets)
    names = sorted(found, key=lambda m: np.mean([c[-1] for c in found[m].values()]))
    for family in families:
        out.append(f"\n{family:34s}{'n':>4s}{head}")
        for name in names:
            rows = of_keys(found[name], lambda key, family=family: key[0] == family)
            if len(rows):
                out.append(f"{name:34s}{len(rows):4d}{cells(rows, budgets)}")
    halves = {"even": lambda key: key[1] % 2 == 0, "odd": lambda key: key[1] % 2 == 1}
    out.append(f"\n{'mean of families':34s}{'n':>4s}{head}   reaches {TARGET}'s {most // 10} after")
    for name in names:
        when = reached(found, name)
        out.append(f"{name:34s}{len(found[name]):4d}{by_family(found[name], families, budgets)}   {when}")
        for half, chosen in halves.items():
            part = {key: c for key, c in found[name].items() if chosen(key)}
            if part:
                out.append(f"    {half:30s}{len(part):4d}{by_family(part, families, budgets)}")
    if against:
        out.append(f"\n{'minus ' + against + ', paired':34s}{'n':>4s}{head}")
        base = found.get(against, {})
        for name in names:
            both = {key: paired(c, base[key]) for key, c in found[name].items() if key in base}
            if name == against or not both:
                continue
            out.append(f"{name:34s}{len(both):4d}{by_family(both, families, budgets)}")
            for half, chosen in halves.items():
                part = {key: c for key, c in both.items() if chosen(key)}
                if part:
                    out.append(f"    {half:30s}{len(part):4d}{by_family(part, families, budgets)}")
            for family in families:
                rows = of_keys(both, lambda key, family=family: key[0] == family)
                if len(rows):
                    out.append(f"    {family:30s}{len(rows):4d}{cells(rows, budgets)}")
    out.append("\nCPU seconds of deciding, trials started, trained in full, evaluations: means over searches")
    for name in names:
        own = [line for line in lines if line["method"] == name]
        deciding, started, full, epochs = (
            np.mean([x[k] for x in own]) for k in ("deciding", "started", "full", "epochs")
        )
        out.append(f"{name:34s}{deciding:8.2f}{started:9.1f}{full:8.1f}{epochs:9.0f}")
    return "\n".join(out)


NAMES = {
    "default": "haltune, default search",
    "no_checkpoints": "the same without checkpoints",
    "optuna_tpe_median": "Optuna, TPE and MedianPruner",
    "optuna_tpe_hyperband": "Optuna, TPE and HyperbandPruner",
    "asha": "ASHA (haltune's)",
    "random": "random, in full",
}


def draw(lines: list[dict[str, Any]], value: str = "true") -> None:
    """Write the figure of the page: mean regrets over the instances that all searches of NAMES share."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "papers"))
    from drawn import Sheet, legend, means, panel, write

    found, _ = regrets(lines, value)
    shared = sorted(set.intersection(*(set(found[name]) for name in NAMES)))
    curves = {told: np.array([found[name][key] for key in shared]) for name, told in NAMES.items()}
    trainings = np.arange(1, min(c.shape[1] for c in curves.values()) + 1) / 10
    what = f"Mean regret of each search over trainings, {len(shared)} fresh instances"
    sheet = Sheet("live", what)
    where = panel(sheet, 56, 690, (0, float(trainings[-1])), (0.05, 1.0), log_y=True, rows=2)
    where.axes(what, "full trainings", "regret", np.linspace(0, trainings[-1], 5).tolist(), (0.05, 0.1, 0.2, 0.5, 1.0))
    means(where, trainings, curves)
    legend(sheet, curves)
    write(sheet)


def paired(curve: np.ndarray, base: np.ndarray) -> np.ndarray:
    shortest = min(len(curve), len(base))
    return curve[:shortest] - base[:shortest]


def of_keys(curves: dict[Key, np.ndarray], chosen: Any) -> np.ndarray:
    """(instances, points) cut to the shortest."""
    own = [c for key, c in curves.items() if chosen(key)]
    return np.array([c[: min(map(len, own))] for c in own])


def at(rows: np.ndarray, budget: int) -> np.ndarray:
    return rows[:, 10 * budget - 1] if rows.shape[1] >= 10 * budget else np.full(len(rows), np.nan)


def error(values: np.ndarray) -> float:
    """Standard error of the mean over instances."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def cells(rows: np.ndarray, budgets: list[int]) -> str:
    return "".join(f"{at(rows, b).mean():9.3f}±{error(at(rows, b)):.3f} " for b in budgets)


def by_family(curves: dict[Key, np.ndarray], families: list[str], budgets: list[int]) -> str:
    """The mean over families of their means, with the error that instances bring."""
    own = [of_keys(curves, lambda key, family=family: key[0] == family) for family in families]
    own = [rows for rows in own if len(rows)]
    text = ""
    for b in budgets:
        mean = np.mean([at(rows, b).mean() for rows in own])
        text += f"{mean:9.3f}±{math.sqrt(sum(error(at(rows, b)) ** 2 for rows in own)) / len(own):.3f} "
    return text


def reached(found: dict[str, dict[Key, np.ndarray]], name: str) -> str:
    """After how many trainings the mean curve is where the target's ends, over the instances of both."""
    base = found.get(TARGET, {})
    keys = [key for key in found[name] if key in base]
    if not keys:
        return "-"
    length = min(min(len(found[name][key]), len(base[key])) for key in keys)
    mean = np.concatenate([[1.0], np.mean([found[name][key][:length] for key in keys], axis=0)])
    level = float(np.mean([base[key][length - 1] for key in keys]))
    there = np.flatnonzero(mean <= level + 1e-12)
    if not len(there):
        return "never"
    n = int(there[0])
    above, below = mean[n - 1] if n else level, mean[n]
    return f"{(n - 1 + (above - level) / (above - below) if above > below else n) / 10:.1f}"
