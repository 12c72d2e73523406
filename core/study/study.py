"""The study: a search over one problem, recorded in one log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from haltune._utils.checks import check_counts, check_whole, python_number
from haltune._utils.disk import StrPath
from haltune.above import above
from haltune.display import plural, preformatted, shown
from haltune.errors import InvalidInput, StoreError, warn
from haltune.hints import KnowsArguments, KnowsAttributes, with_hints
from haltune.log.decisions import Finish, Verdict, Wait
from haltune.log.policy import Policy, called
from haltune.log.problem import Budget, Constraint, Goal, Problem
from haltune.policies.from_spec import suited
from haltune.space import Space
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpointing, Checkpoints
from haltune.store.open import Storage

from .arguments import (
    Earlier,
    budget_of,
    check_name,
    earlier_studies,
    length_of,
    one_epoch,
    problem_of,
    refuse_misplaced_policy,
    waits,
    with_transfer,
    wrong_way,
)
from .attempt import Log, Settings
from .messages import no_value
from .returning import ReportingFunction
from .session import Session
from .trial import Trial
from .view import StudyView

_log = logging.getLogger("haltune")
_PAUSES = (0.05, 2.0)  # seconds between asks while waiting: from, to


class Study(StudyView, KnowsArguments, KnowsAttributes):
    """A search over one problem; any number of workers may share it.

    Two forms: Study(space, "val_acc", max_epochs=30), where the goal follows the space, and Study(problem, policy),
    where the Problem holds the goal and the epochs.

    Args:
        problem: A Space or a dict of its parameters; or a Problem, which holds space, goal and epochs. No default.
        goal: After a space: the metric, as Maximize("val_acc"), Minimize("val_loss") or its name alone. haltune knows
            the direction of common names (acc, auc, f1, r2, ...; loss, rmse, perplexity, ...). For several goals: a
            list, [Maximize("val_acc"), Minimize("latency_ms")]; see `study.pareto_front()`. After a Problem: the
            policy. Default: None, for a Problem.
        store: Where the log is kept: a path ending in .db, or a URL ("sqlite:///search.db", "postgresql://..."). If the
            store holds a study of this name, the study is reopened and continues; the space may be wider or narrower
            than the recorded one. Storage("postgresql://...", lease=120) also sets what happens when a worker or the
            server does not answer. Default: None, in memory.
        name: The study's name in the store, which may hold several. Default: "study".
        seed: Seed of all random numbers. Default: None, drawn when the study is created, and recorded.
        budget: Limits of the search: a Budget, or a text such as "30min", "20 trials", "500 epochs" or "2h or 10 trials
            without gain". The first limit that is reached ends the search. You may change the budget whenever you open
            the study. Default: None, the policy ends the search.
        policy: The search method: BOBOS(), Hyperband(), ... Default: None, MultiFidelity(), which suits every kind of
            training.
        max_epochs: After a space: the epochs of a full training. Default: None, for policies that have their own
            schedule.
        max_steps: As max_epochs, for trainings that count steps. Reports are then trial.report(value, step=n), and
            budgets "5000 steps". Default: None.
        max_tokens: As max_epochs, for trainings that count tokens. Default: None.
        unit: Another unit that trainings count, in the singular: max_epochs=500, unit="game". Default: None, epochs.
        judge_every: Number of epochs or steps between two reports that are judged. Default: None, every report is
            judged, also within an epoch.
        min_epochs: After a space: epochs (steps, ...) that every trial trains before the policy may stop or pause it,
            for a learning-rate warm-up. Trials are not compared before that. Default: 0.
        start: After a space: configurations to train first. Default: none.
        constraints: After a space: limits on metrics, [Constraint("params", at_most=5e6)]. Default: none.
        learn_from: Prior studies for transfer. From them the default search learns which configurations are good, and
            how well early epochs predict the final value. Each is the path or URL of a store, ("all.db", "name") if
            that store holds several studies, or a study from load_study. Their space, metric and epochs may differ.
            The study records what it takes from them when it is created. Default: none.
        checkpoints: The folder of the checkpoints, or Checkpointing(folder, keep=3, disk_quota="20GB"), which also sets
            how many are kept. Default: None, next to the store's file; the model of the best trial is kept.
        max_failures: Number of trials that may fail in a row before the last exception is raised. Twice as many may
            diverge (NaN or infinite, at once or later) before any has a final value. Default: 5.
        verbose: How much is logged to "haltune": 0 nothing; 1 a line when a trial pauses or ends; 2 also when it
            starts, each report's decision, and reasons. If your program does not configure logging, the lines go to
            stderr. Default: 1.

    Raises:
        InvalidInput: If arguments do not fit together, or haltune does not know the direction of the metric.
        StudyMismatch: If the log belongs to another problem, policy or seed. A space may be wider or narrower.
        StoreError: If the store cannot be opened.

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
        refuse_misplaced_policy(store=store, name=name, seed=seed, budget=budget)
        verbose = int(verbose) if isinstance(verbose, bool) else verbose  # as other libraries have it
        seed, verbose, max_failures = map(python_number, (seed, verbose, max_failures))
        check_counts(seed=seed, max_failures=max_failures, verbose=verbose)
        self._speaks = verbose > 0
        if verbose:
            shown()  # guesses about the arguments are logged too
        length = length_of(python_number(max_epochs), python_number(max_steps), python_number(max_tokens), unit)
        self._given, self.policy = problem_of(
            problem, goal, policy, length, min_epochs, judge_every, start, constraints, verbose > 0
        )
        check_name(name)
        if learn_from != ():
            found = earlier_studies(learn_from, store, name)
            self.policy = with_transfer(suited(self.policy, self._given), found)
        self.policy = suited(self.policy, self._given)
        self.name = name
        storage = store if isinstance(store, Storage) else Storage(store)
        if not isinstance(checkpoints, Checkpointing | Checkpoints):
            checkpoints = Checkpointing(checkpoints)
        settings = Settings(
            self._given, self.policy, storage, name, budget_of(budget, self._given), max_failures, checkpoints, verbose
        )
        opens = partial(Session, seed=seed)
        self._opened: Session | None = None
        self._in_one_epoch: Callable[[], Session] | None = None  # until the length of a training is known
        if not isinstance(problem, Problem) and waits(self.policy, self._given):
            self._in_one_epoch = partial(opens, replace(settings, problem=one_epoch(self._given)))
        else:
            self._begin(opens(settings))

    def _begin(self, session: Session) -> None:
        self._opened, self._in_one_epoch = session, None
        given, self.policy = self.policy, session.log.policy
        session.first(partial(self._greet, given))

    def _greet(self, given: Policy[Any]) -> None:
        """Log what is worth knowing about a study that was opened. given: the policy that the program gave."""
        if self.history.position == 1:
            for doubt in filter(None, map(wrong_way, self.problem.goals)) if self._speaks else ():
                warn(doubt, aloud=True)
            for said in self.policy.remarks(self.problem) if self._speaks else ():
                _log.info("%s", said)
        elif self._speaks and (asked := given.remarks(self.problem)) != (kept := self.policy.remarks(self.problem)):
            if asked and not kept:
                text = f"study {self.name!r} was created without learn_from= and continues without prior studies."
                warn(f"{text} To use them, choose another name= or file, which starts another study.", aloud=True)
            else:
                _log.info("study %r uses its prior studies as they were when it was created", self.name)

    if not TYPE_CHECKING:

        def __getitem__(self, number: Any) -> Any:
            raise TypeError(f"A study has no item {number!r}. Its trials are a list: study.trials[{number!r}].")

    def __iter__(self) -> Iterator[Trial]:
        pause, longest = _PAUSES
        self.session.need_outside()
        self.session.skip_over()
        while not isinstance(answer := self.ask(), Finish):
            if isinstance(answer, Wait):
                self.session.wait(pause, answer.reason if pause == _PAUSES[0] else None)
                pause = min(2 * pause, longest)
                continue
            pause = _PAUSES[0]
            self.session.enter(answer, loop=True)
            if answer.alone:  # ranks would leave at different epochs
                answer._signals.note()
            try:
                answer._draws.starts(answer.resumes_from)
                yield answer
            except InvalidInput as error:  # its random state is damaged
                answer.fail(error)
                raise
            except GeneratorExit:  # the loop was left, by break or by an exception
                try:
                    answer.interrupt()
                    self.session.log_ended()
                except StoreError as error:  # if it were raised here, Python would print a traceback and continue
                    _log.warning("Trial %d could not be given back: %s", answer.id, error)
                raise
            finally:
                answer._signals.leave()
                self.session.leave(answer, loop=True)
            answer._finish_whole()
            self.session.skip_over()

    def ask(self) -> Trial | Wait | Finish:
        """Return the next task of this worker: train a trial, wait, or finish.

        `for trial in study` asks and waits for you. If you call `ask`, report the results with trial.report and
        trial.finish, or with `tell`.

        Returns:
            A Trial, which this worker now holds; a Wait, if you should ask again later; or a Finish. Each has a reason.

        Raises:
            InvalidInput: If neither the policy nor a budget would ever end the search.
            TrainingFailed: If all trials diverge; see `max_failures`.
            StoreError: If the log cannot be read or written for longer than `patience`.

        Example:
            >>> study = Study({"x": Float(-2.0, 2.0)}, Minimize("y"), max_epochs=1, seed=0, budget="3 trials")
            >>> while isinstance(trial := study.ask(), Trial):
            ...     _ = study.tell(trial, trial.config["x"] ** 2)
            >>> trial.reason  # a Finish
            'the budget of 3 trials is spent: 3 trials started, 3 trained in full'
        """
        session = self.session
        if session.budget.unlimited and self.policy.endless:
            raise InvalidInput(
                f"The study has no budget, and its policy, {called(self.policy)}, never ends by itself. Pass "
                "budget='2h' or budget='50 trials'."
            )
        return session.ask(partial(Trial, session))

    @with_hints
    def optimize(self, train: Callable[[Trial], object], *, workers: int = 1, price: float | None = None) -> Study:
        """Train every trial with a function, until the search is over.

        Args:
            train: Called as train(trial). It reports each epoch, with trial.report(value) or a callback, or returns the
                final value of the training. A value returned after reports is ignored. If the study has no max_epochs,
                each training is one epoch.
            workers: Number of processes on this machine that train at the same time; see haltune.launch.run. Several
                need a store, `train` at the top of a module, and the call under `if __name__ == "__main__":`.
                Default: 1, this process.
            price: Price of one worker per hour, in the currency of the budget's money. Default: None, the environment
                variable HALTUNE_PRICE; if that is not set, the budget's price.

        Returns:
            The study.

        Raises:
            InvalidInput: If `train` is not a function, or neither returns a value nor reports.
            NotSupported: For several workers and a study in memory.
            Exception: The exception of `train`, if no trial has succeeded yet or max_failures trials failed in a row.
            TrainingFailed: If all trials diverge; see `max_failures`.
            KeyboardInterrupt: After Ctrl-C; with several workers, once their epochs are saved.

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
            _log.info("max_epochs is not set, so each training has one epoch. Set max_epochs to stop trials early.")
        self.session.set_price(price)
        if workers > 1:
            run = above("run", f"optimize(train, workers={workers})", "haltune.launch.run(study, train, workers=...)")
            if run(self, reporting, workers=workers).interrupted:
                raise KeyboardInterrupt  # as with one worker: what follows needs a search that is over
            return self
        for trial in self:
            with trial:
                reporting(trial)
        return self

    @with_hints
    def tell(
        self,
        trial: Trial,
        value: float | Mapping[str, float],
        position: float | None = None,
        *,
        epoch: float | None = None,
        step: float | None = None,
        tokens: float | None = None,
    ) -> Verdict:
        """Report a value of a trial that `ask` returned; for programs with their own loop.

        Args:
            trial: The trial that `ask` returned.
            value: The goal's metric, or several metrics by name, as in `trial.report`. Without a position it is the
                value of the full training, and the trial is finished.
            position: The epoch that has this value, from 1, or the position in the study's unit. If the verdict does
                not stop the trial, continue it; end it with trial.finish(). Default: None, the last one.
            epoch: The position, in a study that counts epochs only. Default: None.
            step: The position, in a study that counts steps only. Default: None.
            tokens: The position, in a study that counts tokens only. Default: None.

        Returns:
            The verdict: `verdict.stops`, and its reason.

        Raises:
            InvalidInput: If this is not a trial of this study, not a number, or if the position is beyond a full
                training or in another unit than the study's.
            StoreError: If the log cannot be written.

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
            raise InvalidInput(f"tell(trial, value) takes a trial that study.ask() returned, not {trial!r}.")
        mine, whose = self.session.log, trial._session.log
        if mine is not whose and next(mine.events()) != next(whose.events()):  # the first event has the study's id
            theirs, ours = (f"{log.name!r} in {log.store.url}" for log in (whose, mine))
            between = f"to {theirs}, not to {ours}" if theirs != ours else f"both are {ours}"
            raise InvalidInput(
                f"Trial {trial.id} belongs to another study: {between}. Call tell() on the study whose ask() returned "
                "the trial."
            )
        whole = all(given is None for given in (position, epoch, step, tokens))
        verdict = trial.report(value, trial.horizon if whole else position, epoch=epoch, step=step, tokens=tokens)
        if whole:
            trial.finish()
        return verdict

    def _without_best(self) -> None:
        self.session.hint(f"study.best is None: {no_value(self.history)}", "no best yet")

    @with_hints
    def enqueue(self, config: Mapping[str, Any], again: bool = False) -> bool:
        """Add a configuration of yours to the queue; it is trained before the policy's own proposals.

        When the policy would start a configuration of its own, the first of the queue takes its place. The policy
        decides when and how far it trains, on which resource, and when it stops, as for any other trial. Trials that
        continue come first, and so does the end of the search. The configuration counts for the budget. TruVaR over a
        grid learns from a configuration off the grid, but never chooses it.

        Args:
            config: The whole configuration: a value for every active parameter.
            again: True trains it once more if it has started already or is in the queue. Default: False.

        Returns:
            True if it was added; False if it has started already or is in the queue. So you can run a program that
            enqueues its defaults several times.

        Raises:
            InvalidInput: If this is not a whole configuration of the space, or the policy has ended the search.

        Example:
            >>> from haltune.policies import GPUCB
            >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
            >>> study = Study(problem, GPUCB(), seed=0, budget=Budget(trials=3))
            >>> study.enqueue({"lr": 0.003}), study.enqueue({"lr": 0.003})
            (True, False)
            >>> study.ask().config
            {'lr': 0.003}
        """
        return self.session.enqueue(self.problem.checked(config, "enqueue(config)"), again)

    def take(self, id: int, attempt: int, holder: str, leaving: Callable[[], str | None]) -> Trial:
        """Return a trial that a launcher holds and that this process trains; for launchers.

        Args:
            id: The trial.
            attempt: Its attempt.
            holder: The identity of the launcher, whose lease it is.
            leaving: Returns why this process should give the trial back, or None.

        Raises:
            LeaseLost: If the attempt is over.
        """
        return self.session.take(id, attempt, holder, leaving, partial(Trial, self.session))

    def sync(self) -> None:
        """Read the events that other workers appended."""
        self.session.sync()

    @property
    def problem(self) -> Problem:
        """The problem, with the space of the log."""
        return self._given if self._opened is None else self._log.problem

    @property
    def session(self) -> Session:
        """This process's work for the study, for launchers and bridges.

        `session.settings` opens the study in another process: Study(**vars(study.session.settings)).

        Raises:
            InvalidInput: If the length of a training is not known yet.
        """
        if self._opened is None:
            goals = self._given.goals
            raise InvalidInput(
                "max_epochs is missing. Pass the epochs of a full training: "
                f"Study(space, {list(goals) if len(goals) > 1 else goals[0]!r}, max_epochs=30). "
                "For a function that returns one value call study.optimize(train), or pass max_epochs=1."
            )
        return self._opened

    def __repr__(self) -> str:
        if self._opened is None:
            return f"Study({self.name!r}, not started: max_epochs is missing)"
        return f"Study({self.name!r}, {plural(len(self.history), 'trial')}, {self.store.url})"

    def _repr_html_(self) -> str:
        return preformatted(repr(self)) if self._opened is None else super()._repr_html_()

    @property
    def _log(self) -> Log:
        return self.session.log

    @property
    def budget(self) -> Budget:
        """The limits of the search; a new budget takes effect at the next ask."""
        return self.session.budget

    @budget.setter
    def budget(self, budget: Budget | str | None) -> None:
        self.session.budget = budget_of(budget, self.problem)
