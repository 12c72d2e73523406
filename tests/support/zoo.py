"""The zoo: programs as people write them, and five truths that haltune holds for each of them.

A program is a module of tests/foreign/zoo with

    search(study)           the program, as its author writes it: models, loops and callbacks, nothing of this harness
    evaluate(path, config)  the goal's metric of the model in a file or folder, loaded as its author would load it
    zoo = dict(...)         what is expected of it: see Declaration
    trained(path)           the updates that the model in a file has seen, where its library counts them in it

and is trained three times, with the same configurations and seeds: straight, where nothing pauses; paused, where every
trial pauses at each of the positions `pauses` and resumes in another order; and alone, the last configuration without
the others. A trial starts with the same state of the random generators in all three, and resumes with another one, as
in another process.

    counted  At each report the updates that were made, by a counter of this harness, are those of its position; where
             Python does not see them, those of the best file are, by its library's.
    resumed  Curves and final weights of paused equal those of straight, digit for digit; or nothing paused, for the one
             reason that was logged; or they differ, and a warning names what the program does not save.
    own      Curve and weights of alone equal those of the same configuration in straight.
    kept     study.best.checkpoint, evaluated, gives study.best.value: of the last epoch in straight, of the best one in
             paused.
    said     Each warning or hint is declared; none names another study's metric or the other direction, or advises
             what the program does, or comes after its trial has trained on from where it may pause first.

To add a program: write the module, 25 to 60 lines; declare the updates of an epoch (or of the study's other unit) as
its author would count them, and where it pauses. `pytest tests/foreign/test_zoo.py -k NAME` trains it. What haltune
gets wrong stays in the declaration until it is mended, wrong={"resumed": "one sentence"}: the test is then expected to
fail, and fails if it passes. `python tests/support/zoo.py NAME ...` prints which truths hold, and every line that
haltune logged, for a human to read.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import importlib.util
import logging
import os
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from haltune import HaltuneWarning, Maximize, Minimize, Space, Study, Trial, Verdict
from haltune.log.decisions import Action, Finish, Start, continue_
from haltune.log.events import Reported, Resumed, Status
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.policies import Resume
from haltune.store.memory import MemoryStore

TRUTHS = ("counted", "resumed", "own", "kept", "said")
PROGRAMS = Path(__file__).parents[1] / "foreign" / "zoo"


@dataclass(frozen=True)
class Declaration:
    """What is expected of a program. The first four are literals, and are read without importing the program."""

    needs: Sequence[str]  # packages
    backend: str = ""  # of Keras, which is chosen once in a process
    slow: bool = False
    wrong: Mapping[str, str] = field(default_factory=dict)  # truth, or "all" -> what haltune gets wrong, a sentence
    space: Mapping[str, Any] = field(default_factory=dict)
    goal: Maximize | Minimize = Minimize("val_loss")  # noqa: RUF009
    max_epochs: int = 4
    unit: str = "epoch"
    trials: Sequence[Mapping[str, Any]] = ()  # configurations; the last one is trained alone too
    pauses: Sequence[float] = (1, 2)  # positions; where a validation follows, the first one counts
    updates: float | Callable[[float], float] = 1  # of one unit, or until a position
    counts: str = "torch"  # what makes updates: see counting
    hidden: bool = False  # True: Python does not see each of them; `trained` of the program counts them
    aside: int = 0  # updates of a first fit before its training, as of a finder
    refuses: str = ""  # pattern of the error, before an update
    declines: str = ""  # pattern of the warning that nothing pauses
    inexact: str = ""  # pattern of the warning that a resumed trial trains otherwise
    says: Sequence[str] = ()  # patterns of other warnings and hints, each of which comes
    late: Sequence[str] = ()  # the same, of what only the end of a training shows, or a second fit
    best_epoch: bool = True  # False: in paused too, a trial counts with its last epoch
    keeps: bool = True  # False: it says that no model is kept

    def until(self, position: float) -> float:
        """Return the updates until a position."""
        return self.updates(position) if callable(self.updates) else position * self.updates


@dataclass(frozen=True)
class Program:
    """A module of the zoo, imported."""

    name: str
    search: Callable[[Study], object]
    evaluate: Callable[[str, Mapping[str, Any]], float]
    declared: Declaration
    source: str = ""
    trained: Callable[[str], float] | None = None


def literals(path: Path) -> dict[str, Any]:
    """Return the literal arguments of a module's `zoo = dict(...)`, without importing it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    [call] = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "zoo"]
    assert isinstance(call, ast.Call)
    found = {}
    for word in call.keywords:
        with contextlib.suppress(ValueError):
            found[word.arg or ""] = ast.literal_eval(word.value)
    return found


