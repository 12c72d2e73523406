"""HaltuneCallback in real trainings of Hugging Face's Trainer."""

import os
import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import pytest
from callback_fakes import PAUSE, STOP, FakeTrial
from callback_studies import study
from paused_studies import pausing_study

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import EarlyStoppingCallback, TrainerCallback  # noqa: E402
from transformers_nets import Stream, rows, same, trainer, weights  # noqa: E402

from haltune import Minimize  # noqa: E402
from haltune.callbacks import check_resume  # noqa: E402
from haltune.callbacks.transformers import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def logged(t, name="eval_loss"):
    return [line[name] for line in t.state.log_history if name in line]


def test_every_evaluation_is_reported_with_every_scalar_logged(tmp_path):
    trial = FakeTrial("eval_loss")
    t = trainer(tmp_path, HaltuneCallback(trial))
    t.train()
    assert trial.epochs == [1, 2, 3]
    assert trial.values == logged(t)
    assert trial.endings == [None]
    assert all(0 < r["validation"] < r["seconds"] for r in trial.reports)
    for name in ("eval_mae", "loss", "learning_rate", "grad_norm"):
        assert [r["metrics"][name] for r in trial.reports] == logged(t, name)
    assert "epoch" not in trial.reports[0]["metrics"]


@pytest.mark.parametrize("monitor", ["eval_a_loss", "eval_b_loss"])
def test_a_report_has_the_metrics_of_all_sets_of_its_evaluation(monitor, tmp_path):
    trial = FakeTrial(monitor)
    t = trainer(tmp_path, HaltuneCallback(trial), data={"a": rows(8, 1), "b": rows(8, 2)})
    eval_dataset_name, eval_dataset = "b", None  # names of the Trainer's own loop  # noqa: F841
    t.train()
    assert (trial.epochs, trial.values) == ([1, 2, 3], logged(t, monitor))
    for name in ("eval_a_loss", "eval_b_loss", "eval_b_mae"):
        assert name == monitor or [r["metrics"][name] for r in trial.reports] == logged(t, name)
    assert all(0 < r["validation"] < r["seconds"] for r in trial.reports)


@pytest.mark.parametrize("name", ["mae", "eval_mae"])
def test_a_metric_is_found_with_its_prefix_and_without(name, tmp_path):
    trial = FakeTrial()
    t = trainer(tmp_path, HaltuneCallback(trial, name))
    t.train()
    assert trial.values == logged(t, "eval_mae")


def test_evaluations_within_an_epoch_are_fractions(tmp_path):
    trial = FakeTrial("eval_loss", max_epochs=2)
    trainer(tmp_path, HaltuneCallback(trial), epochs=2, eval_strategy="steps", eval_steps=2).train()
    assert trial.epochs == [0.5, 1.0, 1.5, 2.0]


@pytest.mark.parametrize(
    ("endless", "how", "accumulates"),
    [(False, {"eval_strategy": "epoch"}, 2), (True, {"eval_strategy": "steps"}, 1)],
    ids=["passes", "endless"],
)
def test_data_without_a_length_count_passes_or_evaluations_as_epochs(endless, how, accumulates, tmp_path):
    steps = 8 // accumulates  # of the optimizer in a pass over 32 rows
    options = {"max_steps": 9 * steps, "eval_steps": steps, "gradient_accumulation_steps": accumulates} | how
    trial = FakeTrial("eval_loss", max_epochs=9, verdicts={3.0: STOP})
    t = trainer(tmp_path, HaltuneCallback(trial), train=Stream(32, endless), **options)
    t.train()
    assert (trial.epochs, t.state.global_step) == ([1, 2, 3], 3 * steps)


