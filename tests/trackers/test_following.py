"""Trackers get all events of a search, in order, once; and none of them can break it."""

import subprocess
import sys

import pytest

from haltune import Budget, Float, Maximize, Study, load_study
from haltune.errors import HaltuneWarning, InvalidInput, StoreError
from haltune.log.events import Ended, Status
from haltune.policies import Halting, OptimalStopping, RandomSearch, SuccessiveHalving
from haltune.trackers import track
from haltune.trackers.tracker import Mirror, Turn


class Notes:
    """A tracker that keeps all events."""

    def __init__(self, position=0, fails=0):
        self.position, self.fails, self.lines, self.closed = position, fails, [], None

    def _line(self, *words):
        if self.fails:
            self.fails -= 1
            raise OSError("the server is away")
        self.lines.append(words)

    def open(self, search):
        self.search = search
        return self.position

    def start(self, trial):
        self._line("begin", trial.id)

    def report(self, trial, points):
        for point in points:
            self._line("report", trial.id, point.epoch, dict(point.values))

    def end(self, trial, status, tags):
        self._line("end", trial.id, str(status), tags)

    def save_position(self, position):
        self.position = position

    def close(self, tags, over):
        self.closed = (tags, over)

    def of(self, kind):
        return [line[1:] for line in self.lines if line[0] == kind]


def searched(study, pauses=True):
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                verdict = trial.report(epoch / (epoch + trial.config["lr"]), metrics={"loss": 1 / epoch})
            if verdict.resumable and pauses:
                trial.checkpointed("nowhere")
    return study


def made(policy=None, trials=4, store=None, epochs=4, **options):
    return Study(
        {"lr": Float(0.1, 4.0)}, Maximize("acc", (0, 1)), store, max_epochs=epochs, policy=policy or RandomSearch(),
        budget=Budget(trials=trials), seed=0, verbose=0, **options,
    )  # fmt: skip


def test_all_events_are_sent_in_their_order():
    study, notes = made(), Notes()
    with track(study, notes, every=0.01):
        searched(study)
    assert notes.search.name == "study"
    assert notes.of("begin") == [(i,) for i in range(4)]
    told = [(id, epoch) for id, epoch, _ in notes.of("report")]
    assert told == [(i, epoch) for i in range(4) for epoch in (1, 2, 3, 4)]
    values = [values["acc"] for id, _, values in notes.of("report") if id == 2]
    assert values == study.trials[2].values.tolist()
    assert all(values["loss"] == 1 / epoch for _, epoch, values in notes.of("report"))
    assert [(id, status) for id, status, _ in notes.of("end")] == [(i, "completed") for i in range(4)]
    tags, over = notes.closed
    assert over
    assert tags["haltune.best_trial"] == str(study.best.trial)
    assert notes.position == study.history.position


@pytest.mark.parametrize("wrong", ["wandb", Notes, None])
def test_what_is_no_tracker_is_refused_before_anything_is_trained(wrong):
    with pytest.raises(InvalidInput, match=r"is not a tracker\. Make one of haltune\.trackers"), track(made(), wrong):
        raise AssertionError("it trains")


def test_verdict_and_reason_are_sent_with_a_stop():
    study, notes = made(Halting(RandomSearch(), OptimalStopping(K1=200)), 8, epochs=20), Notes()
    with track(study, notes):
        searched(study)
    stopped = {t.id: t for t in study.trials if t.status is Status.STOPPED}
    assert stopped
    for id, status, tags in notes.of("end"):
        if id in stopped:
            assert (status, tags["haltune.verdict"]) == ("stopped", "stop")
            assert tags["haltune.reason"] == stopped[id].verdict.reason
            assert float(tags["haltune.p_beats"]) == stopped[id].verdict.evidence["p_win"]


