"""Answers to users, checked against the log by an independent reader.

Searches of every policy, by two workers whose trials diverge, end by themselves, fail, are interrupted or killed.
"""

from __future__ import annotations

import math
import random
import re
import warnings
from html import unescape
from itertools import pairwise
from typing import Any

import pytest
from auditor import Auditor
from curves import accuracy
from everyone import each_of_one_goal
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import POLICIES, SPACE, Clock

from examples import many
from haltune import Budget, Checkpointing, Maximize, Minimize, Problem, Storage, Study, Trial
from haltune.cli import listings
from haltune.errors import HaltuneWarning
from haltune.log import events as ev
from haltune.log.events import to_json
from haltune.log.outcomes import OUTCOMES, Comparisons
from haltune.report import summary
from haltune.report.digest import digest
from haltune.report.page.items import PageContents
from haltune.store.checkpoints import keepers
from haltune.store.memory import MemoryStore
from haltune.study.session import clocked
from haltune.study.view import read_study

EPOCHS = 6


class Life:
    """Two workers on one log, and everything that may happen to them."""

    def __init__(self, name: str, seed: int, calm: bool = False) -> None:
        self.chance, self.calm = random.Random(seed), calm
        kind, bounds = self.chance.choice([(Maximize, (0, 1)), (Maximize, None), (Minimize, (0, 1))])
        goal = kind("metric", bounds, self.chance.choice(["last", "best"]))
        self.sign = goal.sign
        self.clock = Clock()
        self.store = MemoryStore(self.clock)
        self.problem = Problem(SPACE, goal, EPOCHS)
        limit = self.chance.choice([{"trials": 7}, {"epochs": 30.0}])
        self.studies = [self._study(name, seed, limit) for _ in range(2)]
        self.held: list[Trial | None] = [None, None]

    def _study(self, name: str, seed: int, limit: dict[str, Any]) -> Study:
        with clocked(lambda: self.clock.now, self._sleep):
            return Study(
                self.problem, POLICIES[name](), Storage(self.store, max_retries=5), seed=seed, budget=Budget(**limit),
                checkpoints=Checkpointing(keep=2), max_failures=50,
            )  # fmt: skip

    def _sleep(self, seconds: float) -> None:
        self.clock.now += seconds

    def live(self, steps: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HaltuneWarning)
            for _ in range(steps):
                self.step(self.chance.randrange(2))
        for study in self.studies:
            study.sync()

    def step(self, who: int) -> None:
        self.clock.now += 1.0
        trial = self.held[who]
        if trial is None:
            answer = self.studies[who].ask()
            self.held[who] = answer if isinstance(answer, Trial) else None
            assert not isinstance(answer, Trial) or answer.checkpoint is None or answer.epoch > 0
            return
        verdict = trial.report(self.value(trial), seconds=1.0) if trial.epoch < EPOCHS else None
        what = "" if self.calm else self.chance.choices(
            ["", "save", "itself", "fail", "interrupt", "kill"], [60, 20, 8, 4, 4, 4]
        )[0]  # fmt: skip
        if what == "save" or (verdict is not None and verdict.resumable and (self.calm or self.chance.random() < 0.8)):
            trial.save(lambda path: path.write_text("state"))
        if what in ("fail", "interrupt", "kill"):
            self._lose(who, trial, what)
        elif what == "itself" or verdict is None or verdict.stops or trial.epoch >= EPOCHS:
            trial.finish()
            self.held[who] = None

    def _lose(self, who: int, trial: Trial, what: str) -> None:
        if what == "fail":
            trial.fail(ValueError("boom"))
        elif what == "interrupt":
            trial.interrupt()
        else:  # as a launcher reports a killed worker
            trial.mark_lost("killed")
        self.held[who] = None

    def value(self, trial: Trial) -> float:
        if not self.calm and self.chance.random() < 0.1:
            return self.chance.choice([math.nan, math.inf, -math.inf])
        rising = accuracy(trial.config, trial.epoch + 1)
        value = min(1.0, max(0.0, rising + 0.2 * (self.chance.random() - 0.5)))
        return value if self.sign > 0 else 1.0 - value


def heard(log: list[Any]) -> Auditor:
    auditor = Auditor()
    for event in log:
        auditor.hear(to_json(event))
    return auditor


@each_of_one_goal
@settings(max_examples=many(3), deadline=None)
@given(seed=st.integers(0, 2**20), steps=st.integers(10, 90))
def test_every_answer_is_what_the_log_says(name: str, seed: int, steps: int) -> None:
    life = Life(name, seed)
    life.live(steps)
    auditor = heard(list(life.store.read("study")))
    for study in life.studies:
        check_best(study, auditor)
        check_spent(study, auditor)
    check_shown(life.studies[0], auditor)
    check_read(life, auditor)
    check_reasons(life)


