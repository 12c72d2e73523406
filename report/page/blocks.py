"""The page's words: the answer first, then what it cost and what is known about the search, as HTML.

Whatever a user typed (names, the metric, configurations, errors) is escaped on its way in.
"""

from __future__ import annotations

import time
from contextlib import suppress
from importlib.metadata import version

from haltune._utils.words import clipped, duration, plural, settings, short
from haltune.display.notebook import escaped
from haltune.errors import InvalidInput
from haltune.log.fate import shared_error
from haltune.study.telling.outlook import outlook as estimated

from ..digest import Digest
from ..metric_model import MetricModel
from ..story import Story
from ..summary import IDLE, kept, trained_again_line, why_left

_LISTED = 50  # runs of a front
_AUDITED = 50  # would-be stops that are listed


def head(facts: Digest) -> str:
    """The best value, and whether the search is over."""
    goal = facts.problem.goal
    aim = "highest" if goal.sign > 0 else "lowest"
    best = f"<b>{short(facts.best.value)}</b>" if facts.best else "no value yet"
    after = f" after {plural(round(facts.best.epoch, 2), 'epoch')}" if facts.best else ""
    if (
        facts.best and facts.best.epoch != facts.problem.max_epochs
    ):  # others, at as many epochs, may have had more
        after = f", of trial {facts.best.trial}{after}"
    if facts.problem.further:
        best, aim, after = _on_front(facts), "on the front of", ""
    state = "The search is over" if facts.over else "The search continues"
    if facts.held:
        state = "The search is stopped for now"
    elif facts.idle:
        state = IDLE[0].upper() + IDLE[1:]
    outcome = facts.outcome if facts.over else ""
    error = shared_error(facts.history)
    return (
        f'<p class="quiet">haltune &middot; {escaped(facts.name)}</p>\n'
        f"<h1>{best} <small>{aim} {escaped(_metrics(facts))}{after}</small></h1>\n"
        f'<p class="over">{state}{": " * bool(outcome)}{escaped(outcome)}.</p>'
        + (f'\n<p class="over"><b>{escaped(error)}</b></p>' if error else "")
    )


def _on_front(facts: Digest) -> str:
    return f"<b>{plural(len(facts.front), 'run')}</b>" if facts.front else "no run yet"


def _metrics(facts: Digest) -> str:
    *before, last = (goal.metric for goal in facts.problem.goals)
    return f"{', '.join(before)} and {last}" if before else last


def stats(facts: Digest) -> str:
    """Trials, epochs, and what was saved, with a bar of trained and saved epochs."""
    found = [
        (plural(facts.trials, "trial"), facts.states or "none yet"),
        (
            plural(round(facts.trained, 1), "epoch"),
            f"trained in {duration(facts.seconds)}{trained_again_line(facts)}",
        ),
    ]
    savings = facts.savings
    if savings.epochs:
        found.append((f"{savings.most}{facts.saved_share:.0%} saved", "of the epochs of full training"))
        found.append((f"{savings.most or 'about '}{duration(savings.seconds)}", "of training saved"))
    tiles = "".join(f"<div><b>{b}</b><span>{t}</span></div>" for b, t in found)
    return f'<div class="stats">{tiles}</div>' + _saved(facts)


def _saved(facts: Digest) -> str:
    savings = facts.savings
    told = [f"{savings.most}{plural(savings.epochs, 'epoch')} saved"] * (savings.epochs > 0)
    told += [savings.left] * (savings.itself > 0)
    if not told:
        return ""
    return (
        f'<svg class="saved" aria-hidden="true"><rect width="{facts.trained / facts.whole:.2%}" height="100%"/></svg>'
        f'<div class="key"><span>{plural(round(facts.trained, 1), "epoch")} trained</span>'
        f"<span>{', '.join(told)}</span></div>"
    )


