"""The figure of a level set shows what the answer says."""

import numpy as np
import pytest

from haltune import Budget, Choice, Float, HaltuneError, Int, Maximize, Problem, Space, Study
from haltune.policies import RandomSearch, TruVaR

pytest.importorskip("plotly")
from haltune.report import region
from haltune.report.figures.beliefs import region_spec
from haltune.report.page.items import ToldSearch


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


def test_a_space_without_a_mesh_has_points_alone_and_an_option_may_be_an_axis():
    space = Space({"x": Float(0, 1), "kind": Choice(["a", "b"])})
    figure = region(studied(space, representers=40).level_set(), "kind", "x")
    assert [trace.type for trace in figure.data] == ["scatter", "scatter"]
    assert set(figure.data[0].x) | set(figure.data[1].x) == {"a", "b"}


def test_whole_numbers_have_whole_ticks_and_options_their_order():
    space = Space({"x": Float(0, 1), "layers": Int(1, 4), "kind": Choice(["b", "a"])})
    found = studied(space, grid=4).level_set()
    figure = region(found, "layers", "kind")
    assert figure.layout.xaxis.dtick == 1
    assert list(figure.layout.yaxis.categoryarray) == ["b", "a"]


def test_where_configurations_share_a_place_the_likeliest_is_shown():
    space = Space({"x": Float(0, 1), "lr": Float(1e-3, 1, log=True), "kind": Choice(["a", "b"])})
    found = studied(space, grid=4).level_set()
    shown = [
        p for trace in region(found).data[1:] for p in zip(trace.x, trace.y, trace.marker.color, strict=True)
    ]
    assert len(shown) == 16
    for x, y, probability in shown:
        same = [c["x"] == x and c["lr"] == y for c in found.configs]
        assert probability == found.probability[same].max()


def test_a_name_that_is_no_parameter_is_refused():
    found = studied(Space({"x": Float(0, 1)}), grid=6).level_set()
    with pytest.raises(HaltuneError, match="parameters x"):
        region(found, "x", "z")


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
    told = ToldSearch(study).items()["figure/region"]
    found = study.level_set()
    assert told["layout"]["meta"]["alt"].startswith(f"{len(found.high)} configurations reach it")
    assert told == region_spec(found)
    problem = Problem(Space({"x": Float(0, 1)}), Maximize("v"), 1)
    other = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=1))
    assert "figure/region" not in ToldSearch(other).items()


def test_before_anything_is_known_of_it_the_page_stands_without_a_region():
    problem = Problem(Space({"x": Float(0, 1)}), Maximize("v"), 1)
    study = Study(problem, TruVaR(threshold=0.5), seed=0, budget=Budget(trials=14))
    assert "figure/region" not in ToldSearch(study).items()


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
    assert drawn == dict(
        zip(zip([c["x"] for c in found.configs], second, strict=True), found.probability, strict=True)
    )
    assert max(zip(may.marker.color, may.x, strict=True))[1] == 1.0  # where the function is largest
    assert ToldSearch(study).items()["figure/region"] == region_spec(found)
    assert f"{len(found.configs)} configuration" in region_spec(found)["layout"]["meta"]["alt"]


def test_of_what_may_be_the_best_those_alone_are_shown_that_have_the_parameters():
    space = Space({"x": Float(0, 1), "kind": Choice(["a", "b"]), "lr": Float(0.1, 1, when={"kind": "a"})})
    found = studied(space, threshold=None, representers=40).maximisers()
    cannot, may = region(found, "x", "lr").data
    having = sum("lr" in c for c in (*found.configs, *found.others))
    assert 0 < len(cannot.x) + len(may.x) <= having < len(found.configs) + len(found.others)


def test_on_a_page_the_axes_are_the_parameters_that_matter_most():
    space = Space({"beside": Float(0, 1), "x": Float(0, 1), "lr": Float(1e-3, 1, log=True)})
    told = ToldSearch(studied(space, representers=40)).items()
    layout = told["figure/region"]["layout"]
    ranked = told["figure/importance"]["data"][0]["y"][::-1]
    assert (
        {layout["xaxis"]["title"]["text"], layout["yaxis"]["title"]["text"]} == set(ranked[:2]) == {"x", "lr"}
    )
    assert "The bluer, the likelier to reach it." in layout["meta"]["note"]
