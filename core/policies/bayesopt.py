"""Bayesian optimisation: a Gaussian process over final values chooses, and every trial trains in full.

There are two surrogates. `Surrogate` models scores, for GP-UCB: x_t = argmax mu(x) + sqrt(beta_t) sigma(x) (Srinivas et
al. 2010). `ImprovementSurrogate` models squashed values, for expected improvement: EI(x) = E[(f(x) - y*)^+], y* the
best value of a trial (Jones et al. 1998). EI per cost divides by the expected cost c(x) (Snoek et al. 2012). Cost
cooling divides by c(x)^alpha, alpha the share of the budget that is left (Lee et al. 2020). All look one step ahead;
`Rollout` plans.

Both surrogates are functions of the log alone: they use the trials that ended, in log order, and fit hyperparameters at
fixed counts of them. Pending trials count as observed at their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy.special import ndtr

from haltune._utils.arrays import Array
from haltune._utils.checks import MOST_POINTS, check_whole, is_number
from haltune._utils.memo import Memo
from haltune.display import short
from haltune.errors import InvalidInput
from haltune.gp import Posterior, condition_on, fit, subset
from haltune.log.decisions import Move, Start
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.policy import FinishedTrials, OverTrials
from haltune.log.problem import Problem
from haltune.log.records import Best, TrialRecord
from haltune.log.scores import Scale, measured, plausible
from haltune.space import Space

from .acquisition import Proposal, Surface, expected_improvement, log_ei, maximise, ucb
from .costs import EARLY, CostFunction, CostOption, CostOptions, LogCost, RemainingBudget, in_units
from .random import fresh

TrainingRows = tuple[Array, Array]  # inputs (k, d), targets (k,)
RowKey = tuple[bytes, bytes]
Beta = Literal["scaled", "theorem"] | float
AGAIN = "; every configuration found was tried before, so this one trains again"
_FLOOR = 0.3  # of s: smaller distances to the best count little, as noise does
_ROWS_KEPT = 10_000  # trials
_FITS_KEPT = 12  # at least one for each scalarization of several goals
_LARGE = 10**200  # configurations; the squares of larger numbers are no floats
_DRAWN = 512  # configurations that a design chooses from
_MIDDLE = 0.5  # the middle share of each coordinate that they are drawn from


# -- scores, for UCB ---------------------------------------------------------------------------


@dataclass(eq=False)
class Surrogate:
    """Gaussian processes over the scores of finished trials, and the GP-UCB rule.

    Hyperparameters are fitted to the first m trials: to all while these are fewer than `refit_every`, because a fit to
    six trials would mislead the next ten, then to its largest multiple. Later trials only condition the posterior.
    """

    rows: Callable[[History, TrialRecord], TrainingRows]  # the training rows of one trial
    refit_every: int = 10  # trials; before so many, each trial causes a fit
    initial: int = 6  # trials of a Sobol design before the first fit
    beta: Beta | None = "scaled"
    delta: float = 0.1
    uncounted: int = 0  # first trials that the t of beta_t does not count
    _fits: Memo[Posterior | None] = field(init=False)
    # by the same keys: the rows that a fit was conditioned on last, by their content, and the posterior
    _grown: Memo[tuple[tuple[RowKey, ...], Posterior]] = field(init=False)
    _rows: Memo[tuple[Problem, Scale | None, TrainingRows, RowKey]] = field(init=False)  # by the trial's record

    def __post_init__(self) -> None:
        self._fits, self._grown, self._rows = Memo(_FITS_KEPT), Memo(_FITS_KEPT), Memo(_ROWS_KEPT)

    def check(self, name: str, unset: bool = False) -> None:
        """Raise InvalidInput for an option that is not allowed.

        name: the policy, for the message. unset: beta may be None.
        """
        check_whole(name, 1, MOST_POINTS, initial=self.initial)
        check_whole(name, 1, refit_every=self.refit_every)
        if isinstance(self.beta, str):
            good = self.beta in ("scaled", "theorem")
        else:
            good = self.beta is not None and is_number(self.beta) and self.beta >= 0
        if not (good or (unset and self.beta is None)):
            raise InvalidInput(
                f"{name}(beta={self.beta!r}) is not allowed. Give 'scaled', 'theorem', or a number of at least 0."
            )
        if not 0 < self.delta < 1:
            raise InvalidInput(
                f"{name}(delta={self.delta!r}) is not a probability. Give a number between 0 and 1, such as 0.1."
            )

    def check_space(self, name: str, space: Space) -> None:
        if self.beta == "theorem" and space.size is None:
            raise InvalidInput(f"{name}(beta='theorem') needs a space with finitely many configurations. Use 'scaled'.")

    def posterior(self, history: History, finished: FinishedTrials) -> Posterior | None:
        """Return the posterior after `finished`; None while fewer than `initial` trials have data."""
        if len(finished) < self.initial:
            return None
        # keyed by content: one log has other rows under other scalarizations, at a later rung and on another scale
        known = [self._known(history, history.trial(i)) for i in finished]
        rows, data = [rows for rows, _ in known], tuple(key for _, key in known)
        every = self.refit_every if len(finished) >= self.refit_every else 1
        n = fitted = max(self.initial, every * (len(finished) // every))
        key = history.seed, data[:fitted]

        def fit_to_first() -> Posterior | None:
            for memo in (self._fits, self._grown):  # each posterior is as large as all data
                memo.drop(lambda before: before[1] == data[: len(before[1])])
            x, y = np.vstack([x for x, _ in rows[:fitted]]), np.concatenate([y for _, y in rows[:fitted]])
            return fit(x, y, rng=history.rng("fit", fitted), learn_from=400) if len(y) else None

        posterior = self._fits(key, fit_to_first)
        if posterior is None:
            return None
        grown = self._grown.get(key)
        if grown is not None and grown[0] == data[: len(grown[0])]:
            n, posterior = len(grown[0]), grown[1]
        for x, y in rows[n:]:
            posterior = posterior.condition(x, y) if len(y) else posterior
        self._grown.put(key, (data, posterior))
        return posterior

    def _known(self, history: History, trial: TrialRecord) -> tuple[TrainingRows, RowKey]:
        """Return a trial's rows and their content; they change with the problem, the scale and the record alone."""
        problem, scale = history.problem, history.scale
        kept = self._rows.get(trial)
        if kept is None or kept[0] is not problem or kept[1] is not scale:
            x, y = rows = self.rows(history, trial)
            kept = self._rows.put(trial, (problem, scale, rows, (x.tobytes(), y.tobytes())))
        return kept[2:]

    def propose(self, history: History, finished: FinishedTrials, at: tuple[float, ...], rng: Generator) -> Start:
        """Return the initial design, then the configuration with the highest UCB.

        at: further coordinates of the process, appended to every configuration. Pending trials are hallucinated.
        """
        posterior, space = self.posterior(history, finished), history.problem.space
        if len(history) < self.initial or posterior is None:
            return initial_design(history, self.initial, rng)
        beta = beta_t(self.beta, space, len(history) + 1 - self.uncounted, self.delta)
        pending = history.points[[t.id for t in history.pending]]
        believed = hallucinate(posterior, np.hstack([pending, np.tile(np.array(at), (len(pending), 1))]))
        surface = Surface(believed, lambda mean, variance: ucb(mean, variance, beta), at)
        top = history.best()
        around = [top.config] if top else []
        choice = maximise(surface, space, rng, tried=history.tried, around=around)
        point = np.append(space.encode(choice.config), at)[None]
        mean, variance = (float(v[0]) for v in believed.predict(point))
        scale, sign = history.scale, history.problem.goal.sign
        width, zero = (1.0, 0.0) if scale is None else (scale.high - scale.low, scale.low)
        value, bound = (sign * (zero + score * width) for score in (mean, choice.value))
        sd = width * math.sqrt(variance)
        bounded = (
            f"{'highest UCB, mean +' if sign > 0 else 'lowest LCB, mean -'} {math.sqrt(beta):.2f} sd: {short(bound)}"
        )
        reason = f"{chosen_to(history, value, sd)}; {bounded}"
        evidence = {"mean": value, "sd": sd, "beta": beta, "ucb": bound}
        return Start(choice.config, reason=reason + AGAIN * choice.exhausted, evidence=evidence)


