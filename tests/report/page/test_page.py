"""The page: self-contained, escaped, written at once."""

import html
import json
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from told import a_search, tell_trial, told
from worlds import POLICIES, search, small_study

from haltune import (
    Choice,
    Constraint,
    Float,
    HaltuneError,
    Maximize,
    Minimize,
    OptimalStopping,
    Problem,
    Space,
    Study,
)  # fmt: skip
from haltune.display import duration
from haltune.log.events import Budgeted, Raised, Status
from haltune.policies import GPUCB, Halting, RandomSearch
from haltune.report import learning_curves, summary, write
from haltune.report.page.items import ToldSearch


class Seen(HTMLParser):
    """What a browser would see: tags, attributes, and text outside scripts and styles."""

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


def test_the_page_needs_no_plotly(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    assert "figure/curves" in items_of(page_of(a_search(), tmp_path))


def test_the_page_tells_the_result_and_what_was_saved(tmp_path):
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
        (0.44, "0.4 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (200, "3 min 20 s"),
        (2062, "34 min"), (3599, "1 h"), (7500, "2 h 5 min"),
    ],
)  # fmt: skip
def test_durations_are_written_as_people_say_them(seconds, words):
    assert duration(seconds) == words


def test_many_parameters_share_one_column(tmp_path):
    names = [f"p{i}" for i in range(30)]
    history = told(Problem(Space({n: Float(0, 1) for n in names}), Maximize("acc"), 10))
    tell_trial(history, [0.1], config=dict.fromkeys(names, 0.5))
    seen = Seen(page_of(history, tmp_path))
    assert re.findall(r"<th[^>]*><button[^>]*>(.*?)</button>", page_of(history, tmp_path)) == [
        "trial", "epochs", "acc", "configuration", "outcome",
    ]  # fmt: skip
    assert "p29=0.5" in seen.text


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


def test_hundreds_of_trials_have_a_row_each(tmp_path):
    history = told()
    for i in range(300):
        tell_trial(history, [i / 1000, i / 500], Status.STOPPED)
    assert page_of(history, tmp_path).count("<tr data-trial=") == 300


def test_a_study_that_is_over_says_why(tmp_path):
    study = search(small_study(RandomSearch(trials=2)))
    text = Seen(page_of(study, tmp_path)).text
    assert "The search is over: all 2 random configurations were started." in text


