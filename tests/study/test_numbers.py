"""Numbers that a plain loop keeps in variables: a hint names those that begin again in a resumed trial."""

import json
import logging
import math
import pickle
import sys
from collections import deque, namedtuple
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from paused_studies import pausing_study

from haltune.callbacks.loop import TrainingLoop


class Patience:
    def __init__(self):
        self.most, self.used, self.best = 2, 0, None

    def step(self, value):
        self.used = 0 if self.best is None or value < self.best else self.used + 1
        self.best = value if self.best is None else min(value, self.best)
        return self.used > self.most


def search(caplog, train, at=(3,), trials=2, words="as at its start"):
    with caplog.at_level(logging.INFO, "haltune"):
        for trial in pausing_study(at=at, epochs=6, trials=trials):
            with trial:
                train(trial)
    return [text for text in caplog.messages if words in text]


def value(epoch):
    return 1.0 + abs(epoch - 2)  # best at epoch 2


def restored(trial):
    return json.loads(open(trial.checkpoint).read()) if trial.checkpoint else {}


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_patience_that_begins_again_is_hinted_at_once_with_its_values(caplog, wrapped):
    tqdm = pytest.importorskip("tqdm")

    def train(trial):
        best, bad = math.inf, 0
        restored(trial)
        for epoch in tqdm.tqdm(trial.epochs(), disable=None) if wrapped else trial.epochs():
            bad = 0 if value(epoch) < best else bad + 1
            best = min(value(epoch), best)
            trial.report(value(epoch))
            trial.save(lambda path: path.write_text("{}"))
            if bad > 9:
                break

    (hint,) = search(caplog, train)
    assert (
        "Trial 0 has resumed after epoch 3 with bad = 0 (1 where it paused), best = inf (1 where it paused), as" in hint
    )


def test_numbers_of_objects_of_the_program_and_a_rate_in_a_training_loop_are_named(caplog):
    class Run:
        def __init__(self):
            self.patience = Patience()

    def train(trial):
        run, rate = Run(), 0.5
        restored(trial)
        for epoch in (loop := TrainingLoop(trial, save=lambda path: path.write_text("{}"))):
            run.patience.step(value(epoch))
            rate *= 0.5
            loop.report(value(epoch) + 0 * rate)

    (hint,) = search(caplog, train)
    found = "rate = 0.5 (0.0625 where it paused), run.patience.best = None (1 where it paused), run.patience.used = 0"
    assert found in hint


def test_a_number_that_a_function_within_sets_by_nonlocal_is_named(caplog):
    def train(trial):
        beta, seen, total = 0.0, 0, 0
        restored(trial)

        def train_epoch():
            nonlocal beta, seen, total
            seen, total = 0, total + beta
            beta += 0.25 + seen

        for epoch in trial.epochs():
            total = 0
            train_epoch()
            trial.report(value(epoch) + beta + total)
            trial.save(lambda path: path.write_text("{}"))

    (hint,) = search(caplog, train)
    assert "with beta = 0 (0.75 where it paused), as" in hint


def test_a_function_that_keeps_its_own_locals_finds_its_objects_there(caplog):
    def train(trial):
        patience = Patience()
        kept = locals()
        restored(trial)
        for epoch in trial.epochs():
            patience.step(value(epoch))
            trial.report(value(epoch))
            trial.save(lambda path: path.write_text("{}"))
        found.append("patience" in kept)

    found = []
    search(caplog, train)
    assert found
    assert all(found)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="exec makes no variables in a function")
def test_a_function_keeps_the_names_that_exec_makes_in_it(caplog):
    def train(trial):
        exec("factor = 2.0")
        restored(trial)
        for epoch in trial.epochs():
            trial.report(value(epoch) * eval("factor"))
            trial.save(lambda path: path.write_text("{}"))
        found.append(trial.epoch)

    found = []
    search(caplog, train)
    assert found[-1] == 6


