"""Conversion of parameters and trials between Optuna and haltune.

A range with steps in Optuna is an ordered choice of its values in haltune. An option that Optuna cannot store (a tuple,
or two options that are equal in Python) is text in Optuna. Define-by-run has no declared space, so it is inferred from
trials: a parameter that some trials lack gets a condition on a choice whose values decide whether it is present, or on
a whole number from or up to a value. Without such a condition the parameter is left out. Optuna's steps may count from
0, epochs count from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from typing import Any

from haltune.display import plural
from haltune.errors import InvalidSpace, installing
from haltune.log.events import Status
from haltune.space import Space
from haltune.space.cube import Parameter, layout_of
from haltune.space.domains import Choice, Domain, Float, Int, options_of, token
from haltune.tuners import grid_values

try:
    import optuna as optuna
except ImportError as error:
    raise ImportError(f"haltune.optuna needs Optuna: {installing('optuna')}") from error

PREFIX = "haltune:"  # of attributes that haltune writes
PROBLEM = f"{PREFIX}problem"  # attribute of a study
LIMITS = "constraints"  # system attribute: a list, or one attribute per constraint with a colon before its name
FrozenTrial = optuna.trial.FrozenTrial
TrialState = optuna.trial.TrialState
ENDS = {TrialState.COMPLETE: Status.COMPLETED, TrialState.PRUNED: Status.STOPPED}
WHOLE = tuple(ENDS)  # trials in these states have all their parameters
Distribution = optuna.distributions.BaseDistribution
FloatDistribution = optuna.distributions.FloatDistribution
IntDistribution = optuna.distributions.IntDistribution
CategoricalDistribution = optuna.distributions.CategoricalDistribution


def curve_of(trial: FrozenTrial, from_zero: bool | None = None) -> dict[int, float]:
    """Return epoch -> value, in order. from_zero: steps count from 0; None: they do if there is a step 0."""
    steps = sorted(trial.intermediate_values)
    shift = (bool(steps) and steps[0] == 0) if from_zero is None else from_zero
    return {step + shift: trial.intermediate_values[step] for step in steps}


def limits_of(trial: FrozenTrial) -> dict[str, float]:
    """Return the constraints of a trial, from any version of Optuna: at most 0 if they hold."""
    listed = trial.system_attrs.get(LIMITS) or ()
    named = {k.partition(":")[2]: v for k, v in trial.system_attrs.items() if k.startswith(f"{LIMITS}:")}
    return {str(i): float(v) for i, v in enumerate(listed)} | {k: float(v) for k, v in named.items()}


def beyond(trial: FrozenTrial) -> bool:
    """Return whether a trial violates a constraint, so that Optuna does not count it as the best."""
    return any(value > 0.0 for value in limits_of(trial).values())


# Samplers and pruners get a study, and a copy of a trial on which nothing can be set. Optuna has no public way from
# them to the storage, where all workers read, since set_system_attr has become private (optuna/optuna#4188).


def set_attribute(study: optuna.Study, trial: FrozenTrial, name: str, value: Any) -> None:
    """Set an attribute of a running trial, which users see. Without it, a decision of the pruner has no reason."""
    study._storage.set_trial_user_attr(trial._trial_id, name, value)


def set_system_attribute(study: optuna.Study, trial: FrozenTrial, name: str, value: Any) -> None:
    """Set an attribute of a running trial for other workers. Without it, they would choose the same parameters."""
    study._storage.set_trial_system_attr(trial._trial_id, name, value)


def all_trials(study: optuna.Study, states: tuple[TrialState, ...]) -> list[FrozenTrial]:
    """Return the trials of all brackets: with HyperbandPruner, a sampler's study has those of one bracket only."""
    return study._storage.get_all_trials(study._study_id, deepcopy=False, states=states)


def contains(distribution: Distribution, *values: Any) -> bool:
    """Return whether a distribution has all these values; Optuna checks it when a trial is made."""
    params = {str(i): value for i, value in enumerate(values)}
    try:
        optuna.trial.create_trial(
            state=TrialState.RUNNING, params=params, distributions=dict.fromkeys(params, distribution)
        )
    except ValueError:
        return False
    return True


def alike(value: float, final: float | None) -> bool:
    """Return whether a value of the curve equals the trial's final value."""
    return final is not None and math.isclose(value, final, rel_tol=1e-6, abs_tol=1e-12)


