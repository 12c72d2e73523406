"""Reinforcement learning by Stable-Baselines3: rewards of evaluations, pauses and what is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import blocks

from haltune import Float, Maximize, Study, Trial
from haltune.callbacks.stable_baselines3 import HaltuneCallback
from haltune.errors import InvalidInput
from haltune.policies import Hyperband, RandomSearch

gymnasium = pytest.importorskip("gymnasium")
SPACE = {"learning_rate": Float(1e-4, 1e-2, log=True)}


def learnt(trial: Trial, kind: str = "PPO", evaluated: bool = True, right: bool = True) -> Any:
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import EvalCallback

    size = {"n_steps": 64, "batch_size": 64} if kind == "PPO" else {"learning_starts": 10, "buffer_size": 500}
    model = getattr(sb3, kind)("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **size, **trial.config)
    ours = HaltuneCallback(trial, every=100)
    if not evaluated:
        return model.learn(trial.max_steps, callback=ours)
    place: Any = {"callback_after_eval" if right else "callback_on_new_best": ours}
    tests = EvalCallback(gymnasium.make("CartPole-v1"), eval_freq=64, n_eval_episodes=2, verbose=0, **place)
    return model.learn(trial.max_steps, callback=tests)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trials_pause_and_continue_at_their_step(tmp_path: Path) -> None:
    policy = Hyperband(eta=2, brackets="most_exploratory", rounds=1)
    study = Study(SPACE, Maximize("mean_reward"), tmp_path / "rl.db", max_steps=256, policy=policy, seed=0, verbose=0)
    steps = {}
    for trial in study:
        with trial:
            begin = trial.epoch
            model = learnt(trial)
            steps.setdefault(trial.id, []).append((begin, model.num_timesteps))
    assert all(set(t.epochs) <= {64.0, 128.0, 192.0, 256.0} for t in study.trials)
    continued = [legs for legs in steps.values() if len(legs) > 1]
    assert continued
    assert all(after[0] == before[1] for legs in continued for before, after in pairwise(legs))
    assert any(t.epoch == 256.0 for t in study.trials)


@pytest.mark.filterwarnings("ignore")
def test_the_best_model_is_loaded_with_the_statistics_it_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for program in blocks("docs/loops/reinforcement.md"):
        program.run(names, {"20_000": "256", "eval_freq=1000": "eval_freq=64", "20 trials": "1 trial"})
    env, trained, loaded = names["env"], names["model"], names["best"]
    before = trained.get_vec_normalize_env()
    for ours, theirs in ((env.obs_rms, before.obs_rms), (env.ret_rms, before.ret_rms)):
        np.testing.assert_array_equal(ours.mean, theirs.mean)
        np.testing.assert_array_equal(ours.var, theirs.var)
        assert ours.count == theirs.count > 200
    seen = np.random.default_rng(0).normal(size=(50, 4))
    np.testing.assert_array_equal(env.normalize_obs(seen), before.normalize_obs(seen))
    for name, parameter in trained.policy.state_dict().items():
        np.testing.assert_array_equal(loaded.policy.state_dict()[name], parameter)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "evaluated"), [("DQN", True), ("PPO", False)])
def test_rewards_of_evaluations_or_of_the_training_are_reported(kind: str, evaluated: bool) -> None:
    study = Study(SPACE, Maximize("mean_reward"), max_steps=256, policy=RandomSearch(), budget="1 trial", verbose=0)
    for trial in study:
        with trial:
            learnt(trial, kind, evaluated)
    (trial,) = study.trials
    assert len(trial.epochs) >= 2
    assert all(0 < reward <= 500 for reward in trial.values)


def test_the_wrong_place_and_the_wrong_unit_are_refused() -> None:
    study = Study(SPACE, Maximize("mean_reward"), max_steps=256, policy=RandomSearch(), budget="1 trial", verbose=0)
    with pytest.raises(InvalidInput, match="callback_after_eval="), study.ask() as asked:  # type: ignore[union-attr]
        learnt(asked, right=False)
    trial = Study(SPACE, Maximize("mean_reward"), max_epochs=3, budget="1 trial", verbose=0).ask()
    with pytest.raises(InvalidInput, match="max_steps"):
        HaltuneCallback(trial)  # type: ignore[arg-type]
