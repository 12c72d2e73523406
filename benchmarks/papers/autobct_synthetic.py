"""Section 4.1 of the AutoBCT paper, with real trainings: the number of trees of a random forest.

    python benchmarks/papers/autobct_synthetic.py [--method map] [--runs 20] [--keep FILE] [--svg]

A random forest of 1 to 100 trees learns f(x, y) = (floor(10 x + 1) + floor(10 y + 1)) mod 2 from 30,000 points and is
validated on 20,000. Prior D.1, gamma 0.16; accuracy 0.5 to 1 is score 0 to 1, the time that this machine takes for
100 trees is cost 1. The aim: at least 18 of 20 runs stop within 4 trainings with a score of at least 0.95.

--method otf is the paper's on-the-fly version with N = 2 (table 3): the value of at most two more trainings, computed
at each step from the present posteriors. The paper uses nested Monte Carlo; here the value is in closed form over the
score and by quadrature over the cost. --method map, the paper's VI/Map (tables 1 and 2): one exact step on a map of the
value of three more trainings, computed beforehand. With --svg it draws figures 2 and 3 of the first run: the prior, the
posteriors, and the points on which the last forest was validated.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import time
from collections.abc import Sequence

import numpy as np
from autobct_runs import Row, after, averaged, belief, grid, search, told
from command_line import command_line
from drawn import Sheet, write
from kept import kept
from sklearn.ensemble import RandomForestClassifier

from haltune import Int, Maximize, Problem, Space
from haltune.policies import AutoBCT
from haltune.policies.autobct.prior import preset

TRAIN, VALIDATE, TREES = 30_000, 20_000, 100
PROBLEM = Problem(Space({"trees": Int(1, TREES)}), Maximize("accuracy", (0, 1)), max_epochs=1)
WITHIN, SCORE, AIM = 4, 0.95, 0.9  # trainings, score, share of runs
METHODS = {"otf": {"depth": 2}, "map": {"value_map": "1d", "epsilon": 0.0}}


def labels(points):
    """f of section 4.1 with a = b = 10."""
    return np.floor(10 * points + 1).sum(axis=1) % 2


def data(seed):
    rng = np.random.default_rng(seed)
    points = rng.uniform(size=(TRAIN + VALIDATE, 2))
    return points[:TRAIN], labels(points[:TRAIN]), points[TRAIN:], labels(points[TRAIN:])


def train(config, seed):
    """Accuracy, seconds, and the forest's answers."""
    x, y, unseen, truth = data(seed)
    began = time.process_time()  # of this process alone: others on the machine must not count
    answers = RandomForestClassifier(config["trees"], random_state=seed).fit(x, y).predict(unseen)
    return float((answers == truth).mean()), time.process_time() - began, answers


def concluded(found: Sequence[Sequence[Row]]) -> None:
    """The averages, and how many runs reach the aim."""
    print(averaged(found))
    reached = sum(len(rows) <= WITHIN and rows[-1][0] >= SCORE for rows in found)
    print(
        f"{reached} of {len(found)} runs stopped within {WITHIN} trainings at a score of {SCORE} or more (aim: "
        f"{AIM:.0%}); trainings {np.bincount([len(rows) for rows in found]).tolist()}, lowest last score "
        f"{min(rows[-1][0] for rows in found):.3f}"
    )


def moved(rows: Sequence[Row]) -> None:
    """Figures 2 and 3 (a): score and cost before any training and after each."""
    sheet = Sheet(
        "autobct_synthetic_beliefs",
        f"Score and cost over the number of trees: the prior, and the posterior after each of {len(rows)} trainings.",
        width=220 * (len(rows) + 1), height=560,
    )  # fmt: skip
    made = grid(sheet, len(rows) + 1, 2, (0, 1), [(-1.0, 2.0), (-2.0, 5.0)])
    for n in range(len(rows) + 1):
        when = f"after {n}" if n else "prior"
        panels, seen = [made[0][n], made[1][n]], rows[:n]
        belief(panels, after(preset("D.1"), seen), seen, [f"Score, {when}", f"Cost, {when}"], "u, 1 to 100 trees")
    write(sheet)


def validated(rows: Sequence[Row], shown: int = 600) -> None:
    """Figure 3 (b): some points that the last forest labels right, and some that it labels wrong."""
    seed, trees = len(rows) - 1, 1 + round((TREES - 1) * rows[-1][4])
    answers, (_, _, unseen, truth) = train({"trees": trees}, seed)[2], data(seed)
    sheet = Sheet(
        "autobct_synthetic_points",
        f"Points of the unit square that the forest of {trees} trees labels right, and points that it labels wrong.",
        width=760, height=440,
    )  # fmt: skip
    for panel, right in zip(grid(sheet, 2, 1, (0, 1), [(0, 1)])[0], (True, False), strict=True):
        of = np.nonzero((answers == truth) == right)[0]
        title = f"{'Right' if right else 'Wrong'}: {min(shown, len(of))} of {len(of)}"
        panel.axes(title, "x", "y", (0, 0.5, 1), (0, 0.5, 1))
        for label, colour in ((0, "one"), (1, "two")):
            some = [i for i in of[:shown] if answers[i] == label]
            panel.dots(unseen[some, 0].tolist(), unseen[some, 1].tolist(), colour, 2)
    write(sheet)


def main():
    parser = command_line(__doc__, 20, word="runs")
    parser.add_argument("--method", choices=[*METHODS], default="otf")
    options = parser.parse_args()
    unit = float(np.median([train({"trees": TREES}, seed)[1] for seed in range(3)]))
    print(f"100 trees take {unit:.2f} s: cost 1")
    policy = AutoBCT(prior="D.1", worst=0.5, best=1.0, seconds=(0.0, unit), **METHODS[options.method])
    found = kept(options, options.runs, lambda seed: search(PROBLEM, policy, seed, lambda c, s: train(c, s)[:2]))
    print(f"\nrun 0\n{told(found[0]['rows'])}\nthe last sentence: {found[0]['reason']}\n")
    concluded([of["rows"] for of in found])
    if options.svg:
        moved(found[0]["rows"])
        validated(found[0]["rows"])


if __name__ == "__main__":
    main()
