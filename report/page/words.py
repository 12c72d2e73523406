"""The page's texts and its table of trials as HTML: first the result, then the cost and the estimates.

All user text (names, the metric, configurations, errors) is escaped here.
"""

from __future__ import annotations

import html
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from haltune._utils.checks import is_number
from haltune.display import clipped, duration, escaped, numeral, plural, settings, short, visible
from haltune.errors import InvalidInput
from haltune.log.events import plain
from haltune.log.folds import places, plus_minus
from haltune.log.outcomes import OUTCOMES
from haltune.log.policy import Policy
from haltune.policies.multifidelity.policy import MultiFidelity
from haltune.study.explain import outlook as estimated
from haltune.study.explain import short_explanation
from haltune.study.messages import WITHIN, remaining, shared_fault

from ..digest import Digest, Row
from ..metric_model import MetricModel
from ..story import Story
from ..summary import IDLE, MEANS, kept, saved_share, trained_again_line, why_left, within

_LISTED = 50  # trials of a front, would-be stops of an audit
_COLUMNS = 8  # up to this many parameters have their own columns; more are one text
_DASH = "\N{EN DASH}"


def head(facts: Digest) -> str:
    """Return the best value and the state of the search: how it ended, or how far it is."""
    top, problem = facts.best, facts.problem
    *before, last = (goal.metric for goal in problem.goals)
    if problem.further:
        found = f"<b>{plural(len(facts.front), 'trial')}</b>" if facts.front else "no trial yet"
        aim, after = "on the Pareto front of", ""
    elif top is None:
        found, aim, after = "no value yet", "for", ""
    else:
        found, last = f"<b>{short(top.value)}</b>{plus_minus(top.folds)}", top.metric
        aim, after = "highest" if problem.goal.sign > 0 else "lowest", f" after {problem.amount(top.epoch)}"
        if top.epoch != problem.max_epochs:  # other trials may have been better at this epoch
            after = f", of trial {top.trial}{after}"
        if facts.history.beyond(top.trial):
            aim, after = "", f", of trial {top.trial}, the nearest to the limits"
        elif problem.constraints:
            after = WITHIN + after
    metrics = f"{', '.join(before)} and {last}" if before else last
    share, left = remaining(facts.history, facts.history.recorded)
    state = "The search continues"
    if facts.held:
        state = "The search is stopped for now"
    elif facts.over:
        state = "The search is over"
    elif facts.idle:
        state = IDLE[0].upper() + IDLE[1:]
    elif share is not None:
        state += f": {share:.0%} of the budget is spent{left}"
    outcome = f": {escaped(facts.outcome)}" if facts.over and facts.outcome else ""
    error = shared_fault(facts.history)
    return (
        f'<p class="quiet">haltune &middot; {escaped(facts.name)}</p>\n'
        f"<h1>{found} <small>{f'{aim} {escaped(metrics)}'.lstrip()}{after}</small></h1>\n"
        f'<p class="over">{state}{outcome}.</p>' + (f'\n<p class="over"><b>{escaped(error)}</b></p>' if error else "")
    )


def stats(facts: Digest) -> str:
    """Return the numbers of trials, epochs and saved epochs, with a bar of trained and saved epochs."""
    savings, trained = facts.savings, facts.problem.amount(facts.trained)
    found = [
        (plural(facts.trials, "trial"), facts.states or "none yet"),
        (trained, f"trained{within(facts.seconds)}{trained_again_line(facts)}"),
    ]
    parts = []
    if savings.epochs:
        found.append((f"{savings.most}{saved_share(facts)} saved", f"of the {facts.problem.units} of full training"))
        if savings.seconds >= MEANS:
            found.append((f"{savings.most or 'about '}{duration(savings.seconds)}", "of training saved"))
        parts.append(f"{savings.most}{facts.problem.amount(savings.epochs)} saved")
    if savings.itself > 0:
        parts.append(savings.left)
    tiles = "".join(f"<div><b>{b}</b><span>{t}</span></div>" for b, t in found)
    bar = (
        f'<svg class="saved" aria-hidden="true"><rect width="{facts.trained / facts.whole:.2%}" height="100%"/></svg>'
        f'<div class="key"><span>{trained} trained</span><span>{", ".join(parts)}</span></div>'
        if parts
        else ""
    )
    return f'<div class="stats">{tiles}</div>{bar}'


