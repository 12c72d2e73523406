"""The callback for LightGBM: `lgb.train`, `lgb.cv` and its estimators with scikit-learn's interface.

A boosting round is an epoch. Make a Dataset for each trial, within the loop. A trial on that of an earlier one does not
pause: after a training LightGBM has freed its data, and after a continued one it keeps the scores of that booster, from
which the next training would start. `lgb.cv` cannot continue boosters, so its trials do not pause, and Ctrl-C ends them
at once.

A pause saves the booster as text. LightGBM does not save its random generators. So a training that draws from them
(bagging_fraction, feature_fraction, extra_trees, use_quantized_grad, data_sample_strategy="goss", boosting="dart") is
not paused, with a warning; neither is a random forest (boosting="rf") or linear_tree. LightGBM's early stopping
and reset_parameter continue in a resumed training. Give reset_parameter functions, or lists for all rounds of a trial.

The best trial's booster is kept with the rounds up to the one with which the trial counts: all of them, or with
of="best" those up to its best.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy, deepcopy
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from haltune._utils import boosters
from haltune._utils.interruption import Interruption, caller, variables
from haltune.errors import InvalidInput, NotSupported
from haltune.study import Trial

from . import carried
from .base import Reporting
from .boosting import CANNOT_FOLD, advise_best, begins, full_name, given_by, is_cv, keep_best, named
from .functions import OwnFunctions, from_library
from .reporter import digest

_CONTINUED: WeakSet[Any] = WeakSet()  # data sets whose initial scores are the predictions of a booster
_TRAINED: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # data set -> the trial or fold that trained on it first
_CV = f"lgb.cv {CANNOT_FOLD}: use lgb.train, or a policy that only stops, such as BOBOS()"
_SHARED = (
    "LightGBM continues no booster on a Dataset of another one (make a Dataset for each trial, within the loop, "
    "lgb.Dataset(x, y))"
)
_FOREST = 'a random forest (boosting="rf") cannot be continued: use gbdt, or a policy that only stops, such as BOBOS()'
_ORDER = 25  # after LightGBM's log and record, before its early stopping, which raises an exception
_BOOSTING = ("boosting", "boosting_type", "boost")
_SETS = (
    "valid_sets=[held_out], or fit eval_set=[(x, y)]; the metric's name is then 'valid_0-l2' or what LightGBM prints "
    "for the metric you give"
)


class HaltuneCallback(Reporting):
    """Callback that reports the goal's metric after boosting rounds, and stops when the policy decides so.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: "<name in valid_names>-<metric>", such as "valid_0-binary_logloss". If one data set has the metric, its
            name alone is enough. In `lgb.cv`, "valid-auc" is the mean over the folds. Default: None, the goal's metric.
        verbose: Print a line for every report. Default: False.
        record: "all" stores all metrics of the round with the report, "monitor" only this one. Default: "all".
        every: Number of rounds between reports; the last round is always reported. A report takes as long as a quick
            round. Default: 1.

    Raises:
        InvalidInput: If `trial` is not a trial, if no data set or more than one has the metric, if the Dataset was
            continued before, or if the training has two HaltuneCallbacks.
        NotSupported: If the training is distributed.

    Example:
        ::

            import lightgbm as lgb
            import numpy as np

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.lightgbm import HaltuneCallback
            from haltune.policies import RandomSearch

            x = np.random.rand(200, 3)
            problem = Problem(Space({"learning_rate": Float(0.01, 0.5)}), Minimize("valid_0-l2"), max_epochs=5)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    data, held_out = lgb.Dataset(x[:150], x[:150, 0]), lgb.Dataset(x[150:], x[150:, 0])
                    lgb.train(trial.config | {"verbose": -1}, data, trial.max_epochs - trial.epoch,
                              init_model=trial.checkpoint, valid_sets=[held_out], callbacks=[HaltuneCallback(trial)])
    """

    _held = frozenset({"_own"})
    _hint = "Train trial.max_epochs - trial.epoch rounds, and give lgb.train or fit init_model=trial.checkpoint"
    _before = 0  # rounds of this trial trained before this training
    _resumes = False  # whether it continues the trial's state
    _given = 0  # rounds that the trial started with
    _shares = False  # its data set is that of another trial, too
    _stoppers: Sequence[_Stopper] = ()  # LightGBM's early stopping
    _others: Sequence[_Other] = ()  # the program's own callbacks that LightGBM calls after this one
    _records: Sequence[Any] = ()  # LightGBM's callbacks that record values
    _seen, _reported = -1, 0  # the last iteration and the last epoch of this training
    _own: OwnFunctions | None = None  # the program's own callbacks, objective and metrics

    def __init__(
        self, trial: Trial, monitor: str | None = None, verbose: bool = False, record: str = "all", every: int = 1
    ) -> None:
        if not (isinstance(every, int) and every > 0):
            raise InvalidInput(f"every={every!r} is not a number of rounds. Use a whole number of at least 1.")
        super().__init__(trial, monitor, verbose, record)
        self.every = every
        self._stopping: dict[str, list[float]] = {}  # values that early stopping has seen, by "<data>-<metric>"

    @property
    def order(self) -> int:
        """Where it is called among the callbacks.

        LightGBM asks for it when it sorts the callbacks of a training, before it calls the first. A callback gets none
        of the training's arguments. Without them, what the program's callbacks, objective and metrics remember would
        start again in a resumed training.
        """
        given = _arguments()
        if "callbacks_before_iter" in given:
            metrics = given.get("feval")
            functions = [given.get("fobj"), *(metrics if isinstance(metrics, list) else [metrics])]
            _, at = given_by(self.trial, "lightgbm.", "init_model")
            # not a further phase of the training, whose callbacks begin with it
            begun = self.trial.has_reported and at is None
            self._resumes = self.trial.epoch > 0 and given.get("init_model") is not None and not begun
            path = self.trial.checkpoint if self._resumes else None
            others = [other for other in given["callbacks"] if other is not self]  # it may be of a subclass
            self._own = OwnFunctions(others, functions, self.trial, path is None)
            parameters, library = (None, None) if path is None else self._own.put_back(path)
            given["callbacks_before_iter"].insert(0, partial(self._before_round, parameters, library or {}))
        return _ORDER

    def _before_round(self, parameters: Any, library: Any, env: Any) -> None:
        """Note the booster's parameters before the first round, and set those that a callback had set at a pause.

        library: what LightGBM's own callbacks had seen at the pause.
        """
        env.model.rollback_one_iter = _no_rollback
        if self._own is not None and env.iteration == env.begin_iteration:
            self._own.parameters = {} if is_cv(env.model) else dict(env.model.params)
            if parameters:
                env.model.reset_parameter(parameters)
            self._before, self._seen = self._place(env)[1], -1
            self._stopping = library.get("stopping", {})
            self._join_others(env, library.get("log"))

    def _join_others(self, env: Any, log: Any) -> None:
        """Put the callbacks of the program, and those of LightGBM that number their rounds, into `_Other`.

        LightGBM's early stopping, into `_Stopper`, is to continue after a pause, and the fit to end before it cuts the
        booster. A callback has no access to the others, so their lists are read from the call. Without them, a resumed
        trial would be stopped at other rounds than one that never paused.
        """
        from lightgbm.callback import _EarlyStoppingCallback, _RecordEvaluationCallback, _ResetParameterCallback

        known = _arguments()
        self._others, self._records, self._stoppers = [], [], []
        for name in ("callbacks_before_iter", "callbacks_after_iter"):
            callbacks = known.get(name, [])
            for at, one in enumerate(callbacks):
                if records := isinstance(one, _RecordEvaluationCallback):
                    self._records.append(one)
                    if log:
                        one.eval_result.clear()
                        one.eval_result.update(deepcopy(log))
                ours = isinstance(getattr(getattr(one, "func", None), "__self__", one), HaltuneCallback)
                own = not (ours or from_library(one))
                if own or (records and log) or isinstance(one, _ResetParameterCallback):
                    callbacks[at] = _Other(one, self)
                elif isinstance(one, _EarlyStoppingCallback) and one.enabled and _kind(env) != "dart":
                    callbacks[at] = _Stopper(one, self)
                    self._stoppers.append(callbacks[at])
        for one in known.get("callbacks_after_iter", []):
            if isinstance(one, _Other) and one.order > _ORDER:
                self._others.append(one)

    @property
    def ahead(self) -> int:
        """The rounds before a training that continues the trial's state: callbacks add them to their own numbers."""
        return self._before if self._resumes else 0

    def _place(self, env: Any) -> tuple[int | None, int]:
        """Return the trial of the model that this training was given, and the rounds of this trial in it."""
        given, at = given_by(self.trial, "lightgbm.", "init_model")
        # with a new booster the trial starts again; rounds without a split are not in the file
        return given, (int(self.trial.epoch) if env.begin_iteration else 0) if at is None else at

    def __call__(self, env: Any) -> None:
        """Report a round. It is LightGBM's only hook."""
        first, self._seen = env.iteration == env.begin_iteration, env.iteration
        # the first round is already trained: it counts from when the callback was made
        lap = self._reporter.clock.lap() if first else None
        if first:
            self._begin(env)
        if self._stoppers:
            for name, value in self._metrics(env).items():
                self._stopping.setdefault(name, []).append(float(value))
        epoch = self._before + env.iteration - env.begin_iteration + 1
        last = env.iteration + 1 == env.end_iteration
        if not epoch % self.every or last:
            self._report(env, lap)
        self._reporter.heed(epoch)
        if self._reporter.saves and (
            any(stopper.stops(env) for stopper in self._stoppers) or any(other.stops(env) for other in self._others)
        ):
            self._reporter.ends_by_itself()
        write = partial(self._write_pause, env.model)
        self._reporter.save_to_resume(write, ".txt", lambda: _SHARED if self._shares else _inexact(env))
        over = self._reporter.over
        if over or last:
            self._end(env)
        if over and not last:  # after the last round LightGBM's early stopping chooses the best one
            from lightgbm.callback import EarlyStopException

            raise EarlyStopException(env.iteration, env.evaluation_result_list)

    def _report(self, env: Any, lap: Any = None) -> None:
        epoch = self._before + env.iteration - env.begin_iteration + 1
        if epoch == self._reported:
            return
        self._reported = epoch
        metrics = self._metrics(env)
        self._reporter.report(metrics[full_name(self.monitor, metrics, "lgb.train", _SETS)], epoch, metrics, lap=lap)
        if self._reporter.keeps_epoch and not is_cv(env.model) and _kind(env) == "dart":
            self._reporter.keep(partial(_write, env.model), ".txt")  # later rounds change its earlier trees

    def _metrics(self, env: Any) -> dict[str, float]:
        rows = env.evaluation_result_list or ()  # (data, metric, value, larger is better, deviation of folds)
        return named((data, metric, value, (*rest, None)[0]) for data, metric, value, _, *rest in rows)

    def _ends(self, env: Any) -> None:
        """End the fit in a round in which another callback ends the training: it is the last one, so it is reported."""
        if self._seen != env.iteration and env.iteration == env.begin_iteration:
            self._begin(env)
        self._report(env)
        self._reporter.ends_by_itself()
        self._end(env)

    def _begin(self, env: Any) -> None:
        machines = max(int(env.params.get(name) or 1) for name in ("num_machines", "num_machine"))
        if machines > 1:
            raise NotSupported(
                f"This training runs on {machines} machines, and each would report separately. With LightGBM, haltune "
                "supports one process only. Give it num_threads instead of machines."
            )
        data, own = None if is_cv(env.model) else env.model.train_set, carried.who(self.trial)
        if data is not None:
            _need_fresh_data(data, env.begin_iteration > 0)
        while data is not None and data.used_indices is not None and data.reference is not None:
            data = data.reference  # a subset reads the data of the whole
        self._shares = data is not None and _TRAINED.setdefault(data, own) != own
        given: int | str | None
        given, self._before = self._place(env)
        self._reported = 0  # it may have reported another training
        self._given = max(0, env.begin_iteration - self._before)
        if given is None and env.begin_iteration and not is_cv(env.model):
            given = self.trial.signer(_mark(env.model, env.begin_iteration))
        begins(self._reporter, env.end_iteration - env.begin_iteration, env.model, self._before, given)
        self._reporter.defer(Interruption.within("train", "lightgbm."))
        self.trial.before_end(lambda: self._end_unseen(env))
        if self._stoppers:
            advise_best(self._reporter, "LightGBM", "lgb.cv" if is_cv(env.model) else None)

    def _end(self, env: Any) -> None:
        self.trial.before_end(None)
        vars(env.model).pop("rollback_one_iter", None)
        if self._own is not None:
            self._own.ends()
        if is_cv(env.model):
            self._reporter.end_of_fit()
        else:
            self.trial.sign(_mark(env.model))
            if _kind(env) != "dart":
                keep_best(self._reporter, lambda path, n: _write(env.model, path, self._given + n), ".txt")
            self._reporter.end_of_fit(partial(_write, env.model), ".txt")
        self._reporter.leave()

    def _end_unseen(self, env: Any) -> None:
        """End the fit after a callback that ended the training, because LightGBM calls no other; not after an error."""
        if env.model.best_iteration > 0:
            self._end(env)

    def _write_pause(self, model: Any, path: Path) -> None:
        _write(model, path)
        if self._own is not None:
            library = {"stopping": self._stopping, "log": self._records[0].eval_result if self._records else None}
            self._own.write(path, model.params, library)


