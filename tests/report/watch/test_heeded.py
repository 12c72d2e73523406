"""Workers in other processes obey the page's buttons; and a database stops and restarts."""

import threading
import time
from pathlib import Path

import pytest
from postgres import Server, server, skip_or_fail

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.errors import StoreAway
from haltune.log.events import Status
from haltune.policies import RandomSearch
from haltune.report.watch.app import ACTIONS, Location
from haltune.report.watch.watched import Watched
from haltune.store.open import open_store
from haltune.study.view import follow_study

PROBLEM = Problem(Space({"lr": Float(0.01, 1.0)}), Maximize("acc", (0, 1)), 2000)


def patient(trial):
    """Train until the verdict is to stop."""
    for epoch in trial.epochs():
        time.sleep(0.02)
        if trial.report(epoch / 4000, seconds=0.02).stops:
            return


@pytest.mark.slow
def test_every_button_is_heeded_by_workers_in_processes_of_their_own(tmp_path):
    url = str(tmp_path / "a.db")
    study = Study(PROBLEM, RandomSearch(), url, seed=0, budget=Budget(trials=3), verbose=0)
    searching = threading.Thread(target=study.optimize, args=(patient,), kwargs={"workers": 2}, daemon=True)
    searching.start()
    place = Location(open_store(url, reading=True), study.name, url)

    def until(holds):
        end = time.monotonic() + 120
        while not holds(now()):
            assert time.monotonic() < end
            time.sleep(0.05)

    def now():
        watched.study.sync()
        return watched.study.history

    def asks(action, **asked):
        return watched.acted(lambda study, asked: ACTIONS[action](place, study, asked), asked)

    watched = Watched(follow_study(place.store, study.name), rests=False)
    until(lambda history: history.running == 2 and min(len(t.values) for t in history.trials) > 0)
    asks("end", trial=0)
    until(lambda history: history.trial(0).status is Status.STOPPED)
    asks("enqueue", config={"lr": 0.125})
    asks("pause", trial=1)
    until(lambda history: history.trial(1).status is Status.INTERRUPTED)
    asks("extend", limits={"trials": 5})
    until(lambda history: {"lr": 0.125} in [dict(t.config) for t in history.trials])
    asks("stop")
    searching.join(120)
    assert not searching.is_alive()
    assert now().held is not None
    assert now().running == 0
    assert now().wishes.extended(Budget(trials=3)).trials == 5


@pytest.fixture
def database():
    try:
        with server() as running:
            yield running
    except LookupError as error:
        skip_or_fail(str(error))


@pytest.mark.slow
def test_a_database_that_goes_away_and_comes_back_is_followed_on(database: Server, tmp_path: Path) -> None:
    url = database.database()
    options = {"checkpoints": tmp_path, "budget": Budget(trials=9), "verbose": 0}
    study = Study(PROBLEM, RandomSearch(), url, seed=0, **options)
    with study.ask() as trial:
        trial.report(0.25, seconds=1.0)
    watched = Watched(follow_study(url, checkpoints=tmp_path), rests=False)
    mark = watched.mark
    database.stop()
    with pytest.raises(StoreAway):
        watched.look()
    assert watched.mark == mark
    database.start()
    with study.ask() as trial:
        trial.report(0.75, seconds=1.0)
    watched.look()
    assert "0.75" in watched.since(mark)[1]
