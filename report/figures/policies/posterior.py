"""AutoBCT's posterior: what it expects of a training and of its cost, what another one is worth, and its path.

Figures 3, 5 and 7 of its paper, in the metric's units and in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import plural, short
from haltune.errors import InvalidInput
from haltune.policies.autobct.policy import AutoBCT
from haltune.study.results import Results

from ...digest import need_study
from ...metric_model import line_through
from ...palette import COOL, INK
from ..drawing import Spec, axis, drawn, layout, nothing, plotly_text, scale_of
from .beliefs import Beliefs, beliefs_of
from .landscape import Landscape, panel

if TYPE_CHECKING:
    import plotly.graph_objects as go

_TITLE = "Score against cost"
_TOO_EARLY = "Its first trainings teach how scores and costs spread: nothing is weighed yet"
_LEVELS = 21  # values of a parameter


def posterior(study: Results, across: str | None = None) -> go.Figure:
    """What AutoBCT believes: the metric and the time of a training, what another training is worth, and its path.

    Of a study that `AutoBCT()` searches, once it knows enough to weigh score against cost. By one parameter, or over
    two where there are two; of more by the one along which most is expected to change, the others as in the
    configuration trained last, which is the one to keep. The search ends where no training is worth more than what is
    expected of that one.

    Args:
        study: A Study, or one opened to look at. It is read up to its newest event.
        across: The parameter from left to right. Default: None, as said.

    Returns:
        A figure of Plotly's, four panels.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study, for one of another policy, and for a name that is no parameter.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import AutoBCT
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=1)
        >>> study = Study(problem, AutoBCT(max_trainings=3), seed=0, verbose=0)
        >>> study.optimize(lambda trial: trial.report(0.9 / (1 + trial.config["lr"]), seconds=5.0))
        >>> [axis.title.text for axis in posterior(study).select_yaxes()][:2]
        ['acc expected', 'seconds of a training']
    """
    need_study(study).sync()
    if study.policy.part(AutoBCT) is None:
        raise InvalidInput("this search does not weigh scores against costs: AutoBCT() does")
    names = list(study.history.problem.space.columns)
    if across is not None and across not in names:
        raise InvalidInput(f"posterior(across={across!r}): one of the parameters {', '.join(names)}")
    return drawn(posterior_spec(beliefs_of(study), across))


def posterior_spec(found: Beliefs | None, across: str | None = None) -> Spec:
    """The same as plain data: expected score, cost, and worth by configuration; and the trainings in their order."""
    names = list(found.history.problem.space.columns) if found else []
    if found is None or not names:
        return {"data": [], "layout": layout(_TITLE, _TOO_EARLY, order=11, annotations=[nothing(_TOO_EARLY)])}
    across = across or _steepest(found, names)
    along = next(n for n in names if n != across) if len(names) == 2 else None
    view, told = Landscape(found, across, along), _told(found)
    return {
        "data": [*view.traces(), *_path(found, view)],
        "layout": layout(
            _TITLE, told, order=11, wide=True, height=300, note=f"{told} {_note(view, len(names) > 2)}",
            **_axes(found, view),
        ),
    }  # fmt: skip


def _steepest(found: Beliefs, names: list[str]) -> str:
    """Where more than two are, the parameter along which most is expected to change; else the first."""
    if len(names) <= 2:
        return names[0]
    space = found.history.problem.space
    lines = [found.score(line_through(space, name, _LEVELS, found.last)[1])[0] for name in names]
    return names[int(np.argmax([np.ptp(line) if len(line) else 0.0 for line in lines]))]


def _told(found: Beliefs) -> str:
    """What was weighed last, in words."""
    metric, now, count = found.history.problem.goal.metric, found.now, len(found.assessment.done)
    worth = f"going on is worth {short(float(found.raw(now.going)[0]))} of {metric}"
    if now.last is None:
        return f"Before the first training {worth}."
    last = f"{short(float(found.raw(now.last)[0]))} expected of the last configuration"
    pays = "no better than the" if now.stops else "better than the"
    return f"After {plural(count, 'training')} {worth}, {pays} {last}."


def _note(view: Landscape, sliced: bool) -> str:
    where = (
        f"Along {view.across}, the others as in the last configuration" if sliced else "Of each configuration"
    )
    return (
        f"{where}: what is expected, give or take a deviation; what a training takes; and what it is worth to train it "
        "next, the price counted. Rings are those that do not pay: where all are, the search ends. Numbers are "
        "trainings in their order."
    )


def _axes(found: Beliefs, view: Landscape) -> dict[str, Any]:
    space, word = found.history.problem.space, view.unit[1]
    takes = "cost of a training" if word == "cost" else f"{word} of a training"
    titles = (f"{view.metric} expected", takes, f"{view.metric}, the price of more counted")
    axes: dict[str, Any] = {}
    for number, title in zip(("", "2", "3"), titles, strict=True):
        if view.along is not None:
            heading = axis(
                f"{title}, over {plotly_text(view.along)}", anchor=f"x{number}", **scale_of(space, view.along)
            )
        else:
            heading = axis(title, anchor=f"x{number}")
        axes[f"xaxis{number}"] = axis(
            plotly_text(view.across), anchor=f"y{number}", **scale_of(space, view.across)
        )
        axes[f"yaxis{number}"] = heading
    first, last = min(found.weighed), max(found.weighed)
    whole = {"dtick": 1} if last <= 12 else {}
    axes["xaxis4"] = axis("trainings", anchor="y4", range=[min(first, 1) - 0.5, last + 0.5], **whole)
    axes["yaxis4"] = axis(f"{view.metric}, seen and weighed", anchor="x4")
    return axes


def _path(found: Beliefs, view: Landscape) -> list[dict[str, Any]]:
    """Training by training: what was seen, what going on was worth then, and what the last was expected to come to."""
    when = sorted(found.weighed)
    known = [n for n in when if found.weighed[n].last is not None]
    going = found.raw([found.weighed[n].going for n in when]).tolist()
    last = found.raw([found.weighed[n].last for n in known]).tolist()
    lines = (("going on", when, going, COOL, "worth"), ("the last one", known, last, INK, "expected of it"))
    return [
        *(
            {
                "type": "scatter", "mode": "lines+markers", "name": name, "x": xs, "y": ys, "meta": [view.metric],
                "line": {"color": colour, "width": 2}, "marker": {"size": 5, "color": colour},
                "hovertemplate": f"<b>{name}</b>, after %{{x}}<br>%{{meta[0]}} %{{y:.4~g}} {said}<extra></extra>",
                **panel("4"),
            }
            for name, xs, ys, colour, said in lines
        ),
        {
            **view.marks(), "mode": "markers", "x": [k for k, _ in view.numbered],
            "y": [t.value for _, t in view.numbered], **panel("4"),
        },
    ]  # fmt: skip
