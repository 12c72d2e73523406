"""A log opens for ever: tests/recorded_logs has small logs of each release, made by tests/support/recorder.py."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest
from facts import image
from recorder import SHALLOW, record, told_of
from worlds import LAWFUL, told

import haltune
from haltune import Budget, Finish, Float, Minimize, Problem, Space, Trial, load_study
from haltune.errors import InvalidInput
from haltune.log.events import KINDS, Created, from_json, to_json
from haltune.policies import POLICY_NAMES
from haltune.store.open import open_store
from haltune.store.sqlite import SqliteStore
from haltune.store.studies import make, recorded_problem
from haltune.study.view import read_study

FOLDER = Path(__file__).parents[1] / "recorded_logs"
RECORDED = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))}
EACH = [(release, name) for release, studies in RECORDED.items() for name in studies]
FUNCTIONS: dict[str, dict[str, Any]] = {  # what a log has only by its name
    "truvar-grid": {"policy": LAWFUL["truvar-grid"]()},
    "queue": {"constraints": SHALLOW},
}
RECORD = (
    "Name a form of each new policy in POLICIES of tests/support/recorder.py, and record a study with each new event "
    "in its STUDIES. Then run: PYTHONPATH=tests/support python tests/support/recorder.py "
    f"tests/recorded_logs/{haltune.__version__}"
)

pytestmark = pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")  # checkpoints are not recorded


def copied(release: str, folder: Path) -> Path:
    return Path(shutil.copy(FOLDER / f"{release}.sqlite", folder / "recorded.sqlite"))


def table(path: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a study's events."""
    with closing(sqlite3.connect(path)) as c:
        c.row_factory = sqlite3.Row
        joined = "haltune_events JOIN haltune_studies ON haltune_studies.id = study"
        found = c.execute(f"SELECT haltune_events.* FROM {joined} WHERE name = ? ORDER BY seq", (name,))
        return [{key: row[key] for key in row.keys() if key != "study"} for row in found]  # noqa: SIM118


def keeps(found: Any, recorded: Any) -> bool:
    """Return whether all that was recorded is there; a later version may have more keys."""
    if isinstance(recorded, dict):
        return isinstance(found, dict) and all(k in found and keeps(found[k], v) for k, v in recorded.items())
    if isinstance(recorded, list):
        return len(found) == len(recorded) and all(map(keeps, found, recorded))
    return bool(found == recorded)


def test_every_kind_of_event_and_every_policy_of_this_version_was_recorded() -> None:
    assert haltune.__version__ in RECORDED, RECORD
    store = open_store(FOLDER / f"{haltune.__version__}.sqlite", reading=True)
    events = [event for name in store.names() for event in store.read(name)]
    assert {event.kind for event in events} == KINDS.keys(), RECORD
    specs = [e.policy.get("inner", e.policy) | e.policy for e in events if isinstance(e, Created)]
    assert {spec["policy"] for spec in specs} >= set(POLICY_NAMES), RECORD


@pytest.mark.slow
def test_this_version_can_be_recorded_again(tmp_path: Path) -> None:
    record(tmp_path / "again")
    store = open_store(tmp_path / "again.sqlite", reading=True)
    assert store.names() == list(RECORDED[haltune.__version__]), RECORD
    assert {event.kind for name in store.names() for event in store.read(name)} == KINDS.keys()


@pytest.mark.parametrize(("release", "name"), EACH)
def test_a_recorded_search_comes_to_what_it_came_to(release: str, name: str) -> None:
    study = read_study(open_store(FOLDER / f"{release}.sqlite", reading=True), name)
    assert keeps(told_of(study), RECORDED[release][name])
    assert all(study.explain(trial.id) for trial in study.trials)