def outlook(facts: Digest, model: MetricModel | None, predicts: bool | None) -> str:
    """How sure the best is, and whether as much search again would find a better one; nothing that was not measured."""
    if facts.best is None:
        return ""
    told = []
    if model is not None:
        behind = model.behind(facts.history, facts.best.trial)
        more = f" by more than {short(behind, 2)}" if behind > 0.0 else ""
        told.append(
            f"With 90% probability, no trial so far would end better{more} if it were trained in full."
        )
    with suppress(InvalidInput):  # too few trials, say
        told.append(escaped(str(estimated(facts.history, predicts))))
    return f'<p class="facts">{" ".join(told)}</p>' if told else ""


def best(facts: Digest) -> str:
    """The best configuration; with several goals all that are on the front."""
    if facts.problem.further:
        return _front(facts)
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


def _front(facts: Digest) -> str:
    """What is on the front, the best in the first goal first."""
    if not facts.front:
        return ""
    names = [*facts.front[0].values]
    heads = "".join(f"<th>{escaped(name)}</th>" for name in ("trial", *names, "configuration"))
    rows = "".join(
        f'<tr data-trial="trial-{run.trial}"><td>{run.trial}</td>'
        + "".join(f"<td>{short(run.values[name])}</td>" for name in names)
        + f'<td class="long">{escaped(clipped(settings(run.config)))}</td></tr>'
        for run in facts.front[:_LISTED]
    )
    more = len(facts.front) - _LISTED
    rest = f'<p class="quiet">and {plural(more, "other")}</p>' if more > 0 else ""
    return (
        '<h2>Runs on the front <small class="quiet">nothing betters them in all goals</small></h2>\n'
        f'<div class="front wide-table"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{rest}'
    )


def audit(facts: Digest) -> str:
    """What runs came to that would have been stopped, where a share of them trains on."""
    if facts.audit is None:
        return ""
    found = "<br>".join(escaped(line) for line in str(facts.audit).splitlines())
    runs = "".join(f"<li>{escaped(run)}</li>" for run in facts.audit.runs[:_AUDITED])
    more = len(facts.audit.runs) - _AUDITED
    rest = f"<li>and {plural(more, 'other')}</li>" if more > 0 else ""
    return f"<h2>Audit</h2>\n<p>{found}</p>" + (f'\n<ul class="quiet">{runs}{rest}</ul>' if runs else "")


def about(facts: Digest, story: Story | None, policy: str) -> str:
    """Goal, space, policy, dates and versions."""
    space = facts.problem.space
    pairs = [
        ("goal", ", ".join(map(repr, facts.problem.goals))),
        ("within", ", ".join(map(str, facts.problem.constraints))),
        ("epochs", f"at most {facts.problem.max_epochs} a trial" if facts.problem.max_epochs else "without an end"),
        *((name, repr(domain)) for name, domain in space.parameters.items()),
        *((f"constraint {i}", str(c)) for i, c in enumerate(space.constraints, 1)),
        ("policy", policy),
        ("seed", str(facts.history.seed)),
        ("dates", _dates(story)),
        ("haltune", version("haltune")),
    ]  # fmt: skip
    rows = "".join(
        f"<tr><th>{escaped(name)}</th><td>{escaped(clipped(told))}</td></tr>" for name, told in pairs if told
    )
    return f"<details><summary>About this search</summary><table>{rows}</table></details>"


def _dates(story: Story | None) -> str:
    if story is None or not story.stretches:
        return ""
    begun, last = (time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at)) for at in (story.begun, story.now))
    return f"{begun} to {last}"


def foot(facts: Digest) -> str:
    """What was left, what is kept, and how saving is counted."""
    notes = [why_left(facts)] if facts.left else []
    notes += [kept(facts.kept)] if facts.kept else []
    told = "".join(f"{escaped(note[0].upper() + note[1:])}.<br>" for note in notes)
    if not facts.savings.epochs:
        return told
    most = (
        " At most so much: where some ended by themselves before that, those that were stopped might have, too."
        if facts.savings.most
        else ""
    )
    return told + (
        f"Saved: epochs of the full {facts.problem.max_epochs} that trials did not train which were stopped or left, "
        f"at the median time of that trial's own epochs.{most}"
    )
