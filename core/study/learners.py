"""Whether an estimator, a booster or a layer of Keras that a plain loop trains is the trial's own, and can resume.

`haltune._utils.learners` finds them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from weakref import WeakSet, ref

from haltune._utils.boosters import forgets
from haltune._utils.learners import allow, mark, of_keras, refuse, visible

from .fits import Fits


class OwnLearners:
    """Those in variables of the program, in a trial and its folds."""

    def __init__(self) -> None:
        # their marks where the trial or its loop started; by id, with a weak reference: some cannot be hashed
        self._found: dict[int, tuple[Any, str]] = {}
        self._refused: WeakSet[Any] = WeakSet()

    def looks(self, trial: Fits) -> None:
        """State that the trial, its fold or its loop starts, and refuse to train what another one has trained."""
        for one in visible():
            now = mark(one)
            self._found[id(one)] = ref(one), now
            if not isinstance(one, Hashable):
                continue
            if one not in trial._seen.learners:
                trial._seen.untrained.setdefault(one, now)
            of, fold, attempt, trained = trial._seen.learners.get(one, (*trial._key, 0, ""))
            allow(one)
            if not now or now != trained:
                continue
            if trial.horizon == 1 and not of_keras(one):  # a whole fit may start with what another one has found
                continue
            if (of, fold) != trial._key or (attempt != trial.attempt and not trial.epoch):
                refuse(one, now, _words(trial, of, fold, one))
                self._refused.add(one)

    def looked(self, trial: Fits) -> None:
        """State that the trial, its fold or its loop ends: what it has trained is its own."""
        seen, untrained = trial._seen.learners, trial._seen.untrained
        for one in visible():
            now, frozen = mark(one), not getattr(one, "trainable", True)  # a layer of Keras
            if isinstance(one, Hashable) and not frozen:
                known = "", self._before(one), untrained.get(one), seen.get(one, ("",))[-1]  # also if it was set back
                if now not in known:
                    seen[one] = *trial._key, trial.attempt, now
        for one in self._refused:  # perhaps no variable has it any more
            allow(one)
        self._refused.clear()

    def forgets(self) -> str | None:
        """Return why a booster that the trial trains cannot resume exactly, or None."""
        for one in visible():
            before = self._before(one)
            if mark(one) != before and (why := forgets(one, before is not None)) is not None:
                return why
        return None

    def _before(self, learner: Any) -> str | None:
        """Return the mark of a learner where the trial or its loop started; None if it was not there."""
        reference, mark = self._found.get(id(learner), (None, None))
        return mark if reference is not None and reference() is learner else None


def _words(trial: Fits, of: int, fold: int, one: Any) -> str:
    """Return the error for a learner that another training has trained, of a trial and its fold."""
    own, who, unit = f"Trial {trial.id}", "an earlier attempt of it", "attempt"
    if of != trial.id:
        who, unit = f"trial {of}", "trial"
    elif fold != trial._index:
        own, who, unit = f"Fold {trial._index} of trial {trial.id}", f"fold {fold}", "fold"
    what, do = f"the {type(one).__name__} object", f"Make one for each {unit}, within the loop, from trial.config."
    if of_keras(one):
        what = f"the layer {one.name!r}"
        do = f"Build the model for each {unit}, within the loop, or reset its weights."
    return f"{own} would continue to train {what} that {who} has trained. {do}"
