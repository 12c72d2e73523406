"""Hints for a wrong argument or attribute, from other tools' names to haltune's.

Classes that users create derive from `KnowsArguments`. Their methods are decorated with `with_hints`. Objects that
users get have `KnowsAttributes`. For an unknown word, the hint is the most similar existing name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from haltune.errors import UnknownArgument, documented

P = ParamSpec("P")
R = TypeVar("R")
_FEW = 12  # fields that a message lists
Rows = tuple[tuple[str, str, str], ...]  # owners, words that do not exist, hint

_GOAL = "the goal has the direction: Maximize('val_acc') or Minimize('val_loss')"
_BUDGET = "the budget belongs to the study: Study(..., budget='100 trials'), '30min', or both, '100 trials, 30min'"
_STEP = (
    "there are no steps. Choice(range(low, high + 1, step), ordered=True) lists the values, and Int(low, high, "
    "log=True) spreads them by magnitude"
)
_WARM_UP = "Study(..., min_epochs=5) sets the epochs before which no policy stops or pauses a trial"
_SPACE = "the space comes first: Study({'lr': Float(1e-4, 1e-1)}, 'val_acc', max_epochs=30)"
_KEPT = "haltune keeps the best model, study.best.checkpoint; Study(..., checkpoints=Checkpointing(keep=3)) keeps three"
_SUGGEST = "define the space once, Study({'lr': Float(1e-4, 1e-1)}, ...), then read trial.config['lr']"
_NAMED = "the space has the names: Study({'lr': Float(1e-4, 1e-1)}, ...)"
_OPTIONS = "the options are one list: Choice(['relu', 'gelu'])"
_CALLBACK = "from haltune.callbacks.lightning import HaltuneCallback; or from .keras, .transformers, .xgboost, ..."
_WORKERS = (
    "workers=4 trains in four processes. The study needs a file, Study(..., 'search.db'), and train(trial) stands in a "
    "module, not in a notebook's cell"
)
_N_TRIALS = "n_trials max_trials num_samples max_evals n_iter n_calls"
_TIMEOUT = "timeout max_time time_budget_s duration minutes hours seconds"
_FOLDS = f"in train(trial) loop over its folds: for fold in trial.folds(5); see {documented('howto/cross_validation')}"
_RECORD = "study.trials[trial.id]"
_FRAME = "study.frame(), one row per report"
NO_TRIAL = (
    "study.ask() returns a Trial, a Wait while others train, or a Finish at the end of the search. Use for trial in "
    "study:, which yields only trials; or while isinstance(trial := study.ask(), Trial):"
)

_OTHER_FRAMEWORK = (
    "this is the HaltuneCallback of another framework. Import it from the module of yours: "
    "haltune.callbacks.lightning, haltune.callbacks.keras, haltune.callbacks.transformers"
)
_EPOCHS = "max_epochs=30 belongs to the study: Study(space, 'val_acc', max_epochs=30)"
ARGUMENTS: Rows = (
    ("Study Problem Policy", "direction mode metric objective", _GOAL),
    ("Study Problem", "directions goals objectives metrics", "goal=[Maximize('val_acc'), Minimize('latency_ms')]"),
    ("Study Problem", "epochs max_epoch n_epochs num_epochs max_t max_resource", "max_epochs="),
    ("Policy", "max_epochs epochs max_epoch n_epochs num_epochs max_t max_resource", _EPOCHS),
    ("Study Problem", "min_steps min_tokens min_seconds", "min_epochs=, which counts in the study's unit"),
    ("Study Problem Policy HaltuneCallback", "n_warmup_steps grace_period start_from_epoch min_resource", _WARM_UP),
    ("Policy", "min_epochs", _WARM_UP),
    ("Study Budget Policy", _N_TRIALS, "budget='20 trials', or trials=20 in a Budget"),
    ("Study Budget Policy", _TIMEOUT, "budget='30min', or time='30min' in a Budget"),
    ("Storage", "storage database path directory store", "url=, such as Storage('search.db')"),
    ("Checkpointing", "path directory dirpath checkpoints", "folder="),
    ("Checkpointing", "save_top_k", "keep="),
    ("Study load_study", "storage database path directory", "store='search.db', or a URL"),
    ("Study load_study", "study_name project_name", "name="),
    ("Study", "load_if_exists overwrite resume", "an existing study is reopened; for a new one use another name="),
    ("Study", "sampler pruner scheduler search_alg tuner", "policy=, such as BOBOS(); Halting(policy) stops early"),
    ("Study", "space search_space param_space config hyperparameters", _SPACE),
    ("Study", "n_jobs workers num_workers", "study.optimize(train, workers=4)"),
    ("Study", "points_to_evaluate", "start=[{...}]"),
    ("Study", "warm_start prior_studies", "learn_from=[study]"),
    ("Study.optimize", f"{_N_TRIALS} {_TIMEOUT}", f"{_BUDGET}; workers=4 trains in processes"),
    ("Study Study.optimize", "cv folds n_folds n_splits kfold", _FOLDS),
    ("Study.optimize", "n_jobs num_workers", _WORKERS),
    ("Study.optimize", "callbacks",
     "a framework's go to its trainer, in train(trial); for code after each trial write `for trial in study:`"),
    ("Study.optimize", "gpus trial_timeout memory_limit", "haltune.launch.run(study, train, gpus=[0, 1]) has it"),
    ("Study.optimize", "show_progress_bar progress_bar progress", "with haltune.report.live(study): around it"),
    ("Study.optimize", "catch", "exceptions are recorded and the search continues; see Study(..., max_failures=5)"),
    ("Study.enqueue", "params *", "a configuration is one dict: study.enqueue({'lr': 0.01, 'width': 32})"),
    ("Study.tell", "values", "value=, one number, or a dict of several"),
    ("Study.tell", "state", "trial.finish(status)"),
    ("Trial.report", "*", "trial.report(value) with the goal's metric, other metrics by metrics={'loss': 0.3}"),
    ("HaltuneCallback", "mode direction", _GOAL),
    ("HaltuneCallback", "metric metrics", "monitor="),
    ("HaltuneCallback", "patience min_delta pruner", "the policy decides when a trial stops: Study(policy=BOBOS())"),
    ("HaltuneCallback", "study", "HaltuneCallback(trial), one per trial"),
    ("HaltuneCallback", "save_best_only save_top_k filepath dirpath", _KEPT),
    ("Budget", "n_epochs max_epochs", "epochs="),
    ("Budget", "patience n_trials_without_gain max_trials_without_improvement", "trials_without_gain="),
    ("Float", "step q", "a Float has no steps. Use Choice([0.1, 0.2], ordered=True), or an Int and divide"),
    ("Int", "step q", _STEP),
    ("Float Int", "base prior distribution sampling log_scale", "use log=True for a logarithmic scale"),
    ("Float Int", "min max min_value max_value lower upper", "the bounds are low and high: Float(1e-4, 1e-1)"),
    ("Float Int Choice", "name", _NAMED),
    ("Float Int Choice", "default", "use Study(..., start=[{...}]) or study.enqueue({...})"),
    ("Choice", "choices values categories items", _OPTIONS),
    ("Space", "*", "parameters are one dict: Space({'lr': Float(1e-4, 1e-1), 'width': Int(8, 64)})"),
    ("Maximize Minimize", "direction", _GOAL),
    ("RandomSearch", f"n {_N_TRIALS}", "trials="),
    ("Policy", "seed random_state", "Study(..., seed=0) is the seed of all randomness"),
    ("Policy", "reduction_factor factor", "eta="),
    ("Policy", "policy base inner", "it takes no other policy; Halting(policy) stops the trials of another one early"),
    ("Policy", "n_startup_trials n_initial_points random_starts", "initial="),
)  # fmt: skip
ATTRIBUTES: Rows = (
    ("Trial", "suggest_float suggest_int suggest_categorical suggest_uniform suggest_loguniform", _SUGGEST),
    ("Trial", "suggest_discrete_uniform Float Int Choice Boolean Fixed", _SUGGEST),
    ("Trial", "should_prune", "trial.report(value) returns a verdict: if trial.report(value).stops: break"),
    ("Trial TrialRecord Best", "params parameters hyperparameters hp hparams get items keys", ".config"),
    ("Trial TrialRecord", "number trial_id trial index", ".id"),
    ("Trial TrialRecord Best", "ckpt_path ckpt checkpoint_path best_checkpoint get_best_checkpoint", ".checkpoint"),
    ("Trial", "cv fold kfold split splits n_splits cross_validate", _FOLDS),
    ("Trial", "set_user_attr user_attrs", "trial.report(value, metrics={'name': number}), or a file in trial.folder"),
    ("Trial", "value values score result losses", f"trial.report(value) records it; then {_RECORD}.values"),
    ("Trial", "intermediate_values curve results", f"{_RECORD}.values"),
    ("Trial", "state status", "trial.ended; None while it trains"),
    ("Trial", "metric monitor", "trial.goal.metric"),
    ("Trial", "path dirpath log_dir logdir directory", ".folder"),
    ("Trial", "complete completed end close", "trial.finish()"),
    # frameworks look for these first in a list of callbacks
    ("Reporting", "on_batch_end on_exception on_init_end", _OTHER_FRAMEWORK),
    ("Trial Study", "on_batch_end on_exception on_init_end setup set_params", "callbacks=[HaltuneCallback(trial)]"),
    ("Study", "best_config best_parameters best_hyperparameters best_hparams", "study.best_params"),
    ("Study", "get_best_hyperparameters get_best_config", "study.best_params"),
    ("Study", "get_best_trial get_best_trials", "study.best_trial"),
    ("Study", "best_score best_result best_epoch best_metric best_id best_index get_best_result", "study.best"),
    ("Study", "params config value score", "of the best trial: study.best.config, study.best.value"),
    ("Study", "best_trials", "study.pareto_front()"),
    ("Study", "get_trials", "study.trials"),
    ("Study", "trials_dataframe get_dataframe to_dataframe best_dataframe dataframe df", _FRAME),
    ("Study", "metrics_dataframe results cv_results get_history curves", _FRAME),
    ("Study", "errors num_errors", "[trial.error for trial in study.trials]"),
    ("Study", "state status finished done is_over", "study.outcome"),
    ("Study", "enqueue_trial", "study.enqueue(config)"),
    ("Study", "add_trial add_trials", "study.enqueue(config) trains it; known results are used by learn_from="),
    ("Study", "direction directions metric metric_names monitor goal objective", "study.problem.goals"),
    ("Study", "search_space space search_space_summary", "study.problem.space"),
    ("Study", "max_epochs", "study.problem.max_epochs"),
    ("Study", "study_name", "study.name"),
    ("Study", "sampler pruner oracle", "study.policy"),
    ("Study", "fit search run minimize", "study.optimize(train)"),
    ("Study", "results_summary summary print_summary", "haltune.report.summary(study)"),
    ("Study", "plot show", "study.report() writes a page; haltune.report has its figures"),
    ("Study", "save load", "Study(..., 'search.db') saves it, haltune.load_study('search.db') opens it"),
    ("Study", "best_checkpoint checkpoint get_best_checkpoint best_model_path", "study.best.checkpoint"),
    ("Study Best", "best_model model best_estimator get_best_model get_best_models",
     "study.best.checkpoint is its file; for Keras, study.best.load_model()"),
    ("Study", "set_user_attr user_attrs", "haltune keeps what trials report; write your own notes to a file"),
    ("Study", "delete delete_study", "nothing recorded is lost; delete its file, or use another name="),
    ("Study", "delete_trial remove_trial", "nothing recorded is lost; a note '#hidden' hides a trial on the page"),
    ("Study", "stop close", "leave its loop with break; from outside, haltune stop search.db"),
    ("Study", "epochs steps folds evaluate_now checkpointed", "a trial has it: for trial in study:, or train(trial)"),
    ("Study", "next_trial next create_trial suggest get_next_trial", "study.ask()"),
    ("Verdict", "stop stopped should_stop should_prune prune is_stop done", "verdict.stops"),
    ("Verdict", "pause paused pauses status", "verdict.action, such as Action.PAUSE"),
    ("TrialRecord", "value score", "record.values of its reports, or record.result(study.problem.goal), its value"),
    ("TrialRecord", "state", "record.status"),
    ("TrialRecord", "intermediate_values curve losses", "record.values"),
    ("TrialRecord", "user_attrs", "record.metrics"),
    ("TrialRecord", "duration time", "record.seconds.sum()"),
    ("Best", "id number trial_id index", "study.best.trial"),
    ("Best", "score result values best_value", ".value"),
    ("Best", "best_params best_config", ".config"),
    ("Best", "best_epoch", ".epoch"),
    ("Best", "status error metrics seconds epochs attempt", "study.best_trial has it"),
    ("Best", "state curve history losses duration intermediate_values user_attrs", "study.best_trial is its record"),
    ("Best TrialRecord", "step token", ".epoch, in the study's unit"),
    ("Best", "checkpoint_step", ".checkpoint_epoch, in the study's unit"),
    ("haltune", "create_study Tuner tune minimize optimize fmin run search", f"Study(...).optimize(train); {_SPACE}"),
    ("haltune", "Categorical choice", "Choice([...])"),
    ("haltune", "Integer randint quniform", "Int(low, high)"),
    ("haltune", "Real Uniform uniform", "Float(low, high)"),
    ("haltune", "LogUniform loguniform log_uniform", "Float(low, high, log=True)"),
    ("haltune", "EarlyStopping TrialPruned", "HaltuneCallback(trial), or if trial.report(value).stops: break"),
    ("haltune haltune.callbacks", "HaltuneCallback", _CALLBACK),
    ("haltune haltune.callbacks", "TrainingLoop", "from haltune.callbacks.loop import TrainingLoop"),
    ("haltune.policies", "ASHA ASHAScheduler", "SuccessiveHalving(asynchronous=True)"),
    ("haltune.policies", "SHA", "SuccessiveHalving()"),
    ("haltune.policies", "HyperBand HyperbandPruner", "Hyperband()"),
    ("haltune.policies", "MedianPruner", "Halting(policy)"),
    ("haltune.policies", "RandomSampler", "RandomSearch()"),
    ("haltune.policies", "BOHB TPE TPESampler CMAES PBT PopulationBasedTraining", "MultiFidelity(), the default"),
    ("haltune.policies", "GridSearch GridSampler Grid", "RandomSearch(), with Study(start=[config, ...])"),
    ("haltune.policies", "BayesianOptimization Bayesian GP", "GPUCB()"),
)  # fmt: skip


def _table(rows: Rows) -> dict[tuple[str, str], str]:
    return {
        (owner, word.lower()): hint
        for owners, words, hint in rows
        for owner in owners.split()
        for word in words.split()
    }


_ARGUMENTS, _ATTRIBUTES = _table(ARGUMENTS), _table(ATTRIBUTES)


def _check(owners: Sequence[str], takes: Callable[..., Any], named: Mapping[str, Any]) -> None:
    """Raise UnknownArgument for a name that `takes` does not accept; if it accepts all, for names in its own rows."""
    code = getattr(inspect.unwrap(takes), "__code__", None)
    if code is None:
        return
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    takes_all = code.co_flags & inspect.CO_VARKEYWORDS
    for word in named.keys() - set(known):
        rows = owners[:1] if takes_all else owners
        hint = next((h for owner in rows if (h := _ARGUMENTS.get((owner, word.lower())))), None)
        hint = hint or _ARGUMENTS.get((owners[0], "*"))
        if hint is None and not takes_all:
            near = sorted(get_close_matches(word, known[1:]), key=lambda other: sorted(other) != sorted(word))
            hint = f"did you mean {near[0]}=?" if near else f"it takes {', '.join(known[1:]) or 'nothing'}"
        if hint is not None:
            use = "use " if re.fullmatch(r"\w+=", hint) else ""
            raise UnknownArgument(f"{owners[0]} has no argument {word}=: {use}{hint}")


class KnowsArguments:
    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **named: Any) -> Any:
            if (args or named) and cls.__init__ is object.__init__:
                raise TypeError(f"{cls.__name__}() takes no arguments")
            check_count(cls, args)
            check_call(cls, named)
            return super().__new__(cls)


def check_count(cls: Any, given: Sequence[Any]) -> None:
    """Raise UnknownArgument if a class takes fewer arguments without a name, as in Choice("relu", "gelu")."""
    code = getattr(inspect.unwrap(cls.__init__), "__code__", None)
    if code is None or code.co_flags & inspect.CO_VARARGS or len(given) < code.co_argcount:
        return
    named = cls.__name__ in ("Float", "Int", "Choice") and isinstance(given[0], str) and not isinstance(given[1], str)
    hint = _NAMED if named else _OPTIONS if cls.__name__ == "Choice" else None  # Keras Tuner has hp.Float("lr", ...)
    raise _too_many(cls.__name__, code, len(given), hint)


def _too_many(name: str, code: CodeType, given: int, hint: str | None) -> UnknownArgument:
    most = code.co_argcount - (code.co_varnames[:1] == ("self",))
    by_name = [f"{word}=" for word in code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]]
    hint = hint or (f"pass others by name, {', '.join(by_name)}" if by_name else "delete the others")
    return UnknownArgument(f"{name} takes {most} value{'s' * (most != 1)} without a name, and you gave {given}: {hint}")


def check_call(cls: Any, named: Mapping[str, Any]) -> None:
    if named:
        _check([kind.__name__ for kind in cls.__mro__], cls.__init__, named)


def with_hints(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function, which then gives a hint for an argument it does not accept."""
    name = [function.__qualname__]
    code = inspect.unwrap(function).__code__
    takes_all = bool(code.co_flags & inspect.CO_VARKEYWORDS)

    @wraps(function)
    def asked(*args: P.args, **named: P.kwargs) -> R:
        if takes_all:
            _check(name, function, named)
        try:
            return function(*args, **named)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            refused = error  # the call itself failed
        _check(name, function, named)  # outside the handler: a traceback shows one error
        if len(args) > code.co_argcount and not code.co_flags & inspect.CO_VARARGS:
            given = len(args) - (code.co_varnames[:1] == ("self",))
            # Optuna's second value of optimize is n_trials
            raise _too_many(name[0], code, given, _ARGUMENTS.get((name[0], "n_trials")))
        raise refused

    return asked


