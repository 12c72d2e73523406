"""The page: self-contained, escaped, written at once."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from told import a_search, tell_trial, told
from worlds import small_study

from haltune import Choice, Constraint, Float, HaltuneError, Maximize, Problem, Space, Study
from haltune.display import duration
from haltune.log.events import Status
from haltune.policies import GPUCB, Halting, OptimalStopping, Policy, RandomSearch, Start
from haltune.report import learning_curves, write
from haltune.report.digest import digest
from haltune.report.page import words
from haltune.study.view import read_study


class Seen(HTMLParser):
    """The content of a page: tags, attributes, and text outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.handlers, self.text, self._inside = [], [], [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self._inside = tag
        self.links += [v for k, v in attrs if k in ("src", "href", "srcset", "action", "data")]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in ("script", "style"):
            self.text += data


def page_of(history, tmp_path):
    return write(history, tmp_path / "page.html").read_text(encoding="utf-8")


def items_of(page):
    """The figures on a page, as data."""
    (text,) = re.findall(r'<script type="application/json" id="items">(.*?)</script>', page, re.S)
    return json.loads(text)["items"]


def test_the_page_needs_no_network(tmp_path):
    page = page_of(a_search(), tmp_path)
    seen = Seen(page)
    assert seen.links == []
    style = page.split("</style>")[0]
    assert "@import" not in style
    assert "url(" not in style
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)  # a name space is no address


def test_the_page_of_a_hundred_trials_is_light(tmp_path):
    history = told()
    for n in range(100):
        tell_trial(history, [0.9 - 0.5 / epoch - n / 1000 for epoch in range(1, 11)])
    assert len(page_of(history, tmp_path).encode()) < 500_000


def test_the_page_shows_the_result_and_the_saved_epochs(tmp_path):
    text = re.sub(r"\s+", " ", Seen(page_of(a_search(), tmp_path)).text)
    assert "0.95 highest acc" in text
    assert "Best configuration trial 0, at epoch 10 lr0.25" in text
    assert "15 epochs trained" in text  # 10 + 2 + 3
    assert "8 epochs saved" in text  # of the one that was stopped; the one that failed saved nothing
    assert "about 16 s" in text  # 8 epochs of 2 seconds
    assert "35% saved" in text  # 8 of 23
    assert "RuntimeError: boom" in text


def test_what_a_user_typed_is_text_and_never_markup(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&%{y}"
    history = told(Problem(Space({evil: Choice(["plain", evil])}), Maximize(evil, (0, 1)), 10))
    tell_trial(history, [0.5] * 10, config={evil: "plain"}, proposed=evil, tags={"level": evil})
    tell_trial(history, [0.2, 0.1], Status.STOPPED, {evil: evil}, evil)
    tell_trial(history, [0.2], Status.FAILED, {evil: evil}, error=evil)
    page, harmless = page_of(history, tmp_path), page_of(a_search(), tmp_path)
    seen, expected = Seen(page), Seen(harmless)
    for tag in ("script", "img", "style", "tr"):
        assert seen.tags.count(tag) == expected.tags.count(tag)
    assert seen.links == seen.handlers == []
    assert evil in seen.text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.44, "0.4 s"), (59.6, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"),
    ],
)  # fmt: skip
def test_durations_are_written_as_people_say_them(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    "history",
    [
        told(),
        tell_trial(told(), [], None),
        tell_trial(told(), [math.nan, -math.inf], Status.STOPPED),
        tell_trial(told(Problem(Space({"lr": Float(0, 1)}), Maximize("acc"), None)), [0.5, 0.6]),
        tell_trial(told(Problem(Space({"lr": Float(0, 1)}), Maximize("acc"), 1)), [0.5]),
    ],
    ids=["no trial", "no report", "nothing finite", "no horizon", "one epoch"],
)
def test_there_is_always_a_page(history, tmp_path):
    found = items_of(page_of(history, tmp_path))
    assert found["figure/curves"]["layout"]["xaxis"]["title"]["text"] == "epoch"


