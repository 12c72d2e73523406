"""The loop for scikit-learn's estimators with `partial_fit`: SGDClassifier, MLPClassifier and others.

An epoch is one pass over the shuffled data, followed by a score on the validation data. A checkpoint is the whole
estimator in skops' format, which has no pickle; the process's random state is saved next to it. If skops is not
installed, nothing is saved, and a trial that resumes trains again from its start. An estimator with parts that are not
scikit-learn's does not pause.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput, NotSupported, installing
from haltune.log.problem import Maximize
from haltune.study import Trial

from .loop import TrainingLoop
from .reporter import nearest, need_trial, trains_another

_OPTIMIZERS = tuple(  # of MLPClassifier and MLPRegressor; skops trusts scikit-learn's other parts by default
    f"sklearn.neural_network._stochastic_optimizers.{name}" for name in ("AdamOptimizer", "SGDOptimizer")
)


def fit(
    trial: Trial,
    estimator: Any,
    x: Any,
    y: Any = None,
    *,
    validation: tuple[Any, Any],
    scoring: str | Callable[..., float] | None = None,
    batch_size: int | None = None,
    classes: Sequence[Any] | None = None,
    sample_weight: Any = None,
    verbose: bool = False,
) -> Any:
    """Train a copy of an estimator by `partial_fit`, epoch by epoch; return the trained copy.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        estimator: An untrained estimator with the trial's configuration; it is not changed.
        x: The training data: an array, a sparse matrix or a data frame.
        y: The targets, with a column for each output if there are several. Default: None, for an estimator that learns
            without, such as MiniBatchKMeans.
        validation: (x, y) to score on after each epoch; y is None without targets.
        scoring: A scikit-learn scorer, its name, or a function (estimator, x, y) -> number. For several goals, a
            function that returns {name: number}. Default: None, the scorers with the names of the goals. For a loss
            leave out "neg_": Minimize("log_loss").
        batch_size: Samples in a call of `partial_fit`. Default: None, all samples of an epoch. (SGDClassifier uses
            them one by one, MLPClassifier in its own batches.)
        classes: All classes that can occur in `y`, for a classifier; of several outputs a list for each. Default: None,
            the classes in `y`.
        sample_weight: Weights of the training samples. Default: None.
        verbose: Print a line for every report. Default: False.

    Raises:
        NotSupported: If the trial has ended.
        InvalidInput: If `trial` is not a trial, if the estimator cannot train by `partial_fit`, if no scorer is named,
            or if a scorer of scikit-learn, for which larger is better, is used with Minimize.

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
    if trial.ended is not None:
        raise trains_another(trial)
    _check(trial, estimator, y, validation, sample_weight)
    score = _scorer(trial, estimator, scoring, y)
    model = load(trial.checkpoint) if trial.checkpoint else clone(estimator)
    named = {}
    if y is not None and is_classifier(model):
        named["classes"] = _classes(model, y) if classes is None else classes
    columns = {"y": y, "sample_weight": sample_weight}
    columns = {name: column for name, column in columns.items() if column is not None}
    loop = TrainingLoop(trial, verbose, save=_saving(trial, model), suffix=".skops")
    for epoch in loop:
        shuffled = shuffle(x, *columns.values(), random_state=epoch)
        inputs, *others = shuffled if columns else [shuffled]
        for rows in gen_batches(inputs.shape[0], batch_size or inputs.shape[0]):
            parts = {name: other[rows] for name, other in zip(columns, others, strict=True)}
            model.partial_fit(inputs[rows], **parts, **named)
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


def _check(trial: Trial, estimator: Any, y: Any, validation: Any, sample_weight: Any) -> None:
    """Raise InvalidInput if the estimator cannot train so by `partial_fit`."""
    name = type(estimator).__name__
    parameters = estimator.get_params(deep=False) if hasattr(estimator, "get_params") else {}
    if not hasattr(estimator, "partial_fit"):
        do = "Use an estimator with partial_fit, such as SGDClassifier, or train this one whole and report once, with "
        do += "max_epochs=1."
        if hasattr(estimator, "steps"):
            do = (
                "Fit its transformers before the loop, x = pipeline[:-1].fit_transform(x, y), transform the validation "
                "data, and pass the last step, pipeline[-1]."
            )
        elif "n_estimators" in parameters or "max_bins" in parameters:  # a forest, boosting, boosting by histograms
            size = "n_estimators" if "n_estimators" in parameters else "max_iter"
            do = (
                "It grows by warm_start=True in a loop of your own: for epoch in TrainingLoop(trial): "
                f"model.set_params({size}=epoch).fit(x, y), then loop.report(value)."
            )
        raise InvalidInput(f"{name} has no partial_fit, so it has no value before its end. {do}")
    if parameters.get("early_stopping") is True:
        best = f"{type(trial.goal).__name__}({trial.goal.metric!r}, of='best')"
        raise InvalidInput(
            f"{name}(early_stopping=True) holds out data of its own, which partial_fit does not do. Leave it out: "
            f"haltune stops trials, and with the goal {best} the estimator of the best epoch is kept."
        )
    if not (isinstance(validation, (tuple, list)) and len(validation) == 2):
        raise InvalidInput("validation= is not a pair. Use validation=(x, y), or validation=(x, None) without targets.")
    if y is None and _needs_targets(estimator):
        raise InvalidInput(f"{name} learns from targets. Use fit(trial, estimator, x, y, ...).")
    if sample_weight is not None and "sample_weight" not in inspect.signature(estimator.partial_fit).parameters:
        raise InvalidInput(f"{name}.partial_fit takes no sample_weight. Leave it out, or use SGDClassifier.")