@pytest.mark.parametrize(("release", "name"), EACH)
def test_each_recorded_event_is_written_again_as_it_was(release: str, name: str, tmp_path: Path) -> None:
    events = list(open_store(FOLDER / f"{release}.sqlite", reading=True).read(name))
    assert image([from_json(json.loads(json.dumps(to_json(event)))) for event in events]) == image(events)
    again = SqliteStore(f"sqlite:///{tmp_path / 'again.db'}")
    assert again.create(name, events[0])
    again.append(name, events[1:], seen=1, about=None)
    again.close()
    was = table(FOLDER / f"{release}.sqlite", name)
    for row, now in zip(was, table(tmp_path / "again.db", name), strict=True):
        bodies = [json.loads(one.pop("body") or "null") for one in (now, row)]
        assert keeps(*bodies)
        if bodies[0] != bodies[1]:
            del now["checksum"], row["checksum"]
        assert keeps(now, row)


def older(problem: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded problem without its options at their defaults: as a version wrote it that had none of them."""
    usual = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss")).to_json()

    def without(body: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in body.items() if name not in defaults or value != defaults[name]}

    options = {"bounds": None, "of": "last", "smooth": None, "rank_by": None}
    goals = problem["goal"] if isinstance(problem["goal"], list) else [problem["goal"]]
    goals = [without(goal, options) for goal in goals]
    given = {
        "space": {
            "parameters": [
                without(p, {"log": False, "ordered": False, "when": {}}) for p in problem["space"]["parameters"]
            ],
            "constraints": problem["space"]["constraints"],
        },
        "goal": goals if isinstance(problem["goal"], list) else goals[0],
        "constraints": [without(limit, {"at_most": None, "at_least": None}) for limit in problem["constraints"]],
    }
    return without(problem | given, usual)


@pytest.mark.parametrize(("release", "name"), EACH)
def test_a_log_that_is_older_than_an_option_opens_with_its_default(release: str, name: str, tmp_path: Path) -> None:
    events = list(open_store(FOLDER / f"{release}.sqlite", reading=True).read(name))
    created = events[0]
    assert isinstance(created, Created)
    without = replace(created, problem=older(json.loads(json.dumps(created.problem))))
    assert len(json.dumps(without.problem)) < len(json.dumps(created.problem))
    assert recorded_problem(without).to_json() == recorded_problem(created).to_json()
    again = SqliteStore(f"sqlite:///{tmp_path / 'again.db'}")
    assert again.create(name, without)
    given = replace(recorded_problem(created))  # as a program declares it
    recorded = read_study(open_store(FOLDER / f"{release}.sqlite", reading=True), name).policy
    policy = FUNCTIONS.get(name, {}).get("policy", recorded)
    assert make(again, name, created, None, given, policy) == without
    again.close()


@pytest.mark.parametrize(("release", "name"), EACH)
def test_an_event_that_is_older_than_an_option_has_its_default(release: str, name: str) -> None:
    for event in open_store(FOLDER / f"{release}.sqlite", reading=True).read(name):
        usual = {f.name for f in fields(event) if f.default is not MISSING and getattr(event, f.name) == f.default}
        body = json.loads(json.dumps(to_json(event)))
        assert image([from_json({name: value for name, value in body.items() if name not in usual})]) == image([event])


def test_a_problem_of_a_newer_version_is_refused_in_words() -> None:
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Minimize("loss")).to_json()
    with pytest.raises(InvalidInput, match="'restarts': a newer haltune wrote this log; update haltune"):
        Problem.from_json(problem | {"restarts": 3})


@pytest.mark.parametrize(("release", "name"), EACH)
def test_a_recorded_search_continues(release: str, name: str, tmp_path: Path) -> None:
    path = copied(release, tmp_path)
    before = list(open_store(path, reading=True).read(name))
    study = load_study(path, name, budget=Budget(trials=99), verbose=0, **FUNCTIONS.get(name, {}))
    ended = study.history.finished if not study.policy.plans else None
    answer = study.ask()
    if ended is not None:
        assert isinstance(answer, Finish)
        assert answer.reason == ended
        return
    assert isinstance(answer, Trial)
    answer.report(told(answer, 0.5), answer.epoch + 1.0)
    events = list(study.events())
    assert image(events[: len(before)]) == image(before)
    assert events[-1].kind == "reported"
