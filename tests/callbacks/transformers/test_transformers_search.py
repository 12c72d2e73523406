"""hyperparameter_search of a real Trainer: stopped trials, restored states, results."""

import math
import warnings
from pathlib import Path

import pytest
from callback_studies import StopsAtTwo
from paused_studies import PausesAt

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.trainer_utils import BestRun, SchedulerType, default_compute_objective  # noqa: E402
from transformers_nets import Net, measured, rows  # noqa: E402

from haltune import Choice, Float, Int  # noqa: E402
from haltune.callbacks.transformers import HaltuneCallback, hyperparameter_search  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput  # noqa: E402
from haltune.policies import RandomSearch  # noqa: E402

RATES = {"learning_rate": Float(1e-3, 0.3, log=True)}
QUIET = {
    "report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "eval_strategy": "epoch",
    "logging_strategy": "epoch", "per_device_train_batch_size": 4, "seed": 3, "num_train_epochs": 3,
}  # fmt: skip


def trainer(folder, init=lambda: Net(), data=None, **options):
    arguments = transformers.TrainingArguments(str(folder), **QUIET | options)
    data = data or rows(8, 1)
    return transformers.Trainer(
        None, arguments, model_init=init, train_dataset=rows(16), eval_dataset=data, compute_metrics=measured
    )


def search(t, space=RATES, **options):
    quick = {"n_trials": 3, "seed": 0, "verbose": 0, "policy": RandomSearch()}
    return hyperparameter_search(t, space, **quick | options)


class Seen(transformers.TrainerCallback):
    """The arguments that each training ran with, and the objective that each evaluation has by the Trainer's rule."""

    def __init__(self):
        self.arguments, self.objectives = [], []

    def on_train_begin(self, args, state, control, **others):
        self.arguments.append(args.to_dict())
        self.objectives.append([])

    def on_evaluate(self, args, state, control, metrics, **others):
        self.objectives[-1].append(default_compute_objective(dict(metrics)))


def test_the_best_run_is_that_of_the_trainers_own_objective_and_its_study_has_every_curve(tmp_path):
    t = trainer(tmp_path)
    t.add_callback(seen := Seen())
    best = search(t)
    assert isinstance(best, BestRun)
    study = best.run_summary
    assert [list(r.values) for r in study.trials] == seen.objectives
    assert [r.config["learning_rate"] for r in study.trials] == [a["learning_rate"] for a in seen.arguments]
    last = [values[-1] for values in seen.objectives]
    assert (best.objective, best.run_id) == (min(last), str(last.index(min(last))))
    assert best.hyperparameters == study.trials[int(best.run_id)].config
    assert t.state.max_steps == 12


def test_losing_trials_are_stopped_in_the_direction_of_the_goal(tmp_path):
    best = search(trainer(tmp_path), policy=StopsAtTwo(3), n_trials=None, direction="maximize")
    trials = best.run_summary.trials
    assert [len(r.values) for r in trials] == [3, 2, 2]
    assert (best.run_id, best.objective) == ("0", trials[0].values[-1])  # stopped runs were cut


def test_a_run_trains_as_if_the_trainer_had_been_made_with_its_parameters_and_leaves_it_as_it_was(tmp_path):
    space = {
        "per_device_train_batch_size": Choice([2, 8]), "gradient_accumulation_steps": Choice([1, 2]),
        "lr_scheduler_type": Choice(["cosine", "constant"]), "warmup_steps": Float(0.1, 0.4), "adam_beta1": 0.5,
    }  # fmt: skip
    t = trainer(tmp_path)
    before, init = t.args.to_dict(), t.model_init
    t.add_callback(seen := Seen())
    study = search(t, space, n_trials=4).run_summary
    for told, record in zip(seen.arguments, study.trials, strict=True):
        assert {name: told[name] for name in space} == record.config
    assert t.args.to_dict() == before
    assert t.model_init is init
    assert isinstance(t.args.lr_scheduler_type, SchedulerType)
    assert not any(isinstance(c, HaltuneCallback) for c in t.callback_handler.callbacks)
    for record in study.trials[:2]:  # a Trainer that is made for it gives the same
        alone = trainer(tmp_path / "alone", **record.config)
        alone.add_callback(once := Seen())
        alone.train()
        assert once.objectives == [list(record.values)]