@pytest.mark.parametrize("train", [None, Stream(16)], ids=["sized", "without a length"])
def test_a_training_that_continues_from_a_checkpoint_of_the_trainers_keeps_its_earlier_reports(train, tmp_path):
    class Interrupts(TrainerCallback):
        def on_epoch_end(self, args, state, control, **others):
            if state.global_step == 12:
                raise KeyboardInterrupt

    def training(trial, *others):
        folder, options = tmp_path / str(trial.id), {"max_steps": 20}
        if train is None:
            options = {"epochs": 5}
        return trainer(folder, HaltuneCallback(trial), *others, train=train, save_strategy="epoch", **options)

    searched = study(epochs=5, metric="eval_loss")
    trial = searched.ask()
    with pytest.raises(KeyboardInterrupt), trial:
        training(trial, Interrupts()).train()
    earlier = searched.trials[0].values.tolist()
    with searched.ask() as trial:
        t = training(trial)
        t.train(resume_from_checkpoint=True)
    found = searched.trials[0]
    assert len(earlier) == 2
    assert found.epochs.tolist() == [1, 2, 3, 4, 5]
    # the Trainer keeps them in its checkpoint; of data without a length it evaluates once more where it continues
    assert found.values.tolist() == list(
        {line["step"]: line["eval_loss"] for line in t.state.log_history if "eval_loss" in line}.values()
    )
    assert (found.attempt, searched.spent.epochs) == (2, 5.0)


def test_no_output_of_an_evaluation_stays_in_memory_until_its_end(tmp_path):
    outputs, alive = [], []

    class Notes(transformers.Trainer):
        def prediction_step(self, *args, **others):
            alive.append([refers() is not None for refers in outputs])
            loss, logits, labels = super().prediction_step(*args, **others)
            outputs.append(weakref.ref(logits))
            return loss, logits, labels

    def measure(prediction, compute_result):
        return {"mae": 1.0}

    trial = FakeTrial("eval_loss")
    t = trainer(tmp_path, HaltuneCallback(trial), epochs=1, kind=Notes, per_device_eval_batch_size=2)
    t.args.batch_eval_metrics, t.compute_metrics = True, measure
    t.train()
    assert (trial.epochs, alive) == ([1], [[False] * n for n in range(4)])


def test_evaluate_alone_and_eval_on_start_say_nothing(tmp_path):
    trial = FakeTrial("eval_loss")
    t = trainer(tmp_path, HaltuneCallback(trial), eval_on_start=True)
    t.evaluate()
    t.train()
    t.evaluate()
    t.predict(rows(4))
    assert trial.epochs == [1, 2, 3]


@pytest.mark.parametrize(("name", "data"), [("eval_loss", True), ("accuracy", True), ("mae", False)])
def test_a_trainer_that_never_evaluates_is_refused_before_the_training(name, data, tmp_path):
    t = trainer(tmp_path, HaltuneCallback(FakeTrial(name)), eval_strategy="no")
    t.eval_dataset = t.eval_dataset if data else None
    also = "" if data else r" and Trainer\(eval_dataset=held_out\)"
    with pytest.raises(
        InvalidInput, match=rf"never evaluates\..* Write TrainingArguments\(eval_strategy='epoch'\){also}, or judge"
    ):
        t.train()
    assert t.state.global_step == 0


def test_a_delay_of_evaluations_beyond_the_training_is_refused_before_it(tmp_path):
    t = trainer(tmp_path, HaltuneCallback(FakeTrial("eval_loss")), eval_delay=4)
    with pytest.raises(InvalidInput, match=r"eval_delay=4 epochs. This training has 3.*Reduce TrainingArguments"):
        t.train()
    assert t.state.global_step == 0


class Asks(TrainerCallback):
    """A user's own, which decides when to evaluate."""

    def __init__(self, whether):
        self.whether = whether

    def on_epoch_end(self, args, state, control, **others):
        control.should_evaluate = self.whether and round(state.epoch) % self.whether == 0


class Evaluates(TrainerCallback):
    """One that evaluates by itself."""

    def on_epoch_end(self, args, state, control, **others):
        if round(state.epoch) == 4:
            self.trainer.evaluate()