@dataclass(frozen=True)
class Counterpart:
    """A parameter as haltune's domain and Optuna's distribution."""

    domain: Domain
    distribution: Distribution
    labels: tuple[Any, ...] = ()  # Optuna's names of a choice's options, in order

    def outward(self, value: Any) -> Any:
        if self.labels:
            return self.labels[[token(o) for o in options_of(self.domain)].index(token(value))]
        return _on_step(self.distribution, value)

    def inward(self, value: Any) -> Any:
        """Return haltune's form of a value. Raises InvalidSpace if the domain does not have it."""
        if not self.labels:
            return int(value) if isinstance(self.domain, Int) else float(value)
        try:
            if isinstance(self.distribution, CategoricalDistribution):
                return options_of(self.domain)[int(self.distribution.to_internal_repr(value))]
            away = [abs(float(label) - float(value)) for label in self.labels]
            if min(away) > 0.51 * getattr(self.distribution, "step", 0.0):  # enqueued by the user, not rounded
                raise ValueError("it is outside the range")
            return options_of(self.domain)[away.index(min(away))]
        except (TypeError, ValueError) as error:
            raise InvalidSpace(f"{value!r} is not one of {self.labels}") from error


def _on_step(distribution: Distribution, value: Any) -> Any:
    """Return the value on the grid of a range with too many steps to list."""
    step = getattr(distribution, "step", None)
    if step is None or (isinstance(distribution, IntDistribution) and step == 1):
        return value
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    found = distribution.low + step * round((value - distribution.low) / step)
    kind = int if isinstance(distribution, IntDistribution) else float
    return kind(min(max(found, distribution.low), distribution.high))


def _outward(parameter: Parameter) -> Counterpart:
    domain, (low, high) = parameter.domain, parameter.hull
    if isinstance(domain, Float):
        return Counterpart(domain, FloatDistribution(low, high, log=domain.log))
    if isinstance(domain, Int):
        return Counterpart(domain, IntDistribution(int(low), int(high), log=domain.log))
    options = options_of(domain)
    if isinstance(domain, Choice) and domain.ordered and (stepped := _stepped(options)) is not None:
        return Counterpart(domain, stepped, options)
    labels = _labels(options)
    return Counterpart(domain, CategoricalDistribution(labels), labels)


def _labels(options: Sequence[Any]) -> tuple[Any, ...]:
    """Return labels that Optuna can distinguish."""
    found: list[Any] = []
    for i, option in enumerate(options):
        plain = option is None or isinstance(option, bool | int | float | str)
        label = option if plain and option not in [*options[:i], *options[i + 1 :]] else repr(option)
        while label in found or (label is not option and label in options):
            label += "'"
        found.append(label)
    return tuple(found)


def _stepped(options: tuple[Any, ...]) -> Distribution | None:
    """Return the range with even steps that an ordered choice lists; None if there is none."""
    kinds = set(map(type, options))
    if len(options) < 2 or kinds not in ({int}, {float}) or not options[0] < options[1]:
        return None
    found: Distribution
    if kinds == {int}:
        found = IntDistribution(options[0], options[-1], step=options[1] - options[0])
    else:
        step = float(Decimal(str(options[1])) - Decimal(str(options[0])))
        if not step > 0.0 or abs((options[-1] - options[0]) / step - len(options) + 1) > 1e-6:
            return None
        found = FloatDistribution(options[0], options[-1], step=step)
    return found if contains(found, *options) and _listed(found) == options else None


def inward(name: str, distribution: Distribution) -> Counterpart:
    """Return the counterpart of a distribution. Raises InvalidSpace if it has none."""
    try:
        if isinstance(distribution, CategoricalDistribution):
            return Counterpart(Choice(distribution.choices), distribution, distribution.choices)
        if (listed := _listed(distribution)) is not None:
            return Counterpart(Choice(listed, ordered=True), distribution, listed)
        if isinstance(distribution, FloatDistribution):
            return Counterpart(Float(distribution.low, distribution.high, log=distribution.log), distribution)
        if isinstance(distribution, IntDistribution):
            return Counterpart(Int(distribution.low, distribution.high, log=distribution.log), distribution)
        raise InvalidSpace("haltune supports FloatDistribution, IntDistribution and CategoricalDistribution")
    except InvalidSpace as error:
        raise InvalidSpace(f"Optuna's parameter {name!r}, {distribution!r}: {error}") from error


def _listed(distribution: Distribution) -> tuple[Any, ...] | None:
    """Return the values of a range with steps; None without steps, or if there are too many."""
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        return None
    if distribution.step is None or (isinstance(distribution, IntDistribution) and distribution.step == 1):
        return None
    return grid_values(distribution.low, distribution.high, distribution.step)


