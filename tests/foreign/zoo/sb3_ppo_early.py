"""PPO with schedules of rate and clipping, target_kl, and an early end without a better model, after haltune's."""

import gymnasium
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList, EvalCallback, StopTrainingOnNoModelImprovement
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from haltune import Float, Maximize
from haltune.callbacks.stable_baselines3 import HaltuneCallback


class SameStart(gymnasium.Wrapper):
    """Each episode of the evaluation starts in the same state."""

    def reset(self, **options):
        return self.env.reset(seed=0)


def linear(initial):
    return lambda progress_remaining: progress_remaining * initial


def search(study):
    for trial in study:
        with trial:
            model = PPO("MlpPolicy", make_vec_env("CartPole-v1", n_envs=2), linear(trial.config["lr"]), n_steps=64,
                        n_epochs=2, clip_range=linear(0.2), target_kl=0.5, seed=1, device="cpu")
            test = SameStart(gymnasium.make("CartPole-v1"))
            stop = StopTrainingOnNoModelImprovement(max_no_improvement_evals=1, min_evals=1)
            evaluation = EvalCallback(test, callback_after_eval=CallbackList([HaltuneCallback(trial), stop]), eval_freq=64,
                                      best_model_save_path=f"best-{trial.id}", n_eval_episodes=1, verbose=0, warn=False)
            model.learn(trial.max_steps, callback=evaluation)


def evaluate(path, config):
    model = PPO("MlpPolicy", "CartPole-v1", device="cpu")
    model.set_parameters(torch.load(path, weights_only=True)["parameters"])
    return evaluate_policy(model, SameStart(gymnasium.make("CartPole-v1")), n_eval_episodes=1, warn=False)[0]


def learnt(steps):
    return 4 * (steps // 128)


zoo = dict(
    needs=["torch", "stable_baselines3", "gymnasium"],
    slow=True,
    space={"lr": Float(1e-5, 1e-1, log=True)},
    goal=Maximize("mean_reward"),
    max_epochs=768,
    unit="step",
    trials=[{"lr": 0.001}, {"lr": 0.003}],
    pauses=[128, 256],
    updates=learnt,
    says=[r"EvalCallback\(best_model_save_path=\) keeps the model of its best evaluation"],
)