def outlook(facts: Digest, model: MetricModel | None, policy: Policy[Any] | None) -> str:
    """Return how certain the best is, the expected gain of a longer search, what to do next, and what is not used."""
    sentences = []
    if facts.problem.plain and facts.best is not None:
        if model is not None and facts.best.metric == facts.problem.goal.metric:
            behind = model.behind(facts.history, facts.best.trial)
            more = f" by more than {short(behind, 2)}" if behind > 0.0 else ""
            sentences.append(f"With 90% probability, no trial so far would be better{more} if it were trained in full.")
        with suppress(InvalidInput):  # for example, too few trials
            sentences.append(escaped(str(estimated(facts.history, policy.predicts if policy else None))))
    if facts.over and facts.lifted and not facts.held:
        sentences.append("To continue the search, pass a larger <code>budget=</code>.")
    if facts.over and not facts.problem.further and facts.best is not None and facts.best.checkpoint is not None:
        sentences.append("The model of the best trial is <code>study.best.checkpoint</code>.")
    search = policy.part(MultiFidelity) if policy else None
    if model is not None and search is not None and search.learn_from:
        sentences.append(
            "The policy learns from prior studies (<code>learn_from=</code>). "
            "The predictions on this page use the trials of this study alone."
        )
    return f'<p class="facts">{" ".join(sentences)}</p>' if sentences else ""


def best(facts: Digest) -> str:
    if not facts.problem.further:
        if facts.best is None:
            return ""
        items = "".join(
            f"<div><dt>{escaped(k)}</dt><dd>{escaped(clipped(short(v)))}</dd></div>"
            for k, v in facts.best.config.items()
        )
        return (
            f'<h2>Best configuration <small class="quiet">trial {facts.best.trial}, '
            f"at {facts.problem.at(facts.best.epoch)}</small></h2>\n"
            f"<dl>{items or '<div><dd>no parameters</dd></div>'}</dl>{copied(facts.best.config) * bool(items)}"
        )
    if not facts.front:
        return ""
    names = [*facts.front[0].values]
    heads = "".join(f"<th>{escaped(name)}</th>" for name in ("trial", *names, "configuration"))
    rows = "".join(
        f'<tr data-trial="trial-{run.trial}"><td data-of="trial">{run.trial}</td>'
        + "".join(f'<td data-of="{escaped(name)}">{short(run.values[name])}</td>' for name in names)
        + f"<td>{escaped(clipped(settings(run.config)))}</td></tr>"
        for run in facts.front[:_LISTED]
    )
    more = len(facts.front) - _LISTED
    rest = f'<p class="quiet">and {plural(more, "other")}</p>' if more > 0 else ""
    return (
        '<h2>Pareto front <small class="quiet">no trial is better in all goals</small></h2>\n'
        f'<div class="rows wide-table"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{rest}'
    )


def audit(facts: Digest) -> str:
    if facts.audit is None:
        return ""
    found = "<br>".join(escaped(line) for line in str(facts.audit).splitlines())
    runs = "".join(f"<li>{escaped(run)}</li>" for run in facts.audit.runs[:_LISTED])
    more = len(facts.audit.runs) - _LISTED
    rest = f"<li>and {plural(more, 'other')}</li>" if more > 0 else ""
    return f"<h2>Audit</h2>\n<p>{found}</p>" + (f'\n<ul class="quiet">{runs}{rest}</ul>' if runs else "")


def about(facts: Digest, story: Story | None, policy: str) -> str:
    """Return a table of the goal, the space, the policy, dates and versions."""
    space, dates = facts.problem.space, ""
    if story is not None and story.stretches:
        dates = " to ".join(time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at)) for at in (story.begun, story.now))
    pairs = [
        ("goal", ", ".join(map(repr, facts.problem.goals))),
        ("metric constraints", ", ".join(map(str, facts.problem.constraints))),
        (facts.problem.units, f"at most {numeral(most)} a trial" if (most := facts.problem.max_epochs) else "no limit"),
        ("judged every", facts.problem.amount(facts.problem.every) if facts.problem.every not in (None, 1.0) else ""),
        *((name, repr(domain)) for name, domain in space.parameters.items()),
        *((f"constraint {i}", str(c)) for i, c in enumerate(space.constraints, 1)),
        ("policy", policy),
        ("seed", str(facts.history.seed)),
        ("dates", dates),
        ("haltune", version("haltune")),
    ]  # fmt: skip
    rows = "".join(f"<tr><th>{escaped(k)}</th><td>{escaped(clipped(text))}</td></tr>" for k, text in pairs if text)
    return f"<details><summary>About this search</summary><table>{rows}</table></details>"


