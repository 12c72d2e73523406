"""The best model in hand: what is kept of the best run by default, after which epoch, and for how long."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest
from paused_studies import pausing_study
from scripted import CURVES, ENDS, scripted_study

from haltune import Budget, Checkpointing, Minimize, Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning, InvalidInput
from haltune.log.events import Checkpointed, Kept
from haltune.study.session import clocked


def steps_of_torch(*shape: int) -> Callable[[], object]:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.zeros(shape))
    weight.grad = torch.ones(shape)
    optimizer = torch.optim.SGD([weight], 0.1)
    return lambda: optimizer.step()


def train(study: Study, curves: tuple[list[float], ...]) -> dict[tuple[int, int], int]:
    """Each epoch's state is its number; how often each was written."""
    written: dict[tuple[int, int], int] = {}
    for trial in study:
        with trial:

            def save(path: Path) -> None:
                written[trial.id, epoch] = written.get((trial.id, epoch), 0) + 1  # noqa: B023
                path.write_text(f"{trial.id} {epoch}")  # noqa: B023

            if trial.checkpoint is not None:
                assert Path(trial.checkpoint).read_text() == f"{trial.id} {trial.epoch}"
            loop = TrainingLoop(trial, save=save)
            for epoch in loop:
                loop.report(curves[trial.id][epoch - 1])
    return written


def left(study: Study) -> list[str]:
    """Return the contents of the remaining checkpoints."""
    found = study.checkpoints.folder.rglob("*attempt-*.ckpt")
    return sorted(path.read_text() for path in found)


def test_the_best_trial_is_opened_as_its_checkpoint() -> None:
    study = scripted_study("last")
    train(study, ENDS)
    assert study.best is not None
    assert Path(study.best).read_text() == "0 3"
    unsaved = scripted_study("last")
    for trial in unsaved:
        for _ in trial.epochs():
            trial.report(0.5)
    with pytest.raises(InvalidInput, match=r"Trial 0 has no saved state of epoch 3: study\.best\.checkpoint is None"):
        Path(unsaved.best)


def test_the_best_runs_last_state_is_kept_by_default_and_no_other() -> None:
    study = scripted_study("last")
    written = train(study, ENDS)
    assert study.best is not None
    assert study.best.checkpoint is not None
    assert Path(study.best.checkpoint).read_text() == "0 3"
    assert study.best.checkpoint_epoch == 3
    assert left(study) == ["0 3"]
    assert written == {(0, 3): 1}  # the others ended behind it


@pytest.mark.parametrize("at", [(), (1, 2)])
def test_if_the_best_epoch_counts_its_state_is_kept(at: tuple[float, ...]) -> None:
    study = scripted_study("best", at)
    written = train(study, ENDS)
    assert study.best is not None
    assert (study.best.trial, study.best.epoch, study.best.checkpoint_epoch) == (1, 2, 2)
    assert Path(str(study.best.checkpoint)).read_text() == "1 2"
    if not at:
        assert left(study) == ["1 2"]
        assert written == {(0, 1): 1, (0, 2): 1, (1, 2): 1}  # each that led when it was reported


def test_nothing_is_kept_on_request() -> None:
    study = scripted_study("best", checkpoints=Checkpointing(keep=0))
    assert train(study, CURVES) == {}
    assert study.best is not None
    assert (study.best.checkpoint, study.best.checkpoint_epoch) == (None, None)


def test_another_process_knows_the_best_model(tmp_path: Path) -> None:
    study = scripted_study("best", store=tmp_path / "s.db")
    train(study, ENDS)
    again = scripted_study("best", store=tmp_path / "s.db")
    assert again.best == study.best
    assert [e.epoch for e in again.events() if isinstance(e, Kept)] == [1, 2, 2]


def test_a_model_that_cannot_be_kept_is_reported_once_and_costs_no_training() -> None:
    study = scripted_study("last")

    def refuse(path: Path) -> None:
        raise OSError(28, "No space left on device")

    def search() -> None:
        for trial in study:
            with trial:
                loop = TrainingLoop(trial, save=refuse)
                for epoch in loop:
                    loop.report(CURVES[trial.id][epoch - 1])

    with pytest.warns(HaltuneWarning, match="the best so far, is not kept.*No space left") as caught:
        search()
    assert len(caught) == 1
    assert [t.status for t in study.trials] == ["completed"] * 3


def test_a_loop_that_saves_each_epoch_keeps_the_state_of_its_best_one() -> None:
    study = scripted_study("best")
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(ENDS[trial.id][epoch - 1])
                trial.save(lambda path, state=f"{trial.id} {epoch}": path.write_text(state))
    assert study.best is not None
    assert (study.best.trial, study.best.epoch, study.best.checkpoint_epoch) == (1, 2, 2)
    assert Path(str(study.best.checkpoint)).read_text() == "1 2"
    assert left(study) == ["1 2", "1 3"]  # its best epoch's, and its last


