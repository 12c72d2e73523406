"""The loop for scikit-learn's estimators that train in parts. An epoch ends with a score on the validation data.

An estimator with `partial_fit`, such as SGDClassifier, trains one pass over the shuffled data in an epoch. An ensemble
with `warm_start`, such as RandomForestClassifier, grows: after the last epoch it has the n_estimators (or max_iter)
that it was given. An estimator that reports its iterations to `sklearn.callback`, which in scikit-learn 1.9 is
LogisticRegression, trains an iteration in an epoch; it stops early, but does not pause, and starts again after Ctrl-C.

A checkpoint is the whole estimator in skops' format, which has no pickle; the process's random state, and what a
scoring of the program remembers, are saved next to it. If skops is not installed, nothing is saved, and a trial that
resumes trains again from its start. An estimator with parts that are not scikit-learn's does not pause.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput, NotSupported, installing
from haltune.log.problem import Maximize
from haltune.study import Trial

from .functions import OwnFunctions
from .loop import TrainingLoop
from .reporter import nearest, need_trial, trains_another

_SUFFIX = ".skops"
_BOOSTERS = {"catboost", "lightgbm", "xgboost"}  # have callbacks of their own
_AUTO = 10_000  # samples; with more, early_stopping="auto" stops a histogram gradient boosting
_TRUSTED = (  # beyond what skops trusts by default: arrays of numbers; a changed tree may read beyond its arrays
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.tree._tree.Tree",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "functools.partial",  # of a histogram gradient boosting with categories; skops lists what it calls, too
    "sklearn.utils.validation.check_array",
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
    """Train a copy of an estimator epoch by epoch; return the trained copy.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        estimator: An untrained estimator with the trial's configuration; it is not changed. It has `partial_fit`, or is
            an ensemble with `warm_start` and its full size, or reports its iterations to `sklearn.callback`.
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
        InvalidInput: If `trial` is not a trial, if the estimator cannot train in parts, if no scorer is named, or if a
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
    from sklearn.base import clone

    need_trial(trial)
    if trial.ended is not None:
        raise trains_another(trial)
    columns = {"y": y, "sample_weight": sample_weight}
    columns = {name: column for name, column in columns.items() if column is not None}
    size = _size(estimator)
    _check(trial, estimator, x, y, validation, sample_weight, size)
    score = _scorer(trial, scoring, y)
    if not (size or hasattr(estimator, "partial_fit")):
        return _iterations(trial, estimator, x, columns, lambda model: score(model, *validation), verbose)
    model = load(trial.checkpoint) if trial.checkpoint else clone(estimator)
    if size:
        train = _growth(trial, model, size, estimator.get_params(deep=False)[size], x, columns)
    else:
        train = _passes(model, x, columns, batch_size, classes)
    own = OwnFunctions((), () if isinstance(scoring, str) else (scoring,), trial, not trial.checkpoint)
    if trial.checkpoint:
        own.put_back(trial.checkpoint)
    loop = TrainingLoop(trial, verbose, save=_saving(trial, lambda: model, own), suffix=_SUFFIX)
    for epoch in loop:
        train(epoch)
        with loop.validation():
            value = score(model, *validation)
        loop.report(value)
    own.ends()
    return model


def _passes(
    model: Any, x: Any, columns: dict[str, Any], batch_size: int | None, classes: Sequence[Any] | None
) -> Callable[[int], None]:
    """Return a function that trains one pass over the shuffled data by `partial_fit`."""
    from sklearn.base import is_classifier
    from sklearn.utils import gen_batches, shuffle

    named = {}
    if "y" in columns and is_classifier(model):
        named["classes"] = _classes(model, columns["y"]) if classes is None else classes

    def train(epoch: int) -> None:
        shuffled = shuffle(x, *columns.values(), random_state=epoch)
        inputs, *others = shuffled if columns else [shuffled]
        for rows in gen_batches(inputs.shape[0], batch_size or inputs.shape[0]):
            parts = {name: other[rows] for name, other in zip(columns, others, strict=True)}
            model.partial_fit(inputs[rows], **parts, **named)

    return train