def foot(facts: Digest) -> str:
    """Return notes: trials that were not continued, kept checkpoints, and how saved epochs are counted."""
    notes, units = [why_left(facts)] if facts.left else [], facts.problem.units
    notes += [kept(facts.kept)] if facts.kept else []
    parts = "".join(f"{escaped(note[0].upper() + note[1:])}.<br>" for note in notes)
    if not facts.savings.epochs:
        return parts
    most = " This is an upper bound: some trials ended by themselves early, and stopped trials could have done so, too."
    full = numeral(facts.problem.max_epochs or 0)
    return parts + (
        f"Saved {units}: {units} of the full {full} that stopped or paused trials did not train. Saved time: their "
        f"number times the trial's median time for one.{most * bool(facts.savings.most)}"
    )


# -- the table of trials: a row each; below it the reason and, when opened, the explanation ---


def table(facts: Digest, rows: Sequence[str]) -> str:
    """Return the heading, the filters and the table. The rows are made by `row`."""
    options = "".join(f'<option value="{kind}">{words[1]}</option>' for kind, words in OUTCOMES.items())
    return (
        f'<section class="trials brief">\n<h2 id="trials">{heading(facts)}</h2>\n'
        '<div class="filters">'
        '<input type="search" placeholder="Filter: words, or trial&lt;9" '
        'aria-label="Filter trials by words or conditions">'
        f'<select aria-label="Filter trials by outcome"><option value="">every outcome</option>{options}</select>'
        '<button type="button" data-table="reasons" aria-pressed="false" hidden>Reasons</button>'
        '<button type="button" data-table="save" hidden>Save as CSV</button>'
        '<output></output></div>\n<p class="hint" role="status"></p>'
        f'<div class="wide-table"><table>\n<thead><tr id="heads">{heads(facts)}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + '\n</tbody></table></div>\n<button type="button" class="more" hidden></button>\n</section>'
    )


def heading(facts: Digest) -> str:
    count = len(facts.rows)
    some = f' <small class="quiet">{count:,} of {facts.trials:,}</small>' if count < facts.trials else ""
    return f"Trials{some}"


def heads(facts: Digest) -> str:
    """Return the header cells. They change if the space is widened, or if trials have levels of noise.

    data-first=down means that the first click sorts the highest value first.
    """
    found = [("trial", False), (facts.problem.units, True), (facts.problem.goal.metric, facts.problem.goal.sign > 0)]
    found += [(name, True) for name in facts.problem.measured]
    found += [("level", False)] * facts.levels
    found += [(name, False) for name in columns(facts) or ("configuration",)]
    return "".join(
        f'<th{" data-first=down" if down else ""}><button type="button">{escaped(title)}</button></th>'
        for title, down in [*found, ("outcome", False)]
    )


def columns(facts: Digest) -> tuple[str, ...]:
    """Return the parameters that have their own columns."""
    names = facts.problem.space.names
    return names if len(names) <= _COLUMNS else ()


def order(facts: Digest) -> list[int]:
    """Return the shown trials, the best first; those without a value come last, by number."""
    shown = {row.record.id for row in facts.rows}
    ranked = [id for group in facts.history.ranked() for id in group if id in shown]
    return [*ranked, *sorted(shown.difference(ranked))]