class KnowsAttributes:
    """Class that gives a hint for an attribute which other tools have."""

    __slots__ = ()
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name.startswith("__"):  # looked up while an instance is copied
                raise AttributeError(name)
            held = getattr(self, "__dict__", {})
            if (place := next((p for p in ("config", "metrics") if name in held.get(p, ())), None)) is not None:
                message = f"{kind!r} object has no attribute {name!r}: use .{place}[{name!r}]"
            elif name == held.get("metric"):
                message = f"{kind!r} object has no attribute {name!r}: use .value"
            else:
                owners = [kind.__name__ for kind in type(self).__mro__]
                fields = tuple(getattr(self, "__dataclass_fields__", ()))
                message = missing_attribute(f"{kind!r} object", name, owners, has=fields)
            raise AttributeError(message, name=name, obj=self)


def missing_attribute(
    whose: str, name: str, owners: Sequence[str], known: Sequence[str] = (), has: Sequence[str] = ()
) -> str:
    """Return the message for a missing attribute.

    known: existing names, of which one may be meant. has: the fields of the object, listed if they are few.
    """
    word = name.lower().rstrip("_")  # scikit-learn's best_params_
    answer = next((hint for owner in owners if (hint := _ATTRIBUTES.get((owner, word)))), None)
    if answer is None and not name.startswith("_"):
        lower = {other.lower(): other for other in known}
        near = get_close_matches(name.lower(), lower, n=1, cutoff=0.8)
        answer = f"did you mean {lower[near[0]]!r}?" if near else None
    elif answer is not None and re.fullmatch(r"\.?\w[\w.]*(\(.*\))?", answer):
        answer = f"use {answer}"
    if answer is None and not name.startswith("_") and 0 < len(has) <= _FEW:
        answer = f"it has {', '.join(has)}"
    return f"{whose} has no attribute {name!r}" + (f": {answer}" if answer else "")


