"""What the search says of its decisions."""

from __future__ import annotations

import pytest
from told import told

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.log.events import Reported, Started
from haltune.policies import MultiFidelity
from haltune.policies.multifidelity.policy import chosen_because

PROBLEM = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc"), 30)


def searched(trials: int) -> Study:
    study = Study(PROBLEM, MultiFidelity(), seed=1, budget=Budget(trials=trials))
    for trial in study:
        for _ in trial.epochs():
            trial.report(trial.config["x"], seconds=1.0)
        if trial.verdict is not None and trial.verdict.resumable:
            trial.checkpointed("saved")
    return study


def test_what_is_said_of_the_first_rung_means_the_same_in_every_receipt() -> None:
    study = searched(24)
    epochs = study.policy.rungs(30)
    begun = [e.evidence for e in study.events() if isinstance(e, Started) and "first_rung" in e.evidence]
    verdicts = [e.verdict for e in study.events() if isinstance(e, Reported)]
    judged = [verdict for verdict in verdicts if "first_rung" in verdict.evidence]
    assert begun
    assert judged
    for evidence in begun:
        assert epochs[evidence["first_rung"]] == evidence["compared_from"]
    for verdict in judged:
        assert epochs[verdict.evidence["first_rung"]] == verdict.until


def test_a_new_trial_is_said_to_be_compared_where_it_is() -> None:
    study = searched(3)
    told = [e.reason for e in study.events() if isinstance(e, Started)]
    assert {reason.partition("; ")[2] for reason in told} == {"compared with other trials after 3 epochs"}
    ranked = [e.epoch for e in study.events() if isinstance(e, Reported) and "rank" in e.verdict.evidence]
    assert min(ranked) == 3.0


def test_a_new_trial_of_one_epoch_is_compared_with_nobody_before_its_end() -> None:
    study = Study({"x": Float(0.0, 1.0)}, "acc", max_epochs=1, seed=1, budget="1 trial", verbose=0)
    study.optimize(lambda trial: trial.config["x"])
    assert study.trials[0].proposed == "drawn at random; compared with other trials only at its end"


@pytest.mark.parametrize(
    ("bounds", "mean", "sd", "says"),
    [
        ((0, 1), 0.9, 0.03, "predicts acc 0.900 ± 0.03 in full training, from 4 values"),
        ((0, 1), 1.02, 0.03, "predicts acc 1.000 ± 0.03 in full training, from 4 values"),
        ((0, 1), -0.04, 1.3, "acc may be anything from 0 to 1 in full training, from 4 values"),
        (None, -0.04, 1.3, "predicts acc -0.0 ± 1.3 in full training, from 4 values"),
    ],
)
def test_a_reason_expects_nothing_beyond_the_bounds(
    bounds: tuple[float, float] | None, mean: float, sd: float, says: str
) -> None:
    history = told(Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", bounds), 9))
    evidence = {"rows": 4, "mean": mean, "sd": sd, "compared_from": 3, "foretells": 0.9}
    assert says in chosen_because(history, evidence)
