"""One page about a search, in one file: it opens from a mail attachment, without a network.

Whatever a user typed (names, the metric, configurations, errors) is escaped on its way in.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from haltune._utils.words import clipped, duration, plural, settings, short
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.notebook import escaped

from .digest import Digest, Row, Source, digest
from .figure import figure_of, would_be_stops
from .sample import MOST
from .style import CSS, SCRIPT
from .summary import epochs, kept, why_left

_NONE = "\N{EN DASH}"
_COLUMNS = 8  # parameters with a column of their own; more are written as one text
_AUDITED = 50  # would-be stops that are listed
_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "showSendToCloud": False,  # some versions offer by default to upload the data
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
}


def write(study: Source, path: str | os.PathLike[str]) -> Path:
    """Write the page about a search, one file that needs no network, all at once: a reader sees the old or the new one.

    Args:
        study: A Study, or its history. A study is read up to its newest event.
        path: The file to write, in a folder that is there.

    Returns:
        Its full path.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: When nothing can be written there, and for what is no study.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=3))
        >>> write(study, "search.html").name
        'search.html'
    """
    target = Path(path).absolute()
    _need_folder(target)
    return keep(page(digest(study, MOST)), target)


def keep(text: str, path: str | os.PathLike[str]) -> Path:
    """Write a text to a file, all at once; what no encoding holds is shown escaped. Returns its full path.

    Raises InvalidInput when it cannot be written there.
    """
    target = Path(path).absolute()
    _need_folder(target)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
        os.replace(draft, target)
    except OSError as error:
        raise InvalidInput(
            f"cannot write {target}: {error.strerror or error}; name a file in a folder that may be written to"
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    return target


def _need_folder(target: Path) -> None:
    if not target.parent.is_dir():
        raise InvalidInput(f"there is no folder {target.parent} to write {target.name} into: make it first")


def page(facts: Digest) -> str:
    """The page as HTML."""
    figure = figure_of(facts).to_html(
        full_html=False, include_plotlyjs=True, include_mathjax=False, div_id="curves",
        config=_CONFIG, post_script=SCRIPT, default_height="100%",
    )  # fmt: skip
    metric = escaped(facts.problem.goal.metric)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escaped(facts.name)}: {metric}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<header>
{_headline(facts)}
</header>
{_stats(facts)}
{_saved(facts)}
{_best(facts)}
<h2>Learning curves</h2>
<p class="quiet">{_legend(facts)}{_shown(facts)}</p>
<div class="figure">{figure}</div>
{_audit(facts)}
{_trials(facts)}
<footer>{_footnote(facts)}</footer>
</main>
</body>
</html>
"""


def _legend(facts: Digest) -> str:
    audited = " A circled cross is where an audited run would have been." if would_be_stops(facts) else ""
    if any(row.record.status is Status.STOPPED for row in facts.rows):
        return f"A line is a trial and a cross is where it was stopped; point at one for the reason.{audited}"
    if audited:
        return "A line is a trial; a circled cross is where an audited run would have been stopped."
    return "A line is a trial; point at one for its numbers."


def _shown(facts: Digest) -> str:
    """What is said where not all trials are shown."""
    count = len(facts.rows)
    if count == facts.trials:
        return ""
    return (
        f" Of {facts.trials:,} trials {count:,} are shown: the best {MOST // 2:,}, and of all others as many at even "
        "distances by their numbers. Totals are of all."
    )


def _headline(facts: Digest) -> str:
    goal = facts.problem.goal
    aim = "highest" if goal.sign > 0 else "lowest"
    best = f"<b>{short(facts.best.value)}</b>" if facts.best else "no value yet"
    after = f" after {plural(round(facts.best.epoch, 2), 'epoch')}" if facts.best else ""
    state = "The search is over" if facts.over else "The search continues"
    outcome = facts.outcome if facts.over else ""
    return (
        f'<p class="quiet">haltune &middot; {escaped(facts.name)}</p>\n'
        f"<h1>{best} <small>{aim} {escaped(goal.metric)}{after}</small></h1>\n"
        f'<p class="over">{state}{": " * bool(outcome)}{escaped(outcome)}.</p>'
    )


def _stats(facts: Digest) -> str:
    stats = [
        (plural(facts.trials, "trial"), facts.states or "none yet"),
        (plural(round(facts.trained, 1), "epoch"), f"trained in {duration(facts.seconds)}"),
    ]
    if facts.saved:
        stats.append((f"{facts.saved_share:.0%} saved", "of the epochs of full training"))
        stats.append((f"about {duration(facts.saved_seconds)}", "of training saved"))
    return (
        '<div class="stats">' + "".join(f"<div><b>{b}</b><span>{t}</span></div>" for b, t in stats) + "</div>"
    )