def test_a_run_that_pauses_continues_in_its_place():
    study, notes = made(SuccessiveHalving(n=3, rounds=1), 3, epochs=9), Notes()
    mirror = Mirror(study, notes)
    for trial in study:
        with trial:
            for _ in trial.epochs():
                verdict = trial.report(0.5)
                assert mirror.update()
            if verdict.resumable:
                trial.checkpointed("nowhere")
    assert mirror.update()
    won = next(t.id for t in study.trials if t.status is Status.COMPLETED)
    assert len([id for (id,) in notes.of("begin") if id == won]) == 2
    assert [epoch for id, epoch, _ in notes.of("report") if id == won] == list(range(1, 10))
    assert [status for id, status, _ in notes.of("end") if id == won] == ["paused", "completed"]


def test_a_program_that_is_started_again_sends_only_new_events(tmp_path):
    store, notes = tmp_path / "search.db", Notes()
    with track(searched(made(trials=2, store=store)), notes):
        pass
    assert len(notes.of("report")) == 8
    more, later = load_study(store, budget="3 trials", verbose=0), Notes(notes.position)
    with track(more, later):
        searched(more)
    assert later.of("begin") == [(2,)]
    assert [id for id, _, _ in later.of("report")] == [2] * 4


def test_a_tracker_that_is_away_gets_the_events_later_and_breaks_nothing():
    study, notes = made(trials=1), Notes(fails=2)
    mirror = Mirror(study, notes)
    searched(study)
    with pytest.warns(HaltuneWarning, match="Cannot send 'study' to Notes: OSError: the server is away"):
        assert not mirror.update()
    assert not mirror.update()
    assert mirror.update()
    assert [line[:2] for line in notes.lines] == [("begin", 0), *[("report", 0)] * 4, ("end", 0)]


def test_no_event_is_sent_twice_although_the_store_is_away_in_the_middle(monkeypatch):
    study, notes = made(trials=2), Notes()
    searched(study)
    mirror, read, failed = Mirror(study, notes), study.store.read, []

    def breaks(name, start=0, stop=None):
        for event in read(name, start, stop):
            if isinstance(event, Ended) and stop is not None and not failed:  # not while the log is folded
                failed.append(event)
                raise StoreError("the server is away")
            yield event

    monkeypatch.setattr(study.store, "read", breaks)
    with pytest.warns(HaltuneWarning, match="the server is away"):
        assert not mirror.update()
    assert mirror.update()
    assert failed
    assert [line[:2] for line in notes.lines] == [
        line for i in (0, 1) for line in (("begin", i), *[("report", i)] * 4, ("end", i))
    ]


def placed(place, position=0):
    """A tracker that has an address, as the libraries' have."""
    notes = Notes(position)
    notes.place = place
    return notes


def test_of_two_that_share_a_search_one_sends_and_the_other_continues_when_it_ends(tmp_path, caplog):
    study, here = made(trials=3), str(tmp_path)
    first, second, elsewhere = placed(here), placed(here), placed(here + "/other")
    one, two, three = Mirror(study, first), Mirror(study, second), Mirror(study, elsewhere)
    study.tell(study.ask(), 0.1)
    with caplog.at_level("INFO", "haltune"):
        assert one.update()
        assert not two.update()
        assert not two.update()
        assert three.update()
    assert caplog.text.count("Another program sends 'study' to Notes. This one continues when the other ends") == 1
    study.tell(study.ask(), 0.2)
    one.close()
    second.position = first.position  # they send to one place
    study.tell(study.ask(), 0.3)
    assert two.update()
    two.close()
    assert [notes.of("begin") for notes in (first, second)] == [[(0,), (1,)], [(2,)]]
    assert elsewhere.of("begin") == [(0,)]


HOLDS = """
import sys
from haltune.trackers.tracker import Turn
teller = Turn("search", sys.argv[1])
print(teller.mine(), flush=True)
sys.stdin.read()
"""


def test_a_tracking_program_that_is_killed_blocks_no_other(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    with other:
        assert other.stdout.readline() == "True\n"
        teller = Turn("search", str(tmp_path))
        assert not teller.mine()
        other.kill()
        other.wait()
    assert teller.mine()
    teller.release()