def hallucinate(posterior: Posterior, points: Array) -> Posterior:
    """Condition on pending points as if observed at their posterior mean (GP-BUCB, Desautels et al. 2014).

    The mean stays and the deviation near them shrinks, so that parallel workers spread.
    """
    return posterior.condition(points, posterior.mean(points)) if len(points) else posterior


def targets(history: History, values: Array) -> Array:
    """Return scores of raw values under the current scale; a value that is not measured scores 0, the worst."""
    scale, known = history.scale, measured(values)
    return history.problem.goal.sign * known if scale is None else scale.score(known)


def epoch_coordinate(epochs: ArrayLike, horizon: float) -> Array:
    """Return log(1 + n) / log(1 + N) in [0, 1], the coordinate of epochs n (of any shape) with N = max_epochs.

    Learning curves change with each doubling. On n / N a trial stopped at N / 8 would hardly inform about the end, and
    the search would propose its neighbours again.
    """
    return np.asarray(np.log1p(np.asarray(epochs, dtype=np.float64)) / np.log1p(horizon))


def beta_t(beta: Beta | None, space: Space, t: int, delta: float) -> float:
    """Return the weight of the variance at the t-th proposal, t from 1.

    "theorem": 2 log(|D| t^2 pi^2 / (6 delta)) on a finite domain D (Srinivas et al., theorem 1), too wide in practice.
    For BO-BOS, too, D is the space: its proof (lemma 3) needs the bound at the horizon, not at each number of epochs.
    "scaled": a fifth of it (their section 6), or 0.2 d log(2 t) on a continuous domain of d coordinates (Kandasamy et
    al. 2015). None: "theorem" on a finite domain, else "scaled".
    """
    if not isinstance(beta, str | None):
        return float(beta)
    if space.size is None:
        return 0.2 * space.dim * math.log(2 * t)
    if space.size < _LARGE:
        theorem = 2.0 * math.log(space.size * t**2 * math.pi**2 / (6.0 * delta))
    else:
        theorem = 2.0 * (math.log(space.size) + math.log(t**2 * math.pi**2 / (6.0 * delta)))
    return theorem / 5.0 if beta == "scaled" else theorem


