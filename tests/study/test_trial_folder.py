"""The folder of a trial: one for all its attempts and folds, its own, and never tidied away."""

from __future__ import annotations

from pathlib import Path

from haltune import Float, Study
from haltune.policies import RandomSearch, SuccessiveHalving

X = {"x": Float(0.0, 1.0)}


def test_a_resumed_trial_has_the_files_of_its_earlier_attempts_and_no_other_trials(tmp_path: Path) -> None:
    policy = SuccessiveHalving(eta=3, asynchronous=True)
    study = Study(X, "acc", tmp_path / "a.db", max_epochs=9, policy=policy, seed=0, budget="6 trials", verbose=0)
    for trial in study:
        with trial:
            for _ in trial.epochs():
                (trial.folder / f"{trial.attempt}.txt").write_text(str(trial.id))
                if trial.report(trial.config["x"], seconds=1.0).stops:
                    break
    assert any(record.attempt > 1 for record in study.trials)
    for record in study.trials:
        files = study.checkpoints.artifacts(record.id, 99)
        assert [path.name for path in files] == [f"{n}.txt" for n in range(1, record.attempt + 1)]
        assert {path.read_text() for path in files} == {str(record.id)}


def test_a_fold_writes_into_the_folder_of_its_trial(tmp_path: Path) -> None:
    study = Study(X, "acc", tmp_path / "a.db", max_epochs=1, policy=RandomSearch(), budget="1 trials", verbose=0)
    with study.ask() as trial:
        for fold in trial.folds(2):
            assert fold.folder == trial.folder
            fold.report(0.5, seconds=1.0)
