"""Reinforcement learning by Stable-Baselines3: rewards of evaluations, pauses and what is refused."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import blocks
from interrupted_fits import handlers  # noqa: F401
from paused_studies import pausing_study

from haltune import Float, Maximize, Study, Trial
from haltune.callbacks.stable_baselines3 import HaltuneCallback
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported
from haltune.policies import RandomSearch

gymnasium = pytest.importorskip("gymnasium")
SPACE = {"learning_rate": Float(1e-4, 1e-2, log=True)}


def learnt(
    trial: Trial,
    kind: str = "PPO",
    evaluated: bool = True,
    right: bool = True,
    others: Sequence[Any] = (),
    **options: Any,
) -> Any:
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import EvalCallback

    size = {"n_steps": 64, "batch_size": 64} if kind == "PPO" else {"learning_starts": 10, "buffer_size": 500}
    model = getattr(sb3, kind)("MlpPolicy", "CartPole-v1", seed=0, device="cpu", **size, **trial.config)
    ours = HaltuneCallback(trial, every=100)
    if not evaluated:
        return model.learn(trial.max_steps, callback=ours)
    place: Any = {"callback_after_eval" if right else "callback_on_new_best": ours}
    tests = EvalCallback(gymnasium.make("CartPole-v1"), eval_freq=64, n_eval_episodes=2, verbose=0, **place, **options)
    return model.learn(trial.max_steps, callback=[*others, tests])


class Counting:
    """The steps from which each model has learnt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        import stable_baselines3 as sb3

        self.learnt = 0
        algorithm: Any = getattr(sb3, kind)
        train = algorithm.train

        def counted(model: Any, *arguments: Any, **options: Any) -> None:
            self.learnt = model.num_timesteps
            train(model, *arguments, **options)

        monkeypatch.setattr(algorithm, "train", counted)


@pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
@pytest.mark.parametrize(
    ("kind", "evaluated"),
    [
        ("PPO", True),
        pytest.param("DQN", False, marks=pytest.mark.slow),
        pytest.param("PPO", False, marks=pytest.mark.slow),
        pytest.param("DQN", True, marks=pytest.mark.slow),
    ],
)
def test_the_steps_of_a_report_were_learnt_from(kind: str, evaluated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch, kind)
    study = Study(SPACE, Maximize("mean_reward"), max_steps=256, policy=RandomSearch(), budget="1 trial", verbose=0)
    seen = []
    for trial in study:
        record = trial.record

        def noted(report: Any, *others: Any, record: Any = record) -> Any:
            seen.append((report.epoch, counting.learnt))
            return record(report, *others)

        monkeypatch.setattr(trial, "record", noted)
        with trial:
            model = learnt(trial, kind, evaluated)
    assert all(epoch == steps for epoch, steps in seen)
    assert seen[0][0] > 10
    assert seen[-1][0] == model.num_timesteps == 256
    assert [t.status for t in study.trials] == ["completed"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["PPO", pytest.param("DQN", marks=pytest.mark.slow)])
def test_a_policy_that_the_program_saved_of_another_trial_is_not_trained(kind: str, tmp_path: Path) -> None:
    import stable_baselines3 as sb3

    algorithm, path = getattr(sb3, kind), tmp_path / "shared.zip"
    study = Study(SPACE, Maximize("mean_reward"), max_steps=128, policy=RandomSearch(), budget="2 trials", verbose=0)
    with pytest.raises(NotSupported, match="loaded a state of trial 0"):
        for trial in study:
            with trial:
                if path.exists():
                    model = algorithm.load(path, env=gymnasium.make("CartPole-v1"), device="cpu")
                    model.learn(trial.max_steps, callback=HaltuneCallback(trial, every=64))
                else:
                    learnt(trial, kind).save(path)
    assert [t.status for t in study.trials] == ["completed", "interrupted"]


