"""SAC of Stable-Baselines3 on a pendulum: three optimizers."""

import gymnasium
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy

from haltune import Float, Maximize
from haltune.callbacks.stable_baselines3 import HaltuneCallback


class SameStart(gymnasium.Wrapper):
    """Each episode of the evaluation starts in the same state."""

    def reset(self, **options):
        return self.env.reset(seed=0)


def search(study):
    for trial in study:
        with trial:
            model = SAC("MlpPolicy", "Pendulum-v1", learning_starts=50, batch_size=16, seed=1, device="cpu",
                        policy_kwargs={"net_arch": [16]}, **trial.config)
            test = SameStart(gymnasium.make("Pendulum-v1"))
            evaluation = EvalCallback(test, callback_after_eval=HaltuneCallback(trial), eval_freq=50,
                                      n_eval_episodes=1, verbose=0, warn=False)
            model.learn(trial.max_steps, callback=evaluation)


def evaluate(path, config):
    model = SAC("MlpPolicy", "Pendulum-v1", device="cpu", policy_kwargs={"net_arch": [16]})
    model.set_parameters(torch.load(path, weights_only=True)["parameters"])
    return evaluate_policy(model, SameStart(gymnasium.make("Pendulum-v1")), n_eval_episodes=1, warn=False)[0]


def learnt(steps):
    return 3 * max(0, steps - 50)


zoo = dict(
    needs=["torch", "stable_baselines3", "gymnasium"],
    slow=True,
    space={"learning_rate": Float(1e-5, 1e-1, log=True)},
    goal=Maximize("mean_reward"),
    max_epochs=150,
    unit="step",
    trials=[{"learning_rate": 0.001}, {"learning_rate": 0.003}],
    pauses=[50, 100],
    updates=learnt,
    declines="replay buffer",
)