def _saved(facts: Digest) -> str:
    """Epochs trained and saved as one bar."""
    if not facts.saved:
        return ""
    return (
        f'<div class="saved"><i style="width:{1 - facts.saved_share:.2%}"></i></div>'
        f'<div class="key"><span>{plural(round(facts.trained, 1), "epoch")} trained</span>'
        f"<span>{plural(facts.saved, 'epoch')} saved</span></div>"
    )


def _best(facts: Digest) -> str:
    if facts.best is None:
        return ""
    items = "".join(
        f"<div><dt>{escaped(k)}</dt><dd>{escaped(clipped(short(v)))}</dd></div>"
        for k, v in facts.best.config.items()
    )
    return (
        f'<h2>Best configuration <small class="quiet">trial {facts.best.trial}, '
        f"at epoch {facts.best.epoch:g}</small></h2>\n<dl>{items or '<div><dd>the only one there is</dd></div>'}</dl>"
    )


def _audit(facts: Digest) -> str:
    """What runs came to that would have been stopped, where a share of them trains on."""
    if facts.audit is None:
        return ""
    found = "<br>".join(escaped(line) for line in str(facts.audit).splitlines())
    runs = "".join(f"<li>{escaped(run)}</li>" for run in facts.audit.runs[:_AUDITED])
    more = len(facts.audit.runs) - _AUDITED
    rest = f"<li>and {plural(more, 'other')}</li>" if more > 0 else ""
    return f"<h2>Audit</h2>\n<p>{found}</p>" + (f'\n<ul class="quiet">{runs}{rest}</ul>' if runs else "")


def _trials(facts: Digest) -> str:
    if not facts.rows:
        return ""
    names = facts.problem.space.names
    shown = names if len(names) <= _COLUMNS else ()
    heads = [
        "trial", "epochs", facts.problem.goal.metric, *["level"] * facts.levels, *(shown or ["configuration"]),
        "chosen because", "outcome",
    ]  # fmt: skip
    header = "".join(f"<th>{escaped(h)}</th>" for h in heads)
    rows = "\n".join(_trial(facts, row, shown, len(heads)) for row in facts.rows)
    return (
        f'<h2>Trials{_share(facts)}</h2>\n<div class="wide"><table>\n<thead><tr>{header}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody></table></div>"
    )


def _share(facts: Digest) -> str:
    count = len(facts.rows)
    return "" if count == facts.trials else f' <small class="quiet">{count:,} of {facts.trials:,}</small>'


def _trial(facts: Digest, row: Row, names: Iterable[str], columns: int) -> str:
    """Its row, and one below for a reason: as wide as the table, however many columns there are."""
    t = row.record
    config = [_value(t.config.get(name, _NONE)) for name in names]
    if not config:
        text = escaped(clipped(settings(t.config)))
        config = [f'<td class="long" title="{text}">{text}</td>']
    value = _NONE if row.value is None else short(row.value)
    outcome = f"{row.outcome}{', the best' * row.leads}"
    cells = [
        f"<td>{t.id}</td><td>{_bar(facts, row)}{epochs(facts, row)}</td><td>{value}</td>",
        *[_value(t.tags.get("level", _NONE))] * facts.levels,
        *config,
        f'<td class="reason">{escaped(clipped(t.proposed or _NONE))}</td>',
        f"<td>{outcome}</td>",
    ]
    best = ' class="best"' if row.leads else ""
    found = f'<tr data-trial="trial-{t.id}"{best}>{"".join(cells)}</tr>'
    if not row.reason:
        return found
    why = f'<td colspan="{columns}"><div>{escaped(clipped(row.reason))}</div></td>'
    return f'{found}\n<tr class="why" data-trial="trial-{t.id}">{why}</tr>'


def _value(value: object) -> str:
    text = escaped(clipped(short(value, 3)))
    return f'<td class="long" title="{text}">{text}</td>' if len(text) > 24 else f"<td>{text}</td>"


def _bar(facts: Digest, row: Row) -> str:
    horizon = facts.problem.max_epochs
    return (
        f'<span class="run"><i style="width:{row.record.epoch / horizon:.0%}"></i></span>' if horizon else ""
    )


def _footnote(facts: Digest) -> str:
    notes = [why_left(facts)] if facts.left else []
    notes += [kept(facts.kept)] if facts.kept else []
    told = "".join(f"{escaped(note[0].upper() + note[1:])}.<br>" for note in notes)
    if not facts.saved:
        return told
    return told + (
        f"Saved: epochs of the full {facts.problem.max_epochs} that trials did not train which were stopped or left, "
        "at the median time of that trial's own epochs."
    )
