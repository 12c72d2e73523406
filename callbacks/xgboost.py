"""The callback for XGBoost: `xgb.train`, `xgb.cv` and its estimators with scikit-learn's interface.

A boosting round is an epoch. In the round in which a callback stops the training, XGBoost does not call later ones. So
this callback makes itself the first, and calls the others when it stops. After an exception XGBoost calls none, so keep
the training inside `with trial:`. `xgb.cv` cannot continue boosters, so its trials do not pause, and Ctrl-C ends them
at once.

A pause saves the booster (.ubj). XGBoost does not save its random generators. So a training that draws from them
(subsample, colsample_by*, dart's rate_drop, a random feature_selector) is not paused, with a warning; nor is one
that updates the trees of a whole booster (process_type), which a booster at a pause has only in part.
In a resumed training, round numbers continue, and all callbacks get the values of the rounds before (evals_log), so
that EarlyStopping, LearningRateScheduler, TrainingCheckPoint and those of the program continue.

The best trial's booster is kept with the rounds up to the one with which the trial counts: all of them, or with
of="best" those up to its best.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from haltune._utils import boosters
from haltune._utils.interruption import Interruption, caller, variables
from haltune.errors import NotSupported
from haltune.study.trial import Fold

from . import carried
from .base import Reporting
from .boosting import CANNOT_FOLD, STARTED, advise_best, begins, full_name, given_by, is_cv, keep_best, named
from .functions import OwnFunctions
from .reporter import digest, need_same_configuration

if TYPE_CHECKING:
    from xgboost.callback import TrainingCallback as _Base
else:
    _Base = object

_CV = f"xgb.cv {CANNOT_FOLD}: use xgb.train, or a policy that only stops, such as BOBOS()"
# attribute of a booster while it trains: its trial, the rounds that this started with, and its configuration
_OWNER = "haltune_trial"
_BEST = ("best_iteration", "best_score")  # its attributes that EarlyStopping sets
# Reading a booster's configuration applies what was set. If two names of a parameter are set for the same round, one of
# them wins, so a callback of the program that sets the other one must find them as they were.
_OF_TWO_NAMES = (
    "eta", "learning_rate", "gamma", "min_split_loss", "lambda", "reg_lambda", "alpha", "reg_alpha",
)  # fmt: skip
# XGBoost's callbacks that number rounds -> what they add to a number, and what they remember. XGBoost saves neither:
# without them, a resumed training would stop at another round, and write its checkpoints under other numbers
_NUMBERING = {
    "EarlyStopping": ("starting_round", ("stopping_history", "best_scores", "current_rounds", "maximize")),
    "TrainingCheckPoint": ("_start", ("_epoch",)),
}
_EVALS = (
    "evals=[(data, 'validation')], or fit eval_set=[(x, y)], and the metric by eval_metric=; its name is then "
    "'validation-logloss', or 'validation_0-logloss' of fit"
)


class HaltuneCallback(Reporting, _Base):  # type: ignore[misc, unused-ignore]
    """Callback that reports the goal's metric after every boosting round, and stops when the policy decides so.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: "<name in evals>-<metric>", such as "validation-logloss". If one data set has the metric, its name
            alone is enough. In `xgb.cv`, "test-logloss" is the mean over the folds. Default: None, the goal's metric.
        verbose: Print a line for every report. Default: False.
        record: "all" stores all metrics of the round with the report, "monitor" only this one. Default: "all".

    Raises:
        InvalidInput: If `trial` is not a trial, if no data set or more than one has the metric, or if the training has
            two HaltuneCallbacks.
        NotSupported: If the training is distributed.

    Example:
        ::

            import numpy as np
            import xgboost as xgb

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.xgboost import HaltuneCallback
            from haltune.policies import RandomSearch

            x = np.random.rand(64, 3)
            data, held_out = xgb.DMatrix(x[:48], x[:48, 0]), xgb.DMatrix(x[48:], x[48:, 0])
            problem = Problem(Space({"eta": Float(0.1, 1.0)}), Minimize("validation-rmse"), max_epochs=5)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    xgb.train(trial.config, data, trial.max_epochs - trial.epoch, xgb_model=trial.checkpoint,
                              evals=[(held_out, "validation")], callbacks=[HaltuneCallback(trial)])
    """

    _homes = ("xgboost.callback",)
    _base = "TrainingCallback"
    _install = "pip install xgboost"
    _held = frozenset({"_own"})
    _hint = "Train trial.max_epochs - trial.epoch rounds, and give xgb.train or fit xgb_model=trial.checkpoint"
    _before = 0  # rounds of this trial trained before this training
    _ahead = 0  # those with which XGBoost's own numbers begin
    _given = 0  # rounds that the trial started with
    _numbering: Sequence[tuple[Any, str, tuple[str, ...]]] = ()  # callbacks, with their values in _NUMBERING
    _booster: Any = None  # a weak reference to what trains
    _own: OwnFunctions  # the program's own callbacks, objective and metric, from before_training on
    _hidden: tuple[list[Any], list[Any]] | None = None  # the list of callbacks, and those taken from it for a round

    # the hooks, in XGBoost's order

    def before_training(self, model: Any) -> Any:
        from xgboost import callback, collective

        if (workers := collective.get_world_size()) > 1:
            raise NotSupported(
                f"This training runs on {workers} workers, and each would report separately. With XGBoost, haltune "
                "supports one process only. Give it nthread instead of workers."
            )
        rounds = model.num_boosted_rounds()
        owner: int | str | None
        owner, at = (None, None) if is_cv(model) else given_by(self.trial, "xgboost.", "xgb_model")
        if not is_cv(model) and (stamp := model.attr(_OWNER)):
            of, before, configuration = stamp.split(maxsplit=2)
            owner, began = int(of), rounds - int(before)
            if owner == self.trial.id:
                need_same_configuration(self.trial, "a booster", configuration, self._hint)
            own = owner == self.trial.id and not isinstance(self.trial, Fold)
            if own and at is None and 0 <= began != self.trial.epoch:
                at = began  # a file that the program has saved in another round than haltune
        # XGBoost numbers a continued booster's rounds from 0; with a new booster the trial starts again
        self._before = (int(self.trial.epoch) if rounds >= self.trial.epoch else 0) if at is None else at
        self._given = rounds - self._before
        if not is_cv(model):
            if owner is None and rounds:
                owner = self.trial.signer(_mark(model))
            self._booster = weakref.ref(model)
        given = _arguments(model)
        begins(self._reporter, given.get("num_boost_round"), model, self._before, owner)
        if not is_cv(model):
            model.set_attr(**{_OWNER: f"{self.trial.id} {self._given} {self.trial.configuration}"})
        callbacks = _callbacks("before_training")
        if self in callbacks:
            callbacks.remove(self)
            callbacks.insert(0, self)
        # not a further phase of the training, whose callbacks begin with it
        resumes = self._before > 0 and (at is not None or not self.trial.has_reported)
        self._ahead = self._before if resumes else 0
        if resumes:
            _number_on(self._before)
        carried.need_own_state(carried.who(self.trial), callbacks, self._before == 0)
        functions = [given.get(name) for name in ("obj", "custom_metric")]
        others = [other for other in callbacks if other is not self]  # it may be of a subclass
        self._own = OwnFunctions(others, functions, self.trial, self._before == 0)
        self._own.parameters = {} if is_cv(model) else _parameters(model)
        if not resumes and not is_cv(model):
            model.set_param({name: value for name, value in _given().items() if name in _OF_TWO_NAMES})
        kinds = [(getattr(callback, name), *of) for name, of in _NUMBERING.items()]
        self._numbering = [(c, start, names) for c in callbacks for kind, start, names in kinds if isinstance(c, kind)]
        if any(isinstance(c, callback.EarlyStopping) for c in callbacks):
            advise_best(self._reporter, "XGBoost", "xgb.cv" if is_cv(model) else None)
        self._reporter.defer(Interruption.within("train", "xgboost."))
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self._show_others()
        if epoch == self._ahead:  # the first round
            self._own.hooks_were_called()
            if self._ahead and (path := self.trial.checkpoint) is not None:
                self._put_back(model, path, evals_log)
        if self._ahead:  # round numbers continue, so these callbacks only add those from before the trial
            for one, start, _ in self._numbering:
                setattr(one, start, self._given)
        return self._reporter.verdict is not None  # the verdict came in an earlier training

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        rows = ((data, metric, v[-1]) for data, columns in evals_log.items() for metric, v in columns.items())
        metrics = named((data, metric, *(v if isinstance(v, tuple) else (v, None))) for data, metric, v in rows)
        name = full_name(self.monitor, metrics, "xgb.train", _EVALS)
        updates = None if is_cv(model) else model.num_boosted_rounds() - self._given - self._before
        position = epoch + 1 + self._before - self._ahead
        self._reporter.report(metrics[name], position, metrics, updates=updates)
        self._reporter.heed(position)
        if self._reporter.keeps_epoch and not is_cv(model) and _booster(model) in ("dart", "gblinear"):
            self._reporter.keep(lambda path: _write(model, path), ".ubj")  # its rounds cannot be cut
        ended = called = self._reporter.saves
        pending: list[tuple[str, Any]] = []
        if called:  # the state of the others after this round is a part of what is saved
            with _noting(model, pending):
                ended = self._call_others(model, epoch, evals_log)
        if ended:
            self._reporter.ends_by_itself()
        write = partial(self._write_pause, model, evals_log, pending)
        self._reporter.save_to_resume(write, ".ubj", lambda: self._cannot_pause(model))
        model.set_param(pending)
        if not self._reporter.over or _is_last(model, epoch - self._ahead):
            return ended
        if not called:
            self._call_others(model, epoch, evals_log)
        if is_cv(model) and model.attr("best_iteration") is None:
            # at a stop, xgb.cv cuts its results after best_iteration, and crashes without one
            model.set_attr(best_iteration=str(epoch), best_score=str(metrics[name]))
        return True

    def after_training(self, model: Any) -> Any:
        self._show_others()
        booster = model if self._booster is None else self._booster() or model  # EarlyStopping(save_best) cuts it
        self._booster = None
        STARTED.discard(booster)
        carried.leave(_callbacks("after_training"))
        self._own.ends()
        if is_cv(model):
            self._reporter.end_of_fit()
        else:
            if _booster(booster) not in ("dart", "gblinear"):
                keep_best(self._reporter, lambda path, n: _write(booster[: self._given + n], path), ".ubj")
            self._sign(booster)
            self._reporter.end_of_fit(lambda path: _write(booster, path), ".ubj")
            for one in (booster, model):
                one.set_attr(**{_OWNER: None})
        self._reporter.leave()
        return model

    def _sign(self, booster: Any) -> None:
        """Sign the booster as it is, and as it is cut after its best round."""
        self.trial.sign(_mark(booster))
        if (best := booster.attr("best_iteration")) is not None and _booster(booster) != "gblinear":
            self.trial.sign(_mark(booster[: int(best) + 1]))

    def _cannot_pause(self, model: Any) -> str | None:
        """Return why a resumed training would differ, or None."""
        if is_cv(model):
            return _CV
        if _given().get("process_type") == "update":
            return "XGBoost updates the rounds of a whole booster (process_type), and a pause would save only the first"
        if drawing := _drawing(model):
            return boosters.unsaved(drawing, "XGBoost")
        return None

    def _call_others(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Call the other callbacks of the round, instead of XGBoost; return whether one ends the training."""
        callbacks = _callbacks("after_iteration")
        self._hidden = callbacks, [other for other in callbacks if other is not self]
        callbacks[:] = [self]
        return any(other.after_iteration(model, epoch, evals_log) for other in self._hidden[1])

    def _show_others(self) -> None:
        if self._hidden is not None:
            callbacks, others = self._hidden
            callbacks += others
            self._hidden = None

    def _write_pause(self, model: Any, evals_log: Any, pending: list[tuple[str, Any]], path: Path) -> None:
        _write(model, path, owned=True)
        numbering = [{name: getattr(one, name) for name in names} for one, _, names in self._numbering]
        best = {name: model.attr(name) for name in _BEST}
        library = {"log": evals_log, "numbering": numbering, "best": best, "pending": pending}
        self._own.write(path, _parameters(model), library)

    def _put_back(self, model: Any, path: str, evals_log: Any) -> None:
        """Show the rounds before this training to the callbacks, and restore what these remembered and had set."""
        parameters, library = self._own.put_back(path)
        library = library or {}
        if parameters:
            model.set_param(parameters)
            model.save_config()  # applies them; otherwise learning_rate would win over an eta that a callback sets
        model.set_param(library.get("pending", []))
        evals_log.update(library.get("log", {}))
        model.set_attr(**library.get("best", {}))
        for (one, *_), state in zip(self._numbering, library.get("numbering", ()), strict=False):
            vars(one).update(state)


