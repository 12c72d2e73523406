"""The summary of a search: trials in full, other ends with reasons, saved epochs, files on the disk."""

import io
import warnings
from html import unescape

import pytest
from paused_studies import pausing_study
from told import a_search
from worlds import search, small_study

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.log.decisions import stop
from haltune.policies import Ladder, RandomSearch
from haltune.report import live, summary
from haltune.report.digest import digest
from haltune.report.page import page
from haltune.report.page.words import stats
from haltune.store.checkpoints import readable
from haltune.study.messages import spending_line, standing_line

PROBLEM = Problem(Space({"lr": Float(0.1, 1.0)}), Maximize("acc", (0, 1)), 9)


def climbed(trials=4, saves=False, **options):
    """A search in which all but the last winner pause, each with a checkpoint of 5 bytes where it `saves`."""
    study = Study(PROBLEM, Ladder(min_trials_per_rung=2), seed=0, budget=Budget(trials=trials), verbose=0, **options)
    for trial in study:
        with trial:
            assert trial.checkpoint is None or trial.epoch > 0
            for epoch in trial.epochs():
                if trial.report(trial.config["lr"] * epoch / 9, seconds=1.0).stops:
                    if saves:
                        trial.save(lambda path: path.write_text("12345"))
                    break
    return study


def test_what_was_not_continued_is_counted_with_the_reason_and_what_was_saved(tmp_path):
    study = climbed()
    left = [t.epoch for t in study.trials if t.status == "paused"]
    full = sum(t.complete for t in study.trials)
    assert len(left) > 1
    assert full > 0
    lines = summary(study).splitlines()
    assert f"4 trials: {full} trained in full, {len(left)} not continued" in lines
    span = f"{min(left):g}" if len(set(left)) == 1 else f"{min(left):g} to {max(left):g}"
    why = f"not continued: paused at epoch {span} of 9, where others were ahead; a larger budget may continue them"
    assert f"  {why}" in lines
    assert f"; {sum(9 - e for e in left):g} epochs (" in lines[-2]
    assert f"N{why[1:]}" in unescape(page(study))


def test_while_a_search_runs_what_is_paused_is_paused():
    study = Study(PROBLEM, Ladder(min_trials_per_rung=5), seed=0, budget=Budget(trials=9), verbose=0)
    with study.ask() as trial:
        while not trial.report(0.1, seconds=1.0).stops:
            pass
    text = summary(study)
    assert "1 trial: 1 paused" in text
    assert "not continued" not in text
    assert "trial 0: paused" in study.explain(0)


def test_checkpoints_on_the_disk_are_listed_with_their_size_and_trial(tmp_path):
    study = climbed(saves=True, store=tmp_path / "s.db")
    count = sum(t.checkpoint is not None for t in study.trials)
    assert count > 1
    told = f"{count} checkpoints ({readable(study.checkpoints.used())}) kept in {study.checkpoints.folder}, "
    told += "including those of paused trials"
    assert told in summary(study)
    assert told in unescape(page(study))
    assert "checkpoint" not in summary(climbed())


def test_epochs_that_were_not_saved_and_trained_again_are_counted_separately():
    """Each epoch counts once: what was trained and what stopping saved make the epochs of full training."""
    study = pausing_study(at=(2,), trials=3, budget=Budget(trials=3), verbose=0)
    for trial in study:
        with trial:
            assert trial.checkpoint is None or trial.epoch > 0
            for epoch in trial.epochs():
                if trial.report(1.0 / epoch).stops:
                    if (trial.id, trial.attempt) != (1, 1):  # of which nothing is saved
                        trial.save(lambda path: path.write_text("weights"))
                    break
    facts = digest(study)
    assert (study.history.spent.epochs, facts.trained, facts.again) == (14, 12, 2)
    assert "12 epochs (2 more lost and trained again)" in spending_line(study.history, study.budget)
    assert spending_line(study.history, Budget(trials=2)).startswith("3 trials, 12 epochs")
    assert "; 2 epochs lost and trained again" in summary(study)
    assert "<b>12 epochs</b>" in stats(facts)
    assert "; 2 epochs lost and trained again</span>" in stats(facts)


class Halver(RandomSearch):
    """Stops every other run after its second epoch."""

    def judge(self, state, history, trial, rng):
        ends = trial.id % 2 and trial.epoch >= 2
        return stop("at epoch 2") if ends else super().judge(state, history, trial, rng)


