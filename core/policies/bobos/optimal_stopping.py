"""When to stop a run: the settings of Bayesian optimal stopping, as one object a policy can ask.

Two modes share the machinery of `induction`. `faithful` is the paper's: paths from the exponential-decay
GP, solved once after the first 8 of 51 epochs. `robust`, the default, draws its paths from a Bayesian
power law and solves again as the curve grows; between two solutions the last table decides.
Nothing here knows of trials or logs: errors and an rng in, a decision out, the same bits each time.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from haltune.errors import InvalidInput

from .decay_curves import checked_errors, conditional_paths
from .induction import DecisionTable, Losses, StopDecision, solve, undecided
from .power_law_curves import power_law_paths

REFERENCE_HORIZON = 51  # `first` and `resolve_at` count epochs of this many, and scale with the horizon
_MIN_VISITS = 30
_FEWEST = 3  # errors below which no curve is judged, however short the horizon
_RESOLVE_AT = {"faithful": (), "robust": (12, 16, 24, 32, 40)}
_K1 = {"faithful": 100.0, "robust": 500.0}
_PATHS = {"faithful": 100_000, "robust": 20_000}  # robust: allotted evenly to the mixture, solved six times


@dataclass(frozen=True)
class StoppingPlan:
    """The epochs at which one horizon's runs are solved, ascending; empty when there is nothing to decide."""

    horizon: int
    solve_at: tuple[int, ...]
    first_decision: int  # the first epoch that is judged; horizon when none is

    def solved_at(self, epoch: int) -> int | None:
        """The epoch whose table decides `epoch`, or None before the first and at the end."""
        if not self.first_decision <= epoch < self.horizon:
            return None
        return max(e for e in self.solve_at if e <= epoch)


