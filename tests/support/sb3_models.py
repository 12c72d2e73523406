"""Algorithms of Stable-Baselines3, their environments, and the cases in which they resume exactly.

Each function trains `steps` steps from a seed, with callbacks; it returns the model and its outermost callback.
"""

from functools import partial

import gymnasium
import numpy as np
import stable_baselines3 as sb3
import torch
from fits import Case, few
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecNormalize


def normalized(steps, seed, *ours, kind="PPO"):
    """A training with all that a resumed one has to remember, which EvalCallback evaluates."""
    env, test = (VecNormalize(make_vec_env("CartPole-v1", n, seed=n + seed)) for n in (2, 1))
    size = {"n_steps": 32, "batch_size": 32, "n_epochs": 2} if kind == "PPO" else {"n_steps": 32}
    size["learning_rate"] = lambda left: 0.003 * left
    model = getattr(sb3, kind)("MlpPolicy", env, seed=seed, device="cpu", **size)
    often = {"eval_freq": 24, "n_eval_episodes": 1, "verbose": 0}
    tests = EvalCallback(test, callback_after_eval=CallbackList([*ours]), **often)
    return model.learn(steps, callback=[tests]), tests


def a2c(steps, seed, *ours, env=lambda: "CartPole-v1", others=list, policy="MlpPolicy", **options):
    """env, others: return the environment, and callbacks of the program's own."""
    callbacks = CallbackList([*others(), *ours])
    model = sb3.A2C(policy, env(), n_steps=16, seed=seed, device="cpu", **options)
    return model.learn(steps, callback=callbacks), callbacks


class Named(gymnasium.ObservationWrapper):
    """An environment whose observations are a dict."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Dict({"pole": env.observation_space})

    def observation(self, observation):
        return {"pole": observation}


def normalized_dict():
    return VecNormalize(make_vec_env("CartPole-v1", 2, seed=1, wrapper_class=Named))


class Wind:
    """What an environment models, by steps so far."""

    steps = 0

    def blows(self):
        self.steps += 1
        return float(0.1 * np.sin(self.steps))


class Windy(gymnasium.Wrapper):
    """An environment that has a model, as callbacks have."""

    def __init__(self, env):
        super().__init__(env)
        self.model, self.parent = Wind(), [0]

    def step(self, action):
        self.parent[0] += 1
        observation, reward, *others = self.env.step(action)
        return observation + np.float32(self.model.blows()), reward + 0.01 * self.parent[0], *others


GUSTS = np.random.default_rng(5)


class Gusty(gymnasium.Wrapper):
    """An environment that draws from generators of its module and of its class."""

    calm = np.random.default_rng(6)

    def step(self, action):
        observation, *others = self.env.step(action)
        return observation + np.float32(0.01 * (GUSTS.normal() + self.calm.normal())), *others


STARTS = [one.bit_generator.state for one in (GUSTS, Gusty.calm)]


def gusty(steps, seed, *ours):
    for one, start in zip((GUSTS, Gusty.calm), STARTS, strict=True):
        one.bit_generator.state = start
        if seed:
            one.normal()  # not the state that a resumed training is to find
    return a2c(steps, seed, *ours, env=lambda: Gusty(gymnasium.make("CartPole-v1")))


STEPS = 0


class Steeper(gymnasium.Wrapper):
    """An environment that counts its steps in a variable of its module."""

    def step(self, action):
        global STEPS
        STEPS += 1
        observation, reward, *others = self.env.step(action)
        return observation, reward + 0.01 * STEPS, *others


def steeper(steps, seed, *ours):
    global STEPS
    STEPS = 0  # as in another process
    return a2c(steps, seed, *ours, env=lambda: Steeper(gymnasium.make("CartPole-v1")))


class Scales(BaseFeaturesExtractor):
    """It scales observations by a count, a list and a buffer that its state_dict lacks."""

    def __init__(self, space):
        super().__init__(space, 4)
        self.calls, self.means = 0, [0.0]
        self.register_buffer("peak", torch.zeros(4), persistent=False)

    def forward(self, x):
        self.calls += 1
        self.means = [*self.means[-9:], float(x.detach().abs().mean())]
        self.peak = torch.maximum(self.peak, x.detach().abs().amax(0))
        return x / (1 + 0.001 * self.calls + sum(self.means) + self.peak)


class Freezes(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 40:
            self.model.policy.action_net.requires_grad_(False)
        return True


class Exploration(BaseCallback):
    """It sets the algorithm's options: by steps, or from the value before."""

    def __init__(self, by_calls):
        super().__init__()
        self.by_calls = by_calls

    def _on_rollout_start(self):
        if not self.by_calls:
            self.model.ent_coef = 0.5 - 0.003 * self.num_timesteps

    def _on_step(self):
        if self.by_calls:
            self.model.ent_coef *= 0.95
        if self.num_timesteps == 40:
            self.model.normalize_advantage = True
        return True


class Lowers(BaseCallback):
    """Its method is the schedule."""

    rate = 1e-2

    def schedule(self, left):
        return self.rate * left

    def _on_step(self):
        self.rate *= 0.99
        return True


def lowered(steps, seed, *ours):
    lowers = Lowers()
    return a2c(steps, seed, *ours, others=lambda: [lowers], learning_rate=lowers.schedule)


def half(fit, **options):
    return Case({"fit": partial(fit, **options) if options else fit}, (64,), 128, "step")


EXTRACTED = {"features_extractor_class": Scales}
CASES = {
    "PPO, normalized and evaluated": Case({"fit": normalized}, (64, 192), 256, "step"),
    "A2C, normalized and evaluated": Case({"fit": partial(normalized, kind="A2C")}, (64, 192), 256, "step"),
    "normalized observations that are a dict": half(
        a2c, env=normalized_dict, policy="MultiInputPolicy", policy_kwargs={"net_arch": [4]}
    ),
    "what an environment models": half(a2c, env=lambda: Windy(gymnasium.make("CartPole-v1"))),
    "generators of the module and the class of an environment": half(gusty),
    "what an environment counts in its module": half(steeper),
    "what a policy has outside its parameters": Case(
        {"fit": partial(a2c, others=lambda: [Freezes()], policy_kwargs=EXTRACTED)}, (64, 96), 128, "step"
    ),
    "what a callback sets by its calls": half(a2c, others=lambda: [Exploration(True)], ent_coef=0.5),
    "what a callback sets by steps": half(a2c, others=lambda: [Exploration(False)], ent_coef=0.5),
    "a schedule that is a method of a callback": half(lowered),
}
CASES = few(
    CASES, "PPO, normalized and evaluated", "generators of the module and the class of an environment",
    "what a policy has outside its parameters", "what a callback sets by steps",
)  # fmt: skip