def test_where_runs_end_by_themselves_what_stopping_saved_is_the_most_that_it_can_be():
    """The runs that were stopped might have ended by themselves, too; the share is of full trainings of all runs."""
    study = Study(PROBLEM, Halver(trials=4), seed=0, verbose=0)
    for trial in study:
        with trial:
            for epoch in range(1, 6 - trial.id):  # the user's own early stopping, at epochs 5 and 3
                if trial.report(0.1 * epoch, seconds=1.0).stops:
                    break
    assert [t.epoch for t in study.trials] == [5, 2, 3, 2]
    facts = digest(study)
    assert (facts.savings.epochs, facts.savings.itself) == (14, 10)
    assert facts.saved_share == 14 / 36
    spared = "10 epochs not trained by trials that ended by themselves"
    assert f"at most 14 epochs (39%) and about 14 s saved against full training; {spared}" in summary(study)
    assert f"12 epochs (at most 14 saved; {spared})" in standing_line(study.history, study.budget)
    shown = unescape(stats(facts))
    assert "<b>at most 39% saved</b>" in shown
    assert f"at most 14 epochs saved, {spared}" in shown
    assert "an upper bound: some trials ended by themselves" in unescape(page(study))


def tried(trials, text, succeed=(0,), verbose=1):
    """A search that went to its end, whose trials but for `succeed` failed; and the warnings of a same error."""
    study = Study(PROBLEM, RandomSearch(trials=trials), seed=0, verbose=verbose)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for trial in study:
            if trial.id in succeed:
                with trial:
                    for epoch in trial.epochs():
                        trial.report(trial.config["lr"] * epoch / 9)
            else:
                trial.fail(ValueError(text(trial.id)))
        study.ask()
        study.ask()
    return study, [str(w.message) for w in told if "the same error" in str(w.message)]


@pytest.mark.parametrize("succeed", [(0,), ()])
def test_a_search_whose_trials_failed_with_the_same_error_says_so_once_at_its_end(succeed, tmp_path, caplog):
    caplog.set_level("WARNING", "haltune")
    study, told = tried(5, lambda id: f"'auc_{id}' was not <logged>\nsecond line", succeed)
    first = len(succeed)
    line = f"{5 - first} of 5 trials failed with the same error: ValueError: 'auc_{first}' was not <logged>"
    assert told == [line]
    assert [r.getMessage() for r in caplog.records if "the same error" in r.getMessage()] == told
    assert line in summary(study).splitlines()
    head = page(study).partition("</h1>")[2]
    assert line in unescape(head)
    assert "<logged>" not in head
    assert (study.best is not None) == bool(succeed)


# -- the table in the terminal, and the summary


rich_console = pytest.importorskip("rich.console")


def terminal(width=140):
    return rich_console.Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def paper():
    return rich_console.Console(file=io.StringIO(), force_terminal=False, width=60)


def test_a_terminal_ends_with_a_line_for_every_trial():
    study, console = small_study(RandomSearch(trials=3)), terminal()
    with live(study, console):
        search(study)
    final = console.file.getvalue().split("verdict")[-1]
    assert final.count("trained in full") == 3
    assert "█" in final


def test_a_pipe_gets_one_line_for_each_trial():
    study, console = small_study(RandomSearch(trials=3)), paper()
    with live(study, console):
        search(study)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[:2] for line in lines] == [["trial", "0"], ["trial", "1"], ["trial", "2"]]


def test_what_a_user_typed_is_not_read_as_markup():
    metric = "[red]acc[/red]"
    one = Problem(Space({"lr": Float(0, 1)}), Maximize(metric, (0, 1)), 2)
    for console in (terminal(), paper()):
        study = Study(one, RandomSearch(trials=1))
        with live(study, console):
            search(study, lambda *_: 0.5)
        assert metric in console.file.getvalue()


def test_saved_time_does_not_count_the_start_up_of_a_first_epoch():
    study = Study(Problem(Space({"lr": Float(0, 1)}), Maximize("acc", (0, 1)), 10), RandomSearch(trials=2), verbose=0)
    full, stopped = study.ask(), study.ask()
    for epoch in range(1, 11):
        full.report(0.5, seconds=30.0 if epoch == 1 else 1.0)
    stopped.report(0.1, seconds=60.0)
    stopped.finish("stopped")
    assert "9 epochs (45%) and about 18 s saved" in summary(study)


def test_the_summary_has_the_best_and_what_was_saved():
    text = summary(a_search())
    assert "best acc 0.95 (trial 0, epoch 10)\n  lr=0.25" in text
    assert "3 trials: 1 trained in full, 1 stopped early, 1 failed" in text
    assert "15 epochs trained in 30 s; 8 epochs (35%) and about 16 s saved" in text