def load(name: str) -> Program:
    path = PROGRAMS / f"{name}.py"
    for logger in ("lightning.pytorch", "lightning", "pytorch_lightning"):  # as in a process of its own
        logging.getLogger(logger).setLevel("INFO")
    spec = importlib.util.spec_from_file_location(f"zoo_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # frameworks pickle classes by their module
    spec.loader.exec_module(module)
    source = path.read_text(encoding="utf-8")
    trained = getattr(module, "trained", None)
    return Program(name, module.search, module.evaluate, Declaration(**module.zoo), source, trained)


# -- a search that this harness watches --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alternates(Policy[None]):
    """Starts all configurations, each of which pauses at its next position, and resumes the last paused first."""

    configs: tuple[Mapping[str, Any], ...]
    at: tuple[float, ...] = ()

    predicts = False
    endless = False

    @property
    def spec(self) -> dict[str, Any]:
        return {"policy": "Alternates", "configs": [dict(c) for c in self.configs], "at": list(self.at)}

    def start(self, problem: Problem) -> None:
        return

    def fold(self, state: None, event: Any) -> None:
        """Keep no state."""

    def propose(self, state: None, history: Any, rng: Any) -> Any:
        if len(history) < len(self.configs):
            return Start(self.configs[len(history)], pause_at=self._next(1, history), reason="the next configuration")
        paused = history.with_status(Status.PAUSED)
        if not paused:
            return Finish("all configurations are trained")
        least = min(t.attempt for t in paused)
        last = [t for t in paused if t.attempt == least][-1]
        return Resume(last.id, pause_at=self._next(last.attempt + 1, history), reason="it was paused")

    def judge(self, state: None, history: Any, trial: Any, rng: Any) -> Verdict:
        at, end = self._next(trial.attempt, history), history.problem.max_epochs
        if at is not None and at - 1e-9 <= trial.epoch < end:
            return Verdict(Action.PAUSE, "a rung ends")
        return continue_("more")

    def _next(self, attempt: int, history: Any) -> float | None:
        """Return where an attempt pauses; in a study by steps a policy counts the points between them."""
        if attempt > len(self.at):
            return None
        grid = history.problem.grid
        return float(self.at[attempt - 1]) if grid is None else float(grid.points(self.at[attempt - 1]))


class Watch:
    """Counts the updates of an attempt, and reads the weights at its end."""

    def __init__(self) -> None:
        self.updates = 0
        self.barrier: Callable[[], object] = lambda: None
        self.trial: Trial | None = None
        self.begins: dict[tuple[int, int], float] = {}  # trial, attempt -> position
        self.reported: dict[tuple[int, int], list[tuple[float, int]]] = {}  # -> position, updates
        self.made: dict[tuple[int, int], int] = {}  # -> updates
        self.again: dict[int, int] = {}  # trial -> attempts that its program gave up
        self.weights: dict[int, str] = {}  # trial -> digest of what was updated last
        # line -> when it came first: trial and attempt, reports and updates of the attempt
        self.came: dict[str, tuple[tuple[int, int], int, int]] = {}
        self._updated: dict[int, tuple[Any, Callable[[], list[bytes]]]] = {}  # since the last report
        self._before: dict[int, tuple[Any, Callable[[], list[bytes]]]] = {}  # between the last two reports

    def made_update(self, by: Any, arrays: Callable[[], list[bytes]]) -> None:
        self.updates += 1
        self._updated[id(by)] = by, arrays

    def comes(self, line: str) -> None:
        """Note a line that is logged; one between two trials is of the one before."""
        attempt = (-1, 0) if self.trial is None else (self.trial.id, self.trial.attempt)
        self.came.setdefault(line, (attempt, len(self.reported.get(attempt, ())), self.updates))

    def enter(self, trial: Trial) -> None:
        self.trial, self.updates = trial, 0
        self.begins[trial.id, trial.attempt] = float(trial.epoch)
        seed(7 if trial.attempt == 1 else 1000 + trial.attempt)

    def report(self, event: Reported) -> None:
        self.barrier()
        self.reported.setdefault((event.trial, event.attempt), []).append((event.epoch, self.updates))
        if self._updated:
            self._before, self._updated = self._updated, {}

    def start_again(self, event: Resumed) -> None:
        """Begin an attempt at a trial whose program gave up the one before, from its start."""
        self.updates, self._updated = 0, {}
        self.begins[event.trial, event.attempt] = 0.0
        self.again[event.trial] = self.again.get(event.trial, 0) + 1

    def leave(self) -> None:
        self.barrier()
        if self.trial is not None:
            self.made[self.trial.id, self.trial.attempt] = self.updates
            parts = sorted(part for _, arrays in (self._updated or self._before).values() for part in arrays())
            if parts:  # a callback may end a resumed training before its first update
                self.weights[self.trial.id] = hashlib.sha256(b"".join(parts)).hexdigest()
        self._updated, self._before = {}, {}


def seed(number: int) -> None:
    """Seed the global random generators of what is imported."""
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number)
    if "keras" in sys.modules:
        sys.modules["keras"].utils.set_random_seed(number)