def test_the_same_history_gives_the_same_page(tmp_path):
    assert page_of(a_search(), tmp_path) == page_of(a_search(), tmp_path)


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    target = write(told(), tmp_path / "page.html")
    before = target.read_bytes()

    def broken(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(HaltuneError, match=r"cannot write .*page\.html: the disk is gone. Use a file"):
        write(a_search(), target)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(HaltuneError, match="the folder"):
        write(told(), tmp_path / "nowhere" / "page.html")


def test_importing_the_report_brings_neither_plotly_nor_rich():
    code = "import sys, haltune.report; print({'plotly', 'rich'} & {m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def audited(metric, name="study", policy=None):
    """Return a search with audited trials only, two of them losing from the start."""
    problem = Problem(Space({metric: Float(0.0, 1.0)}), Maximize(metric, (0, 1)), 10)
    study = small_study(
        policy or Halting(RandomSearch(), OptimalStopping(paths=2000), audit=1.0), problem=problem, trials=3, name=name
    )
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report((0.9, 0.3, 0.2)[trial.id] - 0.1 / epoch, seconds=1.0)
    return study


def test_an_audit_has_a_section_with_what_became_of_its_runs(tmp_path):
    study = audited("acc")
    text = re.sub(r"\s+", " ", Seen(page_of(study, tmp_path)).text)
    assert study.audit().stops == 2
    assert "audit of 100% of the trials: 3 drawn so far, 2 of them would have been stopped; wrong stops 0 of 2" in text
    for run in study.audit().runs:
        assert str(run) in text
    assert f"the audit cost {study.audit().cost:g} epochs" in text


def test_a_would_be_stop_is_marked_on_its_curve():
    study = audited("acc")
    (trace,) = (t for t in learning_curves(study).data if t.uid == "audited")
    runs = study.audit().runs
    values = [float(study.trials[r.trial].values[int(r.epoch) - 1]) for r in runs]
    assert (list(trace.x), list(trace.y)) == ([r.epoch for r in runs], values)
    assert list(trace.ids) == [f"trial-{r.trial}" for r in runs]
    assert "a right stop" in " ".join(trace.customdata[0].split("<br>"))
    assert trace.name == "would have been stopped, audited (2)"
    assert not any(t.uid == "audited" for t in learning_curves(study.history).data)  # knows of no audit


# -- more trials than a page shows -------------------------------------------------------------


@pytest.fixture(scope="module")
def many_trials(tmp_path_factory):
    """5,000 short trials, of which the best end late in the log, some fail and some have no value; and their page."""
    history, rng = told(), np.random.default_rng(0)
    for n in range(5000):
        values = [float(v) for v in rng.random(2)]
        if n % 50 == 7:
            tell_trial(history, [math.nan], Status.FAILED, error="x" * 100_000)
        else:
            tell_trial(history, values, Status.STOPPED if n % 3 else Status.COMPLETED)
    return history, write(history, tmp_path_factory.mktemp("many") / "page.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_of_many_trials_the_best_and_a_sample_are_shown_and_it_says_so(many_trials):
    history, page = many_trials
    told_first = [int(n) for n in re.findall(r'<tr data-trial="trial-(\d+)"', page)]
    rows = sorted(told_first)
    complete = [t for t in history.trials if t.status is Status.COMPLETED]  # nothing cut these
    ranked = sorted(complete, key=lambda t: -t.values[-1])
    assert told_first[:1000] == [t.id for t in ranked[:1000]]
    assert len(rows) == len(set(rows)) == 2000
    assert {t.id for t in ranked[:1000]} <= set(rows)
    others = [n for n in range(5000) if n not in {t.id for t in ranked[:1000]}]
    spread = sorted(others, key=lambda n: n * (math.sqrt(5.0) - 1.0) / 2.0 % 1.0)[:1000]
    assert sorted([*(t.id for t in ranked[:1000]), *spread]) == rows
    assert "2,000 of 5,000 trials are shown: the best 1,000, and an evenly spaced sample of as many others" in page
    assert '<h2 id="trials">Trials <small class="quiet">2,000 of 5,000</small></h2>' in page


@pytest.mark.slow
def test_totals_are_of_all_trials_and_the_figure_shows_those_of_the_table(many_trials):
    history, page = many_trials
    counts = {status: len(history.with_status(status)) for status in Status}
    assert "<b>5000 trials</b>" in page
    assert f"{counts[Status.STOPPED]} stopped early" in page
    assert f"<b>{history.spent.epochs:g} epochs</b>" in page
    rows = set(re.findall(r'<tr data-trial="(trial-\d+)"', page))
    drawn = {key.removeprefix("curve/") for key in items_of(page) if key.startswith("curve/trial-")}
    valued = {f"trial-{t.id}" for t in history.trials if np.isfinite(t.values).any()}
    assert drawn == rows & valued
    assert re.search(rf"stopped early \(\d+ of {counts[Status.STOPPED]}\)", page)
    assert f'data-trial="trial-{history.best().trial}" data-kind="itself" class="best"' in page


def test_a_page_has_a_size_that_neither_trials_nor_errors_exceed(many_trials):
    assert len(many_trials[1]) < 20_000_000


def test_the_page_states_the_probability_of_a_better_configuration_only_where_it_was_measured(tmp_path):
    """Four trials of 20 s are too few; five took 1 min 40 s."""
    pages = []
    for policy, trials in ((RandomSearch(), 4), (RandomSearch(), 5), (GPUCB(), 5)):
        study = Study({"x": Float(0, 1)}, "acc", policy=policy, max_epochs=1, budget=f"{trials} trials", verbose=0)
        for trial in study:
            trial.report(0.8 - 0.1 * abs(3 - trial.id), seconds=20.0)
            trial.finish()
        pages.append(write(study, tmp_path / "page.html").read_text(encoding="utf-8"))
    assert ["If the search continues" in page for page in pages] == [False, True, False]
    assert (
        "If the search continues for another 1 min 40 s, as much as it has taken so far, it finds a better "
        "configuration with an estimated probability of 50%."
    ) in pages[1]


def test_the_page_of_a_search_that_continues_states_how_far_it_is_under_any_policy(tmp_path):
    study = Study({"x": Float(0, 1)}, "acc", policy=GPUCB(), max_epochs=2, budget="4 trials", verbose=0)
    study.ask().report(0.5, seconds=1.0)
    assert re.search(r"The search continues: 25% of the budget is spent, about .* left\.", page_of(study, tmp_path))
    endless = Study({"x": Float(0, 1)}, "acc", policy=RandomSearch(trials=9), max_epochs=2, verbose=0)
    endless.ask().report(0.5, seconds=1.0)
    assert "The search continues." in page_of(endless, tmp_path)


def test_the_page_of_a_finished_search_states_how_to_continue_and_where_the_best_model_is(tmp_path):
    study = Study({"x": Float(0, 1)}, "acc", tmp_path / "a.db", max_epochs=1, budget="2 trials", verbose=0)
    found = []
    for trial in study:
        trial.report(0.1 + trial.id)
        trial.save(lambda path: path.write_text("weights"))
        found.append(page_of(study, tmp_path))
    found.append(page_of(study, tmp_path))
    assert ["pass a larger" in page for page in found] == [False, False, True]
    assert ["study.best.checkpoint" in page for page in found] == [False, False, True]


def test_a_value_that_is_not_finite_is_sorted_as_none(tmp_path):
    problem = Problem(Space({"lr": Float(0, 1)}), Maximize("acc"), 1, constraints=[Constraint("ms", at_most=9.0)])
    page = page_of(tell_trial(told(problem), [0.5], metrics={"ms": [math.nan]}), tmp_path)
    assert '<td data-of="ms" data-v="">nan</td>' in page


def test_the_explanation_in_a_row_says_of_a_lost_trial_what_its_row_says():
    facts = digest(tell_trial(told(), [0.5], None))
    made = words.row(facts, replace(facts.rows[0], kind="lost", outcome="lost, its worker is gone"))
    assert made.count("lost, its worker is gone") == 2


class Own(Policy[None]):
    def start(self, problem):
        return None

    def fold(self, state, event):
        return None

    def propose(self, state, history, rng):
        return Start({"lr": 0.5}, reason="the middle")


def test_a_policy_of_the_users_own_is_named_by_its_class_also_without_its_program(tmp_path):
    study = Study({"lr": Float(0.0, 1.0)}, "acc", tmp_path / "own.db", policy=Own(), max_epochs=1, budget="1 trial")
    study.optimize(lambda trial: 0.5)
    assert "<th>policy</th><td>Own()</td>" in page_of(study, tmp_path)
    assert "<th>policy</th><td>Own</td>" in page_of(read_study(tmp_path / "own.db"), tmp_path)
