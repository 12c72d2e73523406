"""Resources other than epochs, and options that make no sense."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from laboratory import Lab, problem, rising, rough

from haltune import Study
from haltune.errors import InvalidInput, StudyMismatch
from haltune.log.events import Started, Status
from haltune.policies import Hyperband, InfiniteHyperband, SuccessiveHalving

# -- resources --------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 4])
def test_a_resource_of_the_users_own_trains_each_rung_as_a_trial_of_its_own(workers: int) -> None:
    policy = Hyperband(27, resource="samples")
    lab = Lab(lambda: policy, rough(5, steps=10**6), epochs=2, workers=workers).run()
    started = [e for e in lab.log if isinstance(e, Started)]
    assert Counter(e.resource for e in started if e.tags["bracket"] == 0) == {1: 27, 3: 9, 9: 3, 27: 1}
    assert sum(e.resource or 0.0 for e in started) == policy.table().total(resume=False)
    final = {t.id: t.values[-1] for t in lab.study.trials}
    for e in started:
        if e.tags["rung"]:
            parent = lab.study.history.trial(e.tags["of"])
            assert dict(e.config) == dict(parent.config)
            same = [s.trial for s in started if (s.tags["bracket"], s.tags["rung"]) ==
                    (e.tags["bracket"], e.tags["rung"] - 1)]  # fmt: skip
            places = policy.table().brackets[e.tags["bracket"]].rungs[e.tags["rung"]].n
            assert parent.id in sorted(same, key=lambda t: (-final[t], t))[:places]
    assert all(t.status is Status.COMPLETED for t in lab.study.trials)


def test_a_failed_training_on_samples_is_not_promoted_and_its_place_is_not_lost() -> None:
    lab = Lab(lambda: SuccessiveHalving(9, 1, 9, resource="samples"), lambda t, e: t, epochs=1)
    worker = lab.workers[0]
    while worker.trial is None or worker.trial.id != 8:
        worker.step()
    worker.fail()
    lab.run()
    of = [e.tags["of"] for e in lab.log if isinstance(e, Started) and e.tags["rung"] == 1]
    assert sorted(of) == [5, 6, 7]


def test_a_whole_number_of_samples_cuts_an_array() -> None:
    study = Study(problem(epochs=1), SuccessiveHalving(3, 25, 75, resource="samples"), seed=0)
    cut = []
    for trial in study:
        cut.append(len(np.arange(100)[: trial.resource]))
        trial.report(0.1 * trial.id)
    assert cut == [25, 25, 25, 75]


class Slow(Lab):
    """Epochs take 0.5, 1 or 1.5 seconds, by the trial."""

    def seconds(self, trial: int, epoch: float) -> float:
        return 0.5 + 0.5 * (trial % 3)


def test_rungs_in_seconds_are_reached_by_measured_time() -> None:
    policy = SuccessiveHalving(n=9, min_resource=1.2, max_resource=10.8, resource="seconds")
    lab = Slow(lambda: policy, rising, epochs=1000).run()
    for t in lab.study.trials:
        had = np.cumsum(t.seconds)
        rung = next((r for r in (10.8, 3.6, 1.2) if had[-1] >= r), None)
        assert rung is not None
        assert len(had) == 1 or had[-2] < rung  # it ended at the first report beyond the rung
    sizes = [sum(np.sum(t.seconds) >= r for t in lab.study.trials) for r in (1.2, 3.6, 10.8)]
    assert sizes == [9, 3, 1]


@pytest.mark.parametrize("saved", [True, False])
def test_seconds_of_an_attempt_that_is_superseded_count_once(saved: bool) -> None:
    policy = SuccessiveHalving(n=1, min_resource=5, max_resource=5, resource="seconds")
    lab = Lab(lambda: policy, rising, epochs=100)
    worker = lab.workers[0]
    for _ in range(3):  # asked, and two epochs of a second
        worker.step()
    if saved:
        worker.save()
    for _ in range(2):
        worker.step()
    worker.interrupt()  # after four
    lab.run()
    (trial,) = lab.study.trials
    assert trial.seconds.sum() == 5.0
    assert len(trial.epochs) == 5
    assert lab.trained == (4 + 3 if saved else 4 + 5)


def test_seconds_of_a_vanished_checkpoint_are_trained_again(tmp_path: Any) -> None:
    policy = SuccessiveHalving(n=1, min_resource=5, max_resource=5, resource="seconds")
    lab = Lab(lambda: policy, rising, epochs=100, checkpoints=tmp_path)
    worker = lab.workers[0]
    for _ in range(4):
        worker.step()
    assert worker.trial is not None
    path = worker.trial.save(lambda p: p.write_bytes(b"state"))
    worker.interrupt()
    tmp_path.joinpath(path).unlink()
    with pytest.warns(match="begins anew"):
        worker.step()
    worker.step()
    worker.interrupt()  # once more, and there is no checkpoint now that could vanish
    lab.run()
    (trial,) = lab.study.trials
    assert trial.seconds.sum() == 5.0


def test_a_report_beyond_several_rungs_counts_in_each_of_them() -> None:
    """Validated every five epochs, rungs 1 and 3 are both reached at 5: nothing is trained twice for them."""
    study = Study(problem(27), SuccessiveHalving(n=27), seed=1)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                if epoch % 5 == 0 or epoch == 27:
                    trial.report(float(trial.id), epoch)
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed(f"memory of {trial.id} at {epoch}")
    assert sorted((t.epoch for t in study.trials), reverse=True) == [27, 10, 10, *[5] * 24]
    assert [t.epoch for t in study.trials][-3:] == [10, 10, 27]
    assert study.outcome.over


def test_seconds_of_a_long_epoch_count_in_all_rungs_that_they_reach() -> None:
    policy = SuccessiveHalving(n=9, min_resource=0.1, max_resource=8.1, resource="seconds")
    assert [r.resource for r in policy.table().brackets[0].rungs] == pytest.approx([0.1, 0.3, 8.1])
    lab = Lab(lambda: policy, lambda t, e: t, epochs=1000).run()
    assert [len(t.epochs) for t in lab.study.trials] == [*[1] * 8, 9]


# -- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Hyperband(0), "above 0"),
        (lambda: Hyperband(81, 1), "above 1"),
        (lambda: Hyperband(eta=1), "above 1"),
        (lambda: Hyperband(eta="3"), "not a finite number"),
        (lambda: Hyperband(n_max=0), "n_max=0"),
        (lambda: Hyperband(n_max=3, n_min=9), "lower n_min"),
        (lambda: Hyperband(min_resource=-1), "above 0"),
        (lambda: Hyperband(schedule="table2"), "'line2', 'table1' or 'growing'"),
        (lambda: Hyperband(schedule="growing", n_max=9), "n_max=9"),
        (lambda: Hyperband(schedule="growing", rounds=2), "rounds=2"),
        (lambda: Hyperband(schedule="growing", brackets=1), "brackets=1"),
        (lambda: Hyperband(81, schedule="growing").table(), "no round"),
        (lambda: Hyperband(brackets="best"), "'most_exploratory'"),
        (lambda: Hyperband(brackets=True), "brackets=True"),
        (lambda: Hyperband(81, brackets=5), "s = 4, 3, 2, 1, 0"),
        (lambda: Hyperband(rounds=0), "rounds=0"),
        (lambda: Hyperband(resource=""), "trial.resource"),
        (lambda: Hyperband(resource=3), "trial.resource"),
        (lambda: Hyperband(resume=None), "resume=None"),
        (lambda: Hyperband(asynchronous="soon"), "'promote' or 'stop'"),
        (lambda: Hyperband(asynchronous=True, resume=False), "needs epochs or seconds"),
        (lambda: Hyperband(9, asynchronous=True, resource="samples"), "needs epochs or seconds"),
        (lambda: Hyperband(sampler="halton"), "random, sobol, lhs"),
        (lambda: Hyperband(sampler=Hyperband), "or a policy"),
        (lambda: Hyperband().table(), "give max_resource"),
        (lambda: SuccessiveHalving(n=0), "n=0"),
        (lambda: SuccessiveHalving(min_resource=0), "above 0"),
        (lambda: SuccessiveHalving(min_resource=10, max_resource=9), "the first at least the second"),
        (lambda: SuccessiveHalving(rounds=True), "rounds=True"),
        (lambda: InfiniteHyperband(eta=1), "at least 2"),
        (lambda: InfiniteHyperband(eta=2.5), "whole number"),
        (lambda: InfiniteHyperband(start_budget=0), "above 0"),
        (lambda: InfiniteHyperband(min_resource=math.nan), "not a finite number"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused_in_a_sentence(make: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        make()


@pytest.mark.parametrize(
    ("policy", "epochs", "says"),
    [
        (Hyperband(), None, "needs max_resource"),
        (Hyperband(81), 27, "lower it to 27"),
        (Hyperband(resource="samples"), 5, "needs max_resource, in samples"),
        (Hyperband(resource="seconds"), 5, "needs max_resource, in seconds"),
        (Hyperband(brackets=4), 27, "s = 3, 2, 1, 0"),
        (SuccessiveHalving(min_resource=10), 9, "the first at least the second"),
        (SuccessiveHalving(), None, "needs max_resource"),
    ],
)
def test_a_problem_that_does_not_suit_is_refused_when_the_study_is_made(
    policy: Any, epochs: int | None, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        Study(problem(epochs), policy, seed=1)


def test_a_study_reopened_with_another_rate_says_so() -> None:
    lab = Lab(Hyperband, rising, epochs=9)
    Study(lab.problem, Hyperband(), lab.store).ask().report(0.5)  # a study without a report would make way
    with pytest.raises(StudyMismatch, match=r"policy\.eta: recorded 3, given 4"):
        Study(lab.problem, Hyperband(eta=4), lab.store)
    with pytest.raises(StudyMismatch, match=r"policy\.asynchronous: recorded False, given 'stop'"):
        Study(lab.problem, Hyperband(asynchronous="stop"), lab.store)


@pytest.mark.parametrize(
    "policy",
    [
        Hyperband(81, 4, n_max=16, n_min=2, schedule="table1", rounds=None, sampler="lhs"),
        Hyperband(9.5, min_resource=0.5, resource="seconds", asynchronous="stop"),
        SuccessiveHalving(n=12, max_resource=4, eta=2, resume=False),
        InfiniteHyperband(eta=4, start_budget=600, min_resource=2),
    ],
)
def test_the_spec_is_json_that_makes_the_same_policy_again(policy: Any) -> None:
    spec = json.loads(json.dumps(policy.spec))
    name = spec.pop("policy")
    again = {"Hyperband": Hyperband, "SuccessiveHalving": SuccessiveHalving}.get(name, InfiniteHyperband)(**spec)
    assert again == policy
    assert again.spec == policy.spec
