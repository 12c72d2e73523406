"""An executor of the user's needs no launcher: each of its tasks opens the study and works for it until it is over."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from executed import search

from haltune import load_study
from haltune.log.events import Reported


@pytest.mark.slow
def test_processes_of_an_executor_share_one_search(tmp_path):
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        workers = set(executor.map(search, [str(tmp_path)] * 2))
    study = load_study(tmp_path / "search.db", verbose=0)
    assert study.outcome.over
    assert len(study.trials) == 12
    assert len({t.config["lr"] for t in study.trials}) == 12
    assert 1 <= len(workers) <= 2
    trained = [(e.trial, e.epoch) for e in study.events() if isinstance(e, Reported)]
    assert len(trained) == len(set(trained)) < 12 * 9  # no trial was trained twice, and losing trials were stopped