def test_the_best_epoch_of_a_trial_that_a_budget_ends_is_kept_when_the_search_continues() -> None:
    study = scripted_study("best")
    for budget in (Budget(epochs=5), None):
        study.budget = budget
        for trial in study:
            with trial:
                assert (trial.checkpoint is None) == (trial.attempt == 1)
                for epoch in trial.epochs():
                    trial.report(ENDS[trial.id][epoch - 1])
                    trial.save(lambda path, state=f"{trial.id} {epoch}": path.write_text(state))
    assert study.best is not None
    assert (study.best.trial, study.best.epoch, study.best.checkpoint_epoch) == (1, 2, 2)
    assert Path(str(study.best.checkpoint)).read_text() == "1 2"


@pytest.mark.parametrize("of", ["last", "best"])
@pytest.mark.parametrize("own", [False, True])
def test_a_state_that_is_saved_before_its_epoch_is_reported_is_of_that_epoch(
    tmp_path: Path, of: str, own: bool
) -> None:
    def train(study: Study) -> list[int]:
        trained: list[int] = []
        for trial in study:
            with trial:
                epochs = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
                for _ in trial.epochs():
                    epochs += 1
                    trained.append(epochs)
                    path = tmp_path / f"{epochs}"
                    if own:
                        path.write_text(f"{epochs}")
                        trial.checkpointed(str(path))
                    else:
                        trial.save(lambda path: path.write_text(f"{epochs}"))  # noqa: B023
                    trial.report(abs(epochs - 3))
        return trained

    study = pausing_study(at=(1, 4), epochs=5, metric=Minimize("val_loss", of=of), keep=1)
    assert train(study) == [1, 2, 3, 4, 5]
    assert study.trials[0].attempt == 3
    assert study.best is not None
    assert study.best.checkpoint_epoch == study.best.epoch == (3 if of == "best" else 5)
    assert Path(str(study.best.checkpoint)).read_text() == f"{study.best.epoch:g}"


@pytest.mark.slow
def test_a_state_that_torch_trained_on_before_the_report_is_of_the_epoch_before() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.zeros(()))
    for saves_first in (True, False):
        study = pausing_study(at=(), epochs=2)
        with study.ask() as trial:
            optimizer = torch.optim.SGD([weight], 0.1)
            for _ in trial.epochs():
                weight.grad = torch.ones(())
                for saves in (saves_first, not saves_first):
                    trial.save(lambda path: path.write_text("state")) if saves else optimizer.step()
                trial.report(0.5)
        assert study.trials[0].checkpoint_epoch == (1 if saves_first else 2)


@pytest.mark.parametrize("kept", [False, True])  # over the epochs
def test_a_probe_that_is_trained_to_evaluate_a_saved_epoch_is_not_its_training(kept: bool) -> None:
    train_epoch, train_probe, trained = steps_of_torch(), steps_of_torch(), []
    study = pausing_study(at=(1, 3), epochs=4, keep=1)
    for trial in study:
        with trial:
            epochs = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
            for _ in trial.epochs():
                train_epoch()
                epochs += 1
                trained.append(epochs)
                trial.save(lambda path: path.write_text(f"{epochs}"))  # noqa: B023
                (train_probe if kept else steps_of_torch())()
                trial.report(0.5)
    assert trained == [1, 2, 3, 4]
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == [1, 2, 3, 4]
    assert study.best is not None
    assert study.best.checkpoint_epoch == 4


def test_a_pretrained_model_that_is_saved_and_frozen_is_no_state_of_the_first_epoch() -> None:
    torch = pytest.importorskip("torch")
    study = pausing_study(at=(), epochs=2)
    with study.ask() as trial:
        body, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        for part in (body, head):
            optimizer = torch.optim.SGD(part.parameters(), 0.1)
            for epoch in range(1, 3):
                head(body(torch.ones(2))).sum().backward()
                optimizer.step()
                if part is head:
                    trial.report(0.5, epoch)
            if part is body:
                trial.save(lambda path: path.write_text("pretrained"))
                body.requires_grad_(False)
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == []


def test_a_model_that_is_saved_before_a_loop_of_haltune_begins_is_a_state_before_the_first_epoch() -> None:
    study = pausing_study(at=(), epochs=2)
    with study.ask() as trial:
        trial.save(lambda path: path.write_text("pretrained"))
        loop = TrainingLoop(trial)
        for _ in loop:
            loop.report(0.5)
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == [0]


def test_a_state_that_a_program_saves_itself_in_a_training_loop_is_of_the_epoch_that_it_reports_next() -> None:
    study = pausing_study(at=(), epochs=3)
    with study.ask() as trial:
        loop = TrainingLoop(trial)
        for _ in loop:
            trial.save(lambda path: path.write_text("state"))
            loop.report(0.5)
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == [1, 2, 3]


def test_a_state_that_waits_for_its_report_is_not_lost_to_a_second_file_that_is_kept() -> None:
    trained: list[int] = []
    study = pausing_study(at=(1, 2), epochs=3, keep=1)
    for trial in study:
        with trial:
            epochs = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
            for epoch in trial.epochs():
                epochs += 1
                trained.append(epochs)
                for keep in (False, epoch):
                    trial.save(lambda path: path.write_text(f"{epochs}"), keep=keep)  # noqa: B023
                trial.report(1 / epoch)
    assert trained == [1, 2, 3]


