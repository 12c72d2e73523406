"""Other tools' words, and haltune's own for the same: what a mistaken argument or attribute is answered with.

Classes that users make derive from `KnowsArguments`; methods they call are marked `answering`; what they hold has
`KnowsAttributes`. Signatures stay what they are: only what they refuse comes here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from haltune.errors import UnknownArgument

P = ParamSpec("P")
R = TypeVar("R")

_LESS_OR_MORE = "the goal says it: Maximize('val_acc') or Minimize('val_loss')"
_BUDGET = (
    "say it when the study is made: Study(..., budget='100 trials'), '30min', or both, '100 trials, 30min'"
)
_RUN = f"{_BUDGET}; workers=4 trains in processes"
_SEED = "Study(..., seed=0) is the seed of all randomness"
_LOG = "write log=True for a scale of magnitudes"
_STEP = (
    "there are no steps: Choice(range(low, high + 1, step), ordered=True) lists the values, and Int(low, high, "
    "log=True) spreads them by magnitude"
)
_BOUNDS = "the bounds are low and high: Float(1e-4, 1e-1), Int(1, 8)"
_NAMED = "a space names its parameters: Space({'lr': Float(1e-4, 1e-1)})"
_NO_DEFAULT = "say where to begin by Study(..., start=[{...}]) or study.enqueue({...})"
_OPTIONS = "the options are one list: Choice(['relu', 'gelu'])"
_STORE = "store='search.db', or a URL such as 'postgresql://...'"
_POLICY = "policy=, such as policy=BOBOS(); Halting(policy) stops runs early inside any policy"
_SPACE = "the space comes first: Study({'lr': Float(1e-4, 1e-1)}, 'val_acc', max_epochs=30)"
_TRIALS = "budget='20 trials'; in a Budget, trials=20"
_TIME = "budget='30min'; in a Budget, time='30min'"
_EPOCHS = "max_epochs=, the epochs of a full training"
_WARM_UP = "Study(..., min_epochs=5) sets the epochs before which no policy stops or pauses a trial"
_SUGGEST = (
    "the space says it once, Study({'lr': Float(1e-4, 1e-1, log=True)}, ...): here read trial.config['lr']"
)
_CATALOGUE = "haltune.policies lists them: MultiFidelity() is the default, BOBOS() needs no checkpoints"
_CALLBACK = (
    "from haltune.callbacks.lightning import HaltuneCallback; or of .keras, .transformers, .xgboost, ..."
)
_STOPS = "the policy decides when a run stops: Study(..., policy=BOBOS()); haltune.policies lists them"
_KEPT = "the best model is kept, study.best.checkpoint; Study(..., keep_checkpoints=3) keeps three"
_LOOP = "from haltune.callbacks.loop import TrainingLoop"

_NO_TRIAL = (
    "study.ask() answers with a Trial, a Wait while others train, or a Finish when the search is over: for trial in "
    "study: gives trials alone; or while isinstance(trial := study.ask(), Trial):"
)

_NO_CALLBACK = dict.fromkeys(  # what frameworks look for first in a list of callbacks
    ("on_batch_end", "on_exception", "on_init_end", "setup", "set_params"),
    "callbacks=[HaltuneCallback(trial)]",
)

_RANGE = {
    "step": _STEP, "q": _STEP, "base": _LOG, "prior": _LOG, "distribution": _LOG, "sampling": _LOG, "log_scale": _LOG,
    "min": _BOUNDS, "max": _BOUNDS, "min_value": _BOUNDS, "max_value": _BOUNDS, "lower": _BOUNDS, "upper": _BOUNDS,
    "name": _NAMED, "default": _NO_DEFAULT, "*": f"{_BOUNDS}; log=True and when= are said by name. {_STEP}",
}  # fmt: skip
_SEVERAL = "goals are a list: [Maximize('val_acc'), Minimize('latency_ms')]"
_WHAT_FOR = dict.fromkeys(("direction", "mode", "metric", "objective"), _LESS_OR_MORE) | dict.fromkeys(
    ("directions", "goals", "objectives", "metrics"), _SEVERAL
)
_HOW_LONG = dict.fromkeys(("epochs", "max_epoch", "n_epochs", "num_epochs", "max_t", "max_resource"), _EPOCHS)
_HOW_LONG |= dict.fromkeys(("n_warmup_steps", "grace_period", "start_from_epoch", "min_resource"), _WARM_UP)
_HOW_MANY = dict.fromkeys(
    ("n_trials", "max_trials", "num_samples", "max_evals", "n_iter", "n_calls"), _TRIALS
)
_HOW_MUCH = dict.fromkeys(
    ("timeout", "max_time", "time_budget_s", "duration", "minutes", "hours", "seconds"), _TIME
)
_WHERE = dict.fromkeys(("storage", "database", "path", "directory"), _STORE) | dict.fromkeys(
    ("study_name", "project_name"), "name="
)
ARGUMENTS: Mapping[str, Mapping[str, str]] = {
    "Study": {
        **_WHAT_FOR, **_HOW_LONG, **_HOW_MANY, **_HOW_MUCH, **_WHERE,
        "load_if_exists": "a study that is there is reopened and goes on; another name= makes a new one",
        "overwrite": "a study that is there is reopened and goes on; another name= makes a new one",
        "resume": "a study that is there is reopened and goes on", "sampler": _POLICY, "pruner": _POLICY,
        "scheduler": _POLICY, "search_alg": _POLICY, "tuner": _POLICY, "space": _SPACE, "search_space": _SPACE,
        "param_space": _SPACE, "config": _SPACE, "hyperparameters": _SPACE,
        **dict.fromkeys(("n_jobs", "workers", "num_workers"), "study.optimize(train, workers=4)"),
        "points_to_evaluate": "start=[{...}]", **dict.fromkeys(("warm_start", "prior_studies"), "learn_from=[study]"),
    },
    "load_study": _WHERE,
    "HaltuneCallback": {
        **dict.fromkeys(("mode", "direction"), _LESS_OR_MORE), "metric": "monitor=", "metrics": "monitor=",
        **dict.fromkeys(("patience", "min_delta", "pruner"), _STOPS), "start_from_epoch": _WARM_UP,
        "study": "HaltuneCallback(trial), one a trial",
        **dict.fromkeys(("save_best_only", "save_top_k", "filepath", "dirpath"), _KEPT),
    },
    "Problem": {**_WHAT_FOR, **_HOW_LONG, "parameters": "Problem(Space({...}), goal, max_epochs)"},
    "Budget": {**_HOW_MANY, **_HOW_MUCH, "n_epochs": "epochs=", "max_epochs": "epochs="},
    "Float": {**_RANGE, "step": "a Float has no steps: write Choice([0.1, 0.2], ordered=True), or Int and divide"},
    "Int": _RANGE,
    "Choice": {
        **dict.fromkeys(("choices", "values", "categories", "items", "*"), _OPTIONS), "name": _NAMED,
        "default": _NO_DEFAULT, "weights": "all options are as likely at first",
    },
    "Space": {"**": "parameters are one dict: Space({'lr': Float(1e-4, 1e-1), 'width': Int(8, 64)})"},
    "Maximize": {"name": "metric=", "direction": _LESS_OR_MORE, "range": "bounds=(low, high)"},
    "Minimize": {"name": "metric=", "direction": _LESS_OR_MORE, "range": "bounds=(low, high)"},
    "Policy": {
        **_HOW_LONG, **_HOW_MANY, **_HOW_MUCH, **_WHAT_FOR, "seed": _SEED, "random_state": _SEED,
        "reduction_factor": "eta=", "factor": "eta=", "R": f"Hyperband's R is {_EPOCHS}", "budget": _BUDGET,
        "min_epochs": _WARM_UP, **dict.fromkeys(("n_startup_trials", "n_initial_points", "random_starts"), "initial="),
    },
    "RandomSearch": {"n": "trials=", **dict.fromkeys(_HOW_MANY, "trials=")},
    "Study.optimize": {
        **dict.fromkeys((*_HOW_MANY, *_HOW_MUCH, "*"), _RUN), "n_jobs": "workers=", "num_workers": "workers=",
        "callbacks": "callbacks go to the framework's trainer, within train(trial)",
        "catch": "exceptions are recorded and the search goes on; Study(..., max_failures=5) bounds how many in a row",
        "show_progress_bar": "the log 'haltune' tells of every trial",
    },
    "Study.enqueue": {
        "params": "config=", "skip_if_exists": "again=False, the default",
        "**": "a configuration is one dict: study.enqueue({'lr': 0.01, 'width': 32})",
    },
    "Study.tell": {"values": "value=, one number, or several by their names", "state": "trial.finish(status)"},
    "Trial.report": {
        "step": "epoch=, which counts from 1: epoch=step + 1", "loss": "value=, the goal's metric",
        "metric": "value=, the goal's metric", "score": "value=, the goal's metric",
        "**": "trial.report(value), the goal's metric alone; others by metrics={'loss': 0.3}",
    },
}  # fmt: skip
ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "Trial": {
        **dict.fromkeys(
            (f"suggest_{kind}" for kind in ("float", "int", "categorical", "uniform", "loguniform")), _SUGGEST
        ),
        "should_prune": "trial.report(value) answers with a verdict: if trial.report(value).stops: break",
        "params": "trial.config", "hyperparameters": "trial.config", "number": "trial.id", "trial_id": "trial.id",
        "set_user_attr": "trial.report(value, metrics={'name': number})", **_NO_CALLBACK,
    },
    "Study": {
        "best_config": "study.best_params", "best_parameters": "study.best_params", "best_score": "study.best_value",
        "best_result": "study.best", "best_trials": "study.pareto_front()", "get_trials": "study.trials",
        "trials_dataframe": "study.frame()", "get_dataframe": "study.frame()", "enqueue_trial": "study.enqueue(config)",
        "add_trial": "study.enqueue(config)", "direction": "study.problem.goal",
        "directions": "study.problem.goals", "study_name": "study.name",
        "sampler": "study.policy", "pruner": "study.policy", "fit": "study.optimize(train)",
        "search": "study.optimize(train)", "run": "study.optimize(train)", "minimize": _LESS_OR_MORE,
        "get_best_hyperparameters": "study.best_params", "results_summary": "haltune.report.summary(study)",
        **dict.fromkeys(("plot", "show"), "study.report() writes a page; haltune.report has its figures"),
        **dict.fromkeys(("save", "load"), "Study(..., 'search.db') keeps it, haltune.load_study('search.db') opens it"),
        "best_model": "study.best.checkpoint is its file; of Keras study.best.load_model()",
        **dict.fromkeys(("to_dataframe", "dataframe", "df", "results"), "study.frame(), a row a report; study.trials"),
        **dict.fromkeys(("summary", "print_summary"), "haltune.report.summary(study)"),
        **dict.fromkeys(("stop", "close"), "leave the loop over it by break; from outside, haltune stop search.db"),
        **dict.fromkeys(("next_trial", "next", "create_trial", "suggest", "get_next_trial"), "study.ask()"),
        **_NO_CALLBACK,
    },
    "Verdict": {
        **dict.fromkeys(
            ("stop", "stopped", "should_stop", "should_prune", "prune", "is_stop", "done"), "verdict.stops"
        ),
        **dict.fromkeys(("pause", "paused", "pauses", "status"), "verdict.action, Action.PAUSE or another"),
        "why": "verdict.reason",
    },
    "TrialRecord": {
        "value": "record.values are those of its reports; record.result(study.problem.goal) is what it counts for",
        "params": "record.config", "hyperparameters": "record.config", "number": "record.id", "trial_id": "record.id",
        "state": "record.status", "duration": "record.seconds.sum()", "intermediate_values": "record.values",
        "user_attrs": "record.metrics",
    },
    "Best": {
        "params": "study.best.config", "hyperparameters": "study.best.config", "number": "study.best.trial",
        "score": "study.best.value", "trial_id": "study.best.trial",
    },
    "Wait": {"**": _NO_TRIAL},
    "Finish": {"**": _NO_TRIAL},
    "module 'haltune'": {
        "create_study": f"Study(...); {_SPACE}", "Tuner": f"Study(...); {_SPACE}", "tune": f"Study(...); {_SPACE}",
        "minimize": f"Study(...); {_SPACE}", "Categorical": "Choice([...])", "Integer": "Int(low, high)",
        "Real": "Float(low, high)", "Uniform": "Float(low, high)", "LogUniform": "Float(low, high, log=True)",
        "choice": "Choice([...])", "uniform": "Float(low, high)", "loguniform": "Float(low, high, log=True)",
        "HaltuneCallback": _CALLBACK, "TrainingLoop": _LOOP,
        **dict.fromkeys(("optimize", "fmin", "run", "search"), f"Study(...).optimize(train); {_SPACE}"),
        "EarlyStopping": "the search stops runs: HaltuneCallback(trial), or if trial.report(value).stops: break",
        "quniform": "Int(low, high)", "log_uniform": "Float(low, high, log=True)",
        "randint": "Int(low, high)", "TrialPruned": "if trial.report(value).stops: break", "policy": _CATALOGUE,
    },
    "module 'haltune.callbacks'": {"HaltuneCallback": _CALLBACK, "TrainingLoop": _LOOP},
    "module 'haltune.policies'": {
        "ASHA": "SuccessiveHalving(asynchronous=True)", "ASHAScheduler": "SuccessiveHalving(asynchronous=True)",
        "SHA": "SuccessiveHalving()", "HyperBand": "Hyperband()", "HyperbandPruner": "Hyperband()",
        "BOHB": "Guided(Ladder())", "MedianPruner": "Halting(policy)", "RandomSampler": "RandomSearch()",
        **dict.fromkeys(("TPE", "TPESampler", "CMAES", "PBT", "PopulationBasedTraining"), _CATALOGUE),
        **dict.fromkeys(
            ("GridSearch", "GridSampler", "Grid"), "RandomSearch(), and study.enqueue(config) for each point"
        ),
        **dict.fromkeys(("BayesianOptimization", "Bayesian", "GP"), "GPUCB()"),
    },
}  # fmt: skip


class KnowsArguments:
    """What a class is called with is answered in words where it does not take it."""

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **named: Any) -> Any:
            check_call(cls, args, named)
            return super().__new__(cls)


def check_call(cls: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """What a class is called with, where that derives from others' classes. Raises UnknownArgument, in words."""
    takes = cls.__init__ if cls.__init__ is not object.__init__ else _nothing
    _check(cls.__name__, [kind.__name__ for kind in cls.__mro__], takes, 1 + len(args), named)


