"""A rank above 0 has the same log as rank 0 after every call, and never opens the store."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interrupted import default_ctrl_c, uninterrupted
from two_ranks import run_ranks
from whims import PAUSE, PROBLEM, STOP, Whims

from haltune import Budget, Storage, Study, Trial, Verdict
from haltune.errors import NotSupported, StoreAway
from haltune.launch import run, run_script
from haltune.log.decisions import Wait
from haltune.log.events import to_json, verdict_to_json
from haltune.ranks import programs
from haltune.ranks.lines import Reader, Writer
from haltune.ranks.parts import Follower, Part, Sent
from haltune.ranks.place import ThisProcess
from haltune.store.memory import MemoryStore
from haltune.study import session
from haltune.trackers import track

__all__ = ["default_ctrl_c"]


class Pair:
    """One study on rank 0 and on rank 1, both in this process."""

    def __init__(self, store: Any, folder: Path) -> None:
        name = uuid4().hex
        base = {"WORLD_SIZE": "2", "MASTER_PORT": name}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HALTUNE_RUN_FOLDER", str(folder))
            patch.setenv("HALTUNE_RANK_TIMEOUT", "5")
            ends = [Writer(ThisProcess(base | {"RANK": "0"})), Reader(ThisProcess(base | {"RANK": "1"}))]
            parts: Iterator[Part] = iter([Part(name, ends[0]), Follower(name, ends[1])])  # type: ignore[arg-type]
            patch.setattr(session, "joined", lambda *_: next(parts))
            options = {"budget": Budget(trials=6), "seed": 1, "verbose": 0, "checkpoints": folder / "kept"}
            self.studies = [Study(PROBLEM, Whims(wait_at=2), store, name, **options) for _ in range(2)]
        self.trials: list[Trial | None] = [None, None]
        self.folder = folder

    def both(self, call: Callable[[int], Any]) -> list[Any]:
        """Make a call on rank 0, then on rank 1; both see the same, also exceptions."""
        seen, with_folder = [], {}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HALTUNE_RUN_FOLDER", str(self.folder))
            for rank in range(2):
                try:
                    seen.append(call(rank))
                except Exception as error:
                    seen.append((type(error), str(error)))
                with_folder[rank] = self.state(rank)
        assert with_folder[0] == with_folder[1]
        return seen

    def state(self, rank: int) -> list[str]:
        """All that a rank sees, in words: NaN is not equal to itself."""
        study, trial = self.studies[rank], self.trials[rank]
        found = [
            study.history.position,
            [to_json(event) for event in study.events()],
            study.trials,
            study.outcome,
            study.spent,
        ]
        found += [study.best, list(study.history.queue)]
        names = ("id", "attempt", "config", "epoch", "pause_at", "checkpoint", "verdict", "ended", "tags", "resource")
        return list(map(said, found + [trial and getattr(trial, name) for name in names]))

    def ask(self) -> None:
        answers = self.both(lambda rank: self.studies[rank].ask())
        assert [type(answer) for answer in answers] == [type(answers[0])] * 2
        self.trials = [answer if isinstance(answer, Trial) else None for answer in answers]
        if self.trials[0] is None:
            assert answers[0] == answers[1]

    def do(self, call: Callable[[Trial], Any]) -> None:
        trials = self.trials
        if isinstance(trials[0], Trial) and isinstance(trials[1], Trial):
            first, second = self.both(lambda rank: call(trials[rank]))  # type: ignore[arg-type]
            assert said(first) == said(second)


def said(value: object) -> str:
    """Return a value in words: NaN is not equal to itself, and a store may read an empty table as another type."""
    return repr(verdict_to_json(value) if isinstance(value, Verdict) else value)


SENDS = ("start", "report", "end", "save_position", "close")  # of a tracker
VALUES = st.sampled_from([0.1, 0.5, STOP, PAUSE, float("nan")])
CALLS: dict[str, Callable[[Pair, float], object]] = {
    "ask": lambda pair, _: pair.ask(),
    "report": lambda pair, value: pair.do(lambda trial: trial.report(value, seconds=1.0)),
    "report again": lambda pair, value: pair.do(lambda trial: trial.report(value, trial.epoch or 1, seconds=1.0)),
    "report late": lambda pair, value: pair.do(lambda trial: trial.report(value, seconds=1.0, judge=False)),
    "save": lambda pair, _: pair.do(lambda trial: trial.save(lambda path: path.write_text("state"))),
    "save the best": lambda pair, _: pair.do(lambda trial: trial.save(lambda path: path.write_text("s"), keep=True)),
    "save nothing": lambda pair, _: pair.do(lambda trial: trial.save(lambda path: None)),
    "keeps": lambda pair, _: pair.do(lambda trial: trial.keeps()),
    "keeps its best epoch": lambda pair, _: pair.do(lambda trial: trial.keeps(best_epoch=True)),
    "room": lambda pair, value: pair.do(lambda trial: trial.room_for(1e20 if value == 0.1 else 1)),  # type: ignore[arg-type]
    "decline": lambda pair, _: pair.do(lambda trial: trial.decline_pause()),
    "finish": lambda pair, _: pair.do(lambda trial: trial.finish()),
    "interrupt": lambda pair, _: pair.do(lambda trial: trial.interrupt()),
    "fail": lambda pair, _: pair.do(lambda trial: trial.fail(ValueError("diverged"))),
    "tolerates": lambda pair, _: pair.do(lambda trial: trial.ended is not None and trial.tolerates(ValueError("no"))),
    "enqueue": lambda pair, value: pair.both(
        lambda rank: pair.studies[rank].enqueue({"x": 0.3 if value == 0.1 else 0.6})
    ),
    "rank 0 loses it": lambda pair, _: lose(pair),
    "another worker": lambda pair, value: work(pair, value),
}


def lose(pair: Pair) -> None:
    """Another worker of the store finds that the trial is lost; rank 0 reads it with the next call."""
    replica, trial = pair.studies[0].session.replica, pair.trials[0]
    if trial is None or trial.ended is not None:
        return
    lease = replica.lease(trial.id, trial.attempt)
    with elsewhere(pair) as study, study.session.replica.lock:
        other = study.session.replica
        other.sync()
        if other.history.trial(trial.id).status == "running":
            other.append_if_held(other.expired(lease, 2), lease)


def work(pair: Pair, value: float) -> None:
    with elsewhere(pair) as study:
        other = study.ask()
        if isinstance(other, Trial):
            other.report(value, seconds=1.0)
            other.finish()


@contextmanager
def elsewhere(pair: Pair) -> Iterator[Study]:
    """The same study in another worker, which is no rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "joined", lambda *_: Part())
        first = pair.studies[0]
        yield Study(PROBLEM, Whims(wait_at=2), first.store, first.name, budget=Budget(trials=6), verbose=0)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return None if request.param == "memory" else tmp_path / "a.db"


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(calls=st.lists(st.tuples(st.sampled_from([*CALLS, *["ask", "report", "finish"] * 3]), VALUES), max_size=30))
def test_a_follower_has_rank_0_s_log_and_attempt_after_every_call(
    store: Any, tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, float]]
) -> None:
    pair = Pair(store, tmp_path_factory.mktemp("ranks"))
    for name, value in calls:
        CALLS[name](pair, value)
    pair.ask()