class _Other:
    """A callback of the program, or one of LightGBM that numbers its rounds, in a training with a HaltuneCallback.

    It continues the numbers of a resumed training, and the round in which it ends the training is reported.
    """

    def __init__(self, inner: Any, callback: HaltuneCallback) -> None:
        self.inner, self.order, self._callback = inner, inner.order, callback
        self._called = -1  # its last iteration
        self._stop: Exception | None = None

    def __call__(self, env: Any) -> None:
        if not self.stops(env):
            return
        if env.evaluation_result_list is not None:  # after the round
            self._callback._ends(env)
        raise self._stop  # type: ignore[misc]

    def stops(self, env: Any) -> bool:
        """Call it, once in a round; return whether it ends the training."""
        from lightgbm.callback import EarlyStopException

        if self._called != env.iteration:
            self._called = env.iteration
            try:
                self.inner(_as_if(env, begin_iteration=env.begin_iteration - self._callback.ahead))
            except EarlyStopException as stop:
                self._stop = stop
        return self._stop is not None


class _Stopper:
    """LightGBM's early stopping in a training with a HaltuneCallback."""

    def __init__(self, inner: Any, callback: HaltuneCallback) -> None:
        self.inner, self.order, self._callback = inner, inner.order, callback
        self._first: int | None = None  # the round that early stopping saw first, if this is a later training

    def __call__(self, env: Any) -> None:
        from lightgbm.callback import EarlyStopException

        try:
            self._judge(env)
        except EarlyStopException as stop:
            if not is_cv(env.model):
                self._callback.trial.sign(_mark(env.model, stop.best_iteration + 1))
            self._callback._ends(env)
            raise

    def stops(self, env: Any) -> bool:
        """Return whether it ends the training in this round, which it has not seen and does not remember.

        In the last round it chooses the best one, which ends nothing.
        """
        from lightgbm.callback import EarlyStopException

        other = copy(self)
        other.inner = deepcopy(self.inner)
        other.inner.verbose = False
        try:
            other._judge(_as_if(env, end_iteration=env.end_iteration + 1))
        except EarlyStopException:
            return True
        return False

    def _judge(self, env: Any) -> None:
        if env.iteration == env.begin_iteration and self._callback.ahead:
            self._remind(env)
        self._see(env)

    def _see(self, env: Any, **changed: Any) -> None:
        first = env.begin_iteration if self._first is None else self._first
        self.inner(_as_if(env, begin_iteration=first, **changed))

    def _remind(self, env: Any) -> None:
        """Show it the rounds before this training."""
        rows, columns = env.evaluation_result_list, self._callback._stopping
        before = [columns[f"{row[0]}-{row[1]}"][:-1] for row in rows]  # without those of the present round
        rounds = min(map(len, before))
        self._first = env.begin_iteration - rounds
        for i in range(rounds):
            of_then = [_valued(row, column[i]) for row, column in zip(rows, before, strict=True)]
            self._see(env, iteration=self._first + i, evaluation_result_list=of_then)