def test_an_array_that_a_loop_carries_over_and_a_best_of_numpy_are_named_and_records_and_filled_arrays_are_not(caplog):
    def train(trial):
        state, batch, best = np.zeros((1, 4)), (np.zeros((2, 2)), np.ones((2, 2))), np.inf
        record, texts, rollout = np.zeros(6), np.array([["a"], ["b"]]), np.zeros((4, 2))
        scales, history = np.ones(3), np.zeros(1)
        restored(trial)
        for epoch in trial.epochs():
            first, second = batch
            state, batch = 0.5 * state + epoch, (first + second, second)
            texts = texts[::-1]
            scales, history = 0.5 * scales, np.append(history, value(epoch))
            best = min(best, np.mean([value(epoch)]))
            record[epoch - 1] = value(epoch)
            for step in range(4):  # as PPO does in each epoch
                rollout[step] = epoch
            trial.report(value(epoch) + 0 * rollout.mean())
            trial.save(lambda path: path.write_text("{}"))
            if best < 0:
                break

    (hint,) = search(caplog, train)
    batch = "batch = [0 0] [1 1] ([3 3] [1 1] where it paused)"
    scales = "scales = [1 1 1] ([0.125 0.125 0.125] where it paused)"
    state = "state = [0] ([4.25] where it paused)"
    assert f"with {batch}, best = inf (1 where it paused), {scales}, {state}, as" in hint


class Agent:
    def __init__(self, alpha):
        self.alpha = alpha


def test_a_state_of_an_lstm_a_best_accuracy_and_a_weight_of_torch_are_named_unless_the_program_restores_them(caplog):
    torch = pytest.importorskip("torch")

    def train(trial, restores):
        hidden, best, temperature = None, 0.0, torch.zeros(1, requires_grad=True)
        if trial.checkpoint and restores:
            hidden, best, temperature = torch.load(trial.checkpoint)
        agent = Agent(temperature)
        loop = TrainingLoop(trial, save=lambda path: torch.save((hidden, best, agent.alpha), path))
        for epoch in loop:
            ones = torch.ones(1, 2, 3)
            with torch.no_grad():
                temperature += 0.5
            hidden = (ones, ones) if hidden is None else (hidden[0] + ones, hidden[1] + ones)
            accuracy = torch.tensor(epoch / 10)
            if accuracy > best:
                best = accuracy
            loop.report(value(epoch))

    (hint,) = search(caplog, partial(train, restores=False))
    state = "hidden = None ([3] [3] where it paused), temperature = [0] ([1.5] where it paused)"
    assert f"with agent.alpha = [0] ([1.5] where it paused), best = 0 (0.3 where it paused), {state}, as" in hint
    caplog.clear()
    assert search(caplog, partial(train, restores=True)) == []


def test_a_number_of_a_model_that_a_loop_lowers_is_named_and_a_count_of_its_calls_is_not(caplog):
    torch = pytest.importorskip("torch")

    class Soft(torch.nn.Linear):
        def forward(self, rows):
            self.calls += 1  # for debugging
            return super().forward(rows)

    def train(trial):
        net = Soft(2, 1)
        net.tau, net.calls = 0.5, 0
        restored(trial)
        for epoch in trial.epochs():
            net.tau *= 0.5
            net.train(epoch > 1)(torch.zeros(1, 2))
            trial.report(value(epoch))
            trial.save(lambda path: path.write_text("{}"))

    (hint,) = search(caplog, train)
    assert "with net.tau = 0.5 (0.0625 where it paused), as" in hint


class Memory:
    """A replay buffer, as most are written."""

    def __init__(self):
        self.memory = deque(maxlen=10)

    def push(self, *transition):
        self.memory.append(transition)


def test_data_that_a_loop_collects_and_a_resumed_one_lacks_are_named_and_a_record_of_values_is_not(caplog):
    def train(trial):
        memory, pool, seen, losses, rows, done = Memory(), [0, 1], [], [], [], set()
        restored(trial)
        for epoch in trial.epochs():
            memory.push(np.zeros(2), 1, 0.5)
            pool.append(epoch)
            seen.append(epoch)
            losses.append(value(epoch))
            rows.append((epoch, value(epoch)))
            done.add(str(epoch))
            trial.report(value(epoch))
            trial.save(lambda path: path.write_text("{}"))

    (hint,) = search(caplog, train)
    memory = "memory.memory = no elements (3 elements where it paused)"
    assert f"with {memory}, pool = 2 indices (5 indices where it paused), as" in hint