def test_the_same_history_gives_the_same_page(tmp_path):
    assert page_of(a_search(), tmp_path) == page_of(a_search(), tmp_path)


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    target = write(told(), tmp_path / "page.html")
    before = target.read_bytes()

    def broken(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(HaltuneError, match=r"cannot write .*page\.html: the disk is gone; name a file"):
        write(a_search(), target)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(HaltuneError, match="no folder"):
        write(told(), tmp_path / "nowhere" / "page.html")


def test_importing_the_report_brings_neither_plotly_nor_rich():
    code = "import sys, haltune.report; print({'plotly', 'rich'} & {m.split('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_each_trial_tells_why_it_was_chosen_and_how_carefully_it_was_measured(tmp_path):
    found = small_study(RandomSearch(trials=2))
    search(found)
    seen = Seen(page_of(found, tmp_path))
    assert found.trials[0].proposed
    assert seen.text.count(f"Proposed: {found.trials[0].proposed}") == 2
    assert "level" not in seen.text
    assert "cross" not in seen.text  # nothing was stopped
    history = told()
    tell_trial(history, [0.5] * 10, tags={"level": "3 seeds"})
    seen = Seen(page_of(history, tmp_path))
    assert "level" in seen.text
    assert "3 seeds" in seen.text


def audited(metric, name="study", policy=None):
    """A search of which all runs are audited, two of them losers from the start."""
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


def test_the_page_says_what_a_circled_cross_is_where_there_is_one(tmp_path):
    said = "circled cross"
    notes = [
        items_of(page_of(source, tmp_path))["figure/curves"]["layout"]["meta"]["note"]
        for source in (audited("acc"), a_search())
    ]
    assert [said in note for note in notes] == [True, False]


def test_a_reason_has_a_row_of_its_own_as_wide_as_the_table(tmp_path):
    names = [f"hyperparameter_{n}" for n in range(8)]
    problem = Problem(Space({n: Float(0.0, 1.0) for n in names}), Maximize("acc", (0, 1)), 10)
    study = small_study(Halting(RandomSearch(), OptimalStopping(paths=2000)), problem=problem, trials=2)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                if trial.report((0.9, 0.2)[trial.id] - 0.1 / epoch, seconds=1.0).stops:
                    break
    page = page_of(study, tmp_path)
    (why,) = re.findall(
        r'<tr class="why" data-trial="trial-1"><td colspan="(\d+)"><div class="because">(.*?)<br>', page
    )
    columns = len(re.findall(r"<th[^>]*><button", page))
    assert why == (str(columns), html.escape(study.trials[1].verdict.reason, quote=True))
    assert columns == len(names) + 4


def test_without_an_audit_nothing_is_said_of_one(tmp_path):
    study = audited("acc", policy=Halting(RandomSearch(), OptimalStopping(paths=2000)))
    for source in (study, a_search()):
        assert "<h2>Audit" not in page_of(source, tmp_path)
    assert "audit" not in summary(study)


def test_what_a_user_typed_is_text_in_an_audit_too(tmp_path):
    evil = "</p><script>alert(1)</script><img src=x>"
    seen, expected = (Seen(page_of(audited(name, name), tmp_path)) for name in (evil, "acc"))
    for tag in ("script", "img", "li", "p"):
        assert seen.tags.count(tag) == expected.tags.count(tag)


def test_the_summary_of_an_audited_search_has_a_line_of_it():
    lines = summary(audited("acc")).splitlines()
    assert sum("audit of 100%" in line for line in lines) == 1
    assert any("wrong stops 0 of 2: 0%, 95% interval 0% to 84.2%" in line for line in lines)


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
    assert "Of 5,000 trials 2,000 are shown: the best 1,000, and of all others as many spread over their" in page
    assert '<h2 id="trials">Trials <small class="quiet">2,000 of 5,000</small></h2>' in page


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


@pytest.mark.slow
def test_a_page_has_a_size_that_the_length_of_curves_does_not_exceed(tmp_path):
    long = Problem(Space({"lr": Float(0, 1)}), Maximize("acc", (0, 1)), 20_000)
    history = told(long)
    for n in range(30):
        curve = np.sin(np.arange(20_000.0) / 999 + n)
        curve[601 * n + 5] = 5.0 + n  # the best epoch is drawn, wherever it lies
        tell_trial(history, curve.tolist(), seconds=0.1)
    page = write(history, tmp_path / "long.html").read_text(encoding="utf-8")
    assert len(page) < 6_000_000
    assert all(f"{5.0 + n}" in page for n in range(30))


def test_up_to_two_thousand_trials_each_is_shown_and_nothing_is_said(tmp_path):
    history = told()
    for n in range(2000):
        tell_trial(history, [n / 2000])
    page = write(history, tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<tr data-trial=") == 2000
    assert "are shown" not in page


def test_a_page_that_follows_a_search_shows_a_raised_limit_before_anything_else_happens():
    history = tell_trial(told(), [0.5])
    history.apply(Budgeted(at=history.now, budget={"trials": 4}))
    page = ToldSearch(history)
    before = page.items()["figure/budget"]["layout"]["meta"]["alt"]
    history.apply(Raised(at=history.now, budget={"trials": 9}))
    page.read()
    assert "1 of 4 trials" in before
    assert "1 of 9 trials" in page.items()["figure/budget"]["layout"]["meta"]["alt"]


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


def test_the_page_says_that_its_predictions_do_not_use_prior_studies_where_there_are_some(tmp_path):
    def page(policy):
        return page_of(search(small_study(policy, trials=6)), tmp_path)

    note = "use the trials of this study alone"
    assert note in page(POLICIES["multifidelity-taught"]())
    assert note in page(Halting(POLICIES["multifidelity-taught"](), OptimalStopping()))
    assert note not in page(POLICIES["multifidelity"]())


def test_large_numbers_of_other_goals_are_written_out_and_as_exactly_as_the_first(tmp_path):
    goals = [Maximize("acc", (0, 1)), Minimize("ms")]
    constraint = Constraint("params", at_most=1e6)
    study = Study({"lr": Float(0.1, 1.0)}, goals, constraints=[constraint], max_epochs=1, budget="2 trials", verbose=0)
    for trial in study:
        trial.report({"acc": 0.91234, "ms": 2.3456}, metrics={"params": 13310.0})
        trial.finish()
    text = write(study, tmp_path / "page.html").read_text(encoding="utf-8")
    row = re.search(r'<tr data-trial="trial-0" data-kind.*?</tr>', text, re.DOTALL)
    assert row is not None
    assert [cell in row[0] for cell in (">0.9123<", ">2.346<", ">13310<")] == [True] * 3


def test_bars_of_few_trials_stand_together():
    history = told()
    for value in (0.3, 0.5):
        tell_trial(history, [value] * 10)
    layout = ToldSearch(history).items()["figure/budget"]["layout"]
    axis = next(axis for name, axis in layout.items() if name.startswith("xaxis") and "trials" in axis["title"]["text"])
    low, high = axis["range"]
    assert (2 - 1) / (high - low) <= 0.1
