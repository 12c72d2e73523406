"""Log lines of a running search: which, when, at which level; an error of logging never stops a search."""

import logging
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from paused_studies import pausing_study

from haltune import Budget, Choice, Constraint, Float, HaltuneWarning, Maximize, Minimize, Problem, Space, Study
from haltune.launch import run
from haltune.policies import RandomSearch, SuccessiveHalving
from haltune.report import summary
from haltune.report.page import page
from haltune.store.studies import hold

PROBLEM = Problem(Space({"lr": Float(0.1, 0.2), "opt": Choice(["adam"])}), Maximize("acc", (0, 1)), 4)


def train(trial):
    with trial:
        for epoch in trial.epochs():
            if trial.report(trial.config["lr"] * epoch, seconds=1.0).stops:
                break


def searched(trials=2, **options):
    study = Study(PROBLEM, RandomSearch(trials=trials), seed=0, **options)
    for trial in study:
        train(trial)
    return study


@pytest.fixture
def said(caplog):
    """Return the messages of the log "haltune", at the level that a program leaves."""
    caplog.clear()
    return lambda: [r.getMessage() for r in caplog.records if r.name == "haltune"]


def heads(lines):
    return [line.partition(":")[0] for line in lines]


# which lines


def test_a_trial_has_a_short_line_as_it_ends_and_the_first_one_as_it_starts(said):
    study = searched()
    first, second = study.trials
    lead = ", the best so far" if study.best.trial == 1 else ""
    assert said()[0] == f"Trial 0 started: lr={first.config['lr']:.3g}, opt=adam (drawn at random)"
    assert said()[1] == f"Trial 0 trained in full, 4 epochs: acc {first.values[-1]:.4g}, the best so far"
    assert said()[2] == (
        f"Trial 1 trained in full, 4 epochs: acc {second.values[-1]:.4g}{lead}; lr={second.config['lr']:.3g}, opt=adam"
    )
    assert said()[3] == f"The search is over: {study.outcome.reason}"
    assert said()[4].startswith("2 trials, 8 epochs, 0:0")
    assert len(said()) == 5


def test_a_program_that_starts_after_its_budget_is_spent_logs_how_to_continue(said, tmp_path):
    def search(trials):
        study = Study({"x": Float(0.0, 1.0)}, Maximize("acc"), tmp_path / "a.db", budget=f"{trials} trials", seed=0)
        study.optimize(lambda trial: trial.config["x"])
        return [line for line in said() if "larger budget=" in line]

    assert search(2) == []
    assert search(2) == [
        "To continue it, pass a larger budget=. To start a new search, use another file or another name=."
    ]
    assert len(search(3)) == 1  # no line more


def test_a_failure_that_a_warning_reported_is_not_logged_again_at_the_end_of_the_search(said):
    study = Study(PROBLEM, RandomSearch(trials=2), seed=0)
    for trial in study:
        with trial:
            trial.report(0.5)
            if trial.id == 1:
                with pytest.warns(HaltuneWarning, match="trains again from its start"):
                    trial.restart()
                raise ValueError("a bug")
    assert [line for line in said() if "Trial 1" in line and "failed" in line] == [
        "Trial 1 failed and the search continues: ValueError: a bug"
    ]


def test_a_line_of_a_trial_is_short_and_its_reasons_are_in_the_explanation(said):
    study = Study(PROBLEM.space, Maximize("acc"), max_epochs=27, budget="12 trials", seed=0)
    for trial in study:
        train(trial)
    lines = [line for line in said() if re.match(r"Trial \d+ (started:|trained|paused at|stopped at)", line)]
    assert len(lines) == 1 + sum(t.attempt for t in study.trials)
    assert max(map(len, lines[1:])) <= 110
    assert sum("opt=adam" in line for line in lines) == 12
    (chosen, *_) = [t for t in study.trials if "predicts" in t.proposed]
    assert chosen.proposed in study.explain(chosen.id)
    assert not any("predicts" in line for line in lines)


def test_a_trial_that_pauses_and_resumes_says_where_and_why_with_more_words(said):
    study = pausing_study(metric="loss", verbose=2)
    for trial in study:
        with trial:
            assert trial.config
            assert (trial.checkpoint is None) == (trial.epoch == 0)
            for epoch in trial.epochs():
                if trial.report(1.0 / epoch).stops:
                    trial.save(lambda path: path.write_text("weights"))
                    break
    lines = [line for line in said() if not line.startswith("Trial 0, epoch ")]
    assert len(said()) - len(lines) == 4
    assert lines[1] == "Trial 0 paused at epoch 2 of 4: loss 0.5, the best so far; a rung ends at 2"
    assert lines[2].startswith("Trial 0 resumed after epoch 2: lr=")
    assert lines[2].endswith(" (it was paused)")
    assert lines[3] == "Trial 0 trained in full, 4 epochs: loss 0.25, the best so far"