def check_best(study: Study, auditor: Auditor) -> None:
    best, expected = study.best, auditor.best()
    assert (None if best is None else (best.trial, best.value, best.epoch)) == expected
    recommended = study.recommend()
    assert (recommended is None) == (expected is None)
    if recommended is not None:
        assert recommended.trial in auditor.candidates()
        assert (recommended.value, recommended.epoch) == auditor.counts(auditor.runs[recommended.trial])
    assert [t.complete for t in study.trials] == [auditor.complete(t) for t in auditor.trials]
    assert study.history.incumbent() == pytest.approx(auditor.incumbent(), abs=0, nan_ok=True)
    kept = keepers(study.history, 2)
    over = {  # an interrupted trial resumes, also one that is complete
        i
        for i, t in enumerate(auditor.trials)
        if t.status in ("completed", "stopped") or (t.status == "failed" and auditor.complete(t))
    }
    if expected is not None and expected[0] in over and not auditor.finished:
        assert kept[0] == expected[0]


def check_spent(study: Study, auditor: Auditor) -> None:
    spent = study.spent
    assert (spent.trials, spent.epochs) == (len(auditor.trials), auditor.epochs)
    assert [str(t.status) for t in study.trials] == [t.status for t in auditor.trials]
    assert [t.epoch for t in study.trials] == [t.epoch for t in auditor.trials]


def check_shown(study: Study, auditor: Auditor) -> None:
    shown, text = digest(study), summary(study)
    over = study.outcome.over and not study.outcome.held
    assert over >= bool(auditor.finished)
    fates = auditor.fates(over)
    assert shown.savings.epochs == auditor.saved_epochs(over)
    counted = dict(re.findall(r"(\d+) ([a-z ]+?)(?:,|$)", shown.states)[i][::-1] for i in range(len(fates)))
    assert {kind: int(counted[OUTCOMES[kind][n > 1]]) for kind, n in fates.items()} == dict(fates)
    best = auditor.best()
    assert (f"(trial {best[0]}, epoch {best[2]:g})" in text) if best else "no trial has reported" in text
    items = PageContents(study).quick()
    html = unescape("\n".join([items["head"], *(text for key, text in items.items() if key.startswith("row/"))]))
    cell = r"<td[^>]*>(.*?)</td>"
    cells = re.findall(
        rf'<tr data-trial="trial-(\d+)" data-kind="\w+"( class="best")?.*?><td[^>]*>\d+</td>{cell}{cell}', html
    )
    assert len(cells) == len(auditor.trials)
    for id, leads, epochs, value in cells:
        t = auditor.trials[int(id)]
        assert bool(leads) == (best is not None and best[0] == int(id))
        assert re.sub("<[^>]*>", "", epochs) == f"{t.epoch:g} of {EPOCHS}"
        if (counts := auditor.counts(t)) is not None:
            assert value == f"{counts[0]:.4g}"
    if best:
        assert f"<h1><b>{best[1]:.4g}</b>" in html
    assert ("The search is over" in html, "the search is over" in text) == (study.outcome.over,) * 2
    if (said := re.search(r"(\d+) trials? started, (\d+|none) trained in full", study.outcome.reason)) is not None:
        assert (said[1], said[2]) == (str(len(auditor.trials)), str(fates["completed"] or "none"))
    for t in study.trials:
        one = auditor.saved_of(auditor.trials[t.id], over)
        assert (f"{one:g} of {EPOCHS} epochs" in study.explain(t)) == (one > 0)


def check_read(life: Life, auditor: Auditor) -> None:
    study, reading = life.studies[0], read_study(life.store)
    told, best = listings.status_data(reading), auditor.best()
    assert told["trials"] == {s: n for s in told["trials"] if (n := sum(t.status == s for t in auditor.trials))}
    assert sum(told["trials"].values()) == len(auditor.trials)
    assert told["epochs"] == auditor.epochs
    assert told["complete"] == sum(map(auditor.complete, auditor.trials))
    found = told["best"] and (told["best"]["trial"], told["best"]["value"], told["best"]["epoch"])
    assert found == best
    rows = [listings.trial_data(t, Comparisons(reading.history, False)) for t in reading.trials]
    assert [(r["epoch"], r["complete"]) for r in rows] == [(t.epoch, auditor.complete(t)) for t in auditor.trials]
    for row, t in zip(rows, auditor.trials, strict=True):
        if (counts := auditor.counts(t)) is not None:
            assert row["value"] == counts[0]
    if "knows" not in told["reason"]:
        assert (told["state"] not in ("continues", "idle"), told["reason"]) == (
            study.outcome.over,
            study.outcome.reason,
        )


def check_reasons(life: Life) -> None:
    """Each number in a reason, by the log that its decision had seen."""
    log = list(life.store.read("study"))
    decided = [e for e in log if isinstance(e, ev.Started | ev.Reported)]
    auditor, at = Auditor(), 0
    for e in sorted(decided, key=lambda e: e.seen):
        while at < e.seen:
            auditor.hear(to_json(log[at]))
            at += 1
        if isinstance(e, ev.Started):
            check_proposal(e, auditor)
        else:
            check_verdict(e, auditor)