def test_a_search_ends_although_its_program_saves_only_as_epochs_begin_and_its_policy_pauses_at_the_first() -> None:
    study, trained = pausing_study(at=(1, 2), epochs=3), []
    for trial in study:
        with trial:
            train_epoch = steps_of_torch()
            epochs = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
            for _ in trial.epochs():
                trial.save(lambda path: path.write_text(f"{epochs}"))  # noqa: B023
                train_epoch()
                epochs += 1
                trained.append(epochs)
                assert trained.count(epochs) < 3
                trial.report(0.5)
    assert trained == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("counts_itself", [False, True])
@pytest.mark.parametrize("by_torch", [False, True])
def test_a_state_that_is_kept_before_its_report_is_not_the_model_of_the_epoch_before(
    by_torch: bool, counts_itself: bool, tmp_path: Path
) -> None:
    train_epoch = steps_of_torch() if by_torch else lambda: None
    losses = {1: 0.5, 2: 0.4, 3: 0.3, 4: 0.6, 5: 0.7}
    study = pausing_study(
        f"{tmp_path}/s.db", at=(3,), epochs=5, trials=1, metric=Minimize("val_loss", of="best"), keep=1
    )
    for trial in study:
        with trial:
            best = float("inf")  # a program that forgets its best at a resume
            assert trial.checkpoint is None or int(Path(trial.checkpoint).read_text()) == trial.epoch
            for epoch in range(int(trial.epoch) + 1, 6) if counts_itself else trial.epochs():
                train_epoch()
                state = partial(Path.write_text, data=f"{epoch}")
                if losses[epoch] < best:
                    best = losses[epoch]
                    trial.save(state, keep=True)
                trial.save(state)
                if trial.report(losses[epoch]).stops:
                    break
    assert study.best is not None
    kept = study.best.checkpoint  # the program has replaced it by another epoch's
    assert kept is None or losses[int(Path(kept).read_text())] == study.best.value


def test_a_save_that_is_given_up_leaves_nothing_and_the_next_one_counts() -> None:
    study = pausing_study(at=(), epochs=3)
    trial = study.ask()
    trial.report(0.5)
    path = trial.begin_save()
    path.write_text("a part")
    trial.give_up_save(path)
    assert (path.exists(), trial.checkpoint) == (False, None)
    trial.give_up_save(path)  # there is nothing any more
    (path := trial.begin_save()).write_text("the whole")
    assert Path(trial.commit_save(path)).read_text() == "the whole"


@pytest.mark.parametrize("by_torch", [False, True])
@pytest.mark.parametrize("counts_itself", [False, True])
def test_a_state_that_is_begun_before_a_report_and_committed_after_it_is_of_that_report(
    by_torch: bool, counts_itself: bool
) -> None:
    train_epoch = steps_of_torch() if by_torch else lambda: None
    study = pausing_study(epochs=3)
    while isinstance(trial := study.ask(), Trial):
        with trial:
            trained = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
            assert trained == trial.epoch
            for epoch in range(trained + 1, 4) if counts_itself else trial.epochs():
                train_epoch()
                path = trial.begin_save()
                path.write_text(f"{epoch}")
                verdict = trial.report(0.5)
                trial.commit_save(path)
                if verdict.stops:
                    break
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == [1, 2, 3]


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_state_is_of_the_epoch_at_which_it_was_begun_and_no_other_one_deletes_it_before_it_is_committed(
    by_torch: bool,
) -> None:
    train_epoch = steps_of_torch() if by_torch else lambda: None
    study, paths = pausing_study(at=(), epochs=3), []
    with study.ask() as trial:
        for epoch in trial.epochs():
            train_epoch()
            trial.report(0.5)
            paths.append(trial.begin_save())
            paths[-1].write_text(f"{epoch}")
            if epoch > 1:
                assert Path(trial.commit_save(paths[-2])).read_text() == f"{epoch - 1}"
        trial.commit_save(paths[-1])
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == [1, 2, 3]


@pytest.mark.parametrize(("by_torch", "times"), [(False, 1), (True, 1), (True, 2)])
@pytest.mark.parametrize("by_parts", [False, True])
@pytest.mark.parametrize("at", [1, 2])
def test_a_state_whose_epoch_was_not_reported_is_not_one_to_resume_from(
    by_torch: bool, times: int, by_parts: bool, at: int
) -> None:
    train_epoch = steps_of_torch() if by_torch else lambda: None

    def save(trial: Trial, text: str) -> None:
        if not by_parts:
            trial.save(lambda path: path.write_text(text))
            return
        path = trial.begin_save()
        path.write_text(text)
        trial.commit_save(path)

    study, trained = pausing_study(at=(), epochs=3), []
    for attempt in (1, 2):
        with suppress(KeyboardInterrupt), study.ask() as trial:
            epochs = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
            for _ in trial.epochs():
                train_epoch()
                epochs += 1
                trained.append(epochs)
                for _ in range(times):
                    save(trial, f"{epochs}")
                if (attempt, epochs) == (1, at):
                    raise KeyboardInterrupt
                trial.report(0.5)
    assert trained == [*range(1, at + 1), *range(at, 4)]
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == [1, 2, 3]  # one for each


