"""Several studies side by side on one page: the best of each against its cost, and the best configurations."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from haltune.display import clipped, duration, escaped, short
from haltune.errors import InvalidInput
from haltune.log.policy import in_words
from haltune.log.records import Best
from haltune.study.messages import BEYOND
from haltune.study.view import StudyView

from .digest import MOST_TRIALS, Digest, digest, need_study, story_of
from .figures.drawing import ACCENT, COOL, INK, MUTED, Spec, Trace, axis, figure, first_view, plotly_text
from .figures.results import edf_spec, measures, switches
from .page import document, keep_page
from .page.words import copied
from .story import Cost, Story
from .summary import MEANS, saved_share

_COLOURS = (ACCENT, COOL, "#009e73", "#cc79a7", INK, MUTED)  # Okabe and Ito's that are visible on both themes
_DASHES = ("solid", "dash", "dot")


@dataclass(frozen=True)
class _Study:
    id: str  # on the page
    label: str
    facts: Digest
    story: Story
    policy: str
    line: dict[str, object]  # Plotly line style

    @property
    def best(self) -> Best | None:
        """Its best trial, by the metric that ranks full trainings: with rank_by= it has none before its first one."""
        best = self.facts.best
        return best if best is not None and best.metric == self.facts.problem.goal.final else None

    @property
    def beyond(self) -> str:
        """Text to append to its best value if that trial violates constraints on metrics."""
        return BEYOND * (self.best is not None and self.facts.history.beyond(self.best.trial))


def compare(studies: Sequence[StudyView], path: str | os.PathLike[str] = "comparison.html") -> Path:
    """Write a page that compares studies: the best value of each against epochs and time, and the best configurations.

    Args:
        studies: Two or more studies with the same metric and direction. Each is read up to its newest event.
        path: The file to write, in a folder that exists. Default: "comparison.html".

    Returns:
        The full path of the page.

    Raises:
        InvalidInput: If there are fewer than two studies, if one has several goals, if their metrics differ, or if the
            file cannot be written.

    Example:
        >>> from haltune import Float, Study
        >>> found = []
        >>> for seed in range(2):
        ...     study = Study({"x": Float(-2.0, 2.0)}, "score", name=f"seed {seed}", seed=seed, budget="4 trials")
        ...     _ = study.optimize(lambda trial: -(trial.config["x"] ** 2))
        ...     found.append(study)
        >>> compare(found).name
        'comparison.html'
    """
    return keep_page(lambda: comparison(studies), path)


def comparison(studies: Sequence[StudyView], head: str = "", foot: str = "") -> str:
    """Return the page as HTML, with these parts for its head and its foot."""
    found = _read(studies)
    goal = found[0].facts.problem.goal
    ranked = [(s, best) for s in found if (best := s.best) is not None]
    ranked.sort(key=lambda pair: (pair[0].beyond, -goal.sign * pair[1].value))
    top = "no value yet"
    leads: _Study | None = None
    if ranked:
        leads, best = ranked[0]
        aim = f"{'highest' if goal.sign > 0 else 'lowest'} {escaped(goal.final)}, of {escaped(leads.label)}"
        top = f"<b>{short(best.value)}</b> <small>{aim}{leads.beyond}</small>"
    differ = _differences(found)
    main = (
        f'<header><p class="quiet">haltune &middot; {len(found)} studies</p>\n<h1>{top}</h1>'
        + (f'\n<p class="over">{escaped(differ)}</p>' if differ else "")
        + f"</header>\n<section>{_table('Studies', _totals(found), leads)}</section>\n"
        f'<div class="figures" id="figures"></div>\n<section id="best">'
        f"{_table('Best configurations', _configurations(found), leads)}</section>"
    )
    figures = {"figure/progress": _progress(found), "figure/edf": _values(found)}
    drawn = {key: spec for key, spec in figures.items() if spec["data"]}
    return document(f"Comparison: {goal.final}", main, drawn, head, foot)


def _read(studies: Sequence[StudyView]) -> list[_Study]:
    """Read the studies and give each a distinct label. Raises InvalidInput if they cannot be compared."""
    if len(studies) < 2:
        raise InvalidInput(f"A comparison needs two or more studies. You gave {len(studies)}.")
    labels = [need_study(study).name for study in studies]
    if max(Counter(labels).values()) > 1:
        urls = [study.store.url for study in studies]  # a server's URL is never shown: it may contain a password
        files = [Path(url).stem if url.startswith("sqlite:///") else "" for url in urls]
        labels = [name if labels.count(name) == 1 else file or name for name, file in zip(labels, files, strict=True)]
    labels = [
        name if labels.count(name) == 1 else f"{name} ({labels[:i].count(name) + 1})" for i, name in enumerate(labels)
    ]
    found = []
    for i, (label, study) in enumerate(zip(labels, studies, strict=True)):
        line = {"color": _COLOURS[i % len(_COLOURS)], "dash": _DASHES[i // len(_COLOURS) % len(_DASHES)], "width": 2}
        policy = in_words(study.policy)
        found.append(_Study(f"study-{i}", label, digest(study, MOST_TRIALS), story_of(study), policy, line))
    for s in found:
        if s.facts.problem.further:
            raise InvalidInput(f"Study {s.label!r} has several goals. Only studies with one goal can be compared.")
    goals = {s.label: (s.facts.problem.goal.final, s.facts.problem.goal.sign) for s in found}
    if len(set(goals.values())) > 1:
        listing = "; ".join(
            f"{label}: {'highest' if sign > 0 else 'lowest'} {name}" for label, (name, sign) in goals.items()
        )
        raise InvalidInput(
            f"The studies have different goals ({listing}). Compare studies with the same metric and direction."
        )
    return found


def _differences(found: list[_Study]) -> str:
    """Return a sentence on the differences that make best values hard to compare; "" without differences."""
    problems = [s.facts.problem for s in found]
    parts = []
    if len({p.unit for p in problems}) > 1:
        parts.append(f"the unit ({', '.join(sorted({p.units for p in problems}))})")
    elif len(most := {p.max_epochs for p in problems}) > 1:
        parts.append(f"the {problems[0].units} of a full training ({', '.join(sorted(map(str, most)))})")
    if len({repr(dict(p.space.parameters)) for p in problems}) > 1:
        parts.append("the search space")
    if len({repr(p.constraints) for p in problems}) > 1:
        parts.append("the constraints on metrics")
    if len({p.goal.of for p in problems}) > 1:
        parts.append("the value that counts for a trial (last or best)")
    return f"The studies differ in {' and in '.join(parts)}." if parts else ""


_Cells = list[tuple[str, str]]  # (column, HTML)


def _totals(found: list[_Study]) -> list[tuple[_Study, _Cells]]:
    rows = []
    for s in found:
        facts, best = s.facts, s.best
        cells = [
            (facts.problem.goal.final, f"{short(best.value)}{s.beyond}" if best else "no value yet"),
            ("trial", str(best.trial) if best else ""),
            ("trials", f"{facts.trials:,}: {facts.states}" if facts.trials else "0"),
            ("trained", facts.problem.amount(facts.trained)),
            ("saved", f"{facts.savings.most}{saved_share(facts)}" if facts.savings.epochs else ""),
            ("time", duration(facts.seconds) if facts.seconds >= MEANS else ""),
            ("policy", escaped(clipped(s.policy, 200))),
            ("", '<button type="button" hidden>Hide</button>'),
        ]
        rows.append((s, cells))
    return rows


def _configurations(found: list[_Study]) -> list[tuple[_Study, _Cells]]:
    known = [(s, best.config) for s in found if (best := s.best) is not None]
    names = dict.fromkeys(name for _, config in known for name in config)
    rows: list[tuple[_Study, _Cells]] = []
    for s, config in known:
        cells = [(name, escaped(clipped(short(config[name]), 200)) if name in config else "") for name in names]
        rows.append((s, [*cells, ("", copied(config))]))
    return rows


def _table(title: str, rows: list[tuple[_Study, _Cells]], leads: _Study | None) -> str:
    """Return a table with a row for each study. On a narrow screen each cell names its column; empty cells hide."""
    if not rows:
        return ""
    heads = "".join(f"<th>{escaped(name)}</th>" for name in ("study", *(name for name, _ in rows[0][1])))
    body = ""
    for s, cells in rows:
        named = ((f' data-of="{escaped(name)}"' if name and text else "", text) for name, text in cells)
        of_it = "".join(f"<td{name}>{text}</td>" for name, text in named)
        body += f'<tr data-study="{s.id}"{" class=best" * (s is leads)}><td>{escaped(s.label)}</td>{of_it}</tr>'
    return (
        f'<h2>{title}</h2>\n<div class="rows wide-table"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _progress(found: list[_Study]) -> Spec:
    """Return the figure of each study's best value so far, against the quantities that all studies have."""
    units, goal = {s.facts.problem.units for s in found}, found[0].facts.problem.goal
    within = [(s, [step for step in s.story.steps if not step.beyond]) for s in found]  # the limits
    shown = [(s, steps) for s, steps in within if steps]
    seconds = max((s.story.now - s.story.begun for s, _ in shown), default=0.0)
    views = measures(units.pop() if len(units) == 1 else None, seconds, all(s.story.cost for s, _ in shown))
    lines: list[Trace] = []
    xs: list[list[list[float]]] = [[] for _ in views]
    for s, steps in shown:
        end = s.story
        costs: list[Cost] = [*steps, Cost(epochs=end.epochs, seconds=end.now - end.begun, cost=end.cost)]
        for into, view in zip(xs, views, strict=True):
            into.append([view.at(c) for c in costs])
        hover = [f"trial {b.trial}, after {s.facts.problem.amount(b.epochs)}, {duration(b.seconds)}" for b in steps]
        lines.append({
            "type": "scatter", "mode": "lines", "name": plotly_text(s.label), "x": xs[0][-1], "uid": s.id,
            "reach": {"y": first_view([b.value for b in steps], goal.sign)},
            "y": [b.value for b in [*steps, steps[-1]]], "line": {**s.line, "shape": "hv"},
            "meta": [plotly_text(goal.final), plotly_text(s.label)], "customdata": [*hover, *hover[-1:]],
            "hovertemplate": "<b>%{meta[1]}</b><br>%{meta[0]} %{y:.4~g}<br>%{customdata}<extra></extra>",
        })  # fmt: skip
    values, limited = [y for line in lines for y in line["y"]], any(s.facts.problem.constraints for s in found)
    return figure(
        lines, "Best so far", f"The best {goal.final} of {len(lines)} studies against {views[0].title}.",
        note="Each line is the best value of a study at that time. As soon as a trial is complete, only complete "
        f"trials count.{' Trials beyond the limits of constraints are left out.' * limited}",
        order=10, wide=True, logs=bool(values) and min(values) > 0, xaxis=axis(views[0].title, rangemode="tozero"),
        yaxis=axis(f"{plotly_text(goal.final)} ({'larger' if goal.sign > 0 else 'smaller'} is better)",
                   range=first_view(values, goal.sign)),
        updatemenus=[switches(views, xs)],
    )  # fmt: skip