def initial_design(history: History, initial: int, rng: Generator) -> Start:
    """Return the next of `initial` scrambled Sobol configurations, or a random one if that was tried before."""
    space = history.problem.space
    design = space.sample_up_to(initial, history.rng("design"), design="sobol")
    config = design[min(len(history), len(design) - 1)]
    if space.key(config) in history.tried:
        why = "too few trials have values for a model" if len(history) >= initial else "its configuration was tried"
        return Start(fresh(history, rng), reason=f"initial design: drawn at random, because {why}")
    return Start(config, reason=f"initial design: one of {initial} Sobol configurations")


def chosen_to(history: History, mean: float, deviation: float, seen: str = "") -> str:
    """Explain a choice: it exploits if its predicted value beats the best so far, else it explores.

    Before a trial is complete the best value is from a shorter training, so the two are not compared.
    mean, deviation: predicted for a full training, in the metric's unit. seen: the data of the prediction, in words.
    """
    goal, best = history.problem.goal, history.best()
    low, high = goal.bounds or (-math.inf, math.inf)
    mean, source = min(max(mean, low), high), f" in full training, from {seen}" * bool(seen)
    # Decimals for two digits of the deviation; four digits if that needs more than 6 decimals or none.
    decimals = 1 - math.floor(math.log10(deviation)) if 1e-9 < deviation < math.inf else 99
    rounded = f"{mean:.{decimals}f}" if 0 <= decimals <= 6 else short(mean)
    predicted = f"predicts {goal.metric} {rounded} ± {deviation:.2g}{source}"
    if goal.bounds and 2 * deviation >= high - low:
        predicted = f"{goal.metric} may be any value from {low:g} to {high:g}{source}"
    if best is None:
        return f"chosen to explore: {predicted}"
    complete, reached = history.complete(best.trial), history.value_of(best)
    purpose = "exploit" if complete and goal.better(mean, than=reached) else "explore"
    where = "" if complete else f" at {history.problem.at(best.epoch)}"
    return f"chosen to {purpose}: {predicted}; the best so far is {short(reached)}{where}"


