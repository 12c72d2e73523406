"""When to stop a run: the settings of Bayesian optimal stopping, as one object a policy can ask.

Two modes share the machinery of `induction`. `faithful` is the paper's: paths from the exponential-decay
GP, solved once after the first 8 of 51 epochs. `robust`, the default, draws its paths from a Bayesian
power law, and from the runs beside it where there are such, and solves again as the curve grows; between two
solutions the last table decides.
Nothing here knows of trials or logs: errors and an rng in, a decision out, the same bits each time.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune._utils.checks import check_kinds, is_number
from haltune.errors import InvalidInput

from .decay_curves import Paths, checked_errors, conditional_paths
from .induction import MIN_PATHS, DecisionTable, Losses, StopDecision, solve, undecided
from .matched_curves import Beside, believed, matched_paths
from .power_law_curves import power_law_paths

REFERENCE_HORIZON = 51  # `first` and `resolve_at` count epochs of this many, and scale with the horizon
_FIRST = 8
_LEAST_WORTH = 1.5  # epochs: of the shortest trainings a tenth is less than one
_MIN_VISITS = 30
_FEWEST = 3  # errors below which no curve is judged, however short the horizon
_RESOLVE_AT = {"faithful": (), "robust": (12, 16, 24, 32, 40)}
# with runs beside, besides every epoch from _FIRST_BESIDE to `first`
_COMPANY_AT = (10, 14, 18, 20, 28, 36, 44, 48)
_FIRST_BESIDE = 2  # the first epoch that is judged with runs beside
_COMPANY = 3  # runs trained beyond an epoch without which it is not judged before `first`
_PATHS_PER_DRAWN = 5  # with runs beside, of so many paths at most one is drawn: it costs that much more
_K1 = {"faithful": 100.0, "robust": 500.0}
_BESIDE = {"faithful": False, "robust": True}
_MISSING = {"faithful": 0.0, "robust": 0.1}
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
        first: N0 in BO-BOS: epochs, of 51, before anything is decided; scaled to the horizon. Default: 8, and with
            runs beside it the second epoch.
        resolve_at: further epochs, of 51, to solve at. Default: None, (12, 16, 24, 32, 40) and with runs beside some
            more, or none (faithful).
        K1: loss of a wrong stop, may be infinite. Default: None, 500 or (faithful) 100.
        K2: loss of going on wrongly to the end. Default: 99.
        c: loss of each further epoch; beyond 51 epochs of each further 51st of a full training, unless the mode is
            "faithful". Default: 1.
        paths: curves simulated a solution. Default: None, 20,000 or (faithful) 100,000.
        cells: of the grid over the running mean, at each epoch. Default: 16.
        slopes: cuts of each cell, by how the recent epochs differ from what the running mean foretells. Default: 8.
        min_visits: a cell with so many paths or fewer goes on. Default: None, 30, or (robust) paths / 200 where
            that is more.
        missing: what the final value of a trial is worth, as a share of a full training, and unless that is 0 at least
            1.5 epochs: a stop near the end saves less. Default: None, 0.1, or (faithful) 0.
        beside: True to learn from the curves of the other runs of the study; False to look at one curve alone.
            Default: None, True, or (faithful) False, where True is refused.

    Raises:
        InvalidInput: for settings outside these.

    Example:
        >>> from haltune import OptimalStopping
        >>> losing = [0.9, 0.9, 0.89, 0.89, 0.89, 0.88, 0.88, 0.88]  # errors of epochs 1 to 8 of 51
        >>> OptimalStopping(paths=5000).judge(losing, horizon=51, incumbent_error=0.1).d
        'stop'
    """

    mode: Literal["robust", "faithful"] = "robust"
    first: int = _FIRST  # N0 in BO-BOS: epochs, of 51, before anything is decided
    resolve_at: tuple[int, ...] | None = None  # further epochs, of 51, to solve at; None: the mode's own
    K1: float | None = None  # cost of a wrong stop; None: the mode's own, 500 or (faithful) 100
    K2: float = 99.0
    c: float = 1.0
    paths: int | None = None  # simulated per solution; None: the mode's own, 20,000 or (faithful) 100,000
    cells: int = 16
    min_visits: int | None = (
        None  # a cell with so many paths or fewer continues; None: 30, robust paths / 200
    )
    slopes: int = 8
    missing: float | None = None  # share of a training; None: 0.1 or (faithful) 0
    beside: bool | None = None  # learn from other runs; None: True or (faithful) False

    def __post_init__(self) -> None:
        check_kinds(self)
        if self.mode not in tuple(_K1):
            raise InvalidInput(f"mode is {self.mode!r}; it is 'robust' or 'faithful'.")
        if self.resolve_at is None:
            object.__setattr__(self, "resolve_at", _RESOLVE_AT[self.mode])
        if not isinstance(self.resolve_at, list | tuple) or not all(map(is_number, self.resolve_at)):
            raise InvalidInput(
                f"resolve_at is {self.resolve_at!r}; it is a list of epochs, such as (10, 20)."
            )
        object.__setattr__(self, "resolve_at", tuple(self.resolve_at))
        for name, defaults in (("K1", _K1), ("paths", _PATHS), ("missing", _MISSING), ("beside", _BESIDE)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults[self.mode])
        for name in ("first", "paths", "cells", "slopes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise InvalidInput(f"{name} is {value!r}; it is a whole number, at least 1.")
        if self.missing is None or not (is_number(self.missing) and 0.0 <= self.missing <= 1.0):
            raise InvalidInput(
                f"missing is {self.missing!r}; it is a share of a whole training, from 0 to 1, for example 0.1."
            )
        if not isinstance(self.beside, bool):
            raise InvalidInput(f"beside is {self.beside!r}; it is True or False.")
        if self.min_visits is None:
            # 31 paths without a winner bound p_win by 0.1 only, which at K1 = 500 may cost 50 epochs
            share = (self.paths or 0) // 200 if self.mode == "robust" else 0
            object.__setattr__(self, "min_visits", max(_MIN_VISITS, share))
        if (self.min_visits or 0) < 0 or any(e <= self.first for e in self.resolve_at or ()):
            raise InvalidInput(
                f"min_visits is {self.min_visits} and resolve_at {self.resolve_at} with first {self.first}; "
                "min_visits is not negative, and every further solution comes after the first."
            )
        if self.mode == "faithful" and self.beside:
            raise InvalidInput(
                "mode 'faithful' looks at one curve alone, as the paper does: leave beside out."
            )
        self.losses()

    def losses(self, K1: float | None = None, c: float | None = None) -> Losses:
        """These settings' losses, with K1 (which grows in BO-BOS) or c (a weighted epoch) replaced."""
        own = self.K1 if self.K1 is not None else _K1[self.mode]
        return Losses(own if K1 is None else K1, self.K2, self.c if c is None else c)

    def plan(self, horizon: int, beside: Beside | None = None) -> StoppingPlan:
        """When runs of `horizon` epochs are solved: `first` and `resolve_at` in proportion to 51.

        A faithful run is first judged one epoch after solving, as in algorithm 1; a robust one at once, and earlier
        and more often with runs beside it.
        """
        if horizon < 1:
            raise InvalidInput(f"horizon is {horizon}; a training has at least one epoch.")
        learns = self.beside and beside is not None and beside.beyond(_FIRST_BESIDE) > 0
        oftener = learns and self.resolve_at == _RESOLVE_AT[self.mode]
        further = (self.resolve_at or ()) + (_COMPANY_AT if oftener else ())
        scaled = [max(_FEWEST, round(e * horizon / REFERENCE_HORIZON)) for e in (self.first, *further)]
        if learns and beside is not None and self.first == _FIRST:
            scaled += [e for e in range(_FIRST_BESIDE, scaled[0]) if beside.beyond(e) >= _COMPANY]
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
        beside: Beside | None = None,
    ) -> DecisionTable:
        """The table solved from all of `errors` (n0,), n0 < horizon; each (trial, n0) has its own rng.

        beside: the curves of other runs, which a robust one learns from.
        """
        y = checked_errors(errors)
        count, fewest = self.paths or _PATHS[self.mode], self.min_visits or 0
        learns = self._learns(y, beside)
        if learns:
            share = max(1, min(_PATHS_PER_DRAWN, count // (2 * MIN_PATHS)))
            count, fewest = count // share, fewest // share
        paths = self.paths_of(y, horizon, count, rng, beside)
        # a full training loses no more than 51 c: else a missing value costs more than K2 at long horizons
        each = losses.c * (min(1.0, REFERENCE_HORIZON / horizon) if self.mode == "robust" else 1.0)
        losses = replace(losses, c=each, missing=self._missing(horizon) * each)
        return solve(
            paths, y, incumbent_error, losses, self.cells, fewest, self.slopes,
            saturated_loses=self.mode == "faithful", believed=believed if learns else None,
        )  # fmt: skip

    def paths_of(
        self, errors: Array, horizon: int, count: int, rng: np.random.Generator, beside: Beside | None = None
    ) -> Paths:
        """What a run may still become, as it is seen here: `count` curves of the epochs after errors (n0,)."""
        if beside is not None and self._learns(errors, beside):
            first = self.plan(horizon).solve_at[:1]
            own = bool(first) and errors.size >= first[0]
            return matched_paths(errors, horizon, beside, count, rng, own=own)
        draw = conditional_paths if self.mode == "faithful" else power_law_paths
        return draw(errors, horizon, count, rng)

    def _learns(self, errors: Array, beside: Beside | None) -> bool:
        return bool(self.beside) and beside is not None and beside.beyond(errors.size) > 0

    def _missing(self, horizon: int) -> float:
        """What a final value is worth, in epochs."""
        return max(self.missing * horizon, _LEAST_WORTH) if self.missing else 0.0

    def decide(
        self,
        errors: Array,
        horizon: int,
        table: Callable[[int], DecisionTable],
        beside: Beside | None = None,
    ) -> tuple[StopDecision | None, int]:
        """The decision after epoch n given errors (n,), and the epoch of its table; None before the first.

        table: what `solve_at` says of the first so many errors, kept or made. The plan's last table decides, unless
        the curve has left its paths; and a robust stop is made only where a table of all n errors agrees.
        """
        n = len(errors)
        at = self.plan(horizon, beside).solved_at(n)
        if at is None:
            return None, 0
        decision = table(at).decide(errors)
        if at < n and (decision.basis == "left" or (decision.d == "stop" and self.mode == "robust")):
            return table(n).decide(errors), n
        return decision, at

    def judge(
        self,
        errors: ArrayLike,
        horizon: int,
        incumbent_error: float,
        K1: float | None = None,
        c: float | None = None,
        rng: np.random.Generator | int = 0,
        beside: Beside | None = None,
    ) -> StopDecision:
        """The decision after epoch n given errors (n,), each table solved with `rng` as it is.

        The same as keeping the plan's tables and asking `decide`.
        """
        y = checked_errors(errors)
        losses, seed = self.losses(K1, c), np.random.default_rng(rng).bit_generator.state

        def table(at: int) -> DecisionTable:
            own = np.random.default_rng(0)
            own.bit_generator.state = seed
            return self.solve_at(y[:at], horizon, incumbent_error, losses, own, beside)

        return self.decide(y, horizon, table, beside)[0] or undecided("waiting", losses)

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
