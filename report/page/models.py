"""What models of a search tell, in figures and in words: slow to make, and made anew when a trial begins or ends."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from haltune.errors import InvalidInput
from haltune.policies.autobct.policy import AutoBCT
from haltune.policies.bobos.halting import Stopper
from haltune.policies.truvar.members import MemberSet
from haltune.study.results import Results

from ..digest import Digest, Source
from ..figures.contour import contour_spec
from ..figures.importance import importance_spec, slices_spec
from ..figures.policies.beliefs import beliefs_of
from ..figures.policies.decisions import Decisions, decisions_spec
from ..figures.policies.posterior import posterior_spec
from ..figures.policies.region import answer_of, region_spec
from ..metric_model import MetricModel
from ..story import Story
from . import blocks

Items = dict[str, Any]
_SLICES = 6


@dataclass
class Models:
    """Keeps what it made until there is more to learn from."""

    _made: tuple[object, Items] = (None, {})
    _decided: Decisions | None = None
    _matter: tuple[str, ...] = ()  # parameters, the one that matters most first

    def items(self, source: Source, facts: Digest, story: Story | None) -> Items:
        """The figures and the words."""
        learnt = learnt_from(facts)
        if self._made[0] != learnt:
            self._made = (
                learnt,
                self._surrogate(source, facts) | self._decisions(source, facts, story) | self._known(source),
            )
        return self._made[1]

    def _surrogate(self, source: Source, facts: Digest) -> Items:
        model = MetricModel.of(facts.history)
        predicts = source.policy.predicts if isinstance(source, Results) else None
        told: Items = {"outlook": blocks.outlook(facts, model, predicts) if facts.problem.plain else ""}
        if model is None:
            return told
        ranked = model.importance()
        self._matter = ranked.names
        told |= {
            "figure/importance": importance_spec(model, ranked),
            "figure/slices": slices_spec(facts, model, ranked.names[:_SLICES]),
        }
        if len(ranked.names) > 1:
            told["figure/contour"] = contour_spec(facts, model, ranked.names)
        return told

    def _decisions(self, source: Source, facts: Digest, story: Story | None) -> Items:
        """How runs were stopped, where optimal stopping does it."""
        if story is None or story.stop is None or not isinstance(source, Results) or not facts.problem.plain:
            return {}
        stopper = source.policy.part(Stopper)
        if self._decided is None and stopper is not None:
            self._decided = Decisions(source, stopper)
        if self._decided is None:
            return {}
        return {"figure/decisions": decisions_spec(self._decided.of(story.stop), facts.problem.goal)}

    def _known(self, source: Source) -> Items:
        """What its own policy knows: what is good enough, or may be the best, or whether another training pays."""
        if not isinstance(source, Results):
            return {}
        with suppress(InvalidInput):  # too early to say
            if source.policy.part(MemberSet) is not None and source.history.problem.plain:
                found = answer_of(source)
                matter = [name for name in self._matter if name in found.space.columns]
                return {"figure/region": region_spec(found, *matter[:2])}
            if source.policy.part(AutoBCT) is not None:
                return {"figure/posterior": posterior_spec(beliefs_of(source))}
        return {}


def learnt_from(facts: Digest) -> object:
    """What tells whether there is more to learn from: equal while no trial begins or ends."""
    return [(row.record.id, row.record.attempt, row.record.status) for row in facts.rows]
