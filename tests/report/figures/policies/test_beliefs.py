"""The figure of what AutoBCT believes, against its own model and its own decisions."""

import math
from functools import cache

import numpy as np
import pytest

from haltune import Budget, Choice, Float, HaltuneError, Int, Maximize, Minimize, Problem, Space, Study
from haltune.log.decisions import Finish
from haltune.log.events import Ended
from haltune.policies import AutoBCT, Halting, RandomSearch, TruVaR
from haltune.report import posterior, region
from haltune.report.figures.beliefs import beliefs_of, region_spec
from haltune.report.page.items import PageContents

pytest.importorskip("plotly")

LR = Float(1e-4, 1.0, log=True)
SPACES = {
    "one": Space({"lr": LR}),
    "two": Space({"lr": LR, "batch": Int(8, 256, log=True)}),
    "three": Space({"lr": LR, "drop": Float(0.0, 0.5), "kind": Choice(["a", "b"])}),
}


@cache
def searched(space="one", trials=20, gamma=0.02, sign=1.0):
    goal = Maximize("acc", (0, 1)) if sign > 0 else Minimize("loss")
    study = Study(
        Problem(SPACES[space], goal, 1), AutoBCT(gamma=gamma), seed=1, budget=Budget(trials=trials), verbose=0
    )
    for trial in study:
        with trial:
            far = abs(math.log10(trial.config["lr"]) + 2)
            height = 0.95 - 0.12 * far**2 - trial.config.get("drop", 0.0) / 10
            trial.report(height if sign > 0 else 2 - height, seconds=60 / trial.config["lr"] ** 0.2)
    return study


def own(study):
    """The policy's own view of a study, by the policy's own questions."""
    history, ended = study.history, [e.trial for e in study.events() if isinstance(e, Ended)]
    return study.policy.assess(history, ended)


def panels(figure):
    found = {}
    for trace in figure.data:
        found.setdefault(trace.xaxis, []).append(trace)
    return [found[name] for name in ("x", "x2", "x3", "x4")]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_expected_is_what_the_model_of_the_policy_says(sign):
    study = searched(sign=sign)
    seen = own(study)
    score, cost, *_ = panels(posterior(study))
    band, line, _ = score
    for at in (0, 17, 40):
        phi = seen.beliefs.on(study.history.problem.space.encode({"lr": line.x[at]})[None])
        mean = float((phi @ seen.beliefs.score.mean)[0])
        sd = math.sqrt(float((phi @ seen.beliefs.score.cov @ phi.T)[0, 0]))
        assert line.y[at] == pytest.approx(seen.ruler.raw(mean))
        ends = [seen.ruler.raw(mean + sd), seen.ruler.raw(mean - sd)]
        assert sorted([band.y[at], band.y[-1 - at]]) == pytest.approx(sorted(ends))
        seconds = seen.ruler.seconds(float((phi @ seen.beliefs.cost.mean)[0]))
        assert cost[1].y[at] * 60 == pytest.approx(seconds)


def test_the_trainings_are_drawn_at_their_final_values_with_their_numbers():
    study = searched()
    score, cost, *_, path = panels(posterior(study))
    values = [t.values[-1] for t in study.trials]
    for dots in (score[-1], path[-1]):
        assert list(dots.y) == values
    assert list(score[-1].text) == [str(n) for n in range(1, len(values) + 1)]
    assert list(cost[-1].y) == pytest.approx([t.seconds.sum() / 60 for t in study.trials])
    best = [colour == "#d55e00" for colour in score[-1].marker.color]
    assert np.flatnonzero(best).tolist() == [study.best.trial]


@pytest.mark.parametrize(("space", "sign"), [("one", -1.0), pytest.param("three", 1.0, marks=pytest.mark.slow)])
def test_it_says_to_end_where_the_policy_ends_and_to_continue_where_it_continues(space, sign):
    whole = searched(space, sign=sign)
    assert whole.history.finished
    for trials in range(3, len(whole.trials) + 1):
        study = searched(space, trials, sign=sign)
        move = study.policy.propose(
            tuple(range(trials)), study.history, study.history.rng("propose", len(study.trials))
        )
        worth = panels(posterior(study))[2][-1]
        rings = [symbol == "circle-open" for symbol in worth.marker.symbol]
        assert all(rings) == isinstance(move, Finish) == (trials == len(whole.trials))
        assert beliefs_of(study).now.stops == isinstance(move, Finish)


def test_the_page_of_such_a_search_shows_it_and_that_of_another_does_not():
    assert "figure/posterior" in PageContents(searched()).items()
    guarded = Halting(AutoBCT(gamma=0.02))
    assert (
        "figure/posterior" in PageContents(Study(Problem(SPACES["one"], Maximize("acc"), 5), guarded, seed=0)).items()
    )
    other = Study(Problem(SPACES["one"], Maximize("acc"), 1), RandomSearch(), seed=0, budget=Budget(trials=1))
    assert "figure/posterior" not in PageContents(other).items()
    with pytest.raises(HaltuneError, match=r"AutoBCT\(\)"):
        posterior(other)