OPENING = """
import json, os
from haltune import *
from whims import PROBLEM, Whims
from haltune.store.sqlite import SqliteStore
if os.environ["RANK"] == "1":
    def fails(*_, **__): raise AssertionError("a follower opened the store")
    SqliteStore.__init__ = fails
study = Study(PROBLEM, Whims(), "search.db", budget=Budget(trials=3), seed=1)
for trial in study:
    with trial:
        for _ in trial.epochs():
            if trial.report(0.5).stops: break
        trial.save(lambda path: path.write_text("state"))
print(json.dumps([repr(study), [t.status for t in study.trials], len(list(study.events())), str(study.best),
                  study.explain(0), str(study.outcome)]))
"""


class Unanswering(MemoryStore):
    """Stores a report, and does not answer, as often as `silent` says."""

    silent = 0

    def append(self, name: str, events: Any, **options: Any) -> int:
        position = super().append(name, events, **options)
        if self.silent and events[0].kind == "reported":
            self.silent -= 1
            raise StoreAway("the server did not answer")
        return position


def test_a_report_repeated_after_an_answer_was_lost_is_recalled_on_all_ranks(tmp_path: Path) -> None:
    pair = Pair(Storage(store := Unanswering(), patience=0.0), tmp_path)
    pair.ask()
    for silent in (0, 1, 0, 1):
        store.silent = silent
        said = pair.both(lambda rank: pair.trials[rank].report(0.5, seconds=1.0))
        if silent:
            assert said == [(StoreAway, "the server did not answer")] * 2
            said = pair.both(lambda rank: pair.trials[rank].report(0.5, seconds=2.0))
        assert said[0] == said[1]
    assert list(pair.studies[1].trials[0].epochs) == [1, 2, 3, 4]


def test_a_report_of_a_fold_repeated_after_an_answer_was_lost_is_recalled_on_all_ranks(tmp_path: Path) -> None:
    pair = Pair(Storage(store := Unanswering(), patience=0.0), tmp_path)
    pair.ask()
    folds = [trial.folds(2) for trial in pair.trials if trial]
    fold = pair.both(lambda rank: next(folds[rank]))
    for silent in (0, 1, 0, 1):
        store.silent = silent
        said = pair.both(lambda rank: fold[rank].report(0.5, seconds=1.0))
        if silent:
            assert said == [(StoreAway, "the server did not answer")] * 2
            said = pair.both(lambda rank: fold[rank].report(0.5, seconds=2.0))
        assert said[0] == said[1]
    assert list(pair.studies[1].trials[0].metrics["fold_epoch"]) == [1, 2, 3, 4]