def test_collected_data_that_the_loop_does_not_read_are_not_named(caplog):
    def train(trial):
        pictures, memory, batches = [], [], []
        restored(trial)
        for epoch in trial.epochs():
            pictures.append(np.zeros(2))
            pictures.extend([pictures[-1] + 1])
            memory.append(np.zeros(2))
            batches.append(np.zeros(2))
            drawn = memory[0] + sum(batches)
            trial.report(value(epoch) + drawn.sum())
            trial.save(lambda path: path.write_text("{}"))
        return [picture.sum() for picture in pictures]

    (hint,) = search(caplog, train)
    empty = "no elements (3 elements where it paused)"
    assert f"with batches = {empty}, memory = {empty}, as" in hint


def test_collected_data_that_the_program_restores_are_not_named(caplog):
    def train(trial):
        memory = Memory()
        memory.memory.extend(tuple(np.zeros(2)[None]) for _ in range(restored(trial).get("size", 0)))
        for epoch in trial.epochs():
            memory.push(np.zeros(2))
            trial.report(value(epoch))
            trial.save(lambda path: path.write_text(json.dumps({"size": len(memory.memory)})))

    assert search(caplog, train) == []


def test_numbers_that_the_program_restores_or_sets_in_each_epoch_are_not_named(caplog):
    def train(trial):
        state = restored(trial)
        best, bad, total, last, patience = state.get("best", math.inf), state.get("bad", 0), 0.0, 0.0, Patience()
        vars(patience).update(state.get("patience", {}))
        for epoch in trial.epochs():
            total = 0.0
            for part in range(3):
                total += part
            last = value(epoch)
            bad = 0 if last < best else bad + 1
            best = min(last, best)
            patience.step(last)
            trial.report(last)
            state = json.dumps({"best": best, "bad": bad, "patience": vars(patience)})
            trial.save(partial(Path.write_text, data=state))

    assert search(caplog, train, at=(1, 3)) == []


class Meter:
    def __init__(self):
        self.zero()

    def zero(self):
        self.sum = self.count = 0

    def update(self, number):
        self.sum, self.count = self.sum + number, self.count + 1


def test_a_meter_that_each_epoch_resets_is_not_named(caplog):
    def train(trial):
        losses = Meter()
        restored(trial)
        for epoch in trial.epochs():
            losses.zero()
            losses.update(value(epoch))
            trial.report(losses.sum / losses.count)
            trial.save(lambda path: path.write_text("{}"))

    assert search(caplog, train) == []


class Trainer:
    """Has its loop in a method."""

    def __init__(self, trial):
        self.trial, self.epoch, self.loss, self.steps = trial, 0, 0.0, 0

    def train_epoch(self):
        self.loss = value(self.epoch)
        self.steps += 2

    def fit(self):
        restored(self.trial)
        for epoch in self.trial.epochs():
            self.epoch = epoch
            self.train_epoch()
            self.trial.report(self.loss + 0 * self.steps)
            self.trial.save(lambda path: path.write_text("{}"))


def test_attributes_that_each_epoch_sets_anew_are_not_named(caplog):
    (hint,) = search(caplog, lambda trial: Trainer(trial).fit())
    assert "with self.steps = 0 (6 where it paused), as" in hint


class Total:
    def __init__(self):
        self.sum = 0

    def add(self, number):
        self.sum += number


class OfOneMethod:
    """Sets what it counts in the method that has its loop."""

    def __init__(self, trial):
        self.trial = trial

    def fit(self):
        restored(self.trial)
        self.steps, losses = 0, Total()
        for epoch in self.trial.epochs():
            losses = Total()
            losses.add(value(epoch))
            self.steps += 1
            self.trial.report(losses.sum + 0 * self.steps)
            self.trial.save(lambda path: path.write_text("{}"))


def test_an_attribute_that_the_method_with_the_loop_sets_before_it_is_named_and_an_object_made_in_each_epoch_is_not(
    caplog,
):
    (hint,) = search(caplog, lambda trial: OfOneMethod(trial).fit())
    assert "with self.steps = 0 (3 where it paused), as" in hint


class OfSlots:
    __slots__ = ("inner",)

    def __getattr__(self, name):
        raise KeyError(name)


class Proxy:
    def __getattribute__(self, name):
        raise RuntimeError("it stands for an object that is not there yet")


@pytest.mark.parametrize("kind", [OfSlots, Proxy])
def test_an_object_that_raises_where_it_is_looked_at_ends_no_training(caplog, kind):
    def train(trial):
        bad, held = 0, kind()
        restored(trial)
        for epoch in trial.epochs():
            bad += held is not None
            trial.report(value(epoch) + 0 * bad)
            trial.save(lambda path: path.write_text("{}"))

    (hint,) = search(caplog, train)
    assert "with bad = 0 (3 where it paused), as" in hint