def _arguments() -> dict[str, Any]:
    """Return the arguments and variables of the training under way."""
    return variables(caller("train", "lightgbm.") or caller("cv", "lightgbm."))


def _as_if(env: Any, **changed: Any) -> Any:
    """Return what LightGBM shows to callbacks, with some of its parts changed."""
    names = ("model", "params", "iteration", "begin_iteration", "end_iteration", "evaluation_result_list")
    return type(env)(**{name: getattr(env, name) for name in names} | changed)


def _valued(row: Any, value: float) -> Any:
    """Return the result of an evaluation with another value."""
    changed = (*row[:2], value, *row[3:])
    return type(row)(*changed) if hasattr(row, "_fields") else changed


def _no_rollback() -> None:
    """Raise NotSupported, in place of a booster's rollback_one_iter, for which LightGBM has no hook.

    Without it, a round that a callback removes would count, and the kept booster would not have the reported value.
    """
    raise NotSupported(
        "A callback of your own removes a round (Booster.rollback_one_iter), which this trial counts. To end a "
        "training early, raise lightgbm.callback.EarlyStopException in it, or use lgb.early_stopping."
    )


def _kind(env: Any) -> str:
    """Return the kind of boosting: gbdt, dart, rf or goss."""
    return next((str(env.params[name]) for name in _BOOSTING if name in env.params), "gbdt")