def row(facts: Digest, row: Row, traceback: str = "", files: Sequence[tuple[str, str]] = ()) -> str:
    """Return a trial's row, and a second row with its reason, its explanation and its files, (name, address) each."""
    t, names, horizon = row.record, columns(facts), facts.problem.max_epochs
    config = [_cell(name, t.config.get(name, _DASH)) for name in names]
    if not config:
        text = escaped(clipped(settings(t.config)))
        config = [f'<td class="long" data-whole title="{text}">{text}</td>']
    finite = row.value is not None and math.isfinite(row.value)
    note = escaped(facts.history.notes.get(t.id, ""))
    noted = f'<small class="noted">{note}</small>' if note else ""
    spread = plus_minus(t.folds(facts.problem))
    deviation = f' <small class="quiet">{spread}</small>' if spread else ""
    results = t.results(facts.problem) if facts.problem.measured else {}
    share = min(1.0, t.epoch / horizon) if horizon else 0.0
    bar = f'<svg class="run" aria-hidden="true"><rect width="{share:.0%}" height="100%"/></svg>' if horizon else ""
    cells = [
        f'<td data-of="trial" data-v="{t.id}">{t.id}</td>',
        f'<td data-of="{facts.problem.units}" data-v="{t.epoch:.9g}">{bar}{facts.problem.reached(t.epoch)}</td>',
        f'<td data-of="{escaped(facts.problem.goal.metric)}" data-v="{row.value if finite else ""}">'
        f"{_DASH if row.value is None else short(row.value)}{deviation}</td>",
        *(_cell(name, float(results[name]), 4) for name in facts.problem.measured),
        *[_cell("level", t.tags.get("level", _DASH))] * facts.levels,
        *config,
        f"<td>{row.outcome}{row.praise}{noted}</td>",
    ]
    lasts = [(name, float(t.metrics[name][-1])) for name in places(t.metrics) if len(t.values)]
    numbers = [*row.evidence.items(), *((name, short(last)) for name, last in lasts)]
    lost = [t.id] * (row.kind == "lost")
    explanation = clipped(short_explanation(facts.comparisons, t.id, lost), 6000)
    explanation += "".join(f"\n  {name:<24} {value}" for name, value in numbers)
    explanation += f"\n\n{clipped(traceback, 6000)}" if traceback else ""
    chosen = f"Proposed: {t.proposed}" if t.proposed else ""
    because = "<br>".join(escaped(clipped(text)) for text in (row.reason, chosen) if text)
    # values without a column, for the comparison and the CSV file: [[kind, name, value]]
    more: list[tuple[str, str, object]] = []
    if not names:
        more += [("parameter", name, _plain(value)) for name, value in t.config.items()]
    more += [("metric", name, _plain(last)) for name, last in lasts if name not in facts.problem.measured]
    if len(t.seconds):
        more.append(("", "seconds", _plain(float(f"{float(t.seconds.sum()):.4g}"))))
    links = ", ".join(f'<a href="{escaped(at)}" target="_blank">{escaped(name)}</a>' for name, at in files)
    leads = ' class="best"' if row.leads else ""
    return (
        f'<tr data-trial="trial-{t.id}" data-kind="{row.kind}"{leads} data-more={_json(more)}>{"".join(cells)}</tr>\n'
        f'<tr class="why" data-trial="trial-{t.id}"><td colspan="{len(cells)}">'
        f'<div class="because" data-note="{note}">{because}</div><pre>{escaped(explanation)}</pre>'
        f'<p class="files">{f"Files: {links}" * bool(files)}</p>{copied(t.config)}</td></tr>'
    )


def copied(config: Mapping[str, Any]) -> str:
    """Return the element in which the script puts buttons that copy a configuration."""
    written = _json({name: plain(value) for name, value in config.items()}, ", ", ": ")
    return f'<div class="copy" data-config={written}></div>'


def _json(value: object, comma: str = ",", colon: str = ":") -> str:
    """Return JSON as the value of an attribute. Double quotes are not escaped, to save five bytes each."""
    text = json.dumps(value, separators=(comma, colon), ensure_ascii=False)
    # `visible` writes \\x7f, which is not valid JSON
    text = re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)
    return "'" + html.escape(visible(text), quote=False).replace("'", "&#x27;") + "'"


def _plain(value: object) -> object:
    """Return a finite number, or a text."""
    return value if is_number(value) else clipped(short(value))


def _cell(name: str, value: object, digits: int = 3) -> str:
    text = escaped(clipped(short(value, digits)))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    finite = isinstance(value, (int, float)) and -math.inf < value < math.inf  # others come last in both orders
    sort = f' data-v="{value if finite else ""}"' if number else ""
    long = f' class="long" title="{text}"' if len(text) > 24 else ""
    return f'<td data-of="{escaped(name)}"{sort}{long}>{text}</td>'
