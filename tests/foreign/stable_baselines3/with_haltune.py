"""PPO on CartPole with normalised observations and evaluations, rl-zoo style."""

from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import (
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    StopTrainingOnNoModelImprovement,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from haltune import Float, Study
from haltune.callbacks.stable_baselines3 import HaltuneCallback


def linear(start):
    return lambda progress_remaining: progress_remaining * start


def main():
    space = {
        "learning_rate": Float(1e-4, 1e-1, log=True),
        "gamma": Float(0.9, 0.999),
        "ent_coef": Float(1e-4, 1e-1, log=True),
    }
    study = Study(space, "mean_reward", "search.db", max_steps=2048, budget="4 trials", seed=0)
    for trial in study:
        with trial:
            env = VecNormalize(make_vec_env("CartPole-v1", n_envs=4, seed=3), norm_obs=True, norm_reward=True)
            eval_env = VecNormalize(
                make_vec_env("CartPole-v1", n_envs=1, seed=103), training=False, norm_obs=True, norm_reward=False
            )

            stop = StopTrainingOnNoModelImprovement(max_no_improvement_evals=20, min_evals=20)
            evaluate = EvalCallback(
                eval_env,
                eval_freq=256 // 4,
                n_eval_episodes=2,
                best_model_save_path=f"out/ppo/{trial.id}/best",
                log_path=f"out/ppo/{trial.id}",
                callback_after_eval=CallbackList([stop, HaltuneCallback(trial)]),
                verbose=0,
            )
            checkpoint = CheckpointCallback(
                save_freq=1024 // 4, save_path=f"out/ppo/{trial.id}/ckpt", save_vecnormalize=True
            )

            model = PPO(
                "MlpPolicy",
                env,
                n_steps=64,
                batch_size=64,
                n_epochs=4,
                learning_rate=linear(trial.config["learning_rate"]),
                clip_range=0.2,
                gamma=trial.config["gamma"],
                ent_coef=trial.config["ent_coef"],
                policy_kwargs={"net_arch": [32, 32]},
                seed=3,
                device="cpu",
                verbose=0,
            )
            model.learn(total_timesteps=trial.max_steps, callback=[evaluate, checkpoint])
            print("best", evaluate.best_mean_reward, "last", evaluate.last_mean_reward)
    print(study.best)


if __name__ == "__main__":
    main()