@dataclass(frozen=True)
class GPUCB(OverTrials):
    """GP-UCB: a Gaussian process over final scores chooses each configuration; every trial trains in full.

    It chooses the configuration with the highest mean plus scaled deviation. Pending trials count as observed at their
    mean (GP-BUCB).

    Args:
        initial: number of Sobol configurations before the first fit. Default: 6.
        beta: weight of the variance in the upper confidence bound. "theorem": theorem 1 of Srinivas et al. (2010), for
            finite spaces. "scaled": a fifth of it, on a continuous space 0.2 d log(2 t). Or a number. Default:
            "scaled".
        delta: probability that the bound of theorem 1 fails. Default: 0.1.
        refit_every: finished trials between fits of the kernel; before so many, each causes a fit. Default: 10.

    Raises:
        InvalidInput: for other values, and for beta="theorem" on an infinite space.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import GPUCB
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, GPUCB(initial=2), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    initial: int = 6
    beta: Beta = "scaled"
    delta: float = 0.1
    refit_every: int = 10
    _surrogate: Surrogate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        surrogate = Surrogate(_final_score, self.refit_every, self.initial, self.beta, self.delta)
        surrogate.check("GPUCB")
        object.__setattr__(self, "_surrogate", surrogate)

    def start(self, problem: Problem) -> FinishedTrials:
        self._surrogate.check_space("GPUCB", problem.space)
        return ()

    def propose(self, state: FinishedTrials, history: History, rng: Generator) -> Move:
        return self._surrogate.propose(history, state, (), rng)


def _final_score(history: History, trial: TrialRecord) -> TrainingRows:
    """Return one row, the configuration and the trial's score; the score is the worst if the trial failed."""
    failed = trial.status is Status.FAILED
    y = targets(history, np.array([np.nan]) if failed else trial.counting(history.problem.goal)[-1:])
    known = np.isfinite(y)
    x = np.tile(history.points[trial.id], (len(y), 1))
    return x[known], y[known]


# -- squashed values, for expected improvement -------------------------------------------------


@dataclass(frozen=True, eq=False)
class Squash:
    """Map v = sign * value, larger better, to y = -log((best - v) / s + 0.3), and back.

    s = best - median of the values so far. Around the median the map is nearly linear. Far below the best all values
    look alike, so that a few failed trainings do not set the scale; near it differences of 0.01 s still count. The
    map keeps the order. The quantity that improves is the gap to a value slightly better than the best.
    """

    best: float
    spread: float  # s
    sign: float

    @classmethod
    def of(cls, results: Array, sign: float) -> Squash:
        best = float(results.max())
        spread = best - float(np.median(results))
        if not spread > 1e-12 * abs(best):  # half of the values equal the best
            spread = float(best - results.mean())
        return cls(best, spread if spread > 1e-12 * abs(best) else abs(best) or 1e-6, sign)

    def squashed(self, results: Array) -> Array:
        """Return y (n,); a value that is not finite (the trial failed) counts as the worst finite one."""
        finite = np.isfinite(results)
        worst = float(results[finite].min(initial=self.best))
        known = np.where(finite, results, worst)
        return np.asarray(-np.log((self.best - known) / self.spread + _FLOOR))

    def value(self, y: float) -> float:
        return self.sign * (self.best - self.spread * (float(np.exp(-y)) - _FLOOR))


@dataclass(frozen=True, eq=False)
class Improvement:
    """A posterior over y, with pending trials as observed at their mean, and the map of y."""

    posterior: Posterior
    best: float  # the best y of a trial
    squash: Squash

    def expected(self, points: Array) -> Array:
        """Return the expected improvement (m,) of y at points (m, dim)."""
        return expected_improvement(*self.posterior.predict(points), self.best)

    def prediction(self, point: Array) -> dict[str, float]:
        """Return predictions at a point (1, dim), in the metric's unit.

        predicted: the median. beats: the probability of a value better than the best. gain: the expected improvement
        over the best. The gap to the best in units of s is exp(-y) - exp(-b), so with y ~ N(m, sd^2) the gain is the
        price of a put on a log-normal, s (e^-b N(d) - e^(-m + sd^2 / 2) N(d - sd)), d = (m - b) / sd.
        """
        mean, variance = (float(found[0]) for found in self.posterior.predict(point))
        sd = max(variance, 1e-300) ** 0.5
        d = (mean - self.best) / sd
        worth = np.exp(-self.best) * ndtr(d) - np.exp(min(variance / 2.0 - mean, 700.0)) * ndtr(d - sd)
        gain = self.squash.spread * max(float(worth), 0.0)
        return {"predicted": self.squash.value(mean), "beats": float(ndtr(d)), "gain": gain}

    def in_words(self, prediction: dict[str, float], metric: str) -> str:
        best, beats = self.squash.value(self.best), prediction["beats"]
        chance = f"= {beats:.2f}" if beats >= 0.005 else "< 0.01"
        gain, predicted = prediction["gain"], prediction["predicted"]
        return f"P(beats {best:.4g}) {chance}, expected gain {gain:.2g} {metric}; predicts {predicted:.4g}"


