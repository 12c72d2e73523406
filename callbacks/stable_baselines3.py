"""The callback for Stable-Baselines3: reinforcement learning, counted in environment steps.

Give it to `EvalCallback(env, callback_after_eval=HaltuneCallback(trial), eval_freq=...)`. Then it reports the mean
reward of each evaluation. If you give it to `learn` itself, it reports the mean reward of the last training episodes.

On-policy algorithms (PPO, A2C) can pause: policy, optimizer, normalization and random state are saved without pickle,
and the callback loads them when `learn` starts again. Environments cannot be saved, so a resumed trial starts new
episodes, and its curve differs randomly from an uninterrupted one. Off-policy algorithms (DQN, SAC, TD3) would lose
their replay buffer, so their trials stop instead of pausing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from haltune._utils.randomness import capture, restore
from haltune.errors import InvalidInput
from haltune.study import Trial

from .base import Portable, Reporting

_SUFFIX = ".sb3.pt"
_OFF_POLICY = "the replay buffer is not saved, and a trial would continue without it"


class HaltuneCallback(Reporting):
    """Callback that reports the mean reward to a trial, and ends `learn` at a stop or a pause.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`, of a study that counts steps.
        monitor: "mean_reward". Default: None, the goal's metric, which can have any name.
        verbose: Print a line for every report. Default: False.
        every: Steps between two reports, if you give the callback to `learn` itself. Default: None, 5% of a full
            training.

    Raises:
        InvalidInput: If `trial` is not a trial, or if the study does not count steps.

    Example:
        ::

            import gymnasium
            from stable_baselines3 import PPO
            from stable_baselines3.common.callbacks import EvalCallback

            from haltune import Float, Maximize, Study
            from haltune.callbacks.stable_baselines3 import HaltuneCallback

            space = {"learning_rate": Float(1e-5, 1e-2, log=True), "gamma": Float(0.9, 0.999)}
            study = Study(space, Maximize("mean_reward"), "cartpole.db", max_steps=20_000, budget="20 trials")
            for trial in study:
                with trial:
                    model = PPO("MlpPolicy", "CartPole-v1", **trial.config)
                    test = gymnasium.make("CartPole-v1")
                    tests = EvalCallback(test, callback_after_eval=HaltuneCallback(trial), eval_freq=2000)
                    model.learn(trial.max_steps, callback=tests)
    """

    _homes = ("stable_baselines3.common.callbacks",)
    _base = "BaseCallback"
    _install = "stable-baselines3"
    _hint = "Call learn(trial.max_steps): the callback sets the step"
    _counts = ("step",)
    _held = frozenset({"model", "parent", "locals", "globals"})
    locals: dict[str, Any]  # Stable-Baselines3 sets these
    model: Any
    parent: Any
    num_timesteps: int

    def __init__(
        self, trial: Trial, monitor: str | None = None, verbose: bool = False, every: int | None = None
    ) -> None:
        super().__init__(trial, monitor, verbose)
        self.every = every or max(1, (trial.horizon or 20_000) // 20)

    def _setup(self) -> None:
        super(Portable, self).__init__()  # BaseCallback's

    def _on_training_start(self) -> None:
        if self.trial.checkpoint is not None and self.trial.ended is None:
            self._load(self.trial.checkpoint)
        self._reporter.begin(self.locals.get("total_timesteps"), self.model.policy)
        self.trial.before_end(self._end)

    def _on_step(self) -> bool:
        """Handle the end of an evaluation, or of a step of the environments."""
        if getattr(self.parent, "callback_on_new_best", None) is self:
            raise InvalidInput(
                "HaltuneCallback was given as callback_on_new_best, so it gets few evaluations. Write "
                "EvalCallback(env, callback_after_eval=HaltuneCallback(trial))"
            )
        if hasattr(self.parent, "last_mean_reward"):
            self._report(float(self.parent.last_mean_reward))
        elif self._step >= self.trial.epoch + self.every and (episodes := list(self.model.ep_info_buffer or ())):
            self._report(float(np.mean([episode["r"] for episode in episodes])))
        return not self._reporter.over

    @property
    def _step(self) -> int:
        """Return the step, at most that of a full training, because a rollout exceeds it."""
        done = int(self.model.num_timesteps)
        return done if self.trial.horizon is None else min(done, self.trial.horizon)

    def _report(self, reward: float) -> None:
        if self._step > self.trial.epoch:
            self._reporter.report({self.monitor: reward} if self._reporter.measures.others else reward, self._step)
        self._reporter.heed(self._step)
        if self._reporter.pausing and hasattr(self.model, "replay_buffer"):
            self._reporter.decline(_OFF_POLICY, always=True)
        self._reporter.save_epoch(self._write, _SUFFIX)

    def _end(self) -> None:
        self._reporter.end_of_fit(self._write, _SUFFIX)
        self._reporter.leave()

    def _write(self, path: Path) -> None:
        import torch

        normalized = self.model.get_vec_normalize_env()
        moments = {} if normalized is None else {n: _moments(m) for n, m in _running(normalized).items()}
        state = {"parameters": self.model.get_parameters(), "steps": self.model.num_timesteps, "moments": moments}
        torch.save(state | {"random": json.dumps(capture())}, path)

    def _load(self, path: str) -> None:
        import torch

        state = torch.load(path, map_location=self.model.device, weights_only=True)
        self.model.set_parameters(state["parameters"], device=self.model.device)
        self.model.num_timesteps = state["steps"]
        if (normalized := self.model.get_vec_normalize_env()) is not None:
            for name, running in _running(normalized).items():
                mean, var, running.count = state["moments"][name]
                running.mean, running.var = mean.numpy(), var.numpy()
        restore(json.loads(state["random"]))


def _running(normalized: Any) -> dict[str, Any]:
    """Return VecNormalize's running means of observations (a dict of them for some spaces) and of returns."""
    seen = normalized.obs_rms if normalized.norm_obs else {}
    several = seen if isinstance(seen, dict) else {"": seen}
    return {f"obs/{name}": running for name, running in several.items()} | {"returns": normalized.ret_rms}


def _moments(running: Any) -> tuple[Any, Any, float]:
    import torch

    return torch.as_tensor(running.mean), torch.as_tensor(running.var), float(running.count)