def test_a_callback_on_rank_0_alone_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALTUNE_RANK_TIMEOUT", "0.2")
    pair = Pair(None, tmp_path)
    pair.ask()
    first, second = pair.trials
    assert first is not None
    assert second is not None
    with pytest.raises(NotSupported, match=r"another rank of this fit has none.*on every rank"):
        first.attaches(1)
    first.attaches(2)  # it does not know one of them
    second.attaches(1)
    first.attaches(1)


@pytest.mark.usefixtures("default_ctrl_c")
def test_after_ctrl_c_anywhere_in_a_decision_the_next_one_is_sent() -> None:
    sent: list[Any] = []
    part = Part("search", SimpleNamespace(writes=True, write=sent.append))  # type: ignore[arg-type]

    def decides() -> bool:
        with part.decision("reports") as decision:  # type: ignore[union-attr]
            with part.decision("keeps") as inner:  # type: ignore[union-attr]
                inner.answer = 0
            decision.answer = 1
        return True

    place = 1
    while uninterrupted(decides, place) is None:
        assert isinstance(part.decision("ends"), Sent), place
        place += 1
    assert place > 5
    assert {one.topic: one.answer for one in sent if one.error is None} == {"reports": 1}


def test_rank_0_alone_launches_and_sends_to_trackers(tmp_path: Path) -> None:
    pair, opened = Pair(tmp_path / "a.db", tmp_path), []

    def tracks(rank: int) -> list[int]:
        tracker = SimpleNamespace(open=lambda search: opened.append(rank) or 0, **dict.fromkeys(SENDS, lambda *_: None))
        with track(pair.studies[rank], tracker, every=60.0):  # type: ignore[arg-type]
            return []

    pair.both(tracks)
    assert opened == [0]
    for launches in (lambda study: run(study, print), lambda study: run_script(study, ["true"])):
        with pytest.raises(NotSupported, match="one rank of a distributed training"):
            launches(pair.studies[1])
    assert pair.studies[0].trials == []


def test_a_follower_keeps_nothing_of_a_report_that_it_has_followed(tmp_path: Path) -> None:
    def queues() -> int:
        gc.collect()
        return sum(type(one) is deque for one in gc.get_objects())

    pair, counts = Pair(None, tmp_path), []
    pair.ask()
    for _ in range(8):
        CALLS["report"](pair, 0.5)
        counts.append(queues())
    assert counts == counts[:1] * 8


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "denied", "a.ckpt")])
def test_an_error_of_the_disk_has_its_number_on_all_ranks(tmp_path: Path, error: OSError) -> None:
    pair = Pair(None, tmp_path)
    pair.ask()

    def full(path: Path) -> None:
        raise error

    def save(rank: int) -> Any:
        with pytest.raises(OSError, match="Errno") as caught:
            pair.trials[rank].save(full)
        return type(caught.value), caught.value.errno, str(caught.value)

    pair.both(lambda rank: pair.trials[rank].report(0.5))
    assert pair.both(save) == [(type(error), error.errno, str(error))] * 2


def test_a_follower_never_opens_the_store(tmp_path: Path) -> None:
    first, second = run_ranks(["-c", OPENING], tmp_path)
    assert first == second
    assert first[0][1] == ["completed"] * 3


@pytest.mark.parametrize("file", [None, "a.db"])
def test_a_single_process_converts_and_reads_nothing_for_other_ranks_until_a_fit_starts_one(
    file: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(programs._before, "waiting", [])  # studies of other tests wait for programs too
    sent: list[object] = []
    to_json = session.to_json
    monkeypatch.setattr(session, "to_json", lambda event: sent.append(event) or to_json(event))  # type: ignore[func-returns-value]
    writer = Writer(ThisProcess({}))
    monkeypatch.setattr(session, "joined", lambda *_: Part("study", writer))
    study = Study(PROBLEM, Whims(wait_at=1), file and tmp_path / file, budget=Budget(trials=3), seed=1, verbose=0)
    for trial in study:
        for value in (0.5, 0.5, STOP):
            trial.report(value)
        trial.save(lambda path: path.write_text("state"))
        assert isinstance(study.ask(), Wait)
    start_a_program()
    assert sent == []
    assert not list(tmp_path.rglob("lines"))
    start_a_program(LOCAL_RANK="1")
    assert sent == list(study.events())
    assert len(list(tmp_path.rglob("lines"))) == 1


def start_a_program(**environment: str) -> None:
    subprocess.run([sys.executable, "-S", "-c", ""], env=os.environ | environment, check=True)