def check_proposal(e: ev.Started, auditor: Auditor) -> None:
    rung = re.search(r"; from \d+ trials? at (\d+) epochs?", e.reason)  # a sampler sees the trials as they were there
    for said in re.findall(r"P\(beats ([^)]+)\)", e.reason):
        assert said == f"{auditor.finished_best() if rung is None else auditor.best_at(int(rung[1])):.4g}"


def check_verdict(e: ev.Reported, auditor: Auditor) -> None:
    reason, evidence = e.verdict.reason, e.verdict.evidence
    for said in re.findall(r"P\(beats ([^)]+)\)", reason):
        assert said == f"{auditor.incumbent(e.trial):.4g}"
        assert evidence["incumbent"] == auditor.incumbent(e.trial)
    drawn = re.compile(r", by curves simulated at epoch ([\d.]+)")
    reason = re.sub(r"epoch [\d.]+ and (?=epoch)", "", reason)  # the two at which it diverged
    for said in drawn.findall(reason):
        assert float(said) == evidence["solved_at"] < e.epoch
    paused = re.compile(r"paused at epoch ([\d.]+) before")  # without a state, so that it trains to there again
    for said in paused.findall(reason):
        assert float(said) >= e.epoch
    reason = paused.sub("", reason)
    for said in re.findall(r"\bepoch ([\d.]+)", drawn.sub("", reason)):
        assert float(said) == evidence.get("audit", e.epoch)
    if "p_win" in evidence and (said := re.search(r"P\(beats [^)]+\) ([=<>]) (\S+) at", reason)) is not None:
        last = 10.0 ** -len(said[2].partition(".")[2])  # what its last digit is worth
        p, number = evidence["p_win"], float(said[2])
        assert {"=": abs(p - number) <= 0.501 * last, "<": p <= number, ">": p >= number}[said[1]]
        company = [evidence[name] for name in ("reference_full", "reference", "reference_known")]
        assert company == sorted(company)
        assert 0 <= company[0] <= company[2] < len(auditor.trials)
    if "rank" in evidence and (said := re.search(r"(\d+)(?:st|nd|rd|th) of (\d+) after", reason)) is not None:
        assert (int(said[1]), int(said[2])) == (evidence["rank"], evidence["arrived"])
        assert 1 <= evidence["rank"] <= evidence["arrived"]


# ranks, where nobody is lost: whoever arrived at a rung did so once


HALVING = [n for n in POLICIES if n in ("halving", "hyperband", "asha", "asha-stopping", "ladder")]


@pytest.mark.parametrize("name", HALVING)
@settings(max_examples=many(3), deadline=None)
@given(seed=st.integers(0, 2**20))
def test_a_rank_is_the_place_among_those_that_arrived_before(name: str, seed: int) -> None:
    life = Life(name, seed, calm=True)
    life.live(80)
    log = [to_json(e) for e in life.store.read("study")]
    ranked = [e for e in log if e["kind"] == "reported" and "rank" in e["verdict"].get("evidence", {})]
    for e in ranked:
        auditor = Auditor()
        for seen in log[: log.index(e)]:
            auditor.hear(seen)
        own = auditor.trials[e["trial"]].tags["bracket"]
        shared = name not in ("halving", "hyperband")
        at = {
            i: value
            for i, t in enumerate(auditor.trials)
            if (shared or t.tags["bracket"] == own) and (value := value_at(auditor, t.curve, e["epoch"])) is not None
        }
        mine = value_at(auditor, [*auditor.trials[e["trial"]].curve, (e["epoch"], e["value"])], e["epoch"])
        assert mine is not None
        better = sum((-value, i) < (-mine, e["trial"]) for i, value in at.items() if i != e["trial"])
        assert (e["verdict"]["evidence"]["rank"], e["verdict"]["evidence"]["arrived"]) == (better + 1, len(at) + 1)


def value_at(auditor: Auditor, curve: list[tuple[float, float]], epoch: float) -> float | None:
    """sign * what a run counted for when it arrived at an epoch; None when it did not."""
    before = [value for at, value in curve if at <= epoch]
    if not curve or curve[-1][0] < epoch:
        return None
    values = [auditor.sign * v for v in before]
    return values[-1] if auditor.of == "last" else max(values)


def test_the_auditor_hears_every_kind_of_ending() -> None:
    """The lives above are worth something: all kinds of fates, both rules, both workers occur in them."""
    fates: set[str] = set()
    for seed in range(8, 20):
        life = Life("halving" if seed % 2 else "random", seed)
        life.live(90)
        auditor = heard(list(life.store.read("study")))
        fates |= set(auditor.fates(over=False))
        assert all(a[0] < b[0] for t in auditor.trials for a, b in pairwise(t.curve))
    assert {"completed", "itself", "nothing", "stopped", "paused", "failed", "interrupted"} - fates == set()
