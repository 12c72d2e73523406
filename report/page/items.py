"""What a page shows, as items with keys: a page that follows a search is told those that changed.

"figure/ID" is a figure as plain data and "curve/trial-N" one line of the first of them; "row/trial-N" is the HTML of
a row, "order/" the numbers of the trials, the best first, and the others are the HTML of the place they name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from haltune.log.codec import plain
from haltune.log.policy import Policy, in_words
from haltune.study.results import Results

from ..digest import Digest, Row, Source, digest
from ..figures import curves
from ..figures.budget import budget_spec
from ..figures.drawing import Spec
from ..figures.forecast import Forecasts
from ..figures.front import front_spec
from ..figures.metrics import metrics_spec
from ..figures.parallel import parallel_spec
from ..figures.policies.calibration import calibration_spec
from ..figures.policies.rungs import rungs_spec
from ..figures.progress import edf_spec, progress_spec
from ..figures.timeline import timeline_spec
from ..sample import MOST_TRIALS
from ..story import Story
from . import blocks, trials
from .asks import asks
from .models import Items, Models, learnt_from

_SPREAD = 5  # trials from which on how their results are spread is shown


@dataclass
class ToldSearch:
    """A search as a page tells it, read to one position: `read` again reads on."""

    source: Source
    story: Story | None = None
    facts: Digest = field(init=False)
    position: int = field(init=False)  # of the log, up to which it is told
    _rows: dict[int, tuple[object, str]] = field(default_factory=dict)
    _forecasts: Forecasts = field(default_factory=Forecasts)
    _curves: curves.Made = field(default_factory=dict)
    _made: dict[str, tuple[object, Spec]] = field(default_factory=dict)
    _models: Models = field(default_factory=Models)

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> Digest:
        """The facts up to the newest event."""
        self.facts = digest(self.source, MOST_TRIALS)
        self.position = self.facts.history.position
        if isinstance(self.source, Results):
            self.story = self.story or Story(self.source.history.problem)
            self.story.fold(self.source.events(self.story.position))
        return self.facts

    @property
    def policy(self) -> str:
        """How it is written, where it is known."""
        policy: Policy[Any] | None = self.source.policy if isinstance(self.source, Results) else None
        return "" if policy is None else in_words(policy)

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
        """All that is shown."""
        return self.quick() | self.slow()

    def slow(self) -> Items:
        """What models of the trials tell."""
        return self._models.items(self.source, self.facts, self.story)

    def quick(self) -> Items:
        """All else."""
        facts = self.facts
        told: Items = {
            "head": blocks.head(facts),
            "stats": blocks.stats(facts),
            "best": blocks.best(facts),
            "audit": blocks.audit(facts),
            "foot": blocks.foot(facts),
            "about": blocks.about(facts, self.story, self.policy),
            "trials": trials.heading(facts),
            "heads": trials.head(facts),
            "order/": trials.order(facts),
            "form/": {"config": self.first, "limits": self.limits, "asks": asks(facts, self.limits)},
        }
        told["figure/curves"] = {
            "data": curves.around(facts, self._forecasts),
            "layout": curves.laid_out(facts),
        }
        told |= {f"curve/{line['uid']}": line for line in curves.lines(facts, self._curves)}
        told |= {f"curve/{mark['uid']}": mark for mark in curves.marks(facts, speaking=False)}
        told |= {f"row/trial-{row.record.id}": self._row(row) for row in facts.rows}
        return told | {f"figure/{id}": spec for id, spec in self._figures().items()}

    def _row(self, row: Row) -> str:
        said = (row.record, row.leads, row.kind, row.reason, self.facts.levels, trials.columns(self.facts))
        known = self._rows.get(row.record.id)
        if known is None or known[0] != said:
            tracebacks = self.story.tracebacks if self.story else {}
            text = trials.row(self.facts, row, tracebacks.get(row.record.id, ""))
            known = self._rows[row.record.id] = (said, text)
        return known[1]

    def _figures(self) -> dict[str, Spec]:
        """The figures that follow every report, and those that follow only some."""
        facts, story = self.facts, self.story
        found = {"budget": budget_spec(facts)}
        if (others := metrics_spec(facts))["data"]:
            found["metrics"] = others
        found["parallel"] = self._since("parallel", learnt_from(facts), lambda: parallel_spec(facts))
        if story is None:
            return found
        if facts.problem.further:
            return found | {"front": front_spec(facts), "timeline": timeline_spec(story)}
        found["progress"] = progress_spec(story, facts)
        if sum(facts.counts.values()) >= _SPREAD:
            found["edf"] = edf_spec(facts)
        found["timeline"] = timeline_spec(story)
        if story.compared:
            came = sum(map(len, story.compared.values()))
            found["rungs"] = self._since(
                "rungs", (came, learnt_from(facts)), lambda: rungs_spec(story, facts)
            )
        if story.stated:
            said = sum(map(len, story.stated.values()))
            found["calibration"] = self._since(
                "calibration", (said, learnt_from(facts)), lambda: calibration_spec(story, facts.history)
            )
        return found

    def _since(self, id: str, made_of: object, make: Callable[[], Spec]) -> Spec:
        """A figure that is made anew when what it is made of changed."""
        if id not in self._made or self._made[id][0] != made_of:
            self._made[id] = made_of, make()
        return self._made[id][1]