@dataclass(frozen=True)
class OptimalStopping:
    """When to stop a run: settings of Bayesian optimal stopping, frozen and JSON both ways.

    Give it to Halting or BOBOS, or ask it yourself with `judge`.

    Args:
        mode: "robust" solves again along the run, over power-law curves; "faithful" once, as BO-BOS does, over
            curves of an exponential-decay process. Default: "robust".
        first: N0 in BO-BOS: epochs, of 51, before anything is decided; scaled to the horizon. Default: 8.
        resolve_at: further epochs, of 51, to solve at. Default: None, (12, 16, 24, 32, 40), or none (faithful).
        K1: loss of a wrong stop, may be infinite. Default: None, 500 or (faithful) 100.
        K2: loss of going on wrongly to the end. Default: 99.
        c: loss of each further epoch. Default: 1.
        paths: curves simulated a solution. Default: None, 20,000 or (faithful) 100,000.
        cells: of the grid over the running mean, at each epoch. Default: 100.
        min_visits: a cell with so many paths or fewer goes on. Default: None, 30, or (robust) paths / 200 where
            that is more.

    Raises:
        InvalidInput: for settings outside these.

    Example:
        >>> from haltune import OptimalStopping
        >>> losing = [0.9, 0.9, 0.89, 0.89, 0.89, 0.88, 0.88, 0.88]  # errors of epochs 1 to 8 of 51
        >>> OptimalStopping(paths=5000).judge(losing, horizon=51, incumbent_error=0.1).d
        'stop'
    """

    mode: Literal["robust", "faithful"] = "robust"
    first: int = 8  # N0 in BO-BOS: epochs, of 51, before anything is decided
    resolve_at: tuple[int, ...] | None = None  # further epochs, of 51, to solve at; None: the mode's own
    K1: float | None = None  # cost of a wrong stop; None: the mode's own, 500 or (faithful) 100
    K2: float = 99.0
    c: float = 1.0
    paths: int | None = None  # simulated per solution; None: the mode's own, 20,000 or (faithful) 100,000
    cells: int = 100
    min_visits: int | None = (
        None  # a cell with so many paths or fewer continues; None: 30, robust paths / 200
    )

    def __post_init__(self) -> None:
        if self.mode not in _K1:
            raise InvalidInput(f"mode is {self.mode!r}; it is 'robust' or 'faithful'.")
        if self.resolve_at is None:
            object.__setattr__(self, "resolve_at", _RESOLVE_AT[self.mode])
        object.__setattr__(self, "resolve_at", tuple(self.resolve_at or ()))
        for name, defaults in (("K1", _K1), ("paths", _PATHS)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults[self.mode])
        for name in ("first", "paths", "cells"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; it is at least 1.")
        if self.min_visits is None:
            # 31 paths without a winner bound p_win by 0.1 only, which at K1 = 500 may cost 50 epochs
            share = (self.paths or 0) // 200 if self.mode == "robust" else 0
            object.__setattr__(self, "min_visits", max(_MIN_VISITS, share))
        if (self.min_visits or 0) < 0 or any(e <= self.first for e in self.resolve_at or ()):
            raise InvalidInput(
                f"min_visits is {self.min_visits} and resolve_at {self.resolve_at} with first {self.first}; "
                "min_visits is not negative, and every further solution comes after the first."
            )
        self.losses()

    def losses(self, K1: float | None = None, c: float | None = None) -> Losses:
        """These settings' losses, with K1 (which grows in BO-BOS) or c (a weighted epoch) replaced."""
        own = self.K1 if self.K1 is not None else _K1[self.mode]
        return Losses(own if K1 is None else K1, self.K2, self.c if c is None else c)

    def plan(self, horizon: int) -> StoppingPlan:
        """When runs of `horizon` epochs are solved: `first` and `resolve_at` in proportion to 51.

        A faithful run is first judged one epoch after solving, as in algorithm 1; a robust one at once.
        """
        if horizon < 1:
            raise InvalidInput(f"horizon is {horizon}; a training has at least one epoch.")
        further = self.resolve_at or ()
        scaled = (max(_FEWEST, round(e * horizon / REFERENCE_HORIZON)) for e in (self.first, *further))
        solve_at = tuple(sorted({e for e in scaled if e < horizon}))
        if not solve_at:
            return StoppingPlan(horizon, (), horizon)
        return StoppingPlan(horizon, solve_at, solve_at[0] + (self.mode == "faithful"))

    def solve_at(
        self,
        errors: ArrayLike,
        horizon: int,
        incumbent_error: float,
        losses: Losses,
        rng: np.random.Generator,
    ) -> DecisionTable:
        """The table solved from all of `errors` (n0,), n0 < horizon; each (trial, n0) has its own rng."""
        y = checked_errors(errors)
        faithful = self.mode == "faithful"
        draw = conditional_paths if faithful else power_law_paths
        paths = draw(y, horizon, self.paths or _PATHS[self.mode], rng)
        return solve(
            paths, y, incumbent_error, losses, self.cells, self.min_visits or 0, saturated_loses=faithful
        )

    def judge(
        self,
        errors: ArrayLike,
        horizon: int,
        incumbent_error: float,
        K1: float | None = None,
        c: float | None = None,
        rng: np.random.Generator | int = 0,
    ) -> StopDecision:
        """The decision after epoch n given errors (n,): solve at the plan's last epoch <= n and look up n.

        The same as keeping that epoch's table and asking it, if `rng` is in the state it was solved with.
        """
        y = checked_errors(errors)
        losses = self.losses(K1, c)
        at = self.plan(horizon).solved_at(y.size)
        if at is None:
            return undecided("waiting", losses)
        table = self.solve_at(y[:at], horizon, incumbent_error, losses, np.random.default_rng(rng))
        return table.decide(y)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` rebuilds these settings from."""
        spec = asdict(self)
        return {**spec, "resolve_at": list(spec["resolve_at"])}

    @classmethod
    def from_json(cls, spec: Mapping[str, Any]) -> "OptimalStopping":
        """Settings from `to_json`'s object. Raises InvalidInput on an option it does not know."""
        unknown = set(spec) - set(cls.__dataclass_fields__)
        if unknown:
            raise InvalidInput(
                f"OptimalStopping has no option {', '.join(sorted(unknown))}; "
                f"it has {', '.join(cls.__dataclass_fields__)}."
            )
        resolve_at = spec.get("resolve_at")
        return cls(**{**spec, "resolve_at": None if resolve_at is None else tuple(resolve_at)})
