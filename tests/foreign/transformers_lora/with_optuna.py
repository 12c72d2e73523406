"""The shape of a fine-tuning with the Trainer of transformers and PEFT: a base model, LoRA around it, metrics."""

import numpy as np
import optuna
import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

set_seed(0)
base = BertConfig(
    vocab_size=32,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    num_labels=2,
)
BertForSequenceClassification(base).save_pretrained("base")  # in place of a model of the hub


def tokens(n, seed):
    rng = np.random.default_rng(seed)
    ids = rng.integers(2, 32, size=(n, 8))
    return [{"input_ids": row, "labels": int((row > 16).sum() > 4)} for row in torch.tensor(ids)]


def accuracy(predictions):
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


class Pruning(TrainerCallback):
    def __init__(self, trial):
        self.trial = trial

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.trial.report(metrics["eval_accuracy"], state.epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def main(trial):
    rank = trial.suggest_int("rank", 1, 16, log=True)
    learning_rate = trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True)
    model = BertForSequenceClassification.from_pretrained("base")
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=rank, lora_alpha=8, target_modules=["query", "value"])
    arguments = TrainingArguments(
        f"out/{trial.number}",
        num_train_epochs=3,
        learning_rate=learning_rate,
        per_device_train_batch_size=16,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to="none",
    )
    trainer = Trainer(
        get_peft_model(model, lora),
        arguments,
        train_dataset=tokens(128, 1),
        eval_dataset=tokens(64, 2),
        compute_metrics=accuracy,
        callbacks=[Pruning(trial)],
    )
    trainer.train()
    return trainer.evaluate()["eval_accuracy"]


if __name__ == "__main__":
    same = {"storage": "sqlite:///search.db", "study_name": "study", "load_if_exists": True}
    study = optuna.create_study(direction="maximize", **same)
    study.optimize(main, n_trials=6)
    print(study.best_trial)