class WatchedStore(MemoryStore):
    watch: Watch

    def append(self, name: str, events: Sequence[Any], **others: Any) -> int:
        position = super().append(name, events, **others)
        for event in events:
            if isinstance(event, Reported) and not event.copied:
                self.watch.report(event)
            if isinstance(event, Resumed) and event.given_up:
                self.watch.start_again(event)
        return position


class WatchedStudy(Study):
    watch: Watch

    def ask(self) -> Any:
        self.watch.leave()
        answer = super().ask()
        if isinstance(answer, Trial):
            self.watch.enter(answer)
        return answer


# what a call that makes updates has learnt, by its object and its arguments
_LEARNT: Mapping[str, Callable[..., Sequence[Any]]] = {
    "torch": lambda optimizer: [p for group in optimizer.param_groups for p in group["params"]],
    "keras": lambda optimizer, *_: [v.value for v in optimizer._trainable_variables],
    "fastai.optimizer": lambda optimizer, *_: [p for p, *_ in optimizer.all_params()],
    "catboost": lambda model, *_: [model.get_leaf_values()],
    "lightgbm": lambda booster, *_: re.findall("(?:threshold|leaf_value)=.*", booster.model_to_string(-1)),
    "xgboost": lambda booster, *_: booster.get_dump(),
    "sklearn.cluster": lambda clusters, *_: [clusters.cluster_centers_],
    "sklearn.linear_model": lambda linear, *_: [linear.coef_, linear.intercept_],
    "sklearn.neural_network._stochastic_optimizers": lambda optimizer, weights, *_: weights,
}


@contextlib.contextmanager
def counting(watch: Watch, counts: str) -> Iterator[None]:
    """Count updates. counts: "torch", its optimizers' steps; "keras"; "package.module:Class.method", see _LEARNT."""
    module, _, method = counts.partition(":")
    learnt = _LEARNT[module]
    if counts == "torch":
        from torch.optim import optimizer

        def stepped(by: Any, args: Any, kwargs: Any) -> None:
            watch.made_update(by, lambda: [*map(_bytes, learnt(by))])

        handle = optimizer.register_optimizer_step_post_hook(stepped)
        try:
            yield
        finally:
            handle.remove()
        return
    if counts == "keras":
        module, method = "keras.src.optimizers.base_optimizer", "BaseOptimizer.apply"
    *owners, name = method.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    on_jax = counts == "keras" and sys.modules["keras"].backend.backend() == "jax"
    if on_jax:
        import jax

        watch.barrier = jax.effects_barrier

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)

        def made() -> None:
            watch.made_update(self, lambda: [*map(_bytes, learnt(self, *args))])

        if on_jax:
            jax.debug.callback(made)
        else:
            made()
        return answer

    setattr(owner, name, counted)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _bytes(tensor: Any) -> bytes:
    array = tensor.detach().float().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
    return bytes(array.tobytes())


