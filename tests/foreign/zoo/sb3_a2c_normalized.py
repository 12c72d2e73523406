"""A2C of Stable-Baselines3 on four environments with VecNormalize and a linear schedule."""

import gymnasium
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from haltune import Float, Maximize
from haltune.callbacks.stable_baselines3 import HaltuneCallback


class SameStart(gymnasium.Wrapper):
    """Each episode of the evaluation starts in the same state."""

    def reset(self, **options):
        return self.env.reset(seed=0)


def tests():
    return VecNormalize(DummyVecEnv([lambda: SameStart(gymnasium.make("CartPole-v1"))]), training=False, norm_reward=False)


def linear(initial):
    return lambda progress_remaining: progress_remaining * initial


def search(study):
    for trial in study:
        with trial:
            env = VecNormalize(make_vec_env("CartPole-v1", n_envs=4, seed=3))
            model = A2C("MlpPolicy", env, linear(trial.config["lr"]), n_steps=8, seed=1, device="cpu",
                        policy_kwargs={"net_arch": [16]})
            evaluation = EvalCallback(tests(), callback_after_eval=HaltuneCallback(trial), eval_freq=40,
                                      n_eval_episodes=1, verbose=0, warn=False)
            model.learn(trial.max_steps, callback=evaluation)


def evaluate(path, config):
    env = tests()
    model = A2C("MlpPolicy", env, device="cpu", policy_kwargs={"net_arch": [16]})
    state = torch.load(path, weights_only=True)
    model.set_parameters(state["parameters"])
    mean, var, count = state["moments"]["obs/"]
    env.obs_rms.mean, env.obs_rms.var, env.obs_rms.count = mean.numpy(), var.numpy(), count
    return evaluate_policy(model, env, n_eval_episodes=1, warn=False)[0]


def learnt(steps):  # an update after each rollout of 8 steps of each environment
    return steps // 32


zoo = dict(
    needs=["torch", "stable_baselines3", "gymnasium"],
    slow=True,
    space={"lr": Float(1e-5, 1e-1, log=True)},
    goal=Maximize("mean_reward"),
    max_epochs=640,
    unit="step",
    trials=[{"lr": 0.001}, {"lr": 0.003}],
    pauses=[160, 320],
    updates=learnt,
)