def _needs_targets(estimator: Any) -> bool:
    from sklearn.base import is_classifier, is_regressor

    return bool(is_classifier(estimator) or is_regressor(estimator))


def _classes(model: Any, y: Any) -> Any:
    """Return the classes of targets: of each output, of the labels of a multilabel matrix, or of one column."""
    import numpy as np

    if len(getattr(y, "shape", ())) < 2 or y.shape[1] == 1:
        return np.unique(y)
    if hasattr(model, "estimator"):  # MultiOutputClassifier and the like: one classifier for each column
        return [np.unique(column) for column in np.asarray(y).T]
    return np.arange(y.shape[1])  # the labels of a sample are the columns with 1


def _scorer(trial: Trial, estimator: Any, scoring: Any, y: Any) -> Callable[..., Any]:
    """Return a function (estimator, x, y) -> number, or several by name.

    Raises InvalidInput if a scorer does not exist, or has the opposite direction.
    """
    import sklearn.metrics

    if callable(scoring):
        name = getattr(scoring, "__name__", None)
        if name is not None and getattr(sklearn.metrics, name, None) is scoring:
            raise InvalidInput(
                f"scoring={name} compares targets with predictions. Give fit(..., scoring=) the name of a scorer, or "
                f"a function: lambda estimator, x, y: {name}(y, estimator.predict(x))."
            )
        if hasattr(scoring, "_score_func") and not isinstance(trial.goal, Maximize):
            raise _opposite(trial, scoring)
        return scoring  # type: ignore[no-any-return]
    metric, others = trial.goal.metric, trial.measures.others
    if not others:
        return _named(trial, metric if scoring is None else scoring, True, y)
    if scoring is not None:
        raise InvalidInput(
            f"scoring={scoring!r} is one number, but a report needs {len(others) + 1}: {', '.join((metric, *others))}. "
            "Give fit(..., scoring=) a function (estimator, x, y) -> {name: number}."
        )
    scorers = {name: _named(trial, name, name == metric, y) for name in (metric, *others)}
    return lambda *arguments: {name: scorer(*arguments) for name, scorer in scorers.items()}


def _named(trial: Trial, name: Any, first: bool, y: Any) -> Callable[..., Any]:
    """Return the scorer of a name; of a loss, which scikit-learn calls by "neg_", the loss.

    first: of the first goal. Raises InvalidInput if there is none, or if the goal minimizes a scorer.
    """
    from sklearn.metrics import get_scorer, get_scorer_names

    names = get_scorer_names()
    minimizes = first and not isinstance(trial.goal, Maximize)
    loss = str(name).removeprefix("neg_")
    if name == loss:
        negate = minimizes or not first  # Minimize("log_loss")
    else:
        negate = minimizes and trial.goal.metric != name  # Minimize("loss") with scoring="neg_log_loss"
    if negate and f"neg_{loss}" in names and y is not None:
        scorer = get_scorer(f"neg_{loss}")
        return lambda *arguments: -scorer(*arguments)
    if name not in names or y is None:
        near = nearest(str(name), names) if y is not None else None
        meant = f", such as {near!r}" if near else ""
        named = f"a name from sklearn.metrics.get_scorer_names(){meant}, or "
        why = f"{name!r} is not a scikit-learn scorer."
        if y is None:
            why, named = f"{name!r} cannot be scored by name, because there are no targets.", ""
        raise InvalidInput(f"{why} Give fit(..., scoring=) {named}a function (estimator, x, y) -> number.")
    if minimizes:
        raise _opposite(trial, name)
    return get_scorer(name)  # type: ignore[no-any-return]


def _opposite(trial: Trial, scorer: Any) -> InvalidInput:
    """Return the error for a scorer of a goal that minimizes."""
    return InvalidInput(
        f"For scikit-learn's scorers, {scorer!r} included, larger is better. Make the goal "
        f"Maximize({trial.goal.metric!r}), or give fit(..., scoring=) a function (estimator, x, y) -> number for which "
        "smaller is better."
    )