@dataclass(frozen=True)
class Translated:
    """A space with its parameters in both libraries."""

    space: Space
    counterparts: dict[str, Counterpart]
    notes: tuple[str, ...] = ()  # differences from Optuna's study

    @classmethod
    def of_space(cls, space: Space) -> Translated:
        """Return the translation of a known space. A bound that names a parameter becomes its outermost value."""
        ordered = {p.name: p for p in layout_of(space.parameters).ordered}
        return cls(space, {name: _outward(ordered[name]) for name in space.names})

    @classmethod
    def of_distributions(cls, distributions: dict[str, Distribution]) -> Translated:
        """Return the translation of unconditional parameters. Raises InvalidSpace for one without a counterpart."""
        found = {name: inward(name, d) for name, d in distributions.items()}
        return cls(Space({name: c.domain for name, c in found.items()}), found)

    def inward(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a trial's parameters as a configuration. Raises InvalidSpace if it is outside the space."""
        known = {n: self.counterparts[n].inward(v) for n, v in params.items() if n in self.counterparts}
        return self.space.canonical(known)

    def outward(self, config: dict[str, Any]) -> dict[str, Any]:
        return {name: self.counterparts[name].outward(value) for name, value in config.items()}


def space_of(trials: Sequence[FrozenTrial]) -> Translated:
    """Return the space of ended trials.

    Raises InvalidSpace if there is none, or if distributions contradict each other or have no counterpart.
    """
    seen: dict[str, list[Distribution]] = {}
    for trial in trials:
        for name, distribution in trial.distributions.items():
            seen.setdefault(name, []).append(distribution)
    counterparts = {name: inward(name, reduce(_both, found)) for name, found in seen.items()}
    notes, domains = [], {}
    for name, counterpart in counterparts.items():
        lacking = len(trials) - len(seen[name])
        if lacking and (when := _condition(name, trials, counterparts)) is None:
            notes.append(
                f"{name!r} is left out: {plural(lacking, 'trial')} of {len(trials)} lack it, and no other parameter "
                "decides which. Give space= to include it"
            )
            continue
        domains[name] = replace(counterpart.domain, when=when) if lacking else counterpart.domain
        if lacking:
            notes.append(f"{name!r} has a condition inferred from the trials: when={when}")
        if len(set(map(str, seen[name]))) > 1:
            notes.append(f"{name!r} had several ranges; the widest is used: {domains[name]!r}")
    while orphans := [n for n, d in domains.items() if set(d.when or {}) - domains.keys()]:
        notes += [f"{n!r} is left out, because it depends on a parameter that is left out" for n in orphans]
        domains = {n: d for n, d in domains.items() if n not in orphans}
    if not domains:
        raise InvalidSpace(
            "No ended trial of this Optuna study has a parameter, so the space is unknown. Give space=, or wait until "
            "a trial is complete."
        )
    return Translated(Space(domains), {n: counterparts[n] for n in domains}, tuple(notes))


def _both(one: Distribution, other: Distribution) -> Distribution:
    """Return a distribution with the values of both. Raises InvalidSpace if there is none."""
    if one == other:
        return one
    # two grids have no common distribution, but one range contains both
    if isinstance(one, FloatDistribution) and isinstance(other, FloatDistribution) and one.log == other.log:
        return FloatDistribution(min(one.low, other.low), max(one.high, other.high), log=one.log)
    if isinstance(one, IntDistribution) and isinstance(other, IntDistribution) and one.log == other.log:
        return IntDistribution(min(one.low, other.low), max(one.high, other.high), log=one.log)
    raise InvalidSpace(f"{one!r} in one trial and {other!r} in another are different parameters. Rename one of them.")


def _condition(name: str, trials: Sequence[FrozenTrial], counterparts: dict[str, Counterpart]) -> dict[str, Any] | None:
    """Return the condition of a parameter that some trials lack; None if no other parameter decides it."""
    kinds: tuple[type, ...] = (Choice, Int)
    for kind in kinds:
        for parent, counterpart in counterparts.items():
            if parent != name and isinstance(counterpart.domain, kind):
                found = _values_with(name, parent, counterpart, trials)
                if found is not None:
                    return {parent: found}
    return None


def _values_with(name: str, parent: str, counterpart: Counterpart, trials: Sequence[FrozenTrial]) -> Any:
    """Return the values of a parent for which a parameter is present; None if they do not decide it."""
    if any(name in t.params and parent not in t.params for t in trials):
        return None
    known = [(counterpart.inward(t.params[parent]), name in t.params) for t in trials if parent in t.params]
    present, absent = [v for v, has in known if has], [v for v, has in known if not has]
    if not present or not absent:
        return None
    if isinstance(counterpart.domain, Int):
        if max(absent) < min(present):
            return (">=", min(present))
        return ("<=", max(present)) if max(present) < min(absent) else None
    tokens = {token(v) for v in present}
    if tokens & {token(v) for v in absent}:
        return None
    return [option for option in options_of(counterpart.domain) if token(option) in tokens]
