"""The loop for scikit-learn's estimators with `partial_fit`: SGDClassifier, MLPClassifier and others.

An epoch is one pass over the shuffled data, followed by a score on the validation data. A checkpoint is the whole
estimator in skops' format, which has no pickle; the process's random state is saved next to it. If skops is not
installed, nothing is saved, and a trial that resumes trains again from its start. An estimator with parts that are not
scikit-learn's does not pause.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput, NotSupported, installing
from haltune.log.problem import Maximize
from haltune.study import Trial

from .loop import TrainingLoop
from .reporter import nearest, need_trial

_OPTIMIZERS = tuple(  # of MLPClassifier and MLPRegressor; skops trusts scikit-learn's other parts by default
    f"sklearn.neural_network._stochastic_optimizers.{name}" for name in ("AdamOptimizer", "SGDOptimizer")
)


def fit(
    trial: Trial,
    estimator: Any,
    x: Any,
    y: Any,
    *,
    validation: tuple[Any, Any],
    scoring: str | Callable[..., float] | None = None,
    batch_size: int | None = None,
    classes: Sequence[Any] | None = None,
    verbose: bool = False,
) -> Any:
    """Train a copy of an estimator by `partial_fit`, epoch by epoch; return the trained copy.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        estimator: An untrained estimator with the trial's configuration; it is not changed.
        x: The training data: an array, a sparse matrix or a data frame.
        y: The targets.
        validation: (x, y) to score on after each epoch.
        scoring: A scikit-learn scorer, its name, or a function (estimator, x, y) -> number. For several goals, a
            function that returns {name: number}. Default: None, the scorers with the names of the goals.
        batch_size: Samples in a call of `partial_fit`. Default: None, all samples of an epoch. (SGDClassifier uses
            them one by one, MLPClassifier in its own batches.)
        classes: All classes that can occur in `y`, for a classifier. Default: None, the classes in `y`.
        verbose: Print a line for every report. Default: False.

    Raises:
        InvalidInput: If `trial` is not a trial, if the estimator has no `partial_fit`, if no scorer is named, or if a
            scorer of scikit-learn, for which larger is better, is used with Minimize.

    Example:
        >>> import numpy as np
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> from sklearn.linear_model import SGDClassifier
        >>> x = np.random.default_rng(0).normal(size=(60, 3))
        >>> y = x[:, 0] > 0
        >>> problem = Problem(Space({"alpha": Float(1e-5, 1e-2, log=True)}), Maximize("accuracy"), max_epochs=3)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=2))
        >>> for trial in study:
        ...     with trial:
        ...         _ = fit(trial, SGDClassifier(**trial.config), x[:40], y[:40], validation=(x[40:], y[40:]))
        >>> load(study.best.checkpoint).score(x, y) > 0.8
        True
    """
    from sklearn.base import clone, is_classifier
    from sklearn.utils import gen_batches, shuffle

    need_trial(trial, None)
    if not hasattr(estimator, "partial_fit"):
        raise InvalidInput(
            f"{type(estimator).__name__} has no partial_fit, so it has no value before its end. Use an estimator with "
            "partial_fit, such as SGDClassifier, or train this one whole and report once, with max_epochs=1."
        )
    score = _scorer(trial, estimator, scoring)
    model = load(trial.checkpoint) if trial.checkpoint else clone(estimator)
    named = {"classes": _classes(y) if classes is None else classes} if is_classifier(model) else {}
    loop = TrainingLoop(trial, verbose, save=_saving(trial, model), suffix=".skops")
    for epoch in loop:
        inputs, targets = shuffle(x, y, random_state=epoch)
        samples = len(targets)
        for rows in gen_batches(samples, batch_size or samples):
            model.partial_fit(inputs[rows], targets[rows], **named)
        with loop.validation():
            value = score(model, *validation)
        loop.report(value)
    return model


def load(path: str) -> Any:
    """Load the estimator that `fit` saved at `study.best.checkpoint`. No pickle is loaded.

    Raises skops' UntrustedTypesFoundException if it has parts of libraries other than scikit-learn and NumPy.
    """
    import skops.io

    return skops.io.load(path, trusted=list(_OPTIMIZERS))


def _saving(trial: Trial, model: Any) -> Callable[[Path], object] | None:
    if importlib.util.find_spec("skops") is not None:
        return lambda path: _save(model, path)
    trial.warn(
        "skops is not installed, so scikit-learn estimators are not saved: a trial that resumes trains again from its "
        f"start, and the best model is not kept. Run: {installing('sklearn')}",
        once=True,
    )
    return None


def _save(model: Any, path: Path) -> None:
    import skops.io

    data = skops.io.dumps(model)
    foreign = set(skops.io.get_untrusted_types(data=data)) - set(_OPTIMIZERS)
    if foreign:
        raise NotSupported(f"this estimator has {', '.join(sorted(foreign))}, which skops does not load")
    path.write_bytes(data)


def _classes(y: Any) -> Any:
    import numpy as np

    return np.unique(y)


def _scorer(trial: Trial, estimator: Any, scoring: Any) -> Callable[..., Any]:
    """Return a function (estimator, x, y) -> number, or several by name.

    Raises InvalidInput if a scorer does not exist, or has the opposite direction.
    """
    from sklearn.metrics import check_scoring

    if callable(scoring):
        return scoring  # type: ignore[no-any-return]
    metric, others = trial.goal.metric, trial.measures.others
    if not others:
        return check_scoring(estimator, _named(trial, scoring or metric, True))  # type: ignore[no-any-return]
    if scoring is not None:
        raise InvalidInput(
            f"scoring={scoring!r} is one number, but a report needs {len(others) + 1}: {', '.join((metric, *others))}. "
            "Give fit(..., scoring=) a function (estimator, x, y) -> {name: number}."
        )
    scorers = {name: check_scoring(estimator, _named(trial, name, name == metric)) for name in (metric, *others)}
    return lambda *arguments: {name: scorer(*arguments) for name, scorer in scorers.items()}


def _named(trial: Trial, name: Any, first: bool) -> str:
    """Return a scorer's name. Raises InvalidInput if there is none, or if the goal minimizes a scorer."""
    from sklearn.metrics import get_scorer_names

    if name not in get_scorer_names():
        near = nearest(str(name), get_scorer_names())
        meant = f", such as {near!r}" if near else ""
        raise InvalidInput(
            f"{name!r} is not a scikit-learn scorer. Give fit(..., scoring=) a name from sklearn.metrics."
            f"get_scorer_names(){meant}, or a function (estimator, x, y) -> number."
        )
    if first and not isinstance(trial.goal, Maximize):
        goal = f"Maximize({trial.goal.metric!r})"
        raise InvalidInput(
            f"For scikit-learn's scorers, {name!r} included, larger is better. Make the goal {goal}, or give "
            "fit(..., scoring=) a function (estimator, x, y) -> number for which smaller is better."
        )
    return str(name)
