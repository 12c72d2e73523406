"""Guided: a policy's new configurations chosen by a Gaussian process over all that was seen, at whatever epoch.

The process lives on [x, epoch_coordinate(n)]: what lost after one epoch teaches as much about where not to look
as a full training does about where to. The policy inside decides what goes on; only its `Start`s are replaced.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune.decisions import Move, Start, Verdict
from haltune.errors import InvalidInput
from haltune.events import Event, Reported
from haltune.gp import Posterior, fit
from haltune.history import History, TrialRecord
from haltune.policies.persistent import Sparse
from haltune.policies.surrogate import epoch_coordinate, hallucinate, targets
from haltune.policy import Policy
from haltune.problem import Problem

Array = np.ndarray
Seen = tuple[int, float, float]  # trial, epochs, raw value
_APART = 3.0  # ratio of the epochs at which a curve is looked at: its points in between say little more


@dataclass(frozen=True, slots=True)
class Views:
    """What the model learns from: values of trials at epochs 1, 3, 9, ..., at their pauses and ends, in log order."""

    inner: Any  # the policy's own state
    seen: tuple[Seen, ...] = ()
    epochs: Sparse[tuple[float, ...]] = field(default_factory=Sparse)  # of each trial, those in `seen`

    def add(self, trial: int, epoch: float, value: float) -> Views:
        """One value more, unless that epoch of the trial is known: a later attempt repeats it."""
        known = self.epochs.get(trial) or ()
        if epoch in known:
            return self
        seen = (*self.seen, (trial, epoch, value))
        return replace(self, seen=seen, epochs=self.epochs.put(trial, (*known, epoch)))


@dataclass(frozen=True)
class Guided:
    """Any policy that stops or pauses trials, with a model that chooses its new configurations.

    initial: trials drawn by the policy inside before the first fit. deviations: of the model that are added to its
    mean at the full horizon (UCB). share: of new configurations that the policy inside still draws itself.
    candidates: points that are compared; a third of them lie near the five best trials.

    Raises InvalidInput for options outside these.
    """

    policy: Policy[Any]
    initial: int = 20
    deviations: float = 1.0
    share: float = 0.0
    candidates: int = 300
    _fits: dict[tuple[int, bytes, bytes], Posterior] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not hasattr(self.policy, "propose") or isinstance(self.policy, type):
            raise InvalidInput(f"Guided wraps a policy such as Hyperband(), not {self.policy!r}")
        if not (self.initial >= 2 and self.candidates >= 3 and self.deviations >= 0 and 0 <= self.share <= 1):
            raise InvalidInput(
                f"Guided(initial={self.initial}, candidates={self.candidates}, deviations={self.deviations}, "
                f"share={self.share}): initial from 2, candidates from 3, deviations from 0, share from 0 to 1"
            )

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy."""
        names = ("initial", "deviations", "share", "candidates")
        return {
            "policy": "Guided",
            "inner": self.policy.spec,
            **{name: getattr(self, name) for name in names},
        }

    @property
    def endless(self) -> bool:
        """As the policy inside."""
        return self.policy.endless

    @property
    def best_anywhere(self) -> bool:
        """As the policy inside."""
        return getattr(self.policy, "best_anywhere", False)

    def alive(self, state: Views) -> frozenset[int] | None:
        """As the policy inside."""
        alive = getattr(self.policy, "alive", None)
        return None if alive is None else alive(state.inner)

    def start(self, problem: Problem) -> Views:
        """Nothing seen. Raises InvalidInput without a horizon."""
        if problem.max_epochs is None:
            raise InvalidInput("Guided needs a horizon: give the Problem max_epochs")
        return Views(self.policy.start(problem))

    def fold(self, state: Views, event: Event) -> Views:
        """The policy's fold, and what the model learns from."""
        state = replace(state, inner=self.policy.fold(state.inner, event))
        if isinstance(event, Reported) and (_marked(event.epoch) or event.verdict.stops):
            return state.add(event.trial, event.epoch, event.value)
        return state

    def judge(self, state: Views, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """As the policy inside."""
        return self.policy.judge(state.inner, history, trial, rng)

    def propose(self, state: Views, history: History, rng: Generator) -> Move:
        """The policy's move; a new configuration is the model's choice."""
        move = self.policy.propose(state.inner, history, rng)
        if not isinstance(move, Start) or "of" in move.tags:  # a winner that trains anew stays as it is
            return move
        if len(history) < self.initial or rng.random() < self.share:
            return move
        posterior = self._posterior(history, state.seen)
        return move if posterior is None else self._chosen(move, history, state, posterior, rng)

    def _posterior(self, history: History, seen: tuple[Seen, ...]) -> Posterior | None:
        """Hyperparameters fitted to the first m rows, the rest conditioned on; m grows by a fifth at a time."""
        m = _step(len(seen), self.initial)
        x, y = _rows(history, seen[:m])
        if len(y) < 2:
            return None
        key = (history.seed, x.tobytes(), y.tobytes())
        if key not in self._fits:
            self._fits.clear()  # the memory only saves work
            self._fits[key] = fit(x, y, rng=history.rng("fit", m), starts=1, learn_from=120)
        x, y = _rows(history, seen[m:])
        return self._fits[key].condition(x, y) if len(y) else self._fits[key]

    def _chosen(
        self, move: Start, history: History, state: Views, posterior: Posterior, rng: Generator
    ) -> Start:
        pending = [history.point(t.id) for t in history.pending]
        posterior = hallucinate(
            posterior, _at_end(np.array(pending).reshape(len(pending), posterior.dim - 1))
        )
        points, configs = self._candidates(history, state, rng)
        mean, variance = posterior.predict(_at_end(points))
        value = mean + self.deviations * np.sqrt(np.maximum(variance, 0.0))
        order = np.argsort(-value, kind="stable")
        best = next((int(i) for i in order if _open(history, configs[i])), None)
        if best is None:
            return move
        evidence = {
            "mean": float(mean[best]), "sd": float(variance[best]) ** 0.5, "ucb": float(value[best]),
            "rows": len(state.seen),
        }  # fmt: skip
        reason = (
            f"highest UCB at the full horizon, {value[best]:.3f}, from {len(state.seen)} values at all epochs"
        )
        return replace(move, config=configs[best], reason=reason, evidence=evidence)

    def _candidates(
        self, history: History, state: Views, rng: Generator
    ) -> tuple[Array, list[dict[str, Any]]]:
        """Random configurations, and neighbours of the best trials in about half of their coordinates."""
        space, near = history.problem.space, self.candidates // 3
        anywhere = rng.random((self.candidates - near, space.dim))
        values = targets(history, np.array([value for _, _, value in state.seen]))
        ranked = [state.seen[i][0] for i in np.argsort(-values, kind="stable")]
        top = list(dict.fromkeys(ranked))[:5]
        base = np.array([history.point(i) for i in rng.choice(top, near)])
        moved = np.clip(base + (rng.random(base.shape) < 0.5) * rng.normal(0.0, 0.15, base.shape), 0.0, 1.0)
        configs = space.decode_many(np.vstack([anywhere, moved]))
        return space.encode_many(configs), configs


def _rows(history: History, seen: tuple[Seen, ...]) -> tuple[Array, Array]:
    """[x, epoch_coordinate(n)] and the scores there."""
    horizon, dim = float(history.problem.max_epochs or 1), history.problem.space.dim
    x = np.array([history.point(trial) for trial, _, _ in seen]).reshape(len(seen), dim)
    at = epoch_coordinate(np.array([epoch for _, epoch, _ in seen]), horizon)
    y = targets(history, np.array([value for _, _, value in seen]))
    known = np.isfinite(y)
    return np.column_stack([x, at])[known], y[known]


def _open(history: History, config: dict[str, Any]) -> bool:
    """Asked late and one by one, for it is slow: neighbours may break a constraint, or be tried already."""
    space = history.problem.space
    return space.contains(config) and space.key(config) not in history.tried


def _at_end(points: Array) -> Array:
    return np.hstack([points, np.ones((len(points), 1))])


def _marked(epoch: float) -> bool:
    """1, 3, 9, 27, ..."""
    return epoch >= 1 and epoch == _APART ** round(np.log(epoch) / np.log(_APART))


def _step(count: int, first: int) -> int:
    """The last number of rows at which hyperparameters were fitted."""
    m = first
    while (following := m + max(8, m // 5)) <= count:
        m = following
    return min(m, count)
