"""The callback for Stable-Baselines3: reinforcement learning, counted in environment steps.

Give it to `EvalCallback(env, callback_after_eval=HaltuneCallback(trial), eval_freq=...)`. Then it reports the mean
reward of each evaluation. If you give it to `learn` itself, it reports the mean reward of the last training episodes.

An algorithm collects steps, then it learns from them. So a report counts the steps from which the policy has learnt:
there is none before the first update, a second evaluation between two updates is not reported, and the policy at the
end of `learn`, which EvalCallback does not see, is evaluated once more.

On-policy algorithms (PPO, A2C) can pause. Saved, without pickle, are policy, optimizer, environments, callbacks and
random state, as they were after the last update; a resumed training equals one that never paused. After Ctrl-C they
continue to their next report, where they are saved. Environments with a state that cannot be read (simulators in C,
environments in other processes) are not paused, and neither are off-policy algorithms (DQN, SAC, TD3), which would need
their replay buffer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from haltune._utils.around import of_library, own_classes
from haltune._utils.code import counted_globals
from haltune._utils.generators import set_states, states_of, to_put_back
from haltune._utils.interruption import Interruption, caller
from haltune._utils.own_generators import of_code, of_objects
from haltune._utils.randomness import capture, restore
from haltune.errors import InvalidInput, NotSupported
from haltune.study import Trial

from . import carried
from .base import Portable, Reporting, inherited
from .changes import (
    Attributes,
    differences,
    extras,
    fingerprint,
    left_out,
    of_modules,
    of_table,
    own_modules,
    set_extras,
    warn_of_failed,
)  # fmt: skip
from .functions import OwnFunctions
from .objects import PLAIN, is_showing, put_back, state_of
from .plain import is_data, is_shared, mark, note

# algorithm -> the trial, its attempt, and the steps that the algorithm had made before the trial
_TRAINED: WeakKeyDictionary[Any, tuple[int, int, int]] = WeakKeyDictionary()
_STEPS = ("_n_updates", "_episode_num", "_current_progress_remaining", "ep_info_buffer", "ep_success_buffer")
# attributes that are the same in each process, of callbacks and of environments
_OF_CALLBACKS = frozenset({"model", "parent", "locals", "globals"})
_OF_ENVIRONMENTS = frozenset({"spec", "_cached_spec", "_saved_kwargs", "class_attributes"})
_NUMBERS = (bool, int, float)
# those of an algorithm that each `learn` sets; a callback may change the others, such as ent_coef
_OF_LEARN = frozenset({"num_timesteps", "_total_timesteps", "_num_timesteps_at_start", "start_time", "verbose", "seed"})
_SUFFIX = ".sb3.pt"
_SEVERAL = (
    "learn() ends before the trial's last step, and a resumed trial would start with the first learn() again (call it "
    "once, with trial.max_steps)"
)
_OFF_POLICY = "haltune does not save the replay buffer, and a trial would continue without it"


class HaltuneCallback(Reporting):
    """Callback that reports the mean reward to a trial, and ends `learn` at a stop or a pause.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`, of a study that counts steps.
        monitor: "mean_reward". Default: None, the goal's metric, which can have any name.
        verbose: Print a line for every report. Default: False.
        every: Least steps between two reports, if you give the callback to `learn` itself. Default: None, 5% of a
            full training.

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
            study = Study(space, Maximize("mean_reward"), "cartpole.db", max_steps=20_000, budget="2 trials")
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
        self._before = 0  # steps of the model before the trial
        self._steps = self._updates = 0  # of the model at the start of this rollout
        self._calls = 0  # of EvalCallback before this rollout
        self._again = False  # the model has trained in this attempt by another `learn`
        self._others_end = False  # another callback ends this fit
        self._fitted = 0  # updates of the model at the start of this fit
        self._first = 0  # `_fitted`, if these updates were made before the trial
        self._state: str | None = None  # state of all but the policy, after the last update
        self._unsaved = ""  # why that state is not known
        self._functions: dict[str, Any] = {}  # of the model at the start of this fit, such as its schedules
        self._own: OwnFunctions | None = None  # the program's own of these
        self._tables: dict[int, tuple[Any, str]] = {}  # id -> table, and its digest when this fit first read it
        self._counted: dict[str, Any] = {}  # see `_counters`, as this fit started
        self._resumed: Any = None  # the state to continue from, until the first rollout
        self._extras: dict[str, Any] = {}  # what the policy has that is not in its parameters, at the first rollout
        self._earlier: dict[str, Any] = {}  # of that, what earlier attempts have changed
        self._of_modules: Attributes | None = None  # the attributes of the program's modules in the policy

    # the hooks

    init_callback = inherited()  # the first

    def _on_training_start(self) -> None:
        model, trial = self.model, self.trial
        attempt = trial.id, trial.attempt
        *of, before = _TRAINED.get(model, (0, 0, 0))
        fresh = tuple(of) != attempt  # not a second `learn` of this attempt
        self._again = not fresh
        self._first = _updates(model) if fresh else 0
        self._before = int(model.num_timesteps) if fresh and not trial.epoch else before
        if fresh and trial.checkpoint is not None and trial.ended is None:
            self._load(trial.checkpoint)
        _TRAINED[model] = (*attempt, self._before)
        if fresh and trial.ended is None:
            self._need_own_state()
        for callback in self._own_callbacks():
            for name, value in vars(callback).items():
                if name not in self._held and is_data(marked := mark(value)):
                    note(value, trial.id, marked)
        owner = self.trial.signer(fingerprint(model.policy))
        self._fitted = _updates(model)
        self._functions = {name: value for name, value in vars(model).items() if callable(value)}
        schedules = [
            one for one in self._functions.values() if not (isinstance(one, type) or hasattr(one, "parameters"))
        ]
        self._own = OwnFunctions(schedules, (), trial, not trial.checkpoint, self._callbacks())
        self._tables = {}
        self._counted = self._counted_now()
        # off-policy algorithms make no update before learning_starts, so their updates do not keep pace with the start
        position = None if hasattr(model, "replay_buffer") else float(model.num_timesteps - self._before)
        planned = self.locals["total_timesteps"] - self._before if "total_timesteps" in self.locals else None
        self._reporter.begin(planned, model.policy, position, owner if fresh else None)
        if getattr(self.parent, "best_model_save_path", None) is not None:
            self._reporter.advise_best("EvalCallback(best_model_save_path=)", "evaluation", file=True)
        if fresh and self._can_be_saved():
            self._reporter.defer(Interruption.within("learn", "stable_baselines3."))
        elif not self._reporter.ended and _learns():
            trial.fits(_learns)
        # the callback that `learn` calls, to which others have no access. Its answer alone ends the training, so
        # without its hooks a trial would not stop after an evaluation
        root = self.locals["callback"]
        if self.parent is not None:  # events do not pass these hooks on
            _follow(root, "_on_rollout_start", self._on_rollout_start)
            _follow(root, "_on_training_end", self._on_training_end)
        self._others_end = False

        def continues() -> bool:
            self._others_end |= not type(root)._on_step(root)
            return not (self._others_end or self._reporter.over)

        root._on_step = continues

    def _on_rollout_start(self) -> None:
        """Note the state after an update, from which a resumed training starts its next rollout."""
        if self._resumed is not None:
            self._restore(self._resumed)
            self._fitted = _updates(self.model)
        if self._of_modules is None:
            self._note_policy({})
        self._steps, self._updates = int(self.model.num_timesteps), _updates(self.model)
        self._calls = getattr(self.parent, "n_calls", 0)
        if hasattr(self.model, "rollout_buffer"):  # others have a rollout of a few steps
            self._sign()
        self._state, self._unsaved = None, "its state after the last update is not known"
        if hasattr(self.model, "rollout_buffer") and self._learnt and self._reports_next():
            try:
                self._state = json.dumps(self._present())
            except NotSupported as error:
                self._unsaved = str(error)

    def _on_step(self) -> bool:
        """Handle the end of an evaluation, or of a step of the environments."""
        if getattr(self.parent, "callback_on_new_best", None) is self:
            raise InvalidInput(
                "HaltuneCallback was given as callback_on_new_best, so it gets few evaluations. Write "
                "EvalCallback(env, callback_after_eval=HaltuneCallback(trial))"
            )
        if hasattr(self.parent, "last_mean_reward"):
            self._report(float(self.parent.last_mean_reward))
        elif self._due:
            self._report_episodes()
        return True  # the outermost callback ends the training, where the others' answers are known

    def _on_training_end(self) -> None:
        """Evaluate the last policy, and end the fit."""
        if self._resumed is not None:  # without a rollout
            self._restore(self._resumed)
        root = self.locals["callback"]
        for hook in ("_on_rollout_start", "_on_step", "_on_training_end"):
            vars(root).pop(hook, None)
        last = self._learnt > self.trial.epoch and not self._reporter.over
        if last and hasattr(self.parent, "eval_env"):
            self._reporter.clock.validating()
            if _updates(self.model) > self._updates or not self._evaluated(self.parent.n_calls):
                self._evaluate(self.parent)
            self._reporter.clock.validated()
            self._report(float(self.parent.last_mean_reward))
        elif last:
            self._report_episodes()
        if self._others_end:
            self._reporter.ends_by_itself()
        self._sign()
        carried.leave(self._callbacks())
        if (normalized := self.model.get_vec_normalize_env()) is not None:
            carried.ends(normalized, _returns(normalized))
        self._reporter.end_of_fit(self._write, _SUFFIX)
        if self._own is not None:
            self._own.ends()
        self._state = self._of_modules = self._own = None
        self._functions = {}  # the policy is one
        self._reporter.leave()
        if self._learnt == self.trial.horizon and not self._reporter.reports and self.trial.ended is None:
            raise InvalidInput(
                f"No episode of the training ended in {self.model.num_timesteps} steps, so trial {self.trial.id} has "
                "no value. Evaluate, EvalCallback(env, callback_after_eval=HaltuneCallback(trial)), or raise "
                "max_steps= above the steps of an episode, times the number of environments."
            )
        if self._others_end and not self._learnt and self.trial.epoch == 0:
            raise InvalidInput(
                f"Another callback ended learn() at step {self.model.num_timesteps}, before the first update of the "
                f"policy, so trial {self.trial.id} has no value. Let that callback wait for the first update (such as "
                "min_evals= of StopTrainingOnNoModelImprovement), or make n_steps= or learning_starts= smaller."
            )

    def _need_own_state(self) -> None:
        """Raise NotSupported if callbacks or environments have what another trial's training has left in them."""
        normalized, who, starts = self.model.get_vec_normalize_env(), carried.who(self.trial), not self.trial.checkpoint
        carried.need_own_state(who, self._callbacks(), starts)
        carried.warn_of_own(self.trial, self._callbacks(), starts)
        if normalized is not None and carried.begins(normalized, who, _returns(normalized), starts) and starts:
            raise NotSupported(
                f"The {type(normalized).__name__} object of this training has been in another one, and its running "
                "means would change this one. Make the environments for each trial, within the loop."
            )

    # what they report

    @property
    def _learnt(self) -> int:
        """Return the steps from which the policy has learnt, at most those of a full training."""
        updates = _updates(self.model)
        if updates == self._first:
            return 0
        steps = (int(self.model.num_timesteps) if updates > self._updates else self._steps) - self._before
        return steps if self.trial.horizon is None else min(steps, self.trial.horizon)

    @property
    def _due(self) -> bool:
        horizon = self.trial.horizon
        return self._learnt >= self.trial.epoch + self.every or self._learnt == horizon

    def _reports_next(self) -> bool:
        """Return whether the rollout that starts can have a report."""
        return self._evaluated(self._calls + self.model.n_steps) if hasattr(self.parent, "eval_freq") else self._due

    def _evaluated(self, calls: int) -> bool:
        """Return whether EvalCallback evaluates in this rollout until so many of its calls."""
        every = self.parent.eval_freq
        return bool(every > 0 and calls // every > self._calls // every)

    def _sign(self) -> None:
        """Sign the policy, which the program may save, if it has learnt."""
        self.trial.sign(fingerprint(self.model.policy))

    def _report(self, reward: float) -> None:
        if self._learnt > self.trial.epoch:
            self._sign()
            several, steps = self._reporter.measures.others, self._learnt
            # target_kl ends some updates early; the last rollout can exceed a full training
            whole = steps + self._before in (self._steps, self.model.num_timesteps)
            steady = getattr(self.model, "target_kl", None) is None and whole
            updates = _updates(self.model) - self._fitted if steady else None
            self._reporter.report({self.monitor: reward} if several else reward, steps, updates=updates)
            self._reporter.heed(steps)
            self._reporter.save_epoch(self._write, _SUFFIX, self._cannot_pause)

    def _report_episodes(self) -> None:
        """Report the mean reward of the last training episodes, if there are any."""
        if episodes := self.model.ep_info_buffer:
            self._report(float(np.mean([episode["r"] for episode in episodes])))

    def _evaluate(self, evaluation: Any) -> None:
        """Let an EvalCallback evaluate the policy once more, by its own rules: a subclass may mask actions."""
        kept, evaluation.n_calls, evaluation.eval_freq = (evaluation.n_calls, evaluation.eval_freq), 0, 1
        evaluation._on_step()
        evaluation.n_calls, evaluation.eval_freq = kept

    # the state

    def _cannot_pause(self) -> str | None:
        """Return why a resumed training would differ, or None."""
        if hasattr(self.model, "replay_buffer"):
            return _OFF_POLICY
        if self.model.use_sde:
            return "the exploration of use_sde=True is not saved"
        if self._again or _updates(self.model) > self._updates:  # after the last rollout
            return _SEVERAL
        for name, value in vars(self.model).items():
            if callable(value) and value is not self._functions.get(name):
                return f"a callback has set the model's {name}, and a function is not saved"
        if self._own is not None and (name := self._own.changed()) is not None:
            return (
                f"{name} remembers its calls, and a function is not saved (compute a schedule from its argument alone)"
            )
        return self._unsaved if self._state is None else None

    def _can_be_saved(self) -> bool:
        """Return whether a report after a signal can save this training, as far as its start shows."""
        if not hasattr(self.model, "rollout_buffer") or self.model.use_sde:
            return False
        try:
            self._objects()
        except NotSupported:
            return False
        return True

    def _parts(self) -> dict[str, Any]:
        """Return what a training remembers outside the policy."""
        model = self.model
        names = [
            name
            for name, value in vars(model).items()
            if name in _STEPS or name.startswith("_last_") or (type(value) in _NUMBERS and name not in _OF_LEARN)
        ]
        return {"environments": model.env, "callbacks": self.locals["callback"]} | {n: getattr(model, n) for n in names}

    def _own_callbacks(self) -> list[Any]:
        """Return the callbacks of the program's own classes in this training."""
        return [one for one in self._callbacks() if not of_library(type(one).__module__)]

    def _callbacks(self) -> list[Any]:
        """Return the callbacks of this training, also those that others call."""
        from stable_baselines3.common.callbacks import BaseCallback

        found: list[Any] = []
        left = [self.locals["callback"]]
        while left:
            one = left.pop()
            if isinstance(one, BaseCallback) and all(one is not other for other in found):
                found.append(one)
                inner = [value for name, value in vars(one).items() if name != "parent"]
                left += [part for value in inner for part in (value if isinstance(value, list) else [value])]
        return found

    def _objects(self) -> Any:
        from gymnasium import Env, Space
        from stable_baselines3.common.callbacks import BaseCallback
        from stable_baselines3.common.running_mean_std import RunningMeanStd
        from stable_baselines3.common.vec_env import VecEnv

        def same(owner: Any, name: str, value: Any) -> bool:
            kinds = (BaseCallback, _OF_CALLBACKS), ((Env, VecEnv), _OF_ENVIRONMENTS)
            by_name = any(isinstance(owner, kind) and name in names for kind, names in kinds)
            return by_name or value is self.model or is_showing(value) or self._is_as_at_start(value)

        # VecNormalize has a dict of running means where observations are a dict
        parts = (Env, Space, VecEnv, BaseCallback, RunningMeanStd)
        return state_of(self._parts(), parts, (HaltuneCallback,), same)

    def _present(self) -> dict[str, Any]:
        """Return the state of all but the parameters. Raises NotSupported if a part of it cannot be saved."""
        policy = self.model.policy
        assert self._of_modules is not None
        if (lost := left_out([(policy, self._extras)], self._of_modules, [policy])) is not None:
            raise NotSupported(lost)
        return {
            "objects": self._objects(),
            "random": capture(),
            "generators": states_of(self._generators()),
            "globals": {key: [self._counted.get(key), now] for key, now in self._counted_now().items()},
            "policy": differences(policy, self._extras, self._earlier),
            "modules": self._of_modules.changed(own_modules(policy), [policy]),
        }

    def _note_policy(self, states: dict[str, Any]) -> None:
        """Note what the policy has that is not in its parameters. states: of the program's modules, to restore."""
        policy = self.model.policy
        self._of_modules = of_modules(self.trial.id)
        self._of_modules.put_back(own_modules(policy), states, self.model.device)
        warn_of_failed(self.trial, *self._of_modules.failed)
        self._extras = extras(policy)
        self._of_modules.see(own_modules(policy), [policy])

    def _generators(self) -> dict[str, Any]:
        """Return the generators that environments and callbacks of the program use, and that no object of them has."""
        return of_code(self.model.env, *self._tests(), *self._own_callbacks())

    def _counters(self) -> dict[str, dict[str, Any]]:
        """Return what methods of the program count by `global`: module and name -> the variables of the module.

        They are methods of environments and callbacks, but for those that make an object: each attempt calls these.
        """
        owners = [*_environments(self.model.env, *self._tests()), *self._own_callbacks()]
        own = {base for one in owners for base in own_classes(type(one))}
        found: dict[str, dict[str, Any]] = {}
        for called, method in (item for base in own for item in vars(base).items()):
            if isinstance(method, FunctionType) and called != "__init__":
                held = method.__globals__
                names = counted_globals(method.__code__) & held.keys()
                found |= {f"{method.__module__}.{name}": held for name in names if type(held[name]) in PLAIN}
        return found

    def _counted_now(self) -> dict[str, Any]:
        """Return the present values of `_counters`."""
        return {key: held[key.rpartition(".")[2]] for key, held in self._counters().items()}

    def _tests(self) -> list[Any]:
        """Return the environments in which callbacks evaluate."""
        return [one.eval_env for one in self._callbacks() if hasattr(one, "eval_env")]

    def _is_as_at_start(self, value: Any) -> bool:
        """Return whether it is a table of data, and as this fit found it: such a table is large, and not saved."""
        if not hasattr(value, "iloc"):
            return False
        now = of_table(value)
        return now is not None and self._tables.setdefault(id(value), (value, now))[1] == now

    def _write(self, path: Path) -> None:
        import torch

        normalized = self.model.get_vec_normalize_env()
        moments = {} if normalized is None else {n: _moments(m) for n, m in _running(normalized).items()}
        state = {"parameters": self.model.get_parameters(), "steps": self._learnt, "moments": moments}
        state["before"] = self._before
        ended = _updates(self.model) > self._updates  # the state is of an earlier policy
        torch.save(state | {"state": None if ended else self._state}, path)

    def _load(self, path: str) -> None:
        import torch

        state = torch.load(path, map_location=self.model.device, weights_only=True)
        if state["state"] is None:
            self.trial.restart(advice="Its checkpoint has the policy alone, from which a training cannot continue.")
            return
        self.model.set_parameters(state["parameters"], device=self.model.device)
        self._before = state["before"]
        self.model.num_timesteps = self._before + state["steps"]
        self._resumed = state

    def _restore(self, state: dict[str, Any]) -> None:
        self._resumed, parts = None, self._parts()
        # hooks of the start may have changed them
        self.model.set_parameters(state["parameters"], device=self.model.device)
        rest = json.loads(state["state"])
        held = [(owner, name, value) for owner in self._own_callbacks() for name, value in vars(owner).items()]
        shared = [one for one in held if is_shared(one[2], None, self.trial.id)]
        generators = of_objects(self.model.env, *self._tests(), *self._own_callbacks())
        before = states_of(generators)
        written = put_back(rest["objects"], parts)
        for owner, name, value in shared:  # records of all trials
            setattr(owner, name, value)
        for name in written.keys() - {"environments", "callbacks"}:
            setattr(self.model, name, written[name])
        self._earlier = rest.get("policy", {})
        set_extras(self.model.policy, self._earlier)
        self._note_policy(rest.get("modules", {}))
        set_states(self._generators(), rest.get("generators", {}))
        counted = rest.get("globals", {})
        for key, module in self._counters().items():
            if key in counted and counted[key][0] == self._counted.get(key):  # or it continues from trial to trial
                module[key.rpartition(".")[2]] = counted[key][1]
        self.trial.restores_randomness(to_put_back(generators, before))
        restore(rest["random"])


def _learns() -> bool:
    """Return whether a `learn` is under way: Stable-Baselines3 calls no hook when it fails."""
    return caller("learn", "stable_baselines3.") is not None


def _environments(*outermost: Any) -> list[Any]:
    """Return environments and those that they wrap."""
    found: list[Any] = []
    left = [*outermost]
    while left:
        one = left.pop()
        if all(one is not other for other in found):
            found.append(one)
            held = getattr(one, "__dict__", {})
            several = held.get("envs")
            left += [held[name] for name in ("venv", "env") if name in held]
            left += several if isinstance(several, list) else []
    return found


def _updates(model: Any) -> int:
    """Return the updates of a policy so far, for which Stable-Baselines3 has no public name.

    Without them, a report before the first update would count as trained.
    """
    return int(model._n_updates)


def _follow(callback: Any, hook: str, act: Callable[[], None]) -> None:
    """Call `act` after a hook of the callback that `learn` calls.

    EventCallback and EvalCallback do not pass these hooks on to their callbacks. Without it, the state after an update
    would not be known, and the last policy not be evaluated.
    """
    own = getattr(type(callback), hook)

    def both() -> None:
        own(callback)
        act()

    setattr(callback, hook, both)


def _running(normalized: Any) -> dict[str, Any]:
    """Return VecNormalize's running means of observations (a dict of them for some spaces) and of returns."""
    seen = normalized.obs_rms if normalized.norm_obs else {}
    several = seen if isinstance(seen, dict) else {"": seen}
    return {f"obs/{name}": running for name, running in several.items()} | {"returns": normalized.ret_rms}


def _returns(normalized: Any) -> dict[str, str]:
    """Return the mark of VecNormalize's running mean of returns, which only a training changes, and not a reset."""
    running = normalized.ret_rms
    return {"returns": mark([running.mean, running.var, running.count])}


def _moments(running: Any) -> tuple[Any, Any, float]:
    import torch

    return torch.as_tensor(running.mean), torch.as_tensor(running.var), float(running.count)
