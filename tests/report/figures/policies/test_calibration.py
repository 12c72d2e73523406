"""Calibration of probabilities, against counts by hand."""

import pytest
from scipy.stats import beta
from told import told

from haltune import Float, Maximize, Problem, Space
from haltune.log.decisions import continue_
from haltune.log.events import Ended, Reported, Started, Status
from haltune.report.figures.decisions import calibration_spec, grouped
from haltune.report.story import Story


def audited(chances, end, audit=True, status=Status.COMPLETED):
    """Return the events of a trial with these probabilities to beat 0.5, one per epoch, and the final value `end`."""
    evidence = {"audit": 0.5} if audit else {}

    def events(trial):
        yield Started(
            at=0.0, trial=trial, config={"lr": 0.5}, pause_at=None, resource=None, tags={}, reason="",
            evidence=evidence, seen=0, deciding=0.0, worker="w",
        )  # fmt: skip
        for n, p in enumerate(chances, 1):
            value = end if n == len(chances) else 0.1
            verdict = continue_("on", p_win=p, incumbent=0.5)
            yield Reported(
                at=n, trial=trial, attempt=1, epoch=float(n), value=value, seconds=1.0, verdict=verdict, seen=0
            )
        if status is not None:
            yield Ended(at=9.0, trial=trial, attempt=1, status=status)

    return events


def groups(*runs, goal=None):
    history = told(Problem(Space({"lr": Float(0, 1)}), goal or Maximize("acc", (0, 1)), 3))
    story = Story(history.problem)
    for trial, run in enumerate(runs):
        for event in run(trial):
            history.apply(event)
            story.fold([event])
    return story, history


def test_a_run_counts_once_in_each_range_by_the_first_chance_that_was_stated():
    runs = [audited([0.3, 0.4, 0.02], 0.6), audited([0.1, 0.22, 0.9], 0.4), audited([0.26, 0.03, 0.3], 0.2)]
    found = [(g.stated, g.won.count, g.won.of) for g in grouped(*groups(*runs))]
    assert found == [
        (pytest.approx((0.02 + 0.03) / 2), 1, 2),
        (pytest.approx(0.1), 0, 1),
        (pytest.approx((0.3 + 0.22 + 0.26) / 3), 1, 3),
        (pytest.approx(0.9), 0, 1),
    ]


def test_the_intervals_are_exact():
    runs = [audited([0.3] * 3, 0.6 if n < 2 else 0.1) for n in range(7)]
    (span,) = calibration_spec(*groups(*runs))["layout"]["shapes"]
    assert (span["y0"], span["y1"]) == pytest.approx((beta.ppf(0.025, 2, 6), beta.ppf(0.975, 3, 5)), abs=1e-6)


def test_only_audited_runs_whose_end_is_known_count():
    runs = [
        audited([0.3] * 3, 0.6, audit=False),
        audited([0.3] * 2, 0.6, status=None),
        audited([0.3] * 2, 0.6, status=Status.FAILED),
        audited([0.3] * 2, 0.6, status=Status.STOPPED),
    ]
    story, history = groups(*runs)
    assert grouped(story, history) == []
    assert "No audited trial" in calibration_spec(story, history)["layout"]["annotations"][0]["text"]