# -- a training of a program -------------------------------------------------------------------------------------------


@dataclass
class Ran:
    """What came of one training of a program."""

    source: str
    declared: Declaration
    watch: Watch
    trials: Sequence[Any] = ()  # records
    metrics: frozenset[str] = frozenset()  # of the study
    best: tuple[float, float | None] | None = None  # its value, and that of its checkpoint; None: no best
    trained: tuple[float, float] | None = None  # the best one's position, and the updates in its file
    logged: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    raised: BaseException | None = None

    @property
    def lines(self) -> tuple[str, ...]:
        """All that was logged or warned of, each once."""
        return tuple(dict.fromkeys([*self.logged, *self.warned]))

    @property
    def curves(self) -> list[list[tuple[float, float]]]:
        return [list(zip(t.epochs.tolist(), t.values.tolist(), strict=True)) for t in self.trials]

    @property
    def weights(self) -> list[str]:
        assert {t.id for t in self.trials} <= self.watch.weights.keys(), "no weights were seen"
        return [self.watch.weights[t.id] for t in self.trials]

    @property
    def errors(self) -> list[str]:
        """Errors of trials, and of the program."""
        raised = [] if self.raised is None else [f"{type(self.raised).__name__}: {self.raised}"]
        return [t.error for t in self.trials if t.status is Status.FAILED] + raised

    def sound(self) -> Ran:
        """Return this; raises the error of the program, or of a trial."""
        if self.raised is not None:
            raise self.raised
        assert not self.errors, self.errors
        return self


class _Lines(logging.Handler):
    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.INFO)
        self.watch = watch
        self.logged: list[str] = []
        self.warned: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.logged.append(record.getMessage())
        self.watch.comes(self.logged[-1])

    def warn(self, message: Warning | str, *others: object) -> None:
        """As warnings.showwarning."""
        if isinstance(message, HaltuneWarning):
            self.warned.append(str(message))
            self.watch.comes(self.warned[-1])


def train(program: Program, configs: Sequence[Mapping[str, Any]], at: Sequence[float] = (), of: str = "last") -> Ran:
    """Train a program in an empty folder. at: where its trials pause. of: the epoch that counts for a trial."""
    declared = program.declared
    watch, store = Watch(), WatchedStore()
    store.watch = watch
    log = _Lines(watch)
    ran = Ran(program.source, declared, watch)
    goal = replace(declared.goal, of=of) if of == "best" else declared.goal
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), warnings.catch_warnings():
        warnings.showwarning = log.warn
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", HaltuneWarning)
        logger = logging.getLogger("haltune")
        logger.addHandler(log)
        level = logger.level
        logger.setLevel(logging.INFO)
        try:
            problem = Problem(Space(dict(declared.space)), goal, declared.max_epochs, unit=declared.unit)
            study = WatchedStudy.__new__(WatchedStudy)
            study.watch = watch
            study.__init__(problem, Alternates(tuple(configs), tuple(at)), store, seed=0, budget="99 trials")  # type: ignore[misc]
            with counting(watch, declared.counts):
                try:
                    program.search(study)
                except Exception as error:
                    ran.raised = error
                watch.leave()
            ran.trials = list(study.trials)
            ran.metrics = frozenset({goal.metric, *(name for t in ran.trials for name in t.metrics)})
            if (best := study.best) is not None and not ran.errors:
                path = best.checkpoint
                ran.best = best.value, None if path is None else float(program.evaluate(path, best.config))
                if path is not None and program.trained is not None:
                    ran.trained = best.checkpoint_epoch, program.trained(path)
        finally:
            logger.removeHandler(log)
            logger.setLevel(level)
    ran.logged, ran.warned = tuple(log.logged), tuple(log.warned)
    return ran