def explain_misreading(
    error: BaseException, config: dict[str, Any], space: Iterable[str], recorded: Mapping[str, Any]
) -> None:
    """Add a note to an error of reading a trial or its configuration, a class for a callback, data, or Optuna's.

    recorded: the configuration in the log, from which the program may have removed parts.
    """
    named = f"haltune: trial.config is a dict, and it has {', '.join(map(repr, config)) or 'no parameters'}"
    if isinstance(error, AttributeError) and isinstance(error.obj, dict) and error.obj.keys() == config.keys():
        error.add_note(f"{named}: trial.config[{error.name!r}]" if error.name in config else named)
    elif isinstance(error, AttributeError) and isinstance(error.obj, MappingProxyType) and error.name == "setdefault":
        error.add_note("haltune: a class stands in callbacks=[...]. Write an instance, such as HaltuneCallback(trial)")
    elif type(error).__name__ == "TrialPruned":
        error.add_note(
            "haltune: in place of raising TrialPruned leave the loop: if trial.report(value).stops: break. "
            "To refuse a configuration, use Space(..., constraints=)"
        )
    elif type(error).__name__ == "LightGBMError" and "Cannot set predictor" in str(error):
        error.add_note(
            "haltune: LightGBM cannot continue a booster on a Dataset that it has used. Make one for each trial, "
            "within the loop, lgb.Dataset(x, y)"
        )
    elif isinstance(error, TypeError) and "'method' object" in str(error):  # range(trial.epochs), epochs=trial.epochs
        error.add_note("haltune: trial.epochs() yields the epochs, and trial.max_epochs is their number")
    elif isinstance(error, KeyError) and error.args and isinstance(error.args[0], str) and error.args[0] not in config:
        absent = f". {error.args[0]!r} is conditional, and its condition does not hold in this trial: use config.get()"
        removed = f". The program has removed {error.args[0]!r}: do so in a copy, config = dict(trial.config)"
        gone = error.args[0] in recorded
        error.add_note(named + (removed * gone or absent * (error.args[0] in space)))