@pytest.mark.parametrize("program", ["within", "twice", "at its start and end", "of an epoch without a report"])
@pytest.mark.parametrize("by_torch", [False, True])
def test_a_state_from_between_two_reports_is_not_resumed_from_and_replaces_the_one_before(
    program: str, by_torch: bool
) -> None:
    train_part = steps_of_torch() if by_torch else lambda: None
    study = pausing_study(at=(), epochs=8)
    for attempt in range(2):
        with suppress(KeyboardInterrupt), study.ask() as trial:
            parts = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
            assert parts == 2 * trial.epoch  # two parts are an epoch

            def save(trial: Trial = trial) -> None:
                trial.save(lambda path: path.write_text(f"{parts}"))  # noqa: B023

            for epoch in trial.epochs():
                for part in range(2):
                    if program == "at its start and end" and not part and by_torch:
                        save()
                    train_part()
                    parts += 1
                    if part or program == "within":
                        save()
                if program == "twice":
                    save()
                if attempt == 0 and epoch == 6:
                    raise KeyboardInterrupt
                if program != "of an epoch without a report" or epoch % 2 == 0:
                    trial.report(0.5)
                    assert len(left(study)) <= 2  # the last one of a report, and the last one
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)][-1] == 8


def test_a_state_that_is_saved_where_an_error_is_handled_is_none_of_the_epoch_before() -> None:
    study = pausing_study(at=(), epochs=2)
    with pytest.raises(KeyboardInterrupt), study.ask() as trial:
        for epoch in trial.epochs():
            try:
                if epoch == 2:
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                trial.save(lambda path: path.write_text("half an epoch"))
                raise
            trial.report(0.5)
    assert study.trials[0].checkpoint is None


def test_a_state_from_within_an_epoch_is_not_the_model_of_the_epoch_before() -> None:
    train_part, losses = steps_of_torch(), [0.1, 0.5, 0.6]
    study = pausing_study(at=(), epochs=3, keep=1, metric=Minimize("val_loss", of="best"))
    with study.ask() as trial:
        for epoch in trial.epochs():
            train_part()
            trial.save(lambda path: path.write_text("half an epoch"))
            train_part()
            trial.report(losses[epoch - 1])
    assert study.best is not None
    assert (study.best.epoch, study.best.checkpoint) == (1, None)


def test_a_state_is_of_its_epoch_also_if_other_weights_are_trained_between_the_report_and_the_save() -> None:
    train_generator, train_critic = steps_of_torch(), steps_of_torch()
    study = pausing_study(at=(), epochs=3)
    with study.ask() as trial:
        for epoch in range(1, 4):
            train_generator()
            trial.report(0.5, epoch)
            train_critic()
            trial.save(lambda path: path.write_text("state"))
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == [1, 2, 3]


@pytest.mark.parametrize("kept", [False, True])  # the probe, over the epochs
@pytest.mark.parametrize("counts_itself", [False, True])
def test_a_state_of_a_retry_is_of_its_epoch_also_if_a_probe_evaluates_it(kept: bool, counts_itself: bool) -> None:
    study, train_probe, trained = pausing_study(at=(), epochs=5), steps_of_torch(2), list[int]()

    def train(trial: Trial, first: bool) -> None:
        train_epoch = steps_of_torch()  # another model than before, of the same shapes
        start = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
        for epoch in range(start + 1, 6) if counts_itself else trial.epochs():
            if first and epoch == 3:
                raise RuntimeError("out of memory")
            train_epoch()
            trained.append(epoch)
            trial.save(lambda path: path.write_text(f"{epoch}"))  # noqa: B023
            (train_probe if kept else steps_of_torch(2))()
            trial.report(0.5, epoch)

    with study.ask() as trial:
        try:
            train(trial, True)
        except RuntimeError:
            train(trial, False)
    assert trained == [1, 2, 3, 4, 5]
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == trained


@pytest.mark.parametrize("counts_itself", [False, True])
def test_a_state_is_of_its_epoch_also_in_a_program_that_reports_before_it_trains(counts_itself: bool) -> None:
    train_epoch, study = steps_of_torch(), pausing_study(at=(), epochs=3)
    with study.ask() as trial:
        for epoch in range(1, 4) if counts_itself else trial.epochs():
            trial.report(0.5, epoch)
            train_epoch()
            trial.save(lambda path: path.write_text("state"))
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == [1, 2, 3]


def test_the_seconds_of_an_epoch_are_those_that_it_trained_also_if_its_state_is_saved_first() -> None:
    now = [0.0]
    with clocked(lambda: now[0]):
        study = pausing_study(at=(), epochs=2)
        with study.ask() as trial:
            for _ in trial.epochs():
                now[0] += 100.0  # trains

                def write(path: Path) -> None:
                    now[0] += 10.0
                    path.write_text("state")

                trial.save(write)
                now[0] += 1.0  # validates
                trial.report(0.5)
    assert study.trials[0].seconds.tolist() == [101.0, 101.0]