def test_before_anything_is_weighed_so_it_is_said_and_a_name_that_is_no_parameter_is_refused():
    assert "No decision was made yet" in posterior(searched(trials=1)).layout.annotations[0].text
    with pytest.raises(HaltuneError, match="parameters lr"):
        posterior(searched(), "width")


# -- the figure of a level set shows what the answer says


pytest.importorskip("plotly")


def studied(space, threshold=0.5, **options):
    policy = TruVaR(threshold=threshold, noise=1e-6, initial=6, **options)
    study = Study(Problem(space, Maximize("v"), 1), policy, seed=0, budget=Budget(trials=14))
    for trial in study:
        trial.report(trial.config["x"] * (1.0 - trial.config.get("lr", 0.0)))
        trial.finish()
    return study


def test_a_mesh_has_a_boundary_and_every_configuration_is_a_point():
    found = studied(Space({"x": Float(0, 1), "lr": Float(1e-3, 1, log=True)}), grid=6).level_set()
    figure = region(found)
    contour, settled, undecided = figure.data
    assert np.shape(contour.z) == (6, 6)
    assert len(settled.x) == int((~found.open).sum())
    assert len(undecided.x) == int(found.open.sum())
    assert np.allclose(settled.marker.color, found.probability[~found.open])
    assert figure.layout.yaxis.type == "log"


def test_a_choice_has_no_boundary_and_may_mix_texts_and_numbers():
    found = studied(Space({"x": Float(0, 1), "kind": Choice(["auto", 1])}), grid=4).level_set()
    figure = region(found)
    assert {trace.type for trace in figure.data} == {"scatter"}
    assert {y for trace in figure.data for y in trace.y} == {"auto", 1}


def test_an_axis_that_is_not_named_is_another_parameter():
    found = studied(Space({"x": Float(0, 1), "lr": Float(1e-3, 1, log=True)}), grid=4).level_set()
    for figure, axes in (
        (region(found), ("x", "lr")),
        (region(found, "lr"), ("lr", "x")),
        (region(found, along="x"), ("lr", "x")),
    ):
        assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == axes
    with pytest.raises(HaltuneError, match="two of the parameters x, lr"):
        region(found, "lr", "lr")


def test_by_the_only_parameter_there_is_the_metric_is_drawn_against_the_threshold():
    found = studied(Space({"x": Float(0, 1)}), grid=9).level_set()
    figure = region(found)
    assert region(found, along="x").to_dict() == region(found, "x").to_dict() == figure.to_dict()
    assert figure.layout.yaxis.title.text == "v"
    assert figure.layout.shapes[0].y0 == figure.layout.shapes[0].y1 == 0.5
    drawn = {x: y for trace in figure.data for x, y in zip(trace.x, trace.y, strict=True)}
    assert drawn == {c["x"]: pytest.approx(m) for c, m in zip(found.configs, found.mean, strict=True)}


def test_the_page_of_such_a_search_shows_its_region_and_that_of_another_does_not():
    study = studied(Space({"x": Float(0, 1), "lr": Float(1e-3, 1, log=True)}), grid=6)
    told = PageContents(study).items()["figure/region"]
    found = study.level_set()
    assert told["layout"]["meta"]["alt"].startswith(f"{len(found.high)} configurations reach it")
    assert told == region_spec(found)
    problem = Problem(Space({"x": Float(0, 1)}), Maximize("v"), 1)
    other = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=1))
    assert "figure/region" not in PageContents(other).items()


@pytest.mark.parametrize("along", ["lr", None])
def test_what_may_be_the_best_is_seen_over_what_cannot_be(along):
    more = {"lr": Float(1e-3, 1, log=True)} if along else {}
    study = studied(Space({"x": Float(0, 1), **more}), threshold=None, grid=6)
    found = study.maximisers()
    cannot, may = region(found).data
    assert len(cannot.x) + len(may.x) == 6 ** (2 if along else 1)
    assert len(cannot.x)  # some are ruled out
    drawn = dict(zip(zip(may.x, may.y, strict=True), may.marker.color, strict=True))
    second = [c[along] for c in found.configs] if along else found.mean
    assert drawn == dict(zip(zip([c["x"] for c in found.configs], second, strict=True), found.probability, strict=True))
    assert max(zip(may.marker.color, may.x, strict=True))[1] == 1.0  # where the function is largest
    assert PageContents(study).items()["figure/region"] == region_spec(found)
    assert f"{len(found.configs)} configuration" in region_spec(found)["layout"]["meta"]["alt"]