def _growth(trial: Trial, model: Any, size: str, full: int, x: Any, columns: dict[str, Any]) -> Callable[[int], None]:
    """Return a function that lets an ensemble grow, to its full size in the last epoch of a full training."""
    epochs = trial.horizon
    if epochs is not None and epochs > full:
        raise InvalidInput(
            f"{type(model).__name__}({size}={full}) cannot grow in {epochs:g} epochs. Use {size}={epochs:g} or more."
        )
    model.set_params(warm_start=True)

    def train(epoch: int) -> None:
        now = epoch if epochs is None else math.ceil(full * epoch / epochs)
        model.set_params(**{size: now}).fit(x, **columns)

    return train


def _iterations(
    trial: Trial, estimator: Any, x: Any, columns: dict[str, Any], score: Callable[[Any], Any], verbose: bool
) -> Any:
    """Train by one `fit`, of which each iteration is an epoch; return the trained estimator."""
    from sklearn.base import clone

    if trial.epoch:  # it was interrupted, or the program trains it a second time
        trial.restart(advice="scikit-learn's solver starts again instead of continuing from a state.")
    loop = _Solver(trial, verbose, save=_saving(trial, lambda: iterations.model), suffix=_SUFFIX)
    iterations = _Iterations(loop, score)
    model = clone(estimator).set_callbacks(iterations)
    try:
        iterations.opens()
        model.fit(x, **columns)
    except _Ended:
        return iterations.model
    finally:
        iterations.epochs.close()
    if iterations.model is None:
        raise InvalidInput(
            f"This {type(model).__name__} reported no iteration to sklearn.callback. Train it as a whole and report "
            "once, with max_epochs=1."
        )
    return _plain(model)


class _Ended(Exception):
    """Ends a fit: scikit-learn 1.9 does not read whether a callback wants to stop."""


class _Solver(TrainingLoop):
    def _keep(self, over: bool = False) -> None:
        if self._reporter.pausing:
            why = "scikit-learn's solver starts again instead of continuing from a state"
            self._reporter.decline(why, over, always=True)
        else:
            super()._keep(over)


class _Iterations:
    """Callback of `sklearn.callback` that reports each iteration of a fit."""

    def __init__(self, loop: TrainingLoop, score: Callable[[Any], Any]) -> None:
        self._loop, self._score = loop, score
        self.epochs: Generator[int, None, None] = loop.__iter__()  # type: ignore[assignment]
        self.model: Any = None  # after the last iteration
        self._epoch: int | None = None  # started and not reported

    def opens(self) -> None:
        """Start the next epoch. Raises _Ended if there is none."""
        self._epoch = next(self.epochs, None)
        if self._epoch is None:
            raise _Ended

    def setup(self, estimator: Any, context: Any) -> None:
        """Do nothing."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Do nothing."""

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        """Do nothing."""

    def on_fit_task_end(self, estimator: Any, context: Any, *, fitted_estimator: Any = None) -> bool:
        """Report an iteration; the whole fit is a task, too."""
        if fitted_estimator is None or context.parent is None:
            return False
        if self._epoch is None:
            self.opens()
        epoch, self._epoch, self.model = self._epoch, None, _plain(fitted_estimator)
        with self._loop.validation():
            value = self._score(self.model)
        if self._loop.report(value) or epoch == self._loop.trial.horizon:
            self.opens()  # after a declined pause the training continues
        return False


def _plain(fitted: Any) -> Any:
    """Return a copy of an estimator with all that it learnt and without the callbacks of its fit."""
    from sklearn.base import clone

    found = clone(fitted).set_callbacks()
    vars(found).update({name: value for name, value in vars(fitted).items() if name.endswith("_") and name[0] != "_"})
    return found


def load(path: str) -> Any:
    """Load the estimator that `fit` saved at `study.best.checkpoint`. No pickle is loaded.

    A file with trees is as safe as its source, because scikit-learn does not check their numbers. Raises skops'
    UntrustedTypesFoundException if it has parts of libraries other than scikit-learn and NumPy.
    """
    import skops.io

    return skops.io.load(path, trusted=list(_TRUSTED))


def _saving(trial: Trial, model: Callable[[], Any], own: OwnFunctions | None = None) -> Callable[[Path], object] | None:
    """own: what the program's scoring remembers."""

    def save(path: Path) -> None:
        _save(model(), path)
        if own is not None:
            own.write(path, {})

    if importlib.util.find_spec("skops") is not None:
        return save
    trial.warn(
        "skops is not installed, so scikit-learn estimators are not saved: a trial that resumes trains again from its "
        f"start, and the best model is not kept. Run: {installing('sklearn')}",
        once=True,
    )
    return None