def test_a_program_without_torch_that_saves_first_is_asked_once_when_it_trains(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "haltune")
    study = pausing_study(at=(), epochs=3, trials=2)
    for trial in study:
        with trial:
            for _ in trial.epochs():
                trial.save(lambda path: path.write_text("state"))
                trial.report(0.5)
    said = [r.getMessage() for r in caplog.records if "saved a state before it reports" in r.getMessage()]
    assert said == [
        "Trial 0 saved a state before it reports epoch 1, so it counts as the state after epoch 1. If your program "
        "saves before it trains, save after trial.report(value) instead."
    ]


@pytest.mark.parametrize(("every", "kept"), [(3, []), (2, [4, 8])])
def test_a_state_of_a_step_that_is_not_reported_is_none_to_resume_from(every: int, kept: list[int]) -> None:
    study = pausing_study(at=(), epochs=8, unit="step")
    with study.ask() as trial:
        for step in trial.steps():
            if step % every == 0:
                trial.save(lambda path: path.write_text("state"))
            if step % 4 == 0:
                trial.report(0.5)
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == kept


def test_a_state_under_an_average_is_one_to_resume_from_and_never_the_best_model() -> None:
    study = scripted_study("last")
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(ENDS[trial.id][epoch - 1])
                trial.save(lambda path: path.write_text("weights"), resumes_only=True)
    assert study.best is not None
    assert study.best.checkpoint is None
    assert study.trials[study.best.trial].checkpoint_epoch == 3


def test_if_the_best_epoch_counts_and_was_not_saved_there_is_no_best_model() -> None:
    study = scripted_study("best")
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(ENDS[trial.id][epoch - 1])
            trial.save(lambda path: path.write_text("the last epoch"))
    assert study.best is not None
    assert study.best.epoch == 2
    assert (study.best.checkpoint, study.best.checkpoint_epoch) == (None, None)


@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("of", ["last", "best"])
def test_a_best_model_that_a_loop_saves_only_at_pauses_is_not_kept_and_this_is_said(at_the_end, of, tmp_path, caplog):
    caplog.set_level("INFO", "haltune")
    goal = Minimize("val_loss", of=of)
    study = pausing_study(f"{tmp_path}/s.db", at=(2,), epochs=4, trials=2, keep=1, metric=goal)
    for trial in study:
        with trial:
            assert trial.checkpoint is None or trial.epoch == 2
            for epoch in trial.epochs():
                if trial.report(1 / epoch).stops or (at_the_end and epoch == 4):
                    trial.save(lambda path: path.write_text("a state"))
    said = [m for m in caplog.messages if "study.best.checkpoint is None" in m]
    assert len(said) == (not at_the_end)
    assert study.best.checkpoint_epoch == (4 if at_the_end else None)
    assert (study.best.checkpoint is not None) == at_the_end
    assert study.trials[study.best.trial].checkpoint_epoch == (4 if at_the_end else 2)