def _number_on(rounds: int) -> None:
    """Continue the numbers of the rounds before this training: XGBoost numbers rounds from 0 in each training.

    Without it, a LearningRateScheduler would start again in a resumed training.
    """
    container = variables(caller("before_training", "xgboost.callback")).get("self")

    def later(hook: Any) -> Any:
        return lambda model, epoch, *others: hook(model, rounds + epoch, *others)

    if container is not None:
        container.before_iteration = later(container.before_iteration)
        container.after_iteration = later(container.after_iteration)


@contextmanager
def _noting(model: Any, pending: list[tuple[str, Any]]) -> Iterator[None]:
    """Note the parameters that callbacks set in the block, which XGBoost applies in the next round.

    Until then it does not return them. Without them, the first round of a resumed training would have those of before.
    """
    set_param = model.set_param

    def note(params: Any, value: Any = None) -> None:
        given = [(params, value)] if isinstance(params, str) else [*dict(params).items()]
        pending.extend((name, str(one)) for name, one in given if one is not None)
        set_param(params, value)

    model.set_param = note
    try:
        yield
    finally:
        del model.set_param


def _callbacks(hook: str) -> list[Any]:
    """Return the list of the callbacks of the training whose hook is being called.

    A callback has no access to the others, so they are read from the call. Without them, EarlyStopping would forget the
    rounds before a pause.
    """
    container = variables(caller(hook, "xgboost.callback")).get("self")
    return [] if container is None else container.callbacks