class Words(Net):
    """A net with an embedding, to which NEFTune adds noise, and with two logits, which are smoothed."""

    config = None  # the Trainer asks for it

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(1, 3), torch.nn.Linear(3, 2)

    def get_input_embeddings(self):
        return self.words

    def forward(self, x, labels=None):
        logits = self.head(x + self.words(torch.zeros(len(x), 1, dtype=torch.long)).squeeze(1))
        smoothed = labels is None  # then the Trainer computes the loss
        return {"loss": 0 if smoothed else torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_label_smoothing_and_neftune_are_those_of_each_trial(tmp_path):
    def of_words(folder, **options):
        t = trainer(folder, Words, **options)
        t.compute_metrics = None
        for one in (t.train_dataset, t.eval_dataset):
            one[:] = [row | {"labels": torch.tensor(int(row["labels"] > 0))} for row in one]
        t.add_callback(seen := Seen())
        return t, seen

    t, _ = of_words(tmp_path)
    before = t.label_smoother, t.neftune_noise_alpha
    space = {"label_smoothing_factor": Choice([0.0, 0.4]), "neftune_noise_alpha": Choice([None, 20.0])}
    trials = search(t, space, n_trials=4).run_summary.trials  # each configuration once
    assert (t.label_smoother, t.neftune_noise_alpha) == before
    assert len({record.values[-1] for record in trials}) == 4
    for record in trials:
        alone, once = of_words(tmp_path / "alone", **record.config)
        alone.train()
        assert once.objectives == [list(record.values)]


def test_a_learning_rate_on_a_plateau_follows_the_loss_where_another_schedule_was_first(tmp_path):
    space = {"lr_scheduler_type": Choice(["linear", "reduce_lr_on_plateau"])}
    t = trainer(tmp_path)
    study = search(t, space, n_trials=2).run_summary
    assert [record.status.value for record in study.trials] == ["completed"] * 2
    assert t.args.metric_for_best_model is None


@pytest.mark.parametrize("options", [{}, {"load_best_model_at_end": True, "save_strategy": "epoch"}])
def test_patience_starts_anew_in_each_trial(options, tmp_path):
    t = trainer(tmp_path, metric_for_best_model="loss", greater_is_better=True, num_train_epochs=5, **options)
    patient = transformers.EarlyStoppingCallback(early_stopping_patience=2)  # of a loss that falls
    t.add_callback(patient)
    with warnings.catch_warnings():
        warnings.simplefilter("error", HaltuneWarning)
        study = search(t, {"learning_rate": Float(0.01, 0.02)}, policy=PausesAt(3, at=(2,))).run_summary
    assert [list(record.epochs) for record in study.trials] == [[1, 2, 3]] * 3
    assert [record.attempt for record in study.trials] == [2, 2, 2]
    assert patient.early_stopping_patience_counter == 0


def test_what_is_no_training_argument_is_for_the_model(tmp_path):
    made = []

    def init(trial):
        made.append(None if trial is None else trial.config["dropout"])
        return Net(made[-1] or 0.0)

    study = search(trainer(tmp_path, init), {"dropout": Float(0.0, 0.9)}, n_trials=2).run_summary
    assert made == [None, *(r.config["dropout"] for r in study.trials)]
    assert len({r.values[-1] for r in study.trials}) == 2


def test_the_default_search_stops_and_a_second_call_continues_where_it_was(tmp_path):
    options = {"store": tmp_path / "search.db", "policy": None, "hp_name": lambda trial: f"try-{trial.id}"}
    kinds = {"num_train_epochs": 3, "save_strategy": "epoch"}
    first = search(trainer(tmp_path, **kinds), n_trials=2, **options)
    again = search(trainer(tmp_path, **kinds), n_trials=4, **options)
    assert len(first.run_summary.trials) == 2
    assert len(again.run_summary.trials) == 4
    assert {p.name for p in tmp_path.glob("try-*")} == {f"try-{i}" for i in range(4)}
    assert (Path(again.run_summary.best.checkpoint) / "trainer_state.json").exists()


def test_a_run_that_diverges_and_one_that_breaks_leave_the_others_their_search(tmp_path):
    def compute(metrics):
        calls.append(metrics)
        if len(calls) in (4, 5):
            return math.nan
        if len(calls) == 6:
            raise RuntimeError("out of luck")
        return metrics["eval_loss"]

    calls = []
    best = search(trainer(tmp_path), compute_objective=compute, n_trials=4)
    statuses = [r.status.value for r in best.run_summary.trials]
    assert statuses == ["completed", "stopped", "failed", "completed"]
    assert math.isfinite(best.objective)
    with pytest.raises(RuntimeError, match="out of luck"):
        search(trainer(tmp_path), compute_objective=lambda m: (_ for _ in ()).throw(RuntimeError("out of luck")))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"direction": "max"}, "'minimize' or 'maximize'"),
        ({"space": lambda trial: {}}, "Give the space itself"),
        ({"space": {"dropout": Float(0, 1)}}, "def model_init\\(trial\\)"),
        ({"space": {"num_train_epochs": Int(1, 3)}}, "all trials must share it"),
        ({"space": {"bf16": Choice([False, True])}}, "'bf16' cannot be searched.*when it is made"),
    ],
)
def test_what_it_cannot_search_is_said_before_anything_is_trained(options, said, tmp_path):
    t = trainer(tmp_path)
    t.add_callback(seen := Seen())
    with pytest.raises(InvalidInput, match=said):
        search(t, **options)
    assert seen.arguments == []


@pytest.mark.parametrize(
    ("options", "said"),
    [({"eval_strategy": "no"}, "eval_strategy='epoch'"), ({"num_train_epochs": 2.5}, "not a whole number")],
)
def test_a_trainer_that_cannot_be_compared_gets_advice(options, said, tmp_path):
    with pytest.raises(InvalidInput, match=said):
        search(trainer(tmp_path, **options))


def test_the_objective_gets_the_metrics_of_all_sets_at_once(tmp_path):
    t = trainer(tmp_path, data={"a": rows(8, 1), "b": rows(8, 2)})
    seen = []

    def objective(metrics):
        seen.append(metrics["eval_a_loss"] + metrics["eval_b_loss"])
        return seen[-1]

    best = search(t, compute_objective=objective, n_trials=2)
    assert [value for trial in best.run_summary.trials for value in trial.values] == seen
    assert len(seen) == 6