def answering(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which answers in words what it is called with and does not take."""

    @wraps(function)
    def asked(*args: P.args, **named: P.kwargs) -> R:
        name = function.__qualname__
        _check(name, [name], function, len(args), named)
        return function(*args, **named)

    return asked


class KnowsAttributes:
    """An attribute that is not there is answered in words where other tools have it."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in getattr(self, "__dict__", {}).get("config", ()):
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}: .config[{name!r}] is it"
                )
            owners = [kind.__name__ for kind in type(self).__mro__]
            raise AttributeError(
                missing_attribute(f"{type(self).__name__!r} object", name, owners), name=name, obj=self
            )


class NoTrial(KnowsAttributes):
    """What `study.ask()` answers where there is no trial: used as one, by whatever name, it says so."""

    def __enter__(self) -> NoReturn:
        raise TypeError(f"{self!r} is no trial. {_NO_TRIAL}")

    def __exit__(self, *raised: object) -> None:
        """`with` asks for it first."""


def missing_attribute(whose: str, name: str, owners: Sequence[str], known: Sequence[str] = ()) -> str:
    """What is said of an attribute that is not there. known: those that are, of which one may be meant."""
    answer = _answer(ATTRIBUTES, owners, name)
    if answer is None and not name.startswith("_"):
        foreign = {word.lower(): word for owner in owners for word in ATTRIBUTES.get(owner, ())}
        lower = {other.lower(): other for other in known}
        near = get_close_matches(name.lower(), lower, n=1, cutoff=0.8)
        answer = f"did you mean {lower[near[0]]!r}?" if near else None
        answer = _answer(ATTRIBUTES, owners, foreign.get(name.lower(), name)) or answer
    return f"{whose} has no attribute {name!r}" + (f": {answer}" if answer else "")