@dataclass(eq=False)
class ImprovementSurrogate:
    """Posteriors for expected improvement, cached by their data.

    Kernels are fitted to all of the first 50 values, then to multiples of `refit_every`: with little data a fit is
    cheap and an old one misleads. All y change when the best or the median changes, so each posterior is built again.
    """

    refit_every: int  # values, after the first 50
    _fits: Memo[Posterior] = field(default_factory=lambda: Memo(2))  # each is as large as all data

    def improvement(self, history: History, finished: FinishedTrials) -> Improvement | None:
        """Return the improvement after `finished`; None before the first finite value."""
        goal, sign = history.problem.goal, history.problem.goal.sign
        ended = (history.trial(i) for i in finished)
        results = plausible([np.nan if t.status is Status.FAILED else t.target(goal) for t in ended])
        if not np.isfinite(results).any():
            return None
        squash = Squash.of(results[np.isfinite(results)], sign)
        x = history.points[list(finished)]
        y = squash.squashed(results)

        def fitted() -> Posterior:
            m = len(y) if len(y) <= EARLY else max(EARLY, len(y) - len(y) % self.refit_every)
            posterior = fit(x[:m], y[:m], rng=history.rng("fit", m), learn_from=400)
            if m == len(y):
                return posterior
            kept = subset(x, y)  # as in a fit
            return condition_on(
                posterior.kernel, x[kept], y[kept], noise=posterior.noise, constant=float(y.mean())
            )  # fmt: skip

        posterior = self._fits((history.seed, x.tobytes(), y.tobytes()), fitted)
        pending = history.points[[t.id for t in history.pending]]
        return Improvement(hallucinate(posterior, pending), float(y.max()), squash)


def cheap_design(history: History, log_cost: LogCost | None, rng: Generator) -> Start:
    """Return an untried configuration from the middle of the space with the largest distance / cost.

    The middle is the middle half of each parameter: in a corner a training may take 100 times as long and informs only
    about the corner. The choice is among 512 Sobol configurations. Distance: in the cube, to the nearest trial. Cost:
    expected after the trials so far.
    """
    space = history.problem.space
    drawn = space.encode_many(space.sample_up_to(_DRAWN, rng, "sobol"))
    middle = space.box.mean(axis=0)
    configs = space.decode_many(middle + _MIDDLE * (drawn - middle)) if space.dim else []
    new = [c for c, key in zip(configs, space.keys(configs), strict=True) if key not in history.tried]
    worth, where = np.zeros(len(new)), "from the middle of the space"
    if len(history):
        where = f"{'cheap and far' if log_cost else 'far'} from the trials so far, in the middle of the space"
        if new:
            points = space.encode_many(new)
            apart = np.sqrt(((points[:, None, :] - history.points[None]) ** 2).sum(axis=2)).min(axis=1)
            worth = np.log(np.maximum(apart, 1e-12)) - (log_cost(points)[0] if log_cost else 0.0)
    for i in np.argsort(-worth, kind="stable"):
        if space.contains(new[i]):
            return Start(new[i], reason=f"initial design: {where}")
    return Start(fresh(history, rng), reason="initial design: drawn at random")


def improve(
    history: History, improvement: Improvement, rng: Generator, log_cost: LogCost | None = None,
    candidates: int = 1024,
) -> Proposal:  # fmt: skip
    """Return the untried configuration of largest log EI - log cost."""
    surface = Surface(
        improvement.posterior, lambda mean, variance: log_ei(mean, variance, improvement.best), log_cost=log_cost
    )
    top = history.best()
    around = [top.config] if top else []
    space = history.problem.space
    return maximise(surface, space, rng, tried=history.tried, around=around, candidates=candidates)


