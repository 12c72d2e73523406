"""Callbacks of Stable-Baselines3 that read and set the weights when the learning starts: L2-SP, pruning."""

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy

from haltune import Float, Maximize
from haltune.callbacks.stable_baselines3 import HaltuneCallback


class SameStart(gymnasium.Wrapper):
    """Each episode of the evaluation starts in the same state."""

    def reset(self, **options):
        return self.env.reset(seed=0)


class Pull(BaseCallback):
    """Pulls the weights to those at the start."""

    def _on_training_start(self):
        self.start = [p.detach().clone() for p in self.model.policy.parameters()]

    def _on_rollout_start(self):
        with torch.no_grad():
            for weight, start in zip(self.model.policy.parameters(), self.start, strict=True):
                weight.lerp_(start, 0.1)

    def _on_step(self):
        return True


class Lottery(BaseCallback):
    """Keeps weights at 0 that it draws at the start."""

    def _on_training_start(self):
        self.masks = [torch.rand(p.shape) > 0.3 for p in self.model.policy.parameters()]
        self._on_rollout_start()

    def _on_rollout_start(self):
        with torch.no_grad():
            for weight, mask in zip(self.model.policy.parameters(), self.masks, strict=True):
                weight.mul_(mask)

    def _on_step(self):
        return True


def search(study):
    for trial in study:
        with trial:
            model = PPO("MlpPolicy", "CartPole-v1", n_steps=128, n_epochs=2, seed=1, device="cpu", **trial.config)
            test = SameStart(gymnasium.make("CartPole-v1"))
            evaluation = EvalCallback(test, callback_after_eval=HaltuneCallback(trial), eval_freq=100,
                                      n_eval_episodes=1, verbose=0, warn=False)
            model.learn(trial.max_steps, callback=[Pull(), evaluation, Lottery()])


def evaluate(path, config):
    model = PPO("MlpPolicy", "CartPole-v1", device="cpu")
    model.set_parameters(torch.load(path, weights_only=True)["parameters"])
    return evaluate_policy(model, SameStart(gymnasium.make("CartPole-v1")), n_eval_episodes=1, warn=False)[0]


def learnt(steps):  # updates until then: two passes over the two batches of each rollout that has ended
    return 4 * (steps // 128)


zoo = dict(
    needs=["torch", "stable_baselines3", "gymnasium"],
    slow=True,
    space={"learning_rate": Float(1e-5, 1e-1, log=True)},
    goal=Maximize("mean_reward"),
    max_epochs=512,
    unit="step",
    trials=[{"learning_rate": 0.001}, {"learning_rate": 0.003}],
    pauses=[128, 256],
    updates=learnt,
)