def _nothing(self: object) -> None:
    """What a class without __init__ takes."""


def _check(
    name: str, owners: Sequence[str], takes: Callable[..., Any], given: int, named: Mapping[str, Any]
) -> None:
    """Raises UnknownArgument for what `takes` does not take. given: arguments without a name, self included."""
    code = getattr(inspect.unwrap(takes), "__code__", None)
    if code is None:
        return
    by_place, known = code.co_varnames[: code.co_argcount], _parameters(code)
    if given > len(by_place) and not code.co_flags & inspect.CO_VARARGS:
        answer = _answer(ARGUMENTS, owners, "*") or f"it takes {', '.join(known[1:]) or 'none'}"
        raise UnknownArgument(f"{name}() with {given - 1} arguments that have no name: {answer}")
    takes_all = code.co_flags & inspect.CO_VARKEYWORDS  # but for the words of its own row
    for word in named.keys() - set(known) - set(getattr(takes, "old_names", ())):
        near = get_close_matches(word, known[1:], n=1)
        guess = f"did you mean {near[0]}=?" if near else f"it takes {', '.join(known[1:]) or 'nothing'}"
        meant = _answer(ARGUMENTS, owners[:1] if takes_all else owners, word)
        if meant or not takes_all:
            raise UnknownArgument(f"{name}({word}=...): {meant or guess}")


def _parameters(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _answer(table: Mapping[str, Mapping[str, str]], owners: Sequence[str], word: str) -> str | None:
    known = (table[owner] for owner in owners if owner in table)
    return next((words.get(word) or words["**"] for words in known if word in words or "**" in words), None)