class Shows(TrainerCallback):
    """One that evaluates nothing."""


def test_a_callback_of_the_users_may_decide_when_to_evaluate(tmp_path):
    trial = FakeTrial("eval_loss")
    trainer(tmp_path, HaltuneCallback(trial), Asks(1), eval_strategy="no").train()
    assert trial.epochs == [1, 2, 3]


@pytest.mark.parametrize(("other", "epochs"), [(Asks(4), [4, 8]), (Evaluates(), [4])])
def test_a_callback_that_evaluates_rarely_is_waited_for(other, epochs, tmp_path):
    trial = FakeTrial("eval_loss", max_epochs=9)
    t = trainer(tmp_path, HaltuneCallback(trial), other, epochs=9, eval_strategy="no")
    other.trainer = t
    t.train()
    assert trial.epochs == epochs


@pytest.mark.parametrize(("other", "epochs"), [(Asks(0), 5), (Shows(), 2)])
def test_a_fit_without_an_evaluation_is_refused_at_its_third_epoch_or_where_no_callback_has_evaluated_it(
    other, epochs, tmp_path
):
    callback = HaltuneCallback(FakeTrial("eval_loss", max_epochs=5))
    t = trainer(tmp_path, callback, other, epochs=5, eval_strategy="no")
    with pytest.raises(InvalidInput, match=r"in this fit\..*Write TrainingArguments\(eval_strategy="):
        t.train()
    assert t.state.epoch == epochs


# pausing


def search(s, folder, **options):
    """Train every trial of a study; the last Trainer."""
    for trial in s:
        torch.manual_seed(trial.attempt)  # not the state that a resumed training is to find
        with trial:
            t = trainer(folder, HaltuneCallback(trial), epochs=trial.max_epochs, **options)
            t.train(resume_from_checkpoint=trial.checkpoint)
    return t


def checkpoints(folder):
    return sorted(path.name for path in Path(folder).glob("checkpoint-*"))


def test_the_trainers_folder_holds_what_it_would_hold_without_pauses(tmp_path):
    search(pausing_study(at=(1, 2), epochs=3, metric="eval_loss"), tmp_path / "no")
    assert checkpoints(tmp_path / "no") == []
    search(pausing_study(at=(1, 2), epochs=3, metric="eval_loss"), tmp_path / "all", save_strategy="epoch")
    assert checkpoints(tmp_path / "all") == ["checkpoint-12", "checkpoint-4", "checkpoint-8"]


def test_the_best_model_is_still_there_at_the_end(tmp_path):
    options = {"save_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    s = pausing_study(at=(1, 2), epochs=3, metric=Minimize("eval_loss", of="best"))
    t = search(s, tmp_path / "out", **options)
    straight = trainer(tmp_path / "straight", **options)
    straight.train()
    assert same(weights(t), weights(straight))


class FullDisk(transformers.Trainer):
    """Cannot write a checkpoint."""

    def save_model(self, *args, **options):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("of", ["last", "best"])
def test_a_model_that_is_to_be_kept_costs_no_training_where_the_disk_is_full(of, tmp_path):
    trial = FakeTrial("eval_loss")
    trial.goal, trial.kept, trial.full = Minimize("eval_loss", of=of), True, OSError(28, "No space left on device")
    with pytest.warns(HaltuneWarning, match="trial 7, the best so far, is not kept: .*No space left on device"):
        trainer(tmp_path, HaltuneCallback(trial), kind=FullDisk).train()
    assert (trial.epochs, trial.endings) == ([1, 2, 3], [None])


def loaded(checkpoint, folder):
    """The evaluation of the model in a checkpoint, loaded by the Trainer."""
    t = trainer(folder)
    t._load_from_checkpoint(checkpoint)
    return t.evaluate()["eval_loss"]


class Worsens(TrainerCallback):
    """The second epoch is the best: before the third, the weights move away."""

    def on_epoch_begin(self, args, state, control, model, **others):
        if state.global_step >= 8:
            torch.nn.init.constant_(model.layers[-1].bias, 3.0)


BEST = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "learning_rate": 0.01}
ENDS = {
    "at max_epochs": ({"save_strategy": "epoch"}, 4, 4),
    "before max_epochs": ({"save_strategy": "epoch"}, 4, 9),
    "by early stopping": ({"save_strategy": "epoch"}, 9, 9),
    "the weights alone": ({"save_strategy": "epoch", "save_only_model": True}, 4, 4),
    "at the best alone": ({"save_strategy": "best"}, 4, 4),
    "without the trainer's best": ({"save_strategy": "epoch", "load_best_model_at_end": False}, 4, 4),
}


