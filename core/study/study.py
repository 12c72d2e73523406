"""Ask, report, finish: a search over one problem, recorded in one log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, Unpack, overload

from haltune._utils.checks import check_counts, check_whole, python_number
from haltune._utils.disk import StrPath
from haltune.above import above
from haltune.display import heard, plural, preformatted
from haltune.errors import InvalidInput, StoreError, warn
from haltune.hints import KnowsArguments, KnowsAttributes, answering
from haltune.log.decisions import Finish, Verdict, Wait
from haltune.log.policy import Policy, called
from haltune.log.problem import Budget, Constraint, Goal, Problem
from haltune.old_names import continues_as, takes_moved
from haltune.policies.from_spec import suited
from haltune.space import Space
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpointing, Checkpoints
from haltune.store.open import Storage

from .arguments import (
    Earlier,
    ReportingFunction,
    budget_of,
    check_name,
    earlier_studies,
    length_of,
    one_epoch,
    problem_of,
    taught,
    waits,
    wrong_way,
)
from .attempt import Log, Settings
from .session import Session
from .trial import Trial
from .view import StudyView

_log = logging.getLogger("haltune")


class Rarer(TypedDict, total=False):
    """Arguments of Study that few need, as type checkers are told them."""

    checkpoints: StrPath | Checkpointing | None
    max_failures: int
    verbose: int


_log = logging.getLogger("haltune")
_PAUSES = (0.05, 2.0)  # seconds between asks while waiting: from, to


class Study(StudyView, KnowsArguments, KnowsAttributes):
    """A search over one problem; any number of workers may share it.

    Study(space, "val_acc", max_epochs=30) or Study(problem, policy): a space has its goal behind it, a Problem, which
    has goal and epochs itself, its policy.

    Args:
        problem: What is searched: a Space or a dict of its parameters, or a Problem of space, goal and epochs.
            It has no default: without one Study() says what is wanted.
        goal: After a space the metric: Maximize("val_acc"), Minimize("val_loss"), or its name alone, which says
            whether larger is better where it is well known (acc, auc, f1, r2, ...; loss, rmse, perplexity, ...); of
            several a list, [Maximize("val_acc"), Minimize("latency_ms")], for `study.pareto_front()`. After a Problem
            the policy. Default: None, for a Problem alone.
        store: Where the log is kept: a path ending in .db, or a URL ("sqlite:///search.db", "postgresql://..."). A
            study of this name that is there already is reopened and goes on where it was, in a wider space where the
            one given contains the recorded one. Storage("postgresql://...", lease=120) also sets what happens when a
            worker or the server does not answer. Default: None, memory.
        name: Of the study, in a store of several. Default: "study".
        seed: Of all randomness. Default: None, drawn when the study is made, and recorded.
        budget: When the search ends at the latest: a Budget, or a text such as "30min", "20 trials", "500 epochs" or
            "2h or 10 trials without gain", of which every limit holds. It may change from one opening to the next.
            Default: None, when the policy ends it.
        policy: What decides: BOBOS(), Hyperband(), ... Default: None, MultiFidelity(), one search for every kind of
            training.
        max_epochs: After a space, the epochs of a full training. Default: None, for policies that bring their own
            schedule.
        max_steps: The same for trainings that count steps: reports are trial.report(value, step=n), budgets "5000
            steps". Default: None.
        max_tokens: The same for trainings that count tokens. Default: None.
        unit: What trainings count instead, in the singular: max_epochs=500, unit="game". Default: None, epochs.
        judge_every: A trial is judged once in so many epochs or steps. Default: None, at every report, also within an
            epoch.
        min_epochs: After a space, epochs (steps, ...) that every trial trains before the policy may stop or pause it,
            for a learning-rate warm-up. Trials are not compared before that. Default: 0.
        start: After a space, configurations that are trained first. Default: none.
        constraints: After a space, metrics that runs must keep within limits, [Constraint("params", at_most=5e6)].
            Default: none.
        learn_from: Earlier studies that the default search learns from: which configurations are promising, and how
            much early epochs tell of the end. Each the path or URL of its store, ("all.db", "name") where that holds
            several, or as load_study opens it. Their space, metric and epochs may be others. What it takes from them is
            recorded when the study is made, and stays. Default: none.
        checkpoints: The folder of the checkpoints, or Checkpointing(folder, keep=3, disk_quota="20GB"), which also sets
            what is kept. Default: None, next to the store's file, with the model of the best trial.
        max_failures: How many trials may fail in a row before their exception is raised. Default: 5.
        verbose: What the log "haltune" is told, which a program that sets up no logging shows on stderr: 1 a line as a
            trial begins and one as it ends, 2 each report's decision, too, 0 nothing. Default: 1.

    Raises:
        InvalidInput: for arguments that do not fit, and a metric whose name does not say what is better.
        StudyMismatch: when the log was written for another problem, policy or seed, unless the space is only wider.
        StoreError: when the store cannot be opened.

    Example:
        >>> space = {"lr": Float(1e-4, 1.0, log=True), "width": Int(8, 64)}
        >>> study = Study(space, "val_acc", "search.db", max_epochs=9, budget="3 trials")
        >>> for trial in study:
        ...     for epoch in trial.epochs():
        ...         verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials), study.best.epoch
        (3, 9.0)
    """

    _speaks = False

    @overload
    def __init__(
        self,
        problem: Problem,
        goal: Policy[Any] | None = None,
        store: StrPath | Store | Storage | None = None,
        name: str = "study",
        seed: int | None = None,
        budget: Budget | str | None = None,
        *,
        policy: Policy[Any] | None = None,
        learn_from: Sequence[Earlier] = (),
        **rarer: Unpack[Rarer],
    ) -> None: ...

    @overload
    def __init__(
        self,
        problem: Space | Mapping[str, Any],
        goal: str | Goal | Sequence[str | Goal],
        store: StrPath | Store | Storage | None = None,
        name: str = "study",
        seed: int | None = None,
        budget: Budget | str | None = None,
        *,
        policy: Policy[Any] | None = None,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        max_tokens: int | None = None,
        unit: str | None = None,
        judge_every: float | None = None,
        min_epochs: int = 0,
        start: Sequence[Mapping[str, Any]] = (),
        constraints: Sequence[Constraint] = (),
        learn_from: Sequence[Earlier] = (),
        **rarer: Unpack[Rarer],
    ) -> None: ...

    @takes_moved(store=Storage, checkpoints=Checkpointing)
    def __init__(
        self,
        problem: Problem | Space | Mapping[str, Any] | None = None,
        goal: str | Goal | Sequence[str | Goal] | Policy[Any] | None = None,
        store: StrPath | Store | Storage | None = None,
        name: str = "study",
        seed: int | None = None,
        budget: Budget | str | None = None,
        *,
        policy: Policy[Any] | None = None,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        max_tokens: int | None = None,
        unit: str | None = None,
        judge_every: float | None = None,
        min_epochs: int = 0,
        start: Sequence[Mapping[str, Any]] = (),
        constraints: Sequence[Constraint] = (),
        learn_from: Sequence[Earlier] = (),
        checkpoints: StrPath | Checkpointing | Checkpoints | None = None,
        max_failures: int = 5,
        verbose: int = 1,
    ) -> None:
        seed, verbose, max_failures = map(python_number, (seed, verbose, max_failures))
        check_counts(seed=seed, max_failures=max_failures, verbose=verbose)
        self._speaks = verbose > 0
        if verbose:
            heard()  # what is guessed of the arguments is said, too
        length = length_of(python_number(max_epochs), python_number(max_steps), python_number(max_tokens), unit)
        self._asked, self.policy = problem_of(
            problem, goal, policy, length, min_epochs, judge_every, start, constraints, verbose > 0
        )
        check_name(name)
        if learn_from != ():
            found = earlier_studies(learn_from, store, name)
            self.policy = taught(suited(self.policy, self._asked), found)
        self.policy = suited(self.policy, self._asked)
        self.name = name
        storage = store if isinstance(store, Storage) else Storage(store)
        if not isinstance(checkpoints, Checkpointing | Checkpoints):
            checkpoints = Checkpointing(checkpoints)
        settings = Settings(
            self._asked, self.policy, storage, name, budget_of(budget, self._asked), max_failures, checkpoints, verbose
        )
        opens = partial(Session, seed=seed)
        self._opened: Session | None = None
        self._in_one_epoch: Callable[[], Session] | None = None  # until it is known how long a training is
        if not isinstance(problem, Problem) and waits(self.policy, self._asked):
            self._in_one_epoch = partial(opens, replace(settings, problem=one_epoch(self._asked)))
        else:
            self._begin(opens(settings))

    def _begin(self, session: Session) -> None:
        self._opened, self._in_one_epoch = session, None
        given, self.policy = self.policy, session.log.policy
        if not session.acts:
            return
        if self.history.position == 1:
            for doubt in filter(None, map(wrong_way, self.problem.goals)) if self._speaks else ():
                warn(doubt, aloud=True)
            for said in self.policy.remarks(self.problem) if self._speaks else ():
                _log.info("%s", said)
        elif self._speaks and (gone := continues_as(next(self._log.events()).policy)):  # type: ignore[attr-defined]
            warn(gone, aloud=True)
        elif self.policy is not given and self._speaks:
            _log.info("what %r has from earlier studies it was told when it was made", self.name)

    def __iter__(self) -> Iterator[Trial]:
        pause, longest = _PAUSES
        self._session.pass_over()
        while not isinstance(answer := self.ask(), Finish):
            if isinstance(answer, Wait):
                self._session.wait(pause, answer.reason if pause == _PAUSES[0] else None)
                pause = min(2 * pause, longest)
                continue
            pause = _PAUSES[0]
            try:
                yield answer
            except GeneratorExit:  # the loop was left, by break or by an exception
                try:
                    answer.interrupt()
                except StoreError as error:  # raised here, Python would print it with its traceback, and go on
                    _log.warning("trial %d could not be given back: %s", answer.id, error)
                raise
            answer.finish()
            self._session.pass_over()

    def ask(self) -> Trial | Wait | Finish:
        """What this worker does next: a trial to train, wait for others, or the end.

        `for trial in study` asks and waits by itself. A program that asks says what came of it by trial.report and
        trial.finish, or by `tell`.

        Returns:
            A Trial, whose training is this worker's now; a Wait, to ask again in a while; or a Finish. Each says why.

        Raises:
            InvalidInput: When neither the policy nor a budget would ever end the search.
            StoreError: When the log cannot be read or written for longer than `patience`.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), max_epochs=1, seed=0, budget="3 trials")
            >>> while isinstance(trial := study.ask(), Trial):
            ...     _ = study.tell(trial, trial.config["x"] ** 2)
            >>> trial.reason  # a Finish
            'the budget of 3 trials is spent: 3 trials begun, 3 trained in full'
        """
        session = self._session
        if session.budget.unlimited and self.policy.endless:
            raise InvalidInput(
                f"the study has no budget, and its policy, {called(self.policy)}, never ends by itself: write "
                "budget='2h' or budget='50 trials'"
            )
        return session.ask(partial(Trial, session))

    @answering
    def optimize(self, train: Callable[[Trial], object], *, workers: int = 1, price: float | None = None) -> Study:
        """Train every trial by a function, until the search is over.

        Args:
            train: Called as train(trial). It reports its epochs itself, trial.report(value) or by a callback, or
                returns the value that a full training came to; of a study without max_epochs each training is one
                epoch then. What it returns besides reports is left out.
            workers: Processes of this machine that train at a time, by haltune.launch.run: for more than one the
                study needs a store, `train` stands at the top of a module and the call under
                `if __name__ == "__main__":`. Default: 1, this process.
            price: What one of these workers costs for an hour, in the units of the budget's money. Default: None, the
                environment variable HALTUNE_PRICE, and without it the budget's price.

        Returns:
            The study.

        Raises:
            InvalidInput: For what is no function, and for one that neither returns a value nor reports.
            NotSupported: For several workers and a study in memory.
            Exception: What `train` raises before any trial succeeded, or max_failures times in a row.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), seed=0, budget="4 trials")
            >>> study.optimize(lambda trial: trial.config["x"] ** 2)
            Study('study', 4 trials, memory)
            >>> study.best_value == study.best_params["x"] ** 2
            True
        """
        workers = python_number(workers)
        check_whole("optimize", 1, workers=workers)
        reporting = ReportingFunction(train)
        if self._in_one_epoch is not None:
            self._begin(self._in_one_epoch())
            _log.info("each training is one epoch, for nobody said max_epochs=, those of a full training")
        self._session.set_price(price)
        if workers > 1:
            run = above("run", f"optimize(train, workers={workers})", "haltune.launch.run(study, train, workers=...)")
            run(self, reporting, workers=workers)
            return self
        for trial in self:
            with trial:
                reporting(trial)
        return self

    @answering
    def tell(self, trial: Trial, value: float | Mapping[str, float], epoch: float | None = None) -> Verdict:
        """What a trial that `ask` handed out came to: for programs that keep a loop of their own.

        Args:
            trial: The trial, as `ask` answered it.
            value: The goal's metric; several by their names, as `trial.report` takes them. Without `epoch` the value
                of the full training, and the trial is finished.
            epoch: The epoch that has this value, from 1; the trial goes on as the verdict says, and ends by
                trial.finish(). Default: None, the last.

        Returns:
            What the policy says to it: `verdict.stops`, and why.

        Raises:
            InvalidInput: For what is no trial of this study or no number, and an epoch beyond max_epochs.
            StoreError: When the log cannot be written.

        Example:
            >>> from haltune.policies import RandomSearch
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), max_epochs=3, policy=RandomSearch(trials=2))
            >>> trial = study.ask()
            >>> study.tell(trial, 0.3, epoch=1).stops
            False
            >>> _ = study.tell(trial, 0.2)
            >>> study.history.trial(0).status
            <Status.COMPLETED: 'completed'>
        """
        if not isinstance(trial, Trial):
            raise InvalidInput(f"tell(trial, value) takes a trial as study.ask() answers it, not {trial!r}")
        mine, whose = self._session.log, trial._session.log
        if mine is not whose and next(mine.events()) != next(whose.events()):  # which has the study's id
            raise InvalidInput(
                f"trial {trial.id} belongs to the study {whose.name!r} in {whose.store.address()}, not to "
                f"{mine.name!r} in {mine.store.address()}: call tell of the study whose ask() answered with the trial"
            )
        verdict = trial.report(value, trial._horizon if epoch is None else epoch)
        if epoch is None:
            trial.finish()
        return verdict

    @answering
    def enqueue(self, config: Mapping[str, Any], again: bool = False) -> bool:
        """Have a configuration of yours trained before any that the policy proposes; those enqueued first come first.

        Where the policy would next begin a configuration of its own, this one takes its place: when, how far and on
        what resource it trains, and when it is stopped, the policy decides as of any other. Runs that go on come
        before it, and so does the end of the search. It counts for the budget. TruVaR over a grid
        learn from a configuration beside the grid, but will never choose it.

        Args:
            config: The whole configuration, a value for every parameter that is active in it.
            again: Whether to train it once more where it was begun already, or waits. Default: False.

        Returns:
            True when it waits now; False when it was begun already or waited, so that nothing was done: a program
            that enqueues its defaults may be run again.

        Raises:
            InvalidInput: For what is not a whole configuration of the space, and when the policy has ended the
                search.

        Example:
            >>> from haltune.policies import GPUCB
            >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
            >>> study = Study(problem, GPUCB(), seed=0, budget=Budget(trials=3))
            >>> study.enqueue({"lr": 0.003}), study.enqueue({"lr": 0.003})
            (True, False)
            >>> study.ask().config
            {'lr': 0.003}
        """
        return self._session.enqueue(self.problem.checked(config, "enqueue(config)"), again)

    def _take(self, id: int, attempt: int, holder: str, leaving: Callable[[], str | None]) -> Trial:
        """A trial that a launcher holds and has this process train; `leaving` says why it should let go, or None.

        Raises LeaseLost when that attempt is over.
        """
        return self._session.take(id, attempt, holder, leaving, partial(Trial, self._session))

    def sync(self) -> None:
        """Read what other workers appended since."""
        self._session.sync()

    @property
    def problem(self) -> Problem:
        """What is searched, in the space that the log says."""
        return self._asked if self._opened is None else self._log.problem

    @property
    def _session(self) -> Session:
        """What this process does for the study. Raises InvalidInput while nobody has said how long a training is."""
        if self._opened is None:
            raise InvalidInput(
                "how many epochs has a full training? Study(space, 'val_acc', max_epochs=30); for a function that "
                "returns one value study.optimize(train), or max_epochs=1"
            )
        return self._opened

    def __repr__(self) -> str:
        if self._opened is None:
            return f"Study({self.name!r}, not begun: it lacks max_epochs)"
        return f"Study({self.name!r}, {plural(len(self.history), 'trial')}, {self.store.url})"

    def _repr_html_(self) -> str:
        return preformatted(repr(self)) if self._opened is None else super()._repr_html_()

    @property
    def _log(self) -> Log:
        return self._session.log

    @property
    def budget(self) -> Budget:
        """When the search ends at the latest; another takes effect at the next ask."""
        return self._session.budget

    @budget.setter
    def budget(self, budget: Budget | str | None) -> None:
        self._session.budget = budget_of(budget, self.problem)

    @property
    def _settings(self) -> Settings:
        """What opens this study again in another process: Study(**vars(study._settings))."""
        return self._session.settings
