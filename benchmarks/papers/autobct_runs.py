"""Shared parts of the AutoBCT experiments: a search as a table of its trainings, averages, and figures of posteriors.

A row is (h_n, t_n, posterior mean of the score at u_{n-1}, V after it, u_{n-1} ...), as in the paper's tables 1 to 8.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from drawn import Panel, Sheet

from haltune import Problem, Study
from haltune.policies import AutoBCT
from haltune.policies.autobct.prior import Prior

Train = Callable[[Mapping[str, Any], int], tuple[float, float]]  # configuration, seed -> score, cost
Row = Sequence[float]
LOW = 0.65  # a score at which a search ended too early: the worst of the paper's table 8 is 0.59


def search(problem: Problem, policy: AutoBCT, seed: int, train: Train) -> dict[str, Any]:
    """A search's rows and the sentence with which it ended."""
    study = Study(problem, policy, seed=seed, verbose=0)
    for trial in study:
        with trial:
            score, cost = train(trial.config, 1000 * seed + trial.id)
            trial.report(score, cost=cost)
    ended = policy.start(problem)
    for event in study.events():
        ended = policy.fold(ended, event)
    rows = []
    for n in range(policy.repeats, len(ended) + 1, policy.repeats):
        known = policy.assess(study.history, ended[:n])
        assert known is not None  # both maps are given
        last = known.done[-1]
        h, t = known.ruler.h(last.value), known.ruler.t(last.seconds)
        worth = float(policy.worth(problem, known).max())
        rows.append([h, t, known.heights[-1], worth, *study.history.points[last.trials[0]].tolist()])
    return {"rows": rows, "reason": study.ask().reason}


def told(rows: Sequence[Row]) -> str:
    """One search, as table 1 has it."""
    dim = len(rows[0]) - 4
    heads = ["u"] if dim == 1 else [f"u{i + 1}" for i in range(dim)]
    lines = [
        f"{'n':>3s} {'h':>6s} {'t':>6s} {'sum t':>6s} "
        + " ".join(f"{u:>5s}" for u in heads)
        + f" {'mean':>6s} {'V':>6s}"
    ]
    spent = 0.0
    for n, (h, t, mean, worth, *u) in enumerate(rows, 1):
        spent += t
        lines.append(
            f"{n:3d} {h:6.3f} {t:6.3f} {spent:6.3f} " + " ".join(f"{x:5.2f}" for x in u) + f" {mean:6.3f} {worth:6.3f}"
        )
    return "\n".join(lines)


def averaged(searches: Sequence[Sequence[Row]]) -> str:
    """Means over searches with standard deviations, as table 7 has them, and the standard errors of the means."""
    dim = len(searches[0][0]) - 4
    columns = {
        "final h": [rows[-1][0] for rows in searches],
        "sum t": [sum(row[1] for row in rows) for rows in searches],
        **{f"u{i + 1}" if dim > 1 else "u": [rows[-1][4 + i] for rows in searches] for i in range(dim)},
        "trainings": [len(rows) for rows in searches],
        "mean": [rows[-1][2] for rows in searches],
        "V": [rows[-1][3] for rows in searches],
        "best h": [max(row[0] for row in rows) for rows in searches],
    }
    n = len(searches)
    lines = [f"{n} searches", f"{'':22s}" + "".join(f"{name:>11s}" for name in columns)]
    spread = {name: float(np.std(of, ddof=1)) if n > 1 else float("nan") for name, of in columns.items()}
    for what, numbers in (
        ("mean", [float(np.mean(of)) for of in columns.values()]),
        ("standard deviation", list(spread.values())),
        ("error of the mean", [s / np.sqrt(n) for s in spread.values()]),
    ):
        lines.append(f"{what:22s}" + "".join(f"{number:11.3f}" for number in numbers))
    low = [h for h in columns["final h"] if h < LOW]
    lines.append(
        f"{len(low)} of {n} end with h below {LOW}" + (f", from {min(low):.2f} to {max(low):.2f}" if low else "")
    )
    return "\n".join(lines)


def after(prior: Prior, rows: Sequence[Row]) -> Prior:
    """Return the posteriors after the rows."""
    for h, t, _, _, *u in rows:
        prior = prior.observe(prior.on(np.array([u]))[0], h, t)
    return prior


def grid(
    sheet: Sheet, columns: int, rows: int, x: tuple[float, float], ys: Sequence[tuple[float, float]]
) -> list[list[Panel]]:
    """Panels in rows and columns; `ys` are the ranges of the rows' axes."""
    wide, high = (sheet.width - 20) / columns, (sheet.height - 10) / rows
    made = [
        [Panel(10 + c * wide + 40, r * high + 46, wide - 60, high - 96, x, ys[r]) for c in range(columns)]
        for r in range(rows)
    ]
    sheet.panels += [panel for row in made for panel in row]
    return made


def belief(panels: Sequence[Panel], prior: Prior, seen: Sequence[Row], titles: Sequence[str], control: str) -> None:
    """Means and central 95% of score and cost over one control, each in its panel, and what was seen."""
    u = np.linspace(0.0, 1.0, 51)
    phi = prior.on(u[:, None])
    for k, (panel, of) in enumerate(zip(panels, (prior.score, prior.cost), strict=True)):
        mean, cov = of.at(phi)
        wide = 1.96 * np.sqrt(np.maximum(np.diag(cov), 0.0))
        low, middle, high = (np.clip(part, *panel.y).tolist() for part in (mean - wide, mean, mean + wide))
        panel.axes(titles[k], control, "ht"[k], (0, 0.5, 1), ticks(panel.y))
        panel.band(u.tolist(), low, high, "one", 0.2)
        panel.line(u.tolist(), middle, "one", 2)
        panel.dots([row[4] for row in seen], [float(np.clip(row[k], *panel.y)) for row in seen], "two", 3)


def ticks(ends: tuple[float, float]) -> list[float]:
    """About five round numbers."""
    step = next(s for s in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0) if (ends[1] - ends[0]) / s <= 6)
    return [float(v) for v in np.arange(np.ceil(ends[0] / step - 1e-9) * step, ends[1] + 1e-9, step)]


def surface(panel: Panel, values: np.ndarray, ends: tuple[float, float], title: str, seen: Sequence[Row]) -> None:
    """Values (k, k) on the square of two controls, the darker the higher; and where was trained."""
    k = len(values)
    panel.axes(title, "u1, learning rate", "u2, batch", (0, 0.5, 1), (0, 0.5, 1))
    shares = np.clip((values - ends[0]) / (ends[1] - ends[0]), 0.0, 1.0)
    for i in range(k):
        for j in range(k):
            panel.cell((i / k, (i + 1) / k), (j / k, (j + 1) / k), "one", round(float(shares[i, j]), 2))
    panel.dots([row[4] for row in seen], [row[5] for row in seen], "two", 3)