@pytest.mark.parametrize("of", [pytest.param("last", marks=pytest.mark.slow), "best"])
@pytest.mark.parametrize(("options", "epochs", "horizon"), ENDS.values(), ids=ENDS)
def test_the_kept_model_has_the_best_value_though_the_trainer_loads_its_own_best(
    options, epochs, horizon, of, tmp_path
):
    s = pausing_study(f"{tmp_path}/s.db", at=(), epochs=horizon, metric=Minimize("eval_loss", of=of), keep=1)
    others = [Worsens()] + ([EarlyStoppingCallback(2)] if epochs == 9 else [])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", HaltuneWarning)
        for trial in s:
            with trial:
                trainer(tmp_path / "out", HaltuneCallback(trial), *others, epochs=epochs, **BEST | options).train()
    (record,) = s.trials
    assert record.values[1] == min(record.values) < record.values[-1]
    assert s.best.value == (record.values[1] if of == "best" else record.values[-1])
    advice = "Write Minimize('eval_loss', of='best') in the study, or leave load_best_model_at_end out."
    kept_by_trainer = options.get("load_best_model_at_end", True)
    assert any(advice in str(w.message) for w in found) == (of == "last" and kept_by_trainer)
    if s.best.checkpoint is None:
        assert of == "last"
        assert options["save_strategy"] == "best"
    else:
        assert loaded(s.best.checkpoint, tmp_path / "again") == s.best.value


@pytest.mark.parametrize("of", ["last", "best"])
def test_no_model_is_kept_where_a_trainer_evaluates_an_average_and_loads_its_own_best(of, tmp_path):
    s = pausing_study(f"{tmp_path}/s.db", at=(), epochs=3, metric=Minimize("eval_loss", of=of), keep=1)
    t = trainer(tmp_path / "out", **BEST | {"save_strategy": "epoch"})
    average, evaluate = torch.optim.swa_utils.AveragedModel(t.model), t.evaluate

    def evaluate_average(*args, **options):
        own = weights(t)
        average.update_parameters(t.model)
        t.model.load_state_dict(average.module.state_dict())
        try:
            return evaluate(*args, **options)
        finally:
            t.model.load_state_dict(own)

    t.evaluate = evaluate_average
    with warnings.catch_warnings(record=True) as found, s.ask() as trial:
        warnings.simplefilter("always", HaltuneWarning)
        t.add_callback(HaltuneCallback(trial))
        t.train()
    assert s.best.checkpoint is None
    said = [str(w.message) for w in found if "other weights than the model that the Trainer saves" in str(w.message)]
    assert len(said) == 1


class Ends(TrainerCallback):
    """Ends the training after its second epoch."""

    def on_evaluate(self, args, state, control, **others):
        control.should_training_stop = state.epoch >= 2


@pytest.mark.parametrize("first", [True, False])
def test_a_model_is_kept_where_another_callback_ends_the_training(first, tmp_path):
    s = pausing_study(f"{tmp_path}/s.db", at=(), epochs=3, metric="eval_loss", keep=1)
    with s.ask() as trial:
        callbacks = [Ends(), HaltuneCallback(trial)]
        trainer(tmp_path / "out", *(callbacks if first else callbacks[::-1])).train()
    assert s.best.epoch == 2
    assert loaded(s.best.checkpoint, tmp_path / "again") == s.best.value


