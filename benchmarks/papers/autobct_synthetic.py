"""Section 4.1 of the AutoBCT paper for real: how many trees should a random forest have?

    python benchmarks/papers/autobct_synthetic.py [--runs 20] [--depth 2] [--figure FILE]

A random forest of 1 to 100 trees learns f(x, y) = (floor(10 x + 1) + floor(10 y + 1)) mod 2 from 30,000 points and is
validated on 20,000. Prior D.1, gamma 0.16; accuracy 0.5 to 1 is score 0 to 1, the time that this machine takes for
100 trees is cost 1. The aim: at least 18 of 20 runs stop within 4 trainings with a score of at least 0.95. The page
shows the prior (the paper's figure 2), how the beliefs of one run moved, and its validation points (figure 3).
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from sklearn.ensemble import RandomForestClassifier

from haltune import Int, Maximize, Problem, Space, Study
from haltune.policies import AutoBCT
from haltune.policies.autobct.prior.beliefs import Prior
from haltune.policies.autobct.prior.published import preset

TRAIN, VALIDATE, TREES = 30_000, 20_000, 100
PROBLEM = Problem(Space({"trees": Int(1, TREES)}), Maximize("accuracy", (0, 1)), max_epochs=1)
WITHIN, SCORE, AIM = 4, 0.95, 0.9  # trainings, score, share of runs


def labels(points):
    """f of section 4.1 with a = b = 10."""
    return np.floor(10 * points + 1).sum(axis=1) % 2


def data(seed):
    rng = np.random.default_rng(seed)
    points = rng.uniform(size=(TRAIN + VALIDATE, 2))
    return points[:TRAIN], labels(points[:TRAIN]), points[TRAIN:], labels(points[TRAIN:])


def train(trees, seed):
    """Accuracy, seconds, and the forest's answers."""
    x, y, unseen, truth = data(seed)
    began = time.process_time()  # of this process alone: others on the machine must not count
    answers = RandomForestClassifier(trees, random_state=seed).fit(x, y).predict(unseen)
    return float((answers == truth).mean()), time.process_time() - began, answers


@dataclass(frozen=True)
class Run:
    seed: int
    rows: list  # (u, h, t, posterior mean)
    answers: np.ndarray
    reason: str


def run(seed, unit, depth):
    policy = AutoBCT(prior="D.1", worst=0.5, best=1.0, seconds=(0.0, unit), depth=depth)
    study = Study(PROBLEM, policy, seed=seed, verbose=0)
    rows, answers, believed = [], None, preset("D.1")
    for trial in study:
        with trial:
            accuracy, seconds, answers = train(trial.config["trees"], 1000 * seed + trial.id)
            trial.report(accuracy, seconds=seconds, cost=seconds)
        u, h, t = float(study.history.points[trial.id][0]), 2 * (accuracy - 0.5), seconds / unit
        phi = believed.on(np.array([[u]]))[0]
        believed = believed.observe(phi, h, t)
        rows.append((u, h, t, float(phi @ believed.score.mean)))
    return Run(seed, rows, answers, study.ask().reason)


def told(r):
    spent = 0.0
    for n, (u, h, t, mean) in enumerate(r.rows, 1):
        spent += t
        print(f"{r.seed:3d} {n:2d} {u:5.2f} {h:6.3f} {t:6.3f} {spent:6.3f} {mean:6.3f}", flush=True)
    return r


def concluded(found):
    print("the last sentence:", found[-1].reason)
    kept = sum(len(r.rows) <= WITHIN and r.rows[-1][1] >= SCORE for r in found)
    worst = min(r.rows[-1][1] for r in found)
    print(
        f"{kept} of {len(found)} runs stopped within {WITHIN} trainings at a score of {SCORE} or more "
        f"(aim: {AIM:.0%}); trainings {np.bincount([len(r.rows) for r in found]).tolist()}, "
        f"lowest last score {worst:.3f}"
    )


def band(figure, prior, row):
    """Mean and central 95% of score and cost, on the scale of this row."""
    u, colour = np.linspace(0, 1, 101), "#4477aa"
    phi = prior.on(u[:, None])
    for column, belief in ((1, prior.score), (2, prior.cost)):
        mean, cov = belief.at(phi)
        wide = 1.96 * np.sqrt(np.diag(cov))
        edge = {"x": np.r_[u, u[::-1]], "y": np.r_[mean + wide, (mean - wide)[::-1]], "fill": "toself"}
        figure.add_scatter(
            **edge, mode="lines", opacity=0.3, line_width=0, fillcolor=colour, row=row, col=column
        )
        figure.add_scatter(x=u, y=mean, mode="lines", line_color=colour, row=row, col=column)
        figure.update_xaxes(
            range=[-0.03, 1.03], title_text="control u (0: 1 tree, 1: 100)", row=row, col=column
        )


def page(shown, path):
    """Figures 2 and 3: the prior, the beliefs after each training with what was seen, and the validation points."""
    n = len(shown.rows)
    when = ["before any training", *[f"after training {k}" for k in range(1, n + 1)]]
    titles = [f"{what} {then}" for then in when for what in ("score", "cost")]
    titles += ["validation points answered right (some)", "all answered wrong"]
    heights = [1.0] * (n + 1) + [1.6]
    figure = make_subplots(
        n + 2, 2, subplot_titles=titles, row_heights=heights, vertical_spacing=0.055, horizontal_spacing=0.09
    )
    believed: Prior = preset("D.1")
    band(figure, believed, 1)
    for k, (u, h, t, _) in enumerate(shown.rows, 2):
        believed = believed.observe(believed.on(np.array([[u]]))[0], h, t)
        band(figure, believed, k)
        seen = np.array(shown.rows[: k - 1])
        for column in (1, 2):
            figure.add_scatter(
                x=seen[:, 0], y=seen[:, column], mode="markers", marker_color="#cc3311", row=k, col=column
            )
    validation(figure, shown, n + 2)
    figure.update_layout(
        height=260 * (n + 1) + 420, width=900, showlegend=False, template="plotly_white",
        title=f"What run {shown.seed} believed of a forest of 1 to 100 trees: means and central 95%; dots: trainings",
        title_font_size=15,
    )  # fmt: skip
    path.write_text(figure.to_html(include_plotlyjs=True), encoding="utf-8")
    return figure


def validation(figure, shown, row):
    """What the forest that is kept answers, by colour."""
    unseen, truth = data(1000 * shown.seed + len(shown.rows) - 1)[2:]
    right = shown.answers == truth
    for column, mask in ((1, right), (2, ~right)):
        some = np.nonzero(mask)[0][:3000]
        dots = {"size": 3, "color": shown.answers[some], "colorscale": [[0, "#ddaa33"], [1, "#004488"]]}
        figure.add_trace(
            go.Scatter(x=unseen[some, 0], y=unseen[some, 1], mode="markers", marker=dots), row=row, col=column
        )
        figure.update_xaxes(title_text="x", range=[0, 1], row=row, col=column)
        figure.update_yaxes(title_text="y", range=[0, 1], row=row, col=column)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    unit = float(np.median([train(TREES, seed)[1] for seed in range(3)]))
    print(f"100 trees take {unit:.2f} s: cost 1")
    print(f"{'run':>3} {'n':>2} {'u':>5} {'h':>6} {'t':>6} {'sum t':>6} {'mean':>6}")
    found = [told(run(seed, unit, options.depth)) for seed in range(options.runs)]
    concluded(found)
    if options.figure:
        page(found[0], options.figure)
        print(f"figures 2 and 3: {options.figure}")


if __name__ == "__main__":
    main()