def test_a_search_that_somebody_stopped_is_not_over_nor_its_trial_interrupted(said):
    study = Study(PROBLEM, RandomSearch(trials=3), seed=0)
    for trial in study:
        with trial:
            trial.report(0.5)
            hold(study.store, study.name, "stopped by somebody")
            assert trial.report(0.5).stops
    assert any(line.startswith("Trial 0 stopped for now at epoch 2 of ") for line in said())
    assert said()[-2] == "The search is stopped for now: stopped by somebody"
    assert "saved)" not in said()[-1]


def test_what_a_user_typed_is_shown_on_one_line_and_obeyed_nowhere(said):
    evil = "a\x1b[2J\nb\u202e"
    problem = Problem(Space({f"n{evil}": Choice([evil, "c"])}), Maximize(f"m{evil}"), 1)
    for trial in Study(problem, RandomSearch(trials=2), seed=0):
        with trial:
            trial.report(0.5 * len(trial.config))
    assert len(said()) == 5
    assert not [line for line in said() if set(line) & set("\x1b\n\u202e")]
    assert "\\x1b[2J\\nb\\u202e" in said()[0]


# when


def test_a_terminal_shows_the_share_of_the_budget_and_the_time_that_is_left(said, monkeypatch):
    monkeypatch.setattr("haltune.study.messages._BETWEEN_LINES", 0.0)
    monkeypatch.setattr("haltune.study.messages.at_a_terminal", lambda: True)
    searched(trials=4, budget="4 trials")
    (half,) = [line for line in said() if "] 50% of the budget" in line]
    assert re.match(r"\[#{10}\.{10}\] 50% of the budget, about [\d.]+ s left: 2 of 4 trials, 8 epochs", half)
    assert re.match(r"\[#{20}\] 100% of the budget: 4 of 4 trials", said()[-2])


# for whom


@pytest.mark.parametrize("quiet", ["verbose", "level", "root", "disabled"])
def test_one_word_makes_it_silent_and_then_nothing_is_put_into_words(said, quiet, monkeypatch):
    log = logging.getLogger("haltune")
    if quiet == "level":
        monkeypatch.setattr(log, "level", logging.WARNING)
    elif quiet == "root":
        monkeypatch.setattr(log, "level", logging.NOTSET)
        monkeypatch.setattr(logging.getLogger(), "level", logging.ERROR)
    elif quiet == "disabled":
        monkeypatch.setattr(logging.root.manager, "disable", logging.INFO)
    log.manager._clear_cache()
    monkeypatch.setattr("haltune.study.messages.settings", lambda *_: pytest.fail("put into words"))
    searched(verbose=quiet != "verbose")
    assert said() == []
    monkeypatch.undo()
    log.manager._clear_cache()


PROGRAM = """
import logging, sys
from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.policies import RandomSearch, SuccessiveHalving
{setup}
problem = Problem(Space({{"lr": Float(0, 1)}}), Maximize("acc", (0, 1)), 2)
for trial in Study(problem, RandomSearch(trials=2), seed=0{options}):
    {inside}
    with trial:
        for epoch in trial.epochs():
            trial.report(trial.config["lr"])
print("result")
"""


def program(setup="", options="", inside="", **more):
    code = PROGRAM.format(setup=setup, options=options, inside=inside)
    return subprocess.run([sys.executable, "-c", code], text=True, timeout=120, check=True, **more)


@pytest.mark.parametrize(
    ("setup", "options", "inside", "mine"),
    [
        ("", "", "", [False] * 5),
        pytest.param(
            "logging.basicConfig(format='mine %(message)s', level=20)", "", "", [True] * 5, marks=pytest.mark.slow
        ),
        ("", "", "logging.basicConfig(format='mine %(message)s')", [False, *[True] * 4]),
        ("logging.disable()", "", "", []),
    ],
)
def test_a_program_with_logging_of_its_own_has_each_line_once_by_that_or_none(setup, options, inside, mine):
    lines = program(setup, options, inside, capture_output=True).stderr.splitlines()
    assert [line.startswith("mine ") for line in lines] == mine


def test_a_terminal_that_went_away_ends_no_search():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = program(stdout=subprocess.PIPE, stderr=writing)
    finally:
        os.close(writing)
    assert done.stdout == "result\n"
    assert program("sys.stderr.close()", capture_output=True).stdout == "result\n"


def launched(trial):
    for _ in trial.epochs():
        trial.report(trial.config["lr"])


def test_a_launcher_logs_each_trial_once_and_its_workers_none(said, tmp_path, capfd):
    study = Study(PROBLEM, RandomSearch(trials=2), tmp_path / "s.db", seed=0)
    run(study, launched, workers=1, logs=tmp_path / "logs")
    assert heads(line for line in said() if line.startswith("Trial ")) == [
        "Trial 0 started", "Trial 0 trained in full, 4 epochs", "Trial 1 trained in full, 4 epochs",
    ]  # fmt: skip
    assert str(tmp_path / "logs") in said()[0]
    assert [log.read_text() for log in sorted((tmp_path / "logs").iterdir())] == ["", ""]
    assert capfd.readouterr().err == ""


