"""The table of trials: a row each, the best first, and below it the reason and, opened, its receipt."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from haltune._utils.words import clipped, settings, short
from haltune.display.notebook import escaped
from haltune.log.fate import FATES
from haltune.study.telling.receipt import short_receipt

from ..digest import Digest, Row
from ..summary import epochs

_DASH = "\N{EN DASH}"
_COLUMNS = 8  # parameters with a column of their own; more are written as one text


def section(facts: Digest, rows: Sequence[str]) -> str:
    """The heading, the filters and the table with rows made by `row`."""
    options = "".join(f'<option value="{kind}">{words[1]}</option>' for kind, words in FATES.items())
    return (
        f'<section class="trials">\n<h2 id="trials">{heading(facts)}</h2>\n'
        '<div class="filters">'
        '<input type="search" placeholder="Filter: words, or epochs&lt;9" '
        'aria-label="Filter trials by words or conditions">'
        f'<select aria-label="Filter trials by outcome"><option value="">every outcome</option>{options}</select>'
        '<button type="button" data-table="reasons" aria-pressed="true" hidden>Reasons</button>'
        '<button type="button" data-table="save" hidden>Save as CSV</button>'
        "<output></output></div>\n"
        f'<div class="wide-table"><table>\n<thead><tr id="heads">{head(facts)}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + '\n</tbody></table></div>\n<button type="button" class="more" hidden></button>\n</section>'
    )


def heading(facts: Digest) -> str:
    """What stands above the table."""
    count = len(facts.rows)
    return "Trials" + (
        "" if count == facts.trials else f' <small class="quiet">{count:,} of {facts.trials:,}</small>'
    )


def head(facts: Digest) -> str:
    """The cells of its head: a space that is widened has more of them, and so has a search with levels of noise."""
    return "".join(
        f'<th{" data-first=down" if down else ""}><button type="button">{escaped(title)}</button></th>'
        for title, down in heads(facts)
    )


def heads(facts: Digest) -> list[tuple[str, bool]]:
    """(title, whether a first click sorts the highest first) of each column."""
    found = [("trial", False), ("epochs", True), (facts.problem.goal.metric, facts.problem.goal.sign > 0)]
    found += [(name, True) for name in facts.problem.measured]
    found += [("level", False)] * facts.levels
    found += [(name, False) for name in columns(facts) or ("configuration",)]
    return [*found, ("outcome", False)]


def columns(facts: Digest) -> tuple[str, ...]:
    """The parameters that have a column of their own."""
    names = facts.problem.space.names
    return names if len(names) <= _COLUMNS else ()


def order(facts: Digest) -> list[int]:
    """The trials that are shown, the best first, then those without a value by their numbers."""
    shown = {row.record.id for row in facts.rows}
    ranked = [id for group in facts.history.ranked() for id in group if id in shown]
    return [*ranked, *sorted(shown.difference(ranked))]


def row(facts: Digest, row: Row, traceback: str = "") -> str:
    """Its row, and one below for its reason and its receipt."""
    t = row.record
    names = columns(facts)
    config = [_value(name, t.config.get(name)) for name in names]
    if not config:
        text = escaped(clipped(settings(t.config)))
        config = [f'<td class="long" data-whole title="{text}">{text}</td>']
    value = _DASH if row.value is None else short(row.value)
    finite = row.value is not None and math.isfinite(row.value)
    metric = escaped(facts.problem.goal.metric)
    results = t.results(facts.problem) if facts.problem.measured else {}
    others = [(name, results[name]) for name in facts.problem.measured]
    cells = [
        f'<td data-of="trial" data-v="{t.id}">{t.id}</td>',
        f'<td data-of="epochs" data-v="{t.epoch:g}">{_bar(facts, row)}{epochs(facts, row)}</td>',
        f'<td data-of="{metric}" data-v="{row.value if finite else ""}">{value}</td>',
        *(_value(name, float(number), 4) for name, number in others),
        *[_value("level", t.tags.get("level"))] * facts.levels,
        *config,
        f"<td>{row.outcome}{row.praise}</td>",
    ]
    best = ' class="best"' if row.leads else ""
    receipt = clipped(short_receipt(facts.comparisons, t.id), 6000) + _numbers(row) + _metrics(row)
    receipt += f"\n\n{clipped(traceback, 6000)}" if traceback else ""
    return (
        f'<tr data-trial="trial-{t.id}" data-kind="{row.kind}"{best} data-more="{_more(facts, row)}">'
        f"{''.join(cells)}</tr>\n"
        f'<tr class="why" data-trial="trial-{t.id}"><td colspan="{len(cells)}">'
        f'<div class="because">{_because(row)}</div><pre>{escaped(receipt)}</pre></td></tr>'
    )


def _because(row: Row) -> str:
    """Why it ended, and why it was chosen."""
    chosen = f"Proposed: {row.record.proposed}" if row.record.proposed else ""
    return "<br>".join(escaped(clipped(text)) for text in (row.reason, chosen) if text)


def _numbers(row: Row) -> str:
    """The numbers behind its end."""
    return "".join(f"\n  {name:<24} {value}" for name, value in row.evidence.items())


def _metrics(row: Row) -> str:
    """The last of its other metrics."""
    found = ((name, values[-1]) for name, values in row.record.metrics.items() if len(values))
    return "".join(f"\n  {name:<24} {short(float(value))}" for name, value in found)


def _more(facts: Digest, row: Row) -> str:
    """What has no column, for who compares trials or saves the table: [[of what, its name, value]] as JSON."""
    t = row.record
    found: list[tuple[str, str, object]] = []
    if not columns(facts):
        found += [("parameter", name, _told(value)) for name, value in t.config.items()]
    others = {name: column for name, column in t.metrics.items() if name not in facts.problem.measured}
    found += [("metric", name, _told(float(column[-1]))) for name, column in others.items() if len(column)]
    if len(t.seconds):
        found.append(("", "seconds", _told(float(f"{float(t.seconds.sum()):.4g}"))))
    return escaped(json.dumps(found, separators=(",", ":"), ensure_ascii=False))


def _told(value: object) -> object:
    """A number that JSON has, or words."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if number else clipped(short(value))


def _value(name: str, value: object, digits: int = 3) -> str:
    text = _DASH if value is None else escaped(clipped(short(value, digits)))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    sort = f' data-v="{value}"' if number else ""
    long = f' class="long" title="{text}"' if len(text) > 24 else ""
    return f'<td data-of="{escaped(name)}"{sort}{long}>{text}</td>'


def _bar(facts: Digest, row: Row) -> str:
    horizon = facts.problem.max_epochs
    if not horizon:
        return ""
    share = min(1.0, row.record.epoch / horizon)
    return f'<svg class="run" aria-hidden="true"><rect width="{share:.0%}" height="100%"/></svg>'