def _save(model: Any, path: Path) -> None:
    import skops.io

    data = skops.io.dumps(model)
    foreign = set(skops.io.get_untrusted_types(data=data)) - set(_TRUSTED)
    if foreign:
        raise NotSupported(f"this estimator has {', '.join(sorted(foreign))}, which skops does not load")
    path.write_bytes(data)


def _size(estimator: Any) -> str | None:
    """Return the parameter with the size of an ensemble that grows by `warm_start`; None for other estimators."""
    parameters = estimator.get_params(deep=False) if hasattr(estimator, "get_params") else {}
    if "warm_start" not in parameters or hasattr(estimator, "partial_fit"):
        return None
    return "n_estimators" if "n_estimators" in parameters else "max_iter" if "max_bins" in parameters else None


def _check(trial: Trial, estimator: Any, x: Any, y: Any, validation: Any, sample_weight: Any, size: str | None) -> None:
    """Raise InvalidInput if the estimator cannot train in parts."""
    from sklearn.base import is_classifier, is_regressor

    name = type(estimator).__name__
    parameters = estimator.get_params(deep=False) if hasattr(estimator, "get_params") else {}
    library = {kind.__module__.partition(".")[0] for kind in type(estimator).__mro__} & _BOOSTERS
    if library:
        raise InvalidInput(
            f"{name} trains in rounds, in one fit of its own, so give that fit the HaltuneCallback of "
            f"haltune.callbacks.{library.pop()}, which counts each round as an epoch."
        )
    if size is None and not hasattr(estimator, "partial_fit") and not _reports_iterations(estimator):
        do = (
            "Use an estimator with partial_fit, such as SGDClassifier, or train this one whole and report once, with "
            "max_epochs=1."
        )
        if hasattr(estimator, "steps"):
            do = (
                "Fit its transformers before the loop, x = pipeline[:-1].fit_transform(x, y), transform the validation "
                "data, and pass the last step, pipeline[-1]."
            )
        raise InvalidInput(f"{name} does not train in parts, so it has no value before its end. {do}")
    if parameters.get("n_iter_no_change") is not None and size == "n_estimators":
        raise InvalidInput(
            f"{name}(n_iter_no_change=...) ends its training itself. Leave it out: haltune stops trials."
        )
    if size == "max_iter" and parameters.get("early_stopping") == "auto" and x.shape[0] > _AUTO:
        raise InvalidInput(
            f"{name} may hold out data of its own. Write {name}(early_stopping=False): haltune stops trials."
        )
    if parameters.get("early_stopping") is True:
        best = f"{type(trial.goal).__name__}({trial.goal.metric!r}, of='best')"
        raise InvalidInput(
            f"{name}(early_stopping=True) holds out data of its own. Leave it out: "
            f"haltune stops trials, and with the goal {best} the estimator of the best epoch is kept."
        )
    if not (isinstance(validation, (tuple, list)) and len(validation) == 2):
        raise InvalidInput("validation= is not a pair. Use validation=(x, y), or validation=(x, None) without targets.")
    if y is None and (is_classifier(estimator) or is_regressor(estimator)):
        raise InvalidInput(f"{name} learns from targets. Use fit(trial, estimator, x, y, ...).")
    method = estimator.partial_fit if hasattr(estimator, "partial_fit") else estimator.fit
    if sample_weight is not None and "sample_weight" not in inspect.signature(method).parameters:
        raise InvalidInput(f"{name}.{method.__name__} takes no sample_weight. Leave it out, or use SGDClassifier.")


def _reports_iterations(estimator: Any) -> bool:
    """Return whether a fit calls callbacks after its iterations. In scikit-learn 1.9 only this solver's does."""
    return hasattr(estimator, "set_callbacks") and getattr(estimator, "solver", None) == "lbfgs"


def _classes(model: Any, y: Any) -> Any:
    """Return the classes of targets: of each output, of the labels of a multilabel matrix, or of one column."""
    import numpy as np

    if len(getattr(y, "shape", ())) < 2 or y.shape[1] == 1:
        return np.unique(y)
    if hasattr(model, "estimator"):  # MultiOutputClassifier and the like: one classifier for each column
        return [np.unique(column) for column in np.asarray(y).T]
    return np.arange(y.shape[1])  # the labels of a sample are the columns with 1


def _scorer(trial: Trial, scoring: Any, y: Any) -> Callable[..., Any]:
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
        # scikit-learn has no public name for what make_scorer makes. Without it, such a scorer would be minimized
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