@dataclass(frozen=True)
class Runs:
    straight: Ran
    paused: Ran
    alone: Ran

    @property
    def all(self) -> tuple[Ran, Ran, Ran]:
        return self.straight, self.paused, self.alone


def train_all(program: Program) -> Runs:
    configs, at = program.declared.trials, program.declared.pauses
    of = "best" if program.declared.best_epoch else "last"
    return Runs(train(program, configs), train(program, configs, at, of), train(program, configs[-1:]))


# -- the truths --------------------------------------------------------------------------------------------------------


def counted(runs: Runs) -> None:
    assert not runs.straight.declared.hidden or any(ran.trained for ran in runs.all), "nothing counts the updates"
    for ran in runs.all:
        until, aside = ran.declared.until, ran.declared.aside
        if ran.trained is not None:
            assert ran.trained[1] == until(ran.trained[0]), f"(epoch, updates) of the best file: {ran.trained}"
        if ran.declared.hidden:
            continue
        for (trial, attempt), reports in ran.watch.reported.items():
            begin = until(ran.watch.begins[trial, attempt])
            counts = [(position, made - aside * (attempt == 1)) for position, made in reports]
            planned = [(position, round(until(position) - begin, 6)) for position, _ in reports]
            assert counts == planned, f"(position, updates) of trial {trial}, attempt {attempt}: {counts} for {planned}"
        for t in ran.sound().trials:
            last = ran.watch.reported[t.id, t.attempt][-1][1] if (t.id, t.attempt) in ran.watch.reported else 0
            made, end = ran.watch.made[t.id, t.attempt], aside * (t.attempt == 1) + until(ran.declared.max_epochs)
            end -= until(ran.watch.begins[t.id, t.attempt])
            assert made in (last, end), f"trial {t.id} makes {made} updates, and its last report is after {last}"


def resumed(runs: Runs) -> None:
    straight, paused, declared = runs.straight.sound(), runs.paused.sound(), runs.paused.declared
    attempts = [t.attempt for t in paused.trials]
    if declared.declines:
        assert set(attempts) == {1}, f"attempts: {attempts}"
        assert len([line for line in paused.logged if re.search(declared.declines, line)]) == 1, paused.lines
    else:
        planned = [1 + sum(at < t.epoch for at in declared.pauses) for t in straight.trials]  # a trial may end early
        planned = [n + paused.watch.again.get(t.id, 0) for n, t in zip(planned, straight.trials, strict=True)]
        assert attempts == planned, f"attempts: {attempts} for {planned}; {paused.lines}"
    if declared.inexact:
        assert any(re.search(declared.inexact, line) for line in paused.lines), paused.lines
        assert paused.curves != straight.curves, "it warns, but curves agree"
        return
    assert paused.curves == straight.curves, f"{paused.curves} for {straight.curves}"
    assert paused.weights == straight.weights, "curves agree, weights do not"


def own(runs: Runs) -> None:
    straight, alone = runs.straight.sound(), runs.alone.sound()
    assert straight.curves[-1:] == alone.curves, f"{straight.curves[-1:]} for {alone.curves}"
    assert straight.weights[-1:] == alone.weights, "curves agree, weights do not"


def kept(runs: Runs) -> None:
    for ran in (runs.straight.sound(), runs.paused.sound()):
        assert ran.best is not None, "no trial is the best"
        value, of_file = ran.best
        assert (of_file is not None) == ran.declared.keeps, f"kept: {of_file}"
        if of_file is not None:
            np.testing.assert_allclose(of_file, value, rtol=1e-5, atol=1e-7)