# what is said once


@pytest.mark.parametrize("seed", range(3))
def test_the_best_so_far_never_falls(said, seed):
    chance = np.random.default_rng(seed)
    study = Study({"x": Float(0.0, 1.0)}, Maximize("acc"), max_epochs=27, budget="14 trials", seed=seed, verbose=2)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                if trial.report(round(trial.config["x"] * 0.5 + chance.normal(0.0, 0.2), 4), epoch, seconds=1.0).stops:
                    break
    best = [re.search(r"acc ([-\d.]+), the best so far|best ([-\d.]+) \(trial \d+\)", line) for line in said()]
    values = [float(found[1] or found[2]) for found in best if found]
    complete = [re.search(r"best ([-\d.]+) \(trial \d+, complete\)", line) for line in said()]
    among_complete = [float(found[1]) for found in complete if found]
    assert len(values) + len(among_complete) > 3
    assert values == sorted(values)
    assert among_complete == sorted(among_complete)


@pytest.mark.parametrize(
    ("most", "line", "last", "head"),
    [
        (1, "the lowest of 2 complete trials within the limits", "within the limits", "lowest loss within the limits"),
        (0, "the nearest to the limits so far", "beyond the limits", "loss, of trial 2, the nearest to the limits"),
    ],
)
def test_the_best_within_limits_is_not_called_the_best_of_all(said, most, line, last, head):
    limits = [Constraint("gap", at_most=most + 0.5, changes=True)]
    study = Study(
        {"x": Float(0, 1)}, Minimize("loss"), max_epochs=2, policy=RandomSearch(), budget="4 trials", constraints=limits
    )
    for trial in study:
        for epoch in trial.epochs():
            loss, gap = [(0.125, 3), (0.75, 1.25), (0.5, 1), (0.25, 2)][trial.id]
            trial.report({"loss": loss + 2 - epoch, "gap": gap})
    assert [text for text in said() if text.startswith("Trial 2 ")] == [
        f"Trial 2 trained in full, 2 epochs: loss 0.5, gap 1, {line}; x={study.trials[2].config['x']:.3g}"
    ]
    assert said()[-1].endswith(f"best loss 0.5 (trial 2, {last})")
    assert f"(trial 2, epoch 2{', beyond the limits' * (most == 0)})" in summary(study)
    assert f"<small>{head}" in page(study)


def test_a_training_that_ignores_its_verdict_and_reaches_its_end_is_completed(said):
    policy = SuccessiveHalving(9, asynchronous="stop")
    study = Study(Problem(PROBLEM.space, PROBLEM.goal, 9), policy, seed=0, budget=Budget(trials=4))
    for trial in study:
        with trial:
            for epoch in range(1, 10):
                trial.report((4 - trial.id) * epoch / 100, epoch, seconds=1.0)
    assert any(t.verdict is not None for t in study.trials)
    assert {(str(t.status), t.epoch) for t in study.trials} == {("completed", 9.0)}
    assert all("trained in full" in study.explain(t.id) for t in study.trials)


def test_a_report_after_the_end_of_a_pause_warns_once():
    study = pausing_study()
    trial = study.ask()
    while not trial.report(0.1, seconds=1.0).stops:
        pass
    trial.finish()
    assert study.trials[0].status == "paused"
    with pytest.warns(
        HaltuneWarning, match=r"reported epoch \d+ after it was paused, so the report does not count"
    ) as w:
        trial.report(0.2, trial.epoch + 1, seconds=1.0)
        trial.report(0.3, trial.epoch + 2, seconds=1.0)
    assert len([one for one in w if "does not count" in str(one.message)]) == 1


def test_a_configuration_that_is_not_enqueued_says_why_and_what_to_do(said):
    study = Study(PROBLEM, RandomSearch(trials=2), seed=0)
    config = {"lr": 0.15, "opt": "adam"}
    assert study.enqueue(config)
    assert not study.enqueue(config)
    assert said()[-1].startswith(
        "Not enqueued: this configuration is in the queue already. To train it once more, call"
    )
    with pytest.raises(ValueError), study.ask():
        raise ValueError("boom")
    assert study.outcome.reason == "the search can continue, but trial 0 failed: ValueError: boom"
    assert not study.enqueue(config)
    assert said()[-1] == (
        "Not enqueued: trial 0 has this configuration (failed). To train it once more, call "
        "study.enqueue(config, again=True)."
    )


def test_a_search_in_which_nothing_trains_can_continue():
    study = Study(PROBLEM, RandomSearch(trials=2), seed=0)
    trial = study.ask()
    assert study.outcome.reason == "the search continues, with 1 unfinished trial"
    trial.interrupt()
    assert study.outcome.reason == "the search can continue, with 1 unfinished trial"