@dataclass(frozen=True)
class EI(OverTrials):
    """Expected improvement, or expected improvement per cost; every trial trains in full.

    Pending trials count as observed at their mean.

    Args:
        initial: number of trials before the first fit: Sobol configurations or, with a `cost`, configurations in the
            middle of the space, cheap and far from each other. Default: None, which is 4, with a `cost` 3.
        refit_every: finished trials, beyond 50, between fits of the kernel. Default: 10.
        cost: "per" divides the expected improvement by the expected cost. "cooled" divides by cost^alpha, where alpha
            is the share of the budget that is left (of several budgets the smallest share): the search starts with
            cheap configurations and ends with the best. Default: None, costs are ignored.
        cost_function: known cost of a configuration: a function (config) or (config, previous config) to a number of
            at least 0, in the unit of the budget (seconds, or the cost that trials report). The previous config is
            None at the first trial. Default: None, costs are learnt.
        cost_model: how costs are learnt, from the `cost` that trials report or from their seconds: "gp", a Gaussian
            process of log costs; a list of parameters in which log cost is linear; or a function (config) whose scale
            is learnt. Default: "gp".

    Raises:
        InvalidInput: for other values, and when the cost model does not fit the space.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import EI
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, EI(cost="per", initial=2, cost_model=["lr"]), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    initial: int | None = None
    refit_every: int = 10
    cost: Literal["per", "cooled"] | None = None
    cost_function: CostFunction | None = None
    cost_model: CostOption = "gp"
    _first: int = field(init=False, repr=False, compare=False)
    _surrogate: ImprovementSurrogate = field(init=False, repr=False, compare=False)
    _costs: CostOptions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.cost not in (None, "per", "cooled"):
            advice = " Pass your function as cost_function=." * callable(self.cost)
            raise InvalidInput(f"EI(cost={self.cost!r}) is not allowed. Give 'per', 'cooled' or None.{advice}")
        if self.cost is None and (self.cost_function is not None or self.cost_model != "gp"):
            raise InvalidInput(
                "EI got cost_function= or cost_model= without cost=, so it would ignore costs. Add cost='per' or "
                "cost='cooled', or leave the others out."
            )
        first = self.initial if self.initial is not None else 3 if self.cost else 4
        check_whole("EI", 1, MOST_POINTS, initial=first)
        check_whole("EI", 1, refit_every=self.refit_every)
        costs = CostOptions("EI", self.cost_function, self.cost_model, refit_every=self.refit_every)
        object.__setattr__(self, "_first", first)
        object.__setattr__(self, "_surrogate", ImprovementSurrogate(self.refit_every))
        object.__setattr__(self, "_costs", costs)

    @property
    def spec(self) -> dict[str, Any]:
        return {**super().spec, "initial": self._first}

    @property
    def plans(self) -> bool:
        return self.cost == "cooled"

    def start(self, problem: Problem) -> FinishedTrials:
        self._costs.check(problem)
        return ()

    def propose(self, state: FinishedTrials, history: History, rng: Generator) -> Move:
        improvement = self._surrogate.improvement(history, state)
        remaining = RemainingBudget(self._costs, history, state)
        log_cost = remaining.log_cost() if self.cost else None
        if len(history) < self._first or improvement is None:
            if self.cost:
                return cheap_design(history, log_cost, rng)
            return initial_design(history, self._first, rng)
        alpha = 1.0 if self.cost else 0.0
        if self.cost == "cooled":
            alpha = min((left.share for left in remaining.lefts), default=1.0)

        def cooled(points: Array) -> tuple[Array, Array]:
            assert log_cost is not None
            value, slopes = log_cost(points)
            return alpha * value, alpha * slopes

        choice = improve(history, improvement, rng, cooled if log_cost else None)
        point = history.problem.space.encode(choice.config)[None]
        prediction = improvement.prediction(point)
        words = improvement.in_words(prediction, history.problem.goal.metric)
        evidence = {"ei": float(improvement.expected(point)[0]), **prediction, "alpha": alpha}
        reason = f"largest expected improvement: {words}"
        if self.cost and (model := remaining.model(remaining.unit)) is not None:
            cost = evidence["cost"] = float(model.predict(point, remaining.standing).mean[0])
            power = "" if alpha == 1.0 else f"^{alpha:.2f}"
            taking = in_units(history.problem, cost, remaining.unit, 3)
            reason = f"largest expected improvement per cost{power}: {words}, for {taking}"
        return Start(choice.config, reason=reason + AGAIN * choice.exhausted, evidence=evidence)


def recommend(history: History) -> Best | None:
    """Return the complete trial with the highest posterior mean, for noisy metrics; None before the first value.

    Before a trial is complete, those that trained longest compete. `Best.value` is the trial's own value. Values
    absurdly far below the best are left out.
    """
    groups = history.ranked()
    if not groups:
        return None
    every = [history.as_best(i) for i in sorted(groups[0])]
    sign, metric = history.problem.goal.sign, history.as_best(groups[0][0]).metric
    values = plausible(measured([sign * b.value if b.metric == metric else np.nan for b in every]), reach=1e3)
    known = np.isfinite(values)
    if not known.any():
        return history.best()
    ids, y = [b.trial for b, kept in zip(every, known, strict=True) if kept], values[known]
    x = history.points[ids]
    means = fit(x, y, rng=history.rng("fit", 0)).mean(x) if x.shape[1] else y
    return history.as_best(ids[int(np.argmax(means))])