@pytest.mark.parametrize(
    ("of", "saved", "reports", "epoch", "how"),
    [
        ("last", (2, 4, 6), 8, 8, "the last epoch, too, where your program ends a training early."),
        ("last", (3, 6, 9), 10, 10, "the last epoch, too: if trial.report(value).stops or epoch == trial.max_epochs."),
        ("best", (2, 4, 6, 8, 10), 10, 5, "each epoch that is its best so far."),
        ("best", (3, 5), 10, 5, None),
        ("last", (3, 8), 8, 8, None),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_the_best_model_is_the_state_of_its_value_or_none(of, saved, reports, epoch, how, own, tmp_path, caplog):
    caplog.set_level("INFO", "haltune")
    study = pausing_study(at=(), epochs=10, keep=1, metric=Minimize("val_loss", of=of))
    with study.ask() as trial:
        for now in trial.epochs():
            trial.report(abs(now - 5.0) + 1.0 if of == "best" else 1 / now)
            if now in saved and own:
                (tmp_path / "state").write_text(f"{now}")
                trial.checkpointed(tmp_path / "state")
            elif now in saved:
                trial.save(lambda path: path.write_text(f"{now}"))  # noqa: B023
            if now == reports:
                break
    assert study.best.epoch == epoch
    if how is None:
        assert Path(study.best.checkpoint).read_text() == f"{epoch}"
    else:
        assert (study.best.checkpoint, study.best.checkpoint_epoch) == (None, None)
        assert study.trials[0].checkpoint is not None
    said = [m for m in caplog.messages if "study.best.checkpoint is None" in m]
    if how is not None and own:
        how = how.replace("best so far.", "best so far, to another file each time.")
    assert [m.endswith(f"Save after {how}") for m in said] == [True] * (how is not None)


@pytest.mark.parametrize("each", [True, False])
def test_a_file_of_the_program_is_the_best_model_until_the_program_writes_another_state_there(each, tmp_path):
    study = pausing_study(at=(3,), epochs=4, keep=1, metric=Minimize("val_loss", of="best"))
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(abs(epoch - 2.0))
                path = tmp_path / (f"{epoch}" if each else "state")
                path.write_text(f"{epoch}")
                trial.checkpointed(path)
    assert study.trials[0].attempt == 2
    assert study.best.epoch == 2
    assert study.best.checkpoint == (str(tmp_path / "2") if each else None)
    assert study.best.checkpoint_epoch == (2 if each else None)


def test_while_the_best_trial_trains_its_model_is_the_one_of_its_value_or_none() -> None:
    study = pausing_study(at=(), epochs=4, keep=1)
    with study.ask() as trial:
        for epoch in trial.epochs():
            trial.report(1 / epoch)
            assert study.best.checkpoint is None
            trial.save(lambda path: path.write_text(f"{epoch}"))  # noqa: B023
            assert Path(study.best.checkpoint).read_text() == f"{epoch}"


@pytest.mark.parametrize("ends", ["unvalidated", "disk"])
def test_if_the_state_of_the_best_value_is_not_kept_that_of_a_pause_is_not_the_best_model(ends, caplog) -> None:
    caplog.set_level("INFO", "haltune")
    study = pausing_study(at=(2,), epochs=9, keep=1)

    def save(path: Path) -> None:
        if ends == "disk" and loop.trial.epoch > 2:
            raise OSError("no space left on device")
        path.write_text("a state")

    with pytest.warns(HaltuneWarning, match="is not kept"):
        for trial in study:
            with trial:
                assert trial.checkpoint is None or trial.epoch == 2
                loop = TrainingLoop(trial, save=save)
                for epoch in loop:
                    if ends == "disk" or epoch <= 4:
                        loop.report(1 / epoch)
    assert study.best.epoch == (9 if ends == "disk" else 4)
    assert study.best.checkpoint is None
    assert study.trials[0].checkpoint_epoch == 2
    assert not any("study.best.checkpoint is None" in m for m in caplog.messages)  # said by the warning


@pytest.mark.parametrize(
    ("unit", "end"),
    [("step", "step == trial.max_steps"), ("token", "token == trial.max_tokens"), ("game", "game == 400")],
)
def test_to_keep_the_best_model_its_loop_is_given_the_end_in_the_unit_of_the_study(unit, end, tmp_path, caplog):
    study = pausing_study(f"{tmp_path}/s.db", at=(200,), epochs=400, trials=1, keep=1, unit=unit)
    for trial in study:
        with trial:
            assert trial.checkpoint is None or trial.epoch == 200
            for position in range(int(trial.epoch) + 100, 401, 100):
                if trial.report(1 / position, position).stops:
                    trial.save(lambda path: path.write_text("a state"))
                    break
    (said,) = (m for m in caplog.messages if "study.best.checkpoint is None" in m)
    assert said.endswith(f"Save after the last {unit}, too: if trial.report(value).stops or {end}.")


@pytest.mark.parametrize("counts_itself", [False, True])
def test_a_state_is_of_its_epoch_also_if_the_first_epoch_makes_no_step(counts_itself: bool) -> None:
    train_epoch, study = steps_of_torch(), pausing_study(at=(), epochs=3)
    for attempt in (1, 2):
        with suppress(KeyboardInterrupt), study.ask() as trial:
            epochs = int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
            assert epochs == trial.epoch
            for epoch in range(epochs + 1, 4) if counts_itself else trial.epochs():
                if epoch > 1:  # a GradScaler leaves out the first ones
                    train_epoch()
                trial.save(lambda path: path.write_text(f"{epoch}"))  # noqa: B023
                if attempt == 1 and epoch == 2:
                    raise KeyboardInterrupt
                trial.report(0.5, epoch)
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == [1, 2, 3]


@pytest.mark.parametrize("counts_itself", [False, True])
def test_a_state_from_within_an_epoch_that_trains_other_weights_than_before_is_of_no_report(
    counts_itself: bool,
) -> None:
    study = pausing_study(at=(), epochs=3)
    with study.ask() as trial:
        for epoch in range(1, 4) if counts_itself else trial.epochs():
            train_layer = steps_of_torch(epoch)
            train_layer()
            trial.save(lambda path: path.write_text("half an epoch"))
            train_layer()
            trial.report(0.5, epoch)
    assert [e.epoch for e in study.events() if isinstance(e, Checkpointed)] == []


def test_the_last_state_of_the_best_epoch_is_its_model() -> None:
    train_part, study = steps_of_torch(), pausing_study(at=(), epochs=2, keep=1, metric=Minimize("val_loss", of="best"))
    with study.ask() as trial:
        for epoch in trial.epochs():
            train_part()
            trial.save(lambda path: path.write_text("before an average is updated"))
            trial.report(1 / epoch)
            trial.save(lambda path: path.write_text("after it"))
    assert study.best is not None
    assert Path(str(study.best.checkpoint)).read_text() == "after it"


@pytest.mark.parametrize("counts_itself", [False, True])
@pytest.mark.parametrize(
    ("epoch", "never"),
    [
        ("train save train report", True),
        ("train report train save train", True),
        ("train save train save report", False),
        ("train save train report save", False),
        ("save train save train report", False),
        ("save train report", False),
        ("train save report", False),
        ("train report save", False),
        ("train report", False),
    ],
)
def test_a_program_whose_saves_never_meet_its_reports_gets_a_hint_once(
    epoch: str, never: bool, counts_itself: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "haltune")
    steps_of_torch()  # torch is there before the first trial
    study = pausing_study(at=(), epochs=4, trials=2)
    for trial in study:
        with trial:
            train = steps_of_torch()
            for _ in range(4) if counts_itself else trial.epochs():
                for step in epoch.split():
                    if step == "save":
                        trial.save(lambda path: path.write_text("state"))
                    elif step == "report":
                        trial.report(0.5)
                    else:
                        train()
    said = [m for m in caplog.messages if "no state to resume from" in m]
    assert said == never * [
        "Trial 0 has trained between saving its state and reporting epoch 2, so it has no state to resume from: save "
        "after trial.report(value)."
    ]


def test_so_does_one_without_torch_that_saves_and_reports_in_different_epochs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "haltune")
    study = pausing_study(at=(), epochs=6)
    with study.ask() as trial:
        for epoch in trial.epochs():
            trial.report(0.5, epoch) if epoch % 2 == 0 else trial.save(lambda path: path.write_text("state"))
    assert len([m for m in caplog.messages if "no state to resume from" in m]) == 1


@pytest.mark.parametrize("at", [(), (2,)])
@pytest.mark.parametrize("of", ["last", "best"])
def test_the_best_model_of_a_loop_that_trains_on_after_its_report_is_that_of_the_report(of, at) -> None:
    study, trained = pausing_study(at=at, epochs=4, keep=1, metric=Minimize("val_loss", of=of)), 0
    for trial in study:
        with trial:
            train, steps = steps_of_torch(), int(Path(trial.checkpoint).read_text()) if trial.checkpoint else 0
            for _ in (loop := TrainingLoop(trial, save=lambda path: path.write_text(f"{steps}"))):  # noqa: B023
                for part in range(2):
                    train()
                    steps, trained = steps + 1, trained + 1
                    if part == 0:
                        loop.report(abs(steps - 3.0))
    assert study.trials[0].values.tolist() == [2, 0, 2, 4]
    assert trained == 8
    assert study.best is not None
    assert Path(str(study.best.checkpoint)).read_text() == {"best": "3", "last": "7"}[of]


def test_a_pause_of_a_loop_that_trains_on_after_its_report_has_no_best_model() -> None:
    study = pausing_study(at=(1,), epochs=4, keep=1)
    with study.ask() as trial:
        train = steps_of_torch()
        for _ in (loop := TrainingLoop(trial, save=lambda path: path.write_text("later"))):
            train()
            loop.report(0.5)
            train()
    assert study.trials[0].checkpoint_epoch == 1
    assert study.best is not None
    assert study.best.checkpoint is None


@pytest.mark.parametrize("counts_itself", [False, True])
@pytest.mark.parametrize(
    ("epoch", "kept"),
    [("train report train", False), ("report train", False), ("train report", True), ("train report copy", True)],
)
@pytest.mark.parametrize(("of", "own"), [("last", False), ("last", True), ("best", True), ("best", False)])
def test_a_state_that_trained_on_after_the_last_report_is_not_the_best_model_and_this_is_said(
    of: str, own: bool, epoch: str, kept: bool, counts_itself: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "haltune")
    study = pausing_study(at=(), epochs=3, keep=1, metric=Minimize("val_loss", of=of))
    with study.ask() as trial:
        train = steps_of_torch()
        for now in range(1, 4) if counts_itself else trial.epochs():
            for step in epoch.split():
                {"train": train, "copy": steps_of_torch(), "report": lambda: trial.report(abs(now - 2.0), now)}[step]()  # noqa: B023
            if own:
                (tmp_path / f"{now}").write_text("state")
                trial.checkpointed(tmp_path / f"{now}")
            else:
                trial.save(lambda path: path.write_text("state"))
    assert study.trials[0].checkpoint_epoch == 3
    assert study.best is not None
    assert (study.best.checkpoint is not None) == kept
    said = [m for m in caplog.messages if "study.best.checkpoint is None" in m]
    assert ["has trained on between" in m for m in said] == [True] * (not kept)


@pytest.mark.parametrize("stops_only", [False, True])
@pytest.mark.parametrize(
    ("epoch", "warns"),
    [
        ("report save train", True),
        ("train report save train", True),
        ("train save report train", True),
        ("report train save", False),
        ("train report train save", False),
        ("train report save", False),
        ("train report save criticize", False),
    ],
)
def test_a_state_that_lacks_the_rest_of_its_epoch_is_said_once(epoch: str, warns: bool, stops_only: bool) -> None:
    study = pausing_study(at=(2,), epochs=4, trials=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for trial in study:
            with trial:
                _, train, criticize = trial.checkpoint, steps_of_torch(), steps_of_torch(2)
                for _ in trial.epochs():
                    for step in epoch.split():
                        if step == "report":
                            trial.report(0.5)
                        elif step != "save":
                            (train if step == "train" else criticize)()
                        elif not stops_only or (trial.verdict is not None and trial.verdict.stops):
                            trial.save(lambda path: path.write_text("state"))
    said = [str(w.message) for w in caught if "before its training of this epoch is over" in str(w.message)]
    if stops_only and epoch == "train save report train":
        warns = False  # it saves nothing
    assert len(said) == warns
    assert not warns or said[0].startswith(f"Trial 0 saves its state of epoch {2 if stops_only else 1} before")


@pytest.mark.parametrize("of", ["last", "best"])
@pytest.mark.parametrize("saves", ["at the end", "at a pause", "own file", "kept"])
def test_the_best_weights_that_a_program_puts_back_and_saves_are_those_of_their_epoch(
    of: str, saves: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch = pytest.importorskip("torch")
    caplog.set_level("INFO", "haltune")
    losses, epochs_of, pauses = [0.5, 0.1, 0.3], {}, saves == "at a pause"
    goal = Minimize("val_loss", of=of)
    study = pausing_study(at=(3,) if pauses else (), epochs=4 if pauses else 3, keep=1, metric=goal)
    net = torch.nn.Linear(3, 4)
    warns = pytest.warns(HaltuneWarning, match="has restored the weights of epoch 2 before it saved")
    with warns if pauses else nullcontext(), study.ask() as trial:
        optimizer, best = torch.optim.SGD(net.parameters(), 0.1), {}
        for epoch in trial.epochs():
            net(torch.ones(3)).sum().backward()
            optimizer.step()
            epochs_of[net.weight.sum().item()] = epoch
            if epoch == 2:
                best = {name: weight.clone() for name, weight in net.state_dict().items()}
            trial.report(losses[epoch - 1])
        net.load_state_dict(best)
        text = f"{epochs_of[net.weight.sum().item()]}"
        if saves == "own file":
            (tmp_path / "best").write_text(text)
            trial.checkpointed(tmp_path / "best")
        else:
            trial.save(lambda path: path.write_text(text), keep=saves == "kept")
    assert study.trials[0].checkpoint_epoch == (0 if saves == "kept" else 3)
    assert study.best is not None
    if of == "best":
        assert (study.best.epoch, study.best.checkpoint_epoch) == (2, 2)
        assert Path(str(study.best.checkpoint)).read_text() == "2"
    else:
        assert study.best.checkpoint is None
        said = [m for m in caplog.messages if "study.best.checkpoint is None" in m]
        assert ["restored the weights of epoch 2" in m for m in said] == [True] * (saves in ("at the end", "own file"))


@pytest.mark.parametrize(("of", "epoch"), [("last", 3), ("best", 2)])
@pytest.mark.parametrize("keep", [False, True])
def test_the_best_weights_are_kept_where_the_program_reports_its_best_value_so_far(
    of: str, epoch: int, keep: bool
) -> None:
    torch = pytest.importorskip("torch")
    study = pausing_study(at=(), epochs=3, keep=1, metric=Minimize("val_loss", of=of))
    net, best, weights = torch.nn.Linear(3, 4), 9.0, {}
    with study.ask() as trial:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for loss in (0.5, 0.1, 0.3):
            net(torch.ones(3)).sum().backward()
            optimizer.step()
            if loss < best:
                best, weights = loss, {name: weight.clone() for name, weight in net.state_dict().items()}
            trial.report(best)
        net.load_state_dict(weights)
        trial.save(lambda path: path.write_text("state"), keep=keep)
    assert study.best is not None
    assert (study.best.epoch, study.best.checkpoint_epoch) == (epoch, epoch)


@pytest.mark.parametrize("warm_up", [0, 2])
def test_the_model_of_a_report_is_kept_where_a_probe_trains_after_it_and_a_report_came_first(warm_up: int) -> None:
    study = pausing_study(at=(), epochs=4, keep=1)
    with study.ask() as trial:
        train, probe = steps_of_torch(), steps_of_torch(2)
        if not warm_up:
            trial.report(1.0, 1)
        for epoch in range(1 if warm_up else 2, 5):
            if epoch > warm_up:
                train()
            trial.report(1 / epoch, epoch)
            if epoch > warm_up:
                probe()
            trial.save(lambda path: path.write_text("state"))
    assert study.best is not None
    assert study.best.checkpoint_epoch == 4


@pytest.mark.filterwarnings("error::haltune.HaltuneWarning")
def test_a_program_that_evaluates_first_and_ends_by_itself_is_not_told_to_save_later() -> None:
    study = pausing_study(at=(), epochs=6, keep=1)
    with study.ask() as trial:
        train = steps_of_torch()
        for epoch in (loop := TrainingLoop(trial, save=lambda path: path.write_text("state"))):
            loop.report(1 / epoch)
            if epoch == 4:
                break
            train()
    assert study.best is not None
    assert study.best.checkpoint_epoch == 4


def test_weights_that_an_epoch_has_not_changed_are_those_of_the_first_of_its_reports() -> None:
    torch = pytest.importorskip("torch")
    study = pausing_study(at=(), epochs=4, keep=1, metric=Minimize("val_loss", of="best"))
    net, weights = torch.nn.Linear(3, 4), {}
    with study.ask() as trial:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for epoch, loss in enumerate((0.5, 0.1, 0.1, 0.3), 1):
            net(torch.ones(3)).sum().backward()
            optimizer.param_groups[0]["lr"] = 0.0 if epoch == 3 else 0.1
            optimizer.step()
            if epoch == 2:
                weights = {name: weight.clone() for name, weight in net.state_dict().items()}
            trial.report(loss)
        net.load_state_dict(weights)
        trial.save(lambda path: path.write_text("state"))
    assert study.best is not None
    assert (study.best.epoch, study.best.checkpoint_epoch) == (2, 2)
