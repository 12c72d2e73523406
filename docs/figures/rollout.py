"""The best value over the cost spent: expected improvement, the same per cost, and planning with the remaining budget.

python docs/figures/rollout.py     Minutes: 3 policies, 10 searches of each.
"""

import math

import numpy as np
from drawing import Sheet

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.log.policy import in_words
from haltune.policies import EI, Rollout

BUDGET, SEEDS = 300.0, 10
AT = np.linspace(10, BUDGET, 59)  # of cost


def cost(config):
    """From 1 to 100."""
    return 100 ** config["size"]


def value(config, top):
    """Return a value that is largest at `size` = `top`, with a second, lower maximum at cheap trainings."""
    far = ((config["size"] - top) / 0.2) ** 2 + ((config["lr"] - 0.4) / 0.3) ** 2
    cheap = ((config["size"] - 0.15) / 0.15) ** 2 + ((config["lr"] - 0.8) / 0.2) ** 2
    return math.exp(-far) + 0.75 * math.exp(-cheap)


def search(policy, seed, top):
    """The distance to the best, 1, at each of the costs."""
    spent, best, steps = 0.0, 0.0, []
    problem = Problem(
        Space({"size": Float(0.0, 1.0), "lr": Float(0.0, 1.0)}), Maximize("value", bounds=(0, 1.1)), max_epochs=1
    )
    study = Study(problem, policy, budget=Budget(cost=BUDGET), seed=seed, verbose=0)
    for trial in study:
        with trial:
            trial.report(value(trial.config, top), cost=cost(trial.config))
        spent, best = spent + cost(trial.config), max(best, value(trial.config, top))
        steps.append((spent, best))
    return [max([b for s, b in steps if s <= at], default=0.0) for at in AT]


sheet = Sheet("rollout", "The distance to the best value against the cost spent, of three policies, on two problems.")
for top, left in ((0.5, 60), (0.85, 430)):
    panel = sheet.panel(left, 310, (0, BUDGET), (0, 1))
    panel.axes(
        f"The best costs {cost({'size': top}):.0f}",
        "cost spent, of 300",
        "distance to the best",
        (0, 100, 200, 300),
        (0, 0.5, 1),
    )
    for made, name, height in ((EI(), "two", 0.95), (EI(cost="per"), "one", 0.87), (Rollout(), "three", 0.79)):
        far = 1 - np.array([search(made, seed, top) for seed in range(SEEDS)])
        mean, error = far.mean(axis=0), far.std(axis=0, ddof=1) / SEEDS**0.5
        panel.band(AT, np.clip(mean - error, 0, 1), np.clip(mean + error, 0, 1), name, 0.18)
        panel.line(AT, mean, name, 2)
        panel.note(BUDGET, height, in_words(made), name, "end")
        values = " ".join(f"{mean[i]:.3f} ± {error[i]:.3f}" for i in (18, 38, 58))
        print(f"best at {top}: {in_words(made)} after 100, 200 and 300 of cost: {values}", flush=True)
sheet.write()