def _values(found: list[_Study]) -> Spec:
    """Return the figure of each study's final values."""
    specs = [(s, edf_spec(s.facts)) for s in found]
    lines = []
    for s, spec in specs:
        for trace in spec["data"][:1]:
            kept = {name: value for name, value in trace.items() if name != "ids"}  # ids would clash between studies
            colour = {"line": {**trace["line"], **s.line}, "marker": {"size": 4, "color": s.line["color"]}}
            own = {"uid": s.id, "reach": {"x": first_view(trace["x"], found[0].facts.problem.goal.sign)}}
            title = f"<b>{plotly_text(s.label)}</b><br>"
            lines.append(
                kept | colour | own | {"name": plotly_text(s.label), "hovertemplate": title + trace["hovertemplate"]}
            )
    laid = specs[0][1]["layout"]
    values, goal = [x for line in lines for x in line["x"]], found[0].facts.problem.goal
    meta = laid["meta"] | {
        "wide": True, "alt": f"The distribution of final values of {goal.metric} in {len(lines)} studies.",
        "note": "The share of trials with at most this value; stopped trials count with their last value.",
    }  # fmt: skip
    shown = {**laid["xaxis"], "range": first_view(values, goal.sign)}
    return {"data": lines, "layout": laid | {"meta": meta, "xaxis": shown}}