STEPS = 0


def draws_less_at_random():
    global STEPS
    STEPS += 1
    return 1 / STEPS


def starts_again():
    global STEPS
    STEPS = 0


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (lambda trial: False, ["Trial 1 starts with STEPS = 6 (0 where the first trial started)"]),
        (lambda trial: True, ["Trial 0 has resumed after epoch 3 with STEPS = 0 (3 where it paused)"]),
        (lambda trial: trial.attempt == 1, []),  # the process has it after the pause
    ],
    ids=["never", "always", "where each trial starts"],
)
def test_a_counter_of_the_module_that_goes_on_from_trial_to_trial_is_named(caplog, monkeypatch, sets, said):
    monkeypatch.setitem(globals(), "STEPS", 0)

    def train(trial):
        restored(trial)
        if sets(trial):
            starts_again()
        for epoch in trial.epochs():
            draws_less_at_random()
            trial.report(value(epoch))
            trial.save(lambda path: path.write_text("{}"))

    hints = search(caplog, train, words="sets by global")
    assert [hint[hint.index("Trial") : hint.index(", which")] for hint in hints] == said


def test_a_training_that_never_paused_has_no_hint(caplog):
    def train(trial):
        total = 0.0
        for epoch in trial.epochs():
            total += value(epoch)
            trial.report(value(epoch))

    assert search(caplog, train, at=()) == []


@pytest.mark.slow
@pytest.mark.parametrize("typed", [False, True])
def test_a_random_key_of_jax_that_begins_again_is_named(caplog, typed):
    jax = pytest.importorskip("jax")

    def train(trial):
        key, fixed = (jax.random.key(7) if typed else jax.random.PRNGKey(7)), jax.random.PRNGKey(1)
        restored(trial)
        for epoch in trial.epochs():
            key, now = jax.random.split(key)
            trial.report(value(epoch) + float(jax.random.uniform(now) + jax.random.uniform(fixed)))
            trial.save(lambda path: path.write_text("{}"))

    (hint,) = search(caplog, train)
    assert "Trial 0 has resumed after epoch 3 with key = [0 7] ([" in hint
    assert "fixed" not in hint


@pytest.mark.parametrize("restores", [False, True])
def test_a_state_of_an_optimizer_in_jax_that_starts_again_is_named(caplog, restores):
    jax = pytest.importorskip("jax")
    Adam = namedtuple("Adam", ["count", "mu"])

    def train(trial):
        params, state = {"w": jax.numpy.ones(3)}, (Adam(jax.numpy.zeros((), int), {"w": jax.numpy.zeros(3)}), ())
        fixed, history, best = {"w": jax.numpy.zeros(2)}, {"loss": []}, {"loss": np.float64(9)}
        if trial.checkpoint:
            params, *kept = pickle.loads(Path(trial.checkpoint).read_bytes())
            state = (Adam(*kept), ()) if restores else state
        for epoch in trial.epochs():
            state = (Adam(state[0].count + 1, jax.tree.map(lambda m: m + 1, state[0].mu)), ())
            params = jax.tree.map(lambda p, m: p - m, params, state[0].mu)
            history["loss"].append(value(epoch) + float(fixed["w"].sum()))
            if history["loss"][-1] < best["loss"]:
                best = {"loss": np.float64(1)}
            trial.report(history["loss"][-1])
            kept = pickle.dumps(jax.device_get((params, *state[0])))
            trial.save(partial(Path.write_bytes, data=kept))
        return state

    said = search(caplog, train)
    assert restores == (not said)
    if not restores:
        assert "with state = [0] [0 0 0] ([3] [3 3 3] where it paused), as" in said[0]


def test_a_tree_of_dicts_that_contains_itself_is_looked_into_only_a_few_levels(caplog):
    def train(trial):
        root = {"weight": np.ones(2)}
        root |= {name: {"parent": root, "root": root} for name in ("left", "right")}
        restored(trial)
        for epoch in trial.epochs():
            root = {**root, "weight": root["weight"] + epoch}
            trial.report(root["weight"].sum())
            trial.save(lambda path: path.write_text("{}"))

    (hint,) = search(caplog, train)
    assert "root" in hint
