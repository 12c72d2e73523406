"""The contents of a page as items with keys. A page that follows a search receives the items that changed.

"figure/ID" is a figure as plain data, and "curve/trial-N" is a line of the first figure. "row/trial-N" is the HTML of
a row. "order/" has the numbers of the trials, the best first. "form/" has the actions that the search allows. Each
other item is the HTML of the part of the page with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

from haltune.errors import InvalidInput
from haltune.log.events import Status, plain
from haltune.log.policy import in_words
from haltune.policies.autobct.policy import AutoBCT
from haltune.policies.bobos.policy import Stopper
from haltune.policies.truvar.choice import MemberSet
from haltune.study.view import StudyView

from ..digest import MOST_TRIALS, Digest, Row, Source, digest
from ..figures import curves
from ..figures.beliefs import answer_of, beliefs_of, posterior_spec, region_spec
from ..figures.decisions import calibration_spec, decided, decisions_spec, rungs_spec
from ..figures.drawing import Spec
from ..figures.parameters import SLICES, contour_spec, importance_spec, parallel_spec, rank_spec, slices_spec
from ..figures.results import budget_spec, edf_spec, front_spec, metrics_spec, progress_spec, timeline_spec
from ..metric_model import MetricModel
from ..story import Story
from . import words

Items = dict[str, Any]
_KNOWN = 0.25  # the least share of a map's cells that are known; with fewer, the sheet is almost empty
MOST_FILES = 50  # the most files listed for a trial
_SPREAD = 5  # the fewest trials for the distribution of final values


@dataclass
class PageContents:
    """A search as a page shows it, read up to a position. Each `read` reads the events since then."""

    source: Source
    story: Story | None = None
    served: bool = False  # by haltune watch, which also serves the files of trials
    facts: Digest = field(init=False)
    position: int = field(init=False)  # in the log
    _kept: dict[str, tuple[object, Any]] = field(default_factory=dict)  # key -> (inputs, value)

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> None:
        """Read up to the newest event."""
        self.facts = digest(self.source, MOST_TRIALS)
        self.position = self.facts.history.position
        if isinstance(self.source, StudyView):
            self.story = self.story or Story(self.source.history.problem)
            self.story.fold(self.source.events(self.story.position))

    def _keep(self, key: str, made_of: object, make: Callable[[], Any]) -> Any:
        """Return the cached value of a key; make it again if its inputs changed."""
        if key not in self._kept or self._kept[key][0] != made_of:
            self._kept[key] = made_of, make()
        return self._kept[key][1]

    def items(self) -> Items:
        """Return all items."""
        return self.quick() | self.slow()

    def quick(self) -> Items:
        """Return the items that need no model of the trials."""
        facts = self.facts
        policy = in_words(self.source.policy) if isinstance(self.source, StudyView) else ""
        items: Items = {
            "head": words.head(facts),
            "stats": words.stats(facts),
            "best": words.best(facts),
            "audit": words.audit(facts),
            "foot": words.foot(facts),
            "about": words.about(facts, self.story, policy),
            "trials": words.heading(facts),
            "heads": words.heads(facts),
            "order/": words.order(facts),
            "form/": _form(facts),
            "figure/curves": {"data": curves.bands(facts, self._keep), "layout": curves.laid_out(facts)},
        }
        items |= {f"curve/{line['uid']}": line for line in curves.lines(facts, self._keep)}
        items |= {f"curve/{mark['uid']}": mark for mark in curves.marks(facts, speaking=False)}
        tracebacks = self.story.tracebacks if self.story else {}
        kept = set(self.source.checkpoints.trials()) if isinstance(self.source, StudyView) else set()  # with a folder
        for row in facts.rows:
            note, files = facts.history.notes.get(row.record.id, ""), self._files(row.record.id, kept)
            made_of = (row.record, row.leads, row.kind, row.reason, note, files, facts.levels, words.columns(facts))
            traceback = tracebacks.get(row.record.id, "")
            made = self._keep(f"row {row.record.id}", made_of, partial(words.row, facts, row, traceback, files))
            items[f"row/trial-{row.record.id}"] = made
        return items | {f"figure/{id}": spec for id, spec in self._figures().items() if spec["data"]}

    def _files(self, trial: int, kept: Container[int]) -> tuple[tuple[str, str], ...]:
        """Return the name and the address of each file that a trial wrote into its folder."""
        if trial not in kept or not isinstance(self.source, StudyView):
            return ()
        checkpoints = self.source.checkpoints
        paths = checkpoints.artifacts(trial, MOST_FILES)
        names = [path.relative_to(checkpoints.of(trial)).as_posix() for path in paths]
        if self.served:
            return tuple((name, f"files/{trial}/{quote(name, errors='surrogateescape')}") for name in names)
        return tuple((name, path.as_uri()) for name, path in zip(names, paths, strict=True))

    def _figures(self) -> dict[str, Spec]:
        """Return the figures that change with every report, and those that change less often."""
        facts, story, learnt = self.facts, self.story, learnt_from(self.facts)
        found = {"budget": budget_spec(facts), "metrics": metrics_spec(facts)}
        found["parallel"] = self._keep("parallel", learnt, lambda: parallel_spec(facts))
        if story is None:
            return found
        found["timeline"] = timeline_spec(story)
        if facts.problem.further:
            return found | {"front": front_spec(facts)}
        found["progress"] = progress_spec(story, facts)
        if facts.trials >= _SPREAD:
            found["edf"] = edf_spec(facts)
        if len(story.compared) > 1:  # one trial alone has no comparison
            came = sum(map(len, story.compared.values()))
            found["rungs"] = self._keep("rungs", (came, learnt), lambda: rungs_spec(story, facts))
        if story.stated:
            said = sum(map(len, story.stated.values()))
            found["calibration"] = self._keep(
                "calibration", (said, learnt), lambda: calibration_spec(story, facts.history)
            )
        return found

    def slow(self) -> Items:
        """Return the items with predictions of models. They are made again when a trial starts or ends."""
        return dict(self._keep("models", learnt_from(self.facts), self._models))

    def _models(self) -> Items:
        facts, source, story, plain = self.facts, self.source, self.story, self.facts.problem.plain
        model, study = MetricModel.of(facts.judged), source if isinstance(source, StudyView) else None
        items: Items = {"outlook": words.outlook(facts, model, study.policy if study else None)}
        names: tuple[str, ...] = ()  # parameters, the most important first
        if model is not None:
            ranked = model.importance()
            names = ranked.names
            items["figure/importance"] = importance_spec(model, ranked)
            if (slices := slices_spec(facts, model, names[:SLICES], known=True))["data"]:
                items["figure/slices"] = slices
            if (over_two := contour_spec(facts, model, names, _KNOWN))["data"]:
                items["figure/contour"] = over_two
        if "figure/contour" not in items and (ranks := rank_spec(facts, names))["data"]:
            items["figure/rank"] = ranks  # what is recorded, where the model has no map
        if study is None:
            return items
        stopper = study.policy.part(Stopper)
        if plain and stopper is not None and story is not None and story.stop is not None:
            last = self._keep("decision", story.stop, partial(decided, study, stopper, story.stop))
            items["figure/decisions"] = decisions_spec(last, facts.problem)
        with suppress(InvalidInput):  # too few trials yet
            if study.policy.part(MemberSet) is not None and plain:
                found = answer_of(study)
                two = [name for name in names if name in found.space.columns][:2]
                items["figure/region"] = region_spec(found, *two)
            elif study.policy.part(AutoBCT) is not None:
                items["figure/posterior"] = posterior_spec(beliefs_of(study))
        return items


def learnt_from(facts: Digest) -> object:
    """Return a value that changes when a trial starts or ends, so that models have new data."""
    return [(row.record.id, row.record.attempt, row.record.status) for row in facts.rows]


def _form(facts: Digest) -> Items:
    """Return the initial values of the forms, and the actions that would change the search now.

    The format is {"config": the best configuration in JSON types, "limits": of the budget, as far as the log has them,
    "asks": {"search": [action], "runs": {trial: [action]}}}. Without a best, the config is a random one.
    """
    history, space = facts.history, facts.problem.space
    config = facts.best.config if facts.best else space.decode([0.5] * space.dim)
    limits = history.wishes.extended(history.recorded).to_json()
    limits.pop("price", None)
    may = {
        "enqueue": history.finished is None,
        "extend": bool(limits),
        "stop": history.held is None and (history.running > 0 or not facts.over),
        "resume": history.held is not None,
    }
    runs = {row.record.id: found for row in facts.rows if (found := _asks(facts, row))}
    return {
        "config": {name: plain(value) for name, value in config.items()},
        "limits": limits,
        "asks": {"search": [action for action, would in may.items() if would], "runs": runs},
    }


def _asks(facts: Digest, row: Row) -> list[str]:
    """Return the actions for a trial that is running or paused."""
    if row.record.status not in (Status.RUNNING, Status.INTERRUPTED):
        return []
    asked = facts.history.wishes.runs.get(row.record.id)
    wish = {"stop": "end"}.get(asked.wish, asked.wish) if asked else None
    trains = ["end", "pause"] if row.kind == "running" else []
    return [action for action in trains if action != wish] + ["continue"] * (wish is not None)