def _arguments(model: Any) -> dict[str, Any]:
    """Return the arguments of the training under way, which XGBoost does not give to callbacks.

    Without them, a stop in the last round would make `xgb.cv` cut its results, a plan shorter than max_epochs would
    not be known, and what objectives and metrics of the program remember would start again in a resumed training.
    """
    return variables(caller("cv" if is_cv(model) else "train", "xgboost."))


def _is_last(model: Any, epoch: int) -> bool:
    """Return whether XGBoost ends the training after this round anyway."""
    return epoch + 1 == _arguments(model).get("num_boost_round")


@contextmanager
def _without(model: Any, names: Iterable[str]) -> Iterator[None]:
    """Remove attributes of a booster in the block."""
    kept = {name: model.attr(name) for name in names}
    model.set_attr(**dict.fromkeys(kept))
    try:
        yield
    finally:
        model.set_attr(**kept)


def _mark(model: Any) -> str:
    with _without(model, model.attributes()):
        return digest([bytes(model.save_raw())])


def _write(model: Any, path: Path, owned: bool = False) -> None:
    """Save a booster so that all of its rounds predict, which `best_iteration` limits. owned: with its trial."""
    with _without(model, (*_BEST, *(() if owned else (_OWNER,)))):
        model.save_model(path)


def _parameters(model: Any) -> dict[str, Any]:
    """Return the parameters of a booster that a callback may set, such as learning_rate, and not what it has learnt."""

    def read(node: Any) -> Iterator[tuple[str, Any]]:
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            if str(name).endswith("_param") and not str(name).endswith("_model_param"):
                yield from boosters.values_in(value)
            elif isinstance(value, (dict, list)):
                yield from read(value)

    return dict(read(json.loads(model.save_config())))


def _booster(model: Any) -> str:
    """Return the kind of booster: gbtree, dart or gblinear."""
    return str(json.loads(model.save_config())["learner"]["gradient_booster"]["name"])


def _given() -> dict[str, Any]:
    """Return the parameters that the training was given."""
    given = variables(caller("train", "xgboost.")).get("params", {})
    return {name: value for name, value in dict(given).items() if value is not None}


def _drawing(model: Any) -> str:
    """Return the parameters by which a training draws random numbers, or an empty text."""

    # the configuration lacks parameters that are not used yet; without them, a booster that draws rows would pause
    config = boosters.values_in(json.loads(model.save_config()))
    return boosters.drawn_by_xgboost((*config, *_given().items()))
