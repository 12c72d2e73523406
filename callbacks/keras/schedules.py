"""Learning-rate schedules and early stopping that do not fit the trial's horizon.

A schedule is built for so many steps. Trials always train towards `trial.max_epochs`, and are
stopped or paused earlier, so a schedule that ends elsewhere is most often one for another
number of epochs. ExponentialDecay, InverseTimeDecay and restarts have no end to be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from haltune._utils.words import amount, plural

_WITH_AN_END = {"CosineDecay", "PolynomialDecay"}


def schedule_advice(optimizer: Any, steps: int | None, max_epochs: int | None) -> str | None:
    """What is wrong with the optimizer's schedule; None when it ends within an epoch of the horizon.

    `steps`: optimizer steps in an epoch, None when Keras does not know them.
    """
    for schedule, warmup in _schedules(getattr(optimizer, "inner_optimizer", optimizer)):
        name, end = type(schedule).__name__, schedule.decay_steps + _warmup(schedule)
        if max_epochs is None:
            return (
                f"the schedule {name} ends after {plural(end, 'step')}, but this problem sets no max_epochs: "
                "give the Problem one, or use a schedule without an end"
            )
        if steps and not any(abs(e - steps * max_epochs) < steps for e in (end, end + warmup)):
            less = f" - {_warmup(schedule):g} for the warm-up" if _warmup(schedule) else ""
            return (
                f"the schedule {name} ends after {plural(end, 'step')}, {amount(end / steps, 'epochs', 4)}, but "
                f"trials train towards trial.max_epochs = {plural(max_epochs, 'epoch')} of {plural(steps, 'step')}: "
                f"write decay_steps=trial.max_epochs * {steps}{less}; haltune stops or pauses a trial before that"
            )
    return None


def stopping_advice(company: Iterable[Any], until: float | None, max_epochs: int | None) -> str | None:
    """What is wrong with an EarlyStopping that may fire before `until`, the trial's first rung, in epochs."""
    from keras.callbacks import EarlyStopping

    if until is None or (max_epochs is not None and until >= max_epochs):
        return None
    for stopping in company:
        if not isinstance(stopping, EarlyStopping):
            continue
        # the first epoch that it looks at always improves; then patience more may not, one at least
        if stopping.start_from_epoch + max(stopping.patience, 1) + 1 < until:
            return (
                f"EarlyStopping(patience={stopping.patience}) can end this training before epoch {until:g}, where "
                f"the policy compares trials: give it patience={until:g} or more, or leave stopping to haltune"
            )
    return None


def swapping_advice(company: Sequence[Any], callback: Any) -> str | None:
    """What is wrong with a SwapEMAWeights that has swapped the weights before `callback` saves them."""
    for other in company:
        if other is callback:
            return None
        if type(other).__name__ == "SwapEMAWeights" and getattr(other, "swap_on_epoch", False):
            return (
                "SwapEMAWeights(swap_on_epoch=True) stands before HaltuneCallback, so that a paused trial would be "
                "saved with its averaged weights and not continue as it was: put HaltuneCallback before it"
            )
    return None


def _schedules(optimizer: Any) -> Iterator[tuple[Any, float]]:
    """The schedules with an end in an optimizer, nested ones too, with the warm-up steps of what wraps them."""
    yield from _within(getattr(optimizer, "_learning_rate", None), 0.0)


def _within(schedule: Any, warmup: float) -> Iterator[tuple[Any, float]]:
    from keras.optimizers.schedules import LearningRateSchedule

    if not isinstance(schedule, LearningRateSchedule):
        return
    kinds = {kind.__name__ for kind in type(schedule).__mro__}
    if kinds & _WITH_AN_END and not getattr(schedule, "cycle", False):
        yield schedule, warmup
    for part in vars(schedule).values():
        yield from _within(part, warmup + _warmup(schedule))


def _warmup(schedule: Any) -> float:
    """The steps that a schedule warms up for; CosineDecay does not without a target."""
    if getattr(schedule, "warmup_target", schedule) is None:
        return 0.0
    return float(getattr(schedule, "warmup_steps", 0) or 0)