class Halves(TrainerCallback):
    """Changes the weights after their evaluation."""

    def on_evaluate(self, args, state, control, model=None, **others):
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(0.5)


def test_a_paused_state_with_other_weights_than_the_evaluated_ones_is_never_the_best_model(tmp_path):
    s = pausing_study(f"{tmp_path}/s.db", at=(1,), epochs=3, metric="eval_loss", keep=1)
    with warnings.catch_warnings(action="ignore"), s.ask() as trial:
        trainer(tmp_path / "out", Halves(), HaltuneCallback(trial)).train()
    assert s.trials[0].checkpoint is not None
    assert s.best.checkpoint is None


def test_a_trainer_that_keeps_its_best_by_another_metric_is_advised_of_this_studys(tmp_path):
    trial = FakeTrial("eval_mae")
    t = trainer(tmp_path, HaltuneCallback(trial), save_strategy="epoch", **BEST)
    match = r"best 'eval_loss', but the study counts the last 'eval_mae'. Set .*metric_for_best_model='eval_mae', gr"
    with pytest.warns(HaltuneWarning, match=match):
        t.train()


UNSAVED = {"save_only_model": {"save_strategy": "epoch", "save_only_model": True}}


@pytest.mark.parametrize(("why", "options"), UNSAVED.items(), ids=UNSAVED)
def test_a_trainer_that_saves_nothing_to_continue_with_is_not_paused(why, options, tmp_path):
    trial = FakeTrial("eval_loss", verdicts={1.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=f"{why}.*keeps training"):
        trainer(tmp_path, HaltuneCallback(trial), **options).train()
    assert (trial.epochs, trial.declined) == ([1, 2, 3], 1)


@pytest.mark.parametrize("options", [{}, *UNSAVED.values()], ids=["saved", *UNSAVED])
@pytest.mark.parametrize("behind", [False, True])
def test_early_stopping_in_the_epoch_of_a_pause_completes_the_trial_wherever_it_stands(behind, options, tmp_path):
    class Stops(TrainerCallback):
        def on_evaluate(self, args, state, control, **others):
            control.should_training_stop |= state.epoch >= 2

    s = pausing_study(at=(2,), epochs=4, metric="eval_loss")
    with s.ask() as trial:
        company = [Stops(), HaltuneCallback(trial)]
        with warnings.catch_warnings():
            warnings.simplefilter("error", HaltuneWarning)  # nothing says that it keeps training
            trainer(tmp_path, *(company[::-1] if behind else company), epochs=4, **options).train()
    assert [(t.status.value, t.epochs.tolist()) for t in s.trials] == [("completed", [1, 2])]
    assert not list(tmp_path.glob("checkpoint-*")) or options


@pytest.mark.parametrize(
    "of", [lambda t: t, pytest.param(lambda t: t.model, marks=pytest.mark.slow)], ids=["trainer", "model"]
)
def test_check_resume_finds_nothing_in_a_trainers_resume_and_leaves_out_its_times(of, tmp_path):
    def run(trial, forgets=0.0):
        t = trainer(tmp_path, HaltuneCallback(trial), epochs=4)
        t.train(resume_from_checkpoint=trial.checkpoint)
        torch.nn.init.constant_(t.model.layers[-1].bias, forgets * trial.attempt)
        return of(t)

    found = check_resume(run, goal=Minimize("eval_loss"))
    assert found.differences == ()
    assert "eval_runtime" in found.left_out
    assert not {"eval_loss", "eval_mae"} & {*found.left_out}
    wrong = check_resume(lambda trial: run(trial, 1.0), goal=Minimize("eval_loss"))
    assert [d.partition(":")[0] for d in wrong.differences] == ["weights"]


# several processes, outages, and what is left behind

RANKS = """
import os, sys
sys.path.insert(0, {folder!r})
import torch
from callback_fakes import STOP, FakeTrial
from paused_studies import pausing_study
from haltune import Float
from haltune.callbacks.transformers import HaltuneCallback, hyperparameter_search
from haltune.errors import InvalidInput
from transformers_nets import Net, measured, same, trainer, weights

out, rank = sys.argv[1], int(os.environ["RANK"])
ddp = dict(ddp_backend="gloo", ddp_find_unused_parameters=False, per_device_train_batch_size=2)

trial = FakeTrial("eval_loss", max_epochs=4, verdicts={{2.0: STOP}} if rank == 0 else {{}})
t = trainer(out + "/stop", HaltuneCallback(trial), epochs=4, **ddp)
t.train()
assert t.state.epoch == 2.0, t.state.epoch
assert trial.epochs == ([1, 2] if rank == 0 else []), trial.epochs

try:
    trainer(out + "/missing", HaltuneCallback(FakeTrial(), "eval_lss"), **ddp).train()
except InvalidInput as error:
    assert "eval_loss" in str(error)
else:
    raise AssertionError("no error")

class Breaks(FakeTrial):
    def record(self, *args, **kwargs):
        raise InvalidInput("on the first rank")

try:
    trainer(out + "/raises", HaltuneCallback((Breaks if rank == 0 else FakeTrial)("eval_loss")), **ddp).train()
except InvalidInput as error:
    assert "on the first rank" in str(error)
else:
    raise AssertionError("no error")

straight = trainer(out + "/straight", **ddp)
straight.train()
s = pausing_study("sqlite:///" + out + "/s.db", at=(1, 2), epochs=3, metric="eval_loss")
for trial in s:
    torch.manual_seed(rank + int(trial.epoch))  # not the state that a resumed training is to find
    with trial:
        t = trainer(out + "/out", HaltuneCallback(trial), **ddp)
        t.train(resume_from_checkpoint=trial.checkpoint)
assert same(weights(t), weights(straight))
assert (s.trials[0].attempt, s.trials[0].epochs.tolist()) == (3, [1, 2, 3]), s.trials

class Remembers(Net):
    # it weights the loss by a mean of those of its rank
    def __init__(self):
        super().__init__()
        self.mean = 0.0

    def forward(self, x, labels):
        out = super().forward(x, labels)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * float(out["loss"].detach())
            out["loss"] = out["loss"] * (1 + self.mean)
        return out

def remembering(*callbacks):
    torch.manual_seed(0)
    t = trainer(out + "/mean", *callbacks, model=Remembers(), **ddp)
    t.compute_metrics = measured if rank == 0 else lambda found: {{}}
    t.train(resume_from_checkpoint=callbacks[0].trial.checkpoint if callbacks else None)
    return weights(t) | {{"mean": torch.tensor(t.model.mean)}}

straight = remembering()
s = pausing_study("sqlite:///" + out + "/m.db", at=(1, 2), epochs=3, metric="eval_mae")
for trial in s:
    with trial:
        last = remembering(HaltuneCallback(trial))
assert same(last, straight), (last, straight)
assert s.trials[0].attempt == 3, s.trials

t = trainer(out + "/search", **ddp)
t.model_init = lambda: Net()
best = hyperparameter_search(t, dict(learning_rate=Float(1e-3, 0.1)), n_trials=3, store=out + "/h.db", verbose=0)
trials = best.run_summary.trials
assert len(trials) == 3, trials
assert best.objective == min(r.values[-1] for r in trials if len(r.values) == 3)
print("agreed")
"""


@pytest.mark.slow  # Lightning's two ranks agree by the same code in the quick tests
def test_two_processes_agree_on_stops_errors_and_pauses_and_each_continues_what_it_remembers(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(RANKS.format(folder=str(Path(__file__).parents[2] / "support")))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(program)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([*torchrun, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("agreed") == 2