class Priced(gymnasium.Wrapper):  # type: ignore[misc]
    """An environment over a table, as those of trading are."""

    def __init__(self, env: Any, changes: bool) -> None:
        import pandas

        super().__init__(env)
        self.df, self.changes = pandas.DataFrame({"close": [1.0, 2.0, 3.0]}), changes

    def reset(self, **options: Any) -> Any:
        if self.changes:
            self.df["close"] *= 2
        return self.env.reset(**options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("changes", [False, True])
def test_a_training_pauses_that_logs_to_a_file_and_reads_a_table_that_stays_as_it_is(
    tmp_path: Path, changes: bool
) -> None:
    from matplotlib.figure import Figure
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList
    from stable_baselines3.common.monitor import Monitor

    class Draws(BaseCallback):
        def _on_training_start(self) -> None:
            self.figure = Figure()

        def _on_step(self) -> bool:
            return True

    s = pausing_study(tmp_path / "s.db", at=(64.0,), epochs=128, metric=Maximize("mean_reward"), unit="step", verbose=0)
    while isinstance(trial := s.ask(), Trial):
        with trial:
            env = Monitor(Priced(gymnasium.make("CartPole-v1"), changes), str(tmp_path / f"{trial.attempt}"))
            model = PPO("MlpPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=1, device="cpu")
            model.learn(128, callback=CallbackList([Draws(), HaltuneCallback(trial, every=32)]))
    assert s.trials[0].attempt == (1 if changes else 2)


@pytest.mark.usefixtures("handlers")
@pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
def test_ctrl_c_waits_for_the_next_report_and_the_search_continues_exactly_there(tmp_path: Path) -> None:
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback

    class Interrupts(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 40 and sends:
                sends.pop()
                os.kill(os.getpid(), signal.SIGINT)
            return True

    def searched(name: str) -> tuple[Any, Any]:
        s = pausing_study(tmp_path / name, at=(), epochs=128, metric=Maximize("mean_reward"), unit="step", verbose=0)
        for trial in s:
            with trial:
                model = sb3.A2C("MlpPolicy", "CartPole-v1", n_steps=16, seed=1, device="cpu")
                model.learn(trial.max_steps, callback=[Interrupts(), HaltuneCallback(trial, every=32)])
        return s.trials[0], model.policy.state_dict()

    sends = [True]
    with pytest.raises(KeyboardInterrupt):
        searched("search.db")
    (one, resumed), (whole, straight) = searched("search.db"), searched("straight.db")
    assert (one.attempt, one.checkpoint_epoch) == (2, 64)
    assert one.values.tolist() == whole.values.tolist()
    for name, parameter in straight.items():
        np.testing.assert_array_equal(resumed[name], parameter)


@pytest.mark.filterwarnings("ignore")
def test_a_schedule_that_a_callback_replaces_is_not_paused_and_the_warning_names_it() -> None:
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback

    class Slower(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 40:
                self.model.lr_schedule = lambda left: 1e-4
            return True

    s = pausing_study(at=(64.0,), epochs=128, metric=Maximize("mean_reward"), unit="step", verbose=0)
    for trial in s:
        with trial, pytest.warns(HaltuneWarning, match=r"has set the model's lr_schedule, and.*keeps training"):
            model = sb3.A2C("MlpPolicy", "CartPole-v1", n_steps=16, seed=1, device="cpu")
            model.learn(trial.max_steps, callback=[Slower(), HaltuneCallback(trial, every=32)])
    assert [(t.status, t.attempt, t.epoch) for t in s.trials] == [("completed", 1, 128)]


@pytest.mark.filterwarnings("ignore")
def test_a_schedule_that_counts_its_calls_is_not_paused_and_the_warning_names_it() -> None:
    import stable_baselines3 as sb3

    def counting() -> Any:
        calls = 0

        def rate(left: float) -> float:
            nonlocal calls
            calls += 1
            return 1e-3 / calls

        return rate

    s = pausing_study(at=(64.0,), epochs=128, metric=Maximize("mean_reward"), unit="step", verbose=0)
    for trial in s:
        with trial, pytest.warns(HaltuneWarning, match=r"counting.*rate remembers its calls.*keeps training"):
            model = sb3.A2C("MlpPolicy", "CartPole-v1", learning_rate=counting(), n_steps=16, seed=1, device="cpu")
            model.learn(trial.max_steps, callback=HaltuneCallback(trial, every=32))
    assert [(t.status, t.attempt, t.epoch) for t in s.trials] == [("completed", 1, 128)]


@pytest.mark.filterwarnings("ignore")
def test_a_training_without_an_ended_episode_is_refused_with_its_cause() -> None:
    import stable_baselines3 as sb3

    s = pausing_study(at=(), epochs=64, metric=Maximize("mean_reward"), unit="step", verbose=0)
    trial = s.ask()
    model = sb3.A2C("MlpPolicy", "Pendulum-v1", n_steps=16, device="cpu")  # its episodes have 200 steps
    with pytest.raises(InvalidInput, match=r"No episode of the training ended in 64 steps.*EvalCallback"), trial:
        model.learn(trial.max_steps, callback=HaltuneCallback(trial, every=32))


@pytest.mark.filterwarnings("ignore")
def test_a_trial_of_dqn_that_was_interrupted_after_its_fit_ended_trains_from_its_start(tmp_path: Path) -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    class Ends(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps < 130

    def search() -> Study:
        return Study(
            SPACE, Maximize("mean_reward"), tmp_path / "s.db", max_steps=192, policy=RandomSearch(), budget="1 trial"
        )

    for trial in search():
        with pytest.raises(KeyboardInterrupt), trial:
            learnt(trial, "DQN", others=[Ends()])
            raise KeyboardInterrupt
        break
    study = search()
    for trial in study:
        with trial, pytest.warns(HaltuneWarning, match=r"trains again from its start.*the policy alone"):
            learnt(trial, "DQN", evaluated=False)
    (record,) = study.trials
    assert (record.status, record.epoch) == ("completed", 192)


class Foreign(gymnasium.Wrapper):  # type: ignore[misc]
    """An environment whose state is not Python's."""

    def __init__(self, env: Any, simulator: Any) -> None:
        super().__init__(env)
        self.simulator = simulator
        self.lock, self.reward = threading.RLock(), partial(max, 0.0)  # they have no state that changes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("simulator", [iter(range(10**9)), array("d", [0.0])], ids=["iterator", "of an extension"])
def test_an_environment_with_a_state_that_cannot_be_read_is_not_paused_and_the_warning_names_it(simulator: Any) -> None:
    import stable_baselines3 as sb3

    s = pausing_study(at=(64.0,), epochs=128, metric=Maximize("mean_reward"), unit="step", verbose=0)
    env = Foreign(gymnasium.make("CartPole-v1"), simulator)
    for trial in s:
        with trial, pytest.warns(HaltuneWarning, match=r"Foreign\.simulator .*cannot be read.*keeps training"):
            model = sb3.PPO("MlpPolicy", env, n_steps=64, batch_size=64, device="cpu")
            model.learn(trial.max_steps, callback=HaltuneCallback(trial, every=64))
    assert [(t.status, t.attempt, t.epoch) for t in s.trials] == [("completed", 1, 128)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "at", [pytest.param(128.0, marks=pytest.mark.slow), 192.0]
)  # at the end of the first learn, within the second
def test_a_training_by_several_calls_of_learn_is_not_paused_where_it_would_start_with_the_first(at: float) -> None:
    import stable_baselines3 as sb3

    s = pausing_study(at=(at,), epochs=256, metric=Maximize("mean_reward"), unit="step", verbose=0)
    for trial in s:
        with trial, pytest.warns(HaltuneWarning, match=r"would start with the first learn\(\) again.*keeps training"):
            model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, device="cpu")
            model.learn(128, callback=HaltuneCallback(trial, every=64))
            model.learn(128, callback=HaltuneCallback(trial, every=64), reset_num_timesteps=False)
    assert [(t.status, t.attempt, t.epoch) for t in s.trials] == [("completed", 1, 256)]


@pytest.mark.filterwarnings("ignore")
def test_steps_that_an_algorithm_has_made_before_its_trial_do_not_count(tmp_path: Path) -> None:
    import stable_baselines3 as sb3

    file = tmp_path / "base.zip"
    base = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, device="cpu", seed=0).learn(256)
    base.save(file)

    def train(trial: Trial) -> Any:
        model = sb3.PPO.load(file, env=gymnasium.make("CartPole-v1"), device="cpu")
        model.set_random_seed(5)
        return model.learn(trial.max_steps, HaltuneCallback(trial, every=64), reset_num_timesteps=False)

    found = []
    reached = []
    for at in ((), (64.0,)):
        s = pausing_study(at=at, epochs=128, metric=Maximize("mean_reward"), unit="step", verbose=0)
        for trial in s:
            with trial:
                reached.append(train(trial).num_timesteps)
        (record,) = s.trials
        assert record.attempt == 1 + len(at)
        found.append((record.epochs.tolist(), record.values.tolist()))
    assert found[0] == found[1]
    assert (found[0][0], reached[0], reached[-1]) == ([64, 128], 384, 384)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trains", [True, False])
def test_environments_with_running_means_of_another_trial_are_refused_unless_they_do_not_change(trains: bool) -> None:
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    env = VecNormalize(make_vec_env("CartPole-v1", 2, seed=1), training=trains)
    study = Study(SPACE, Maximize("mean_reward"), max_steps=128, policy=RandomSearch(), budget="2 trials", verbose=0)

    def search() -> None:
        for trial in study:
            with trial:
                model = sb3.A2C("MlpPolicy", env, n_steps=16, seed=1, device="cpu", **trial.config)
                model.learn(trial.max_steps, callback=HaltuneCallback(trial, every=32))

    if trains:
        with pytest.raises(NotSupported, match="VecNormalize object of this training has been in another one"):
            search()
    else:
        search()
    assert [t.epoch for t in study.trials] == [128, 0 if trains else 128]


@pytest.mark.filterwarnings("ignore")
def test_a_callback_of_the_library_that_counts_and_has_been_in_another_trial_is_refused() -> None:
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import StopTrainingOnMaxEpisodes

    counts = StopTrainingOnMaxEpisodes(1000)
    study = Study(SPACE, Maximize("mean_reward"), max_steps=128, policy=RandomSearch(), budget="2 trials", verbose=0)
    with pytest.raises(NotSupported, match="StopTrainingOnMaxEpisodes object of this fit has been in another training"):
        for trial in study:
            with trial:
                model = sb3.A2C("MlpPolicy", "CartPole-v1", n_steps=16, seed=1, device="cpu", **trial.config)
                model.learn(trial.max_steps, callback=[counts, HaltuneCallback(trial, every=32)])
    assert [t.epoch for t in study.trials] == [128, 0]


@pytest.mark.filterwarnings("ignore")
def test_the_best_model_is_loaded_with_the_statistics_it_was_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    short = {"20_000": "128", "eval_freq=1000": "eval_freq=64, n_eval_episodes=1", "20 trials": "1 trial"}
    short["**trial.config"] = "n_steps=64, batch_size=64, **trial.config"
    for program in blocks("docs/loops/reinforcement.md"):
        program.run(names, short)
    env, trained, loaded = names["env"], names["model"], names["best"]
    before = trained.get_vec_normalize_env()
    for ours, theirs in ((env.obs_rms, before.obs_rms), (env.ret_rms, before.ret_rms)):
        np.testing.assert_array_equal(ours.mean, theirs.mean)
        np.testing.assert_array_equal(ours.var, theirs.var)
        assert ours.count == theirs.count > 100
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("of", [pytest.param("last", marks=pytest.mark.slow), "best"])
def test_a_goal_of_the_best_evaluation_is_advised_where_its_policy_is_saved(
    of: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "haltune")
    study = Study(SPACE, Maximize("mean_reward", of=of), max_steps=128, policy=RandomSearch(), budget="1 trial")
    with study.ask() as trial:  # type: ignore[union-attr]
        learnt(trial, best_model_save_path=str(tmp_path))
    assert ("make the goal Maximize('mean_reward', of='best')" in caplog.text) == (of == "last")


def test_the_wrong_place_and_the_wrong_unit_are_refused() -> None:
    study = Study(SPACE, Maximize("mean_reward"), max_steps=256, policy=RandomSearch(), budget="1 trial", verbose=0)
    with pytest.raises(InvalidInput, match="callback_after_eval="), study.ask() as asked:  # type: ignore[union-attr]
        learnt(asked, right=False)
    trial = Study(SPACE, Maximize("mean_reward"), max_epochs=3, budget="1 trial", verbose=0).ask()
    with pytest.raises(InvalidInput, match="max_steps"):
        HaltuneCallback(trial)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
def test_records_that_the_callbacks_of_trials_share_stay_the_programs(tmp_path: Path) -> None:
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback

    records: list[tuple[int, int]] = []

    class Recorder(BaseCallback):
        def __init__(self, trial: int) -> None:
            super().__init__()
            self.trial, self.records, self.own = trial, records, [trial]

        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            self.records.append((self.trial, len(self.own)))
            self.own.append(self.trial)

    study = pausing_study(
        tmp_path / "s.db", at=(128,), epochs=192, trials=2, metric=Maximize("mean_reward"), unit="step", verbose=0
    )
    for trial in itertools.chain([study.ask(), study.ask()], study):
        with trial:
            model = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu")
            model.learn(trial.max_steps, callback=[Recorder(trial.id), HaltuneCallback(trial, every=64)])
    assert [t.attempt for t in study.trials] == [2, 2]
    for id in (0, 1):  # its own list continues
        assert [count for trial, count in records if trial == id] == [1, 2, 3]


def evaluated(trial: Trial, rewards: Any, end: int | None = None, after: bool = False) -> Any:
    """A training whose EvalCallback has rules of its own: the rewards, by steps; another callback ends it at `end`."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback

    class Masked(EvalCallback):
        def _on_step(self) -> bool:
            if self.n_calls % self.eval_freq:
                return True
            self.last_mean_reward = rewards(self.model.num_timesteps)
            if self.last_mean_reward > self.best_mean_reward and self.callback_on_new_best is not None:
                self.best_mean_reward = self.last_mean_reward
                if not self.callback_on_new_best.on_step():
                    return False
            return self._on_event()

    class End(BaseCallback):
        def _on_step(self) -> bool:
            return end is None or self.model.num_timesteps < end

    ours = HaltuneCallback(trial)
    options: Any = (
        {"callback_after_eval": CallbackList([End(), ours])}
        if after
        else {"callback_after_eval": ours, "callback_on_new_best": End()}
    )
    tests = Masked(gymnasium.make("CartPole-v1"), eval_freq=16 if end == 16 else 48, **options)
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
    return model.learn(trial.max_steps, callback=tests)


def test_the_last_policy_is_evaluated_by_the_rules_of_the_programs_eval_callback() -> None:
    study = Study(SPACE, Maximize("mean_reward"), max_steps=128, policy=RandomSearch(), budget="1 trial", verbose=0)
    for trial in study:
        with trial:
            evaluated(trial, rewards=float)
    assert study.trials[0].epochs.tolist() == [32, 64, 128]
    assert study.trials[0].values.tolist() == [48, 96, 128]


def test_an_end_before_the_first_update_is_refused_with_its_cause() -> None:
    study = Study(SPACE, Maximize("mean_reward"), max_steps=128, policy=RandomSearch(), budget="1 trial", verbose=0)
    with pytest.raises(InvalidInput, match=r"ended learn\(\) at step 16, before the first update"):
        for trial in study:
            with trial:
                evaluated(trial, rewards=float, end=16)


def test_the_evaluation_that_reaches_a_threshold_and_ends_the_training_is_reported() -> None:
    study = Study(SPACE, Maximize("mean_reward"), max_steps=320, policy=RandomSearch(), budget="1 trial", verbose=0)
    for trial in study:
        with trial:
            model = evaluated(trial, rewards=float, end=96)
    assert model.num_timesteps == 96
    assert study.trials[0].epochs.tolist() == [32, 64]
    assert study.trials[0].values.tolist() == [48, 96]
    assert study.trials[0].status == "completed"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("after", [True, False])
def test_a_trial_that_another_callback_ends_at_the_evaluation_of_a_pause_is_complete(
    after: bool, tmp_path: Path
) -> None:
    study = pausing_study(
        tmp_path / "study.db", at=(64.0,), epochs=320, metric=Maximize("mean_reward"), unit="step", verbose=0
    )
    for trial in study:
        with trial:
            evaluated(trial, rewards=float, end=96, after=after)
    (record,) = study.trials
    assert (record.status, record.attempt, record.epochs.tolist()) == ("completed", 1, [32, 64])


held, named = np.random.default_rng(0), np.random.default_rng(1)


def test_generators_that_trials_share_go_on_where_they_were_after_a_resumed_trial(tmp_path: Path) -> None:
    from stable_baselines3.common.callbacks import BaseCallback

    class Draws(BaseCallback):
        """Holds a generator of the program, and names another one."""

        def __init__(self, trial: int) -> None:
            super().__init__()
            self.rng, self.of = held, trial

        def _on_step(self) -> bool:
            drawn.setdefault(self.of, set()).update([self.rng.random(), named.random()])
            return True

    drawn: dict[int, set[float]] = {}
    study = pausing_study(
        at=(128,), epochs=192, trials=3, metric=Maximize("mean_reward"), unit="step", folder=tmp_path, verbose=0
    )
    first, second = study.ask(), study.ask()
    for trial in itertools.chain(
        (second, first), study
    ):  # the trial that resumes last paused before the other one trained
        with trial:
            vars(trial)["config"] = {"learning_rate": trial.config["lr"]}
            learnt(trial, others=[Draws(trial.id)])
    assert [t.attempt for t in study.trials] == [2, 2, 2]
    assert not drawn[2] & (drawn[0] | drawn[1])