def _inexact(env: Any) -> str | None:
    """Return why a continued training would differ from an uninterrupted one, or None."""
    if is_cv(env.model):
        return _CV
    if _kind(env) in ("rf", "random_forest"):
        return _FOREST
    given = boosters.parameters_of(env.model.model_to_string(num_iteration=1))
    if drawn := boosters.drawn_by_lightgbm(given):
        return boosters.unsaved(drawn, "LightGBM")
    if env.model.train_set.get_init_score() is not None and not env.begin_iteration:
        return "LightGBM forgets the init_score of the Dataset in a training with init_model"
    if getattr(env.model.train_set, "position", None) is not None:
        return "LightGBM does not save the biases that it estimates for positions (leave position= of the Dataset out)"
    lossy = [name for name in ("linear_tree", "cegb_penalty_feature_coupled", "cegb_penalty_feature_lazy")
             if given.get(name) not in (None, "", "0")]  # fmt: skip
    return f"LightGBM does not continue {lossy[0]} exactly" if lossy else None


def _write(model: Any, path: Path, rounds: int = -1) -> None:
    """Save the first `rounds` of a booster; -1: all, which best_iteration limits otherwise."""
    model.save_model(path, num_iteration=rounds)


def _mark(model: Any, rounds: int = -1) -> str:
    """Return the mark of the first `rounds` of a booster; -1: of all."""
    text = model.model_to_string(num_iteration=rounds)
    return digest([text[text.find("\nTree=0") :].partition("end of trees")[0].encode()])


def _need_fresh_data(data: Any, continues: bool) -> None:
    """Raise InvalidInput if a training starts on a data set with the scores of another booster."""
    if continues:
        _CONTINUED.add(data)
    elif data in _CONTINUED:
        raise InvalidInput(
            "This Dataset was used in a continued training, so LightGBM would start from that booster's predictions. "
            "Make a Dataset for each trial, within the loop, lgb.Dataset(x, y)."
        )
