"""What the trainings of an instance are like: random configurations, each trained in full."""

from __future__ import annotations

import time
import warnings

import numpy as np

from .engine import Slots
from .instances import Instance

MANY = 20


def line(instance: Instance) -> str:
    """Spread of final values, rank correlations of earlier values with the last, share that diverged, time."""
    from scipy.stats import spearmanr

    warnings.simplefilter("ignore")
    configs = instance.space.sample(MANY, np.random.default_rng(instance.number))
    slots = Slots(instance, MANY)
    for slot, config in enumerate(configs):
        slots.start(slot, config, seed=slot)
    began = time.process_time()
    curves = np.array([slots.train() for _ in range(instance.horizon)])  # (epochs, 2, slots)
    took = 1e3 * (time.process_time() - began) / (MANY * instance.horizon)
    sign = instance.goal.sign
    scores = np.where(np.isfinite(curves), sign * curves, -np.inf)
    shown, last = scores[:, 0], scores[-1, 1]
    early = [float(spearmanr(shown[max(0, round(s * instance.horizon) - 1)], last)[0]) for s in (0.03, 0.1, 0.3)]
    top = last >= np.quantile(last, 0.75)
    tenth = shown[max(0, round(0.1 * instance.horizon) - 1)]
    best = float(spearmanr(tenth[top], last[top])[0])
    dead = 1.0 - np.isfinite(curves[-1, 1]).mean()
    quarters = " ".join(f"{sign * q:8.4g}" for q in np.quantile(last, (1.0, 0.75, 0.5, 0.25), method="nearest"))
    costs = np.array([instance.cost(c) for c in configs])
    drop = float(np.mean((scores[:, 1].max(0) > last + 1e-9)[np.isfinite(last)])) if np.isfinite(last).any() else 0.0
    return (
        f"{instance.family:12s}{instance.number:3d} {type(instance.goal).__name__[:3]} {instance.of:4s} "
        f"share {instance.share:.1f} E {instance.horizon:3d} x {instance.steps:2d}  d {len(instance.domains):2d}  "
        f"best, quartiles {quarters}  "
        f"rank at .03 .1 .3: {early[0]:5.2f} {early[1]:5.2f} {early[2]:5.2f}  top {best:5.2f}  diverged {dead:.2f}  "
        f"past its best {drop:.2f}  cost {costs.min():.2f}-{costs.max():.2f}  {took:.1f} ms"
    )