_USUAL = (
    r"Trial \d+ (started|started again|resumed after [^,:]+|trained [^:]+|ended [^:]+|(stopped|paused) at [^,:]+): |"
    r"The search is over|\d+ of \d+ trials?, "
)
_IMPERATIVE = r"(?i)\b(write|pass|give|call|set|add|use|make|start)\b"


def _in_time(ran: Ran, line: str) -> bool:
    """Return whether a line comes at the latest with the first report after which its trial may pause."""
    first = ran.declared.pauses[0] if ran.declared.pauses else 1
    attempt, *when = ran.watch.came[line]
    reports = ran.watch.reported.get(attempt, [])
    latest = [[n, made] for n, (position, made) in enumerate(reports, 1) if position >= first]
    latest += [[len(reports), ran.declared.until(first) + ran.declared.aside]]  # there is none
    return when <= latest[0]


def said(runs: Runs) -> None:
    for ran in runs.all:
        declared, goal = ran.declared, ran.declared.goal
        expected = [*declared.says, *declared.late, *filter(None, [declared.declines, declared.inexact])]
        advice = [line for line in ran.lines if not re.match(_USUAL, line)]
        known = "|".join(expected) or r"(?!)"
        undeclared = [line for line in advice if not re.search(known, line)]
        assert not undeclared, undeclared
        attempts = sum(t.attempt for t in ran.trials)
        others = [line for line in ran.lines if not re.match(r"\d+ of \d+ trials?, ", line)]  # those come by the clock
        assert len(others) <= attempts + len(advice) + 2, ran.lines
        for line in ran.lines:
            names = re.findall(r"(?:Maximize\(|Minimize\(|monitor=|rank_by=|metric )['\"]([^'\"]+)['\"]", line)
            assert set(names) <= ran.metrics, line
            assert f"{'Maximize' if isinstance(goal, Minimize) else 'Minimize'}(" not in line
        done = "".join(ran.source.split())
        late = "|".join(declared.late) or r"(?!)"
        for line in advice:
            when = f"too late, at (trial, attempt), reports, updates = {ran.watch.came[line]}"
            assert re.search(late, line) or _in_time(ran, line), f"{when}: {line}"
            to_do = " ".join(part for part in re.split(r"(?<=\.) ", line) if re.search(_IMPERATIVE, part))
            for advised in re.findall(r"\w+=(?:trial\.\w+|None|True|False)|HaltuneCallback\([^)]*\w=[^)]*\)", to_do):
                assert "".join(advised.split()) not in done, f"the program does so already: {line}"
    everything = [line for ran in runs.all for line in ran.lines]
    for pattern in (*runs.paused.declared.says, *runs.paused.declared.late):
        assert any(re.search(pattern, line) for line in everything), f"nothing says {pattern!r}"


def refused(runs: Runs) -> None:
    """The program is refused, before an update of the trial that is."""
    for ran in (runs.straight, runs.paused):
        assert ran.errors, "nothing is refused"
        assert all(re.search(ran.declared.refuses, error) for error in ran.errors), ran.errors
        failed = [t for t in ran.trials if t.status is Status.FAILED]
        assert [ran.watch.made[t.id, t.attempt] for t in failed] == [0] * len(failed)


def holds(truth: str, runs: Runs) -> None:
    """Raises AssertionError if a truth does not hold."""
    globals()[truth](runs)


def of_keras() -> str:
    """Return the backend of this process, if it was started for programs of Keras, or ""."""
    return os.environ.get("ZOO_BACKEND", "")


if __name__ == "__main__":
    for given in sys.argv[1:]:
        found = train_all(load(given))
        expected = found.paused.declared
        for fact in ("refused",) if expected.refuses else TRUTHS:
            try:
                holds(fact, found)
                print(f"{given} {fact}: holds" + " (declared wrong)" * bool({fact, "all"} & set(expected.wrong)))
            except Exception as error:
                print(f"{given} {fact}: {type(error).__name__}: {str(error)[:1500]}")
        for which in ("straight", "paused", "alone"):
            print(f"-- {which}", *getattr(found, which).lines, sep="\n   ")
