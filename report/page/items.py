"""What a page shows, as items with keys: a page that follows a search is told those that changed.

"figure/ID" is a figure as plain data and "curve/trial-N" one line of the first of them; "row/trial-N" is the HTML of
a row, "order/" the numbers of the trials, the best first, and the others are the HTML of the place they name.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from haltune.errors import InvalidInput
from haltune.log.codec import plain
from haltune.log.policy import Policy
from haltune.policies.autobct.outlook import autobct_of
from haltune.policies.bobos.stopper import stopper_of
from haltune.study.results import Results

from ..digest import Digest, Row, Source, digest
from ..figures import curves
from ..figures.budget import budget_spec
from ..figures.drawing import Spec
from ..figures.forecast import Forecasts
from ..figures.importance import contour_spec, importance_spec, slices_spec
from ..figures.parallel import parallel_spec
from ..figures.policies.beliefs import beliefs_of
from ..figures.policies.calibration import calibration_spec
from ..figures.policies.decisions import Decisions, decisions_spec
from ..figures.policies.posterior import posterior_spec
from ..figures.policies.region import region_spec
from ..figures.policies.rungs import rungs_spec
from ..figures.progress import progress_spec
from ..figures.timeline import timeline_spec
from ..sample import MOST
from ..story import Story
from ..surrogate import Surrogate
from . import blocks, trials

Items = dict[str, Any]
_SLICES = 6


@dataclass
class Told:
    """A search as a page tells it, read to one position: `read` again reads on."""

    source: Source
    story: Story | None = None
    facts: Digest = field(init=False)
    _rows: dict[int, tuple[object, str]] = field(default_factory=dict)
    _forecasts: Forecasts = field(default_factory=Forecasts)
    _decided: Decisions | None = None
    _learnt: tuple[object, dict[str, Spec], str] = (None, {}, "")

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> Digest:
        """The facts up to the newest event."""
        self.facts = digest(self.source, MOST)
        if isinstance(self.source, Results):
            self.story = self.story or Story(self.source.history.problem.goal)
            self.story.fold(self.source.events(self.story.position))
        return self.facts

    @property
    def policy(self) -> str:
        """How it is written, where it is known."""
        policy: Policy[Any] | None = self.source.policy if isinstance(self.source, Results) else None
        return "" if policy is None else repr(policy)

    @property
    def first(self) -> dict[str, Any]:
        """The configuration that a form begins with: the best, as JSON takes it; before there is one, any."""
        best = self.facts.best
        space = self.facts.problem.space
        config = best.config if best else space.decode([0.5] * space.dim)
        return {name: plain(value) for name, value in config.items()}

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of the budget, as far as the log tells."""
        history = self.facts.history
        limits = history.wishes.extended(history.recorded).to_json()
        return {name: limit for name, limit in limits.items() if name != "price"}

    def items(self) -> Items:
        """All that is shown but for the trials' rows."""
        facts = self.facts
        told: Items = {
            "head": blocks.head(facts),
            "stats": blocks.stats(facts),
            "best": blocks.best(facts),
            "prospect": self._models()[1],
            "audit": blocks.audit(facts),
            "foot": blocks.foot(facts),
            "about": blocks.about(facts, self.story, self.policy),
            "order/": trials.order(facts),
            "form/": {"config": self.first, "limits": self.limits},
        }
        told["figure/curves"] = {
            "data": curves.around(facts, self._forecasts),
            "layout": curves.laid_out(facts),
        }
        told |= {f"curve/{line['uid']}": line for line in curves.lines(facts)}
        told |= {f"curve/{mark['uid']}": _bare(mark) for mark in curves.marks(facts)}
        return told | {f"figure/{id}": spec for id, spec in self._figures().items()}

    def rows(self) -> dict[str, str]:
        """The rows of the trials that are shown, made anew where something changed."""
        return {f"row/trial-{row.record.id}": self._row(row) for row in self.facts.rows}

    def _row(self, row: Row) -> str:
        said = (row.record, row.leads, row.kind, self.facts.levels)
        known = self._rows.get(row.record.id)
        if known is None or known[0] != said:
            tracebacks = self.story.tracebacks if self.story else {}
            text = trials.row(self.facts, row, tracebacks.get(row.record.id, ""))
            known = self._rows[row.record.id] = (said, text)
        return known[1]

    def _figures(self) -> dict[str, Spec]:
        """The figures; those that hold all trials are made anew when one has begun or ended, not at every report."""
        story, found = self.story, dict(self._models()[0])
        if story is not None:
            found["progress"] = progress_spec(story, self.facts.problem, self.facts.best)
        return found

    def _of_all(self) -> dict[str, Spec]:
        facts, story = self.facts, self.story
        found = {"budget": budget_spec(facts), "parallel": parallel_spec(facts)}
        if story is None:
            return found
        found["timeline"] = timeline_spec(story)
        if story.compared:
            found["rungs"] = rungs_spec(story, facts)
        if story.stop is not None and (decided := self._decisions()) is not None:
            found["decisions"] = decisions_spec(decided.of(story.stop), facts.problem.goal)
        if story.stated:
            found["calibration"] = calibration_spec(story, facts.history)
        return found

    def _decisions(self) -> Decisions | None:
        """What tells how runs were stopped, where optimal stopping does it."""
        if self._decided is None and isinstance(self.source, Results):
            stopper = stopper_of(self.source.policy)
            self._decided = Decisions(self.source, stopper) if stopper else None
        return self._decided

    def _models(self) -> tuple[dict[str, Spec], str]:
        """What is told of all trials, and by a model of them, in figures and in words: anew when one begins or ends."""
        facts = self.facts
        ended = tuple((r.record.id, r.record.attempt, r.record.status) for r in facts.rows)
        if self._learnt[0] != ended:
            model = Surrogate.of(facts.history)
            ranked = model.importance() if model else None
            names = ranked.names if ranked else ()
            pair = (*names, None, None)[:2]
            figures = {
                "importance": importance_spec(model, ranked),
                "contour": contour_spec(facts, model, *pair),
                "slices": slices_spec(facts, model, names[:_SLICES]),
            }
            self._learnt = (
                ended,
                self._of_all() | (figures if model else {}) | self._known(),
                blocks.prospect(facts, model),
            )
        return self._learnt[1:]

    def _known(self) -> dict[str, Spec]:
        """What its own policy knows: where the metric is good enough, or whether another training pays."""
        source = self.source
        if not isinstance(source, Results):
            return {}
        with suppress(InvalidInput):  # too early to say, or a level-set search looks for the best alone
            if source.policy.member_set is not None:
                return {"region": region_spec(source.level_set())}
            if autobct_of(source.policy) is not None:
                return {"posterior": posterior_spec(beliefs_of(source))}
        return {}


def _bare(mark: dict[str, Any]) -> dict[str, Any]:
    """A mark that tells what its curve does: said once."""
    if mark["uid"] == "audited":
        return mark
    return {name: told for name, told in mark.items() if name not in ("customdata", "hovertemplate", "meta")}
