"""The shape of a fine-tuning with the Trainer of transformers and PEFT: a base model, LoRA around it, metrics."""

import numpy as np
import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from haltune import Float, Int, Study
from haltune.callbacks.transformers import HaltuneCallback

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


def main(trial, rank=4, learning_rate=1e-3):
    model = BertForSequenceClassification.from_pretrained("base")
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=rank, lora_alpha=8, target_modules=["query", "value"])
    arguments = TrainingArguments(
        f"out/{trial.id}",
        num_train_epochs=trial.max_epochs,
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
        callbacks=[HaltuneCallback(trial)],
    )
    trainer.train(resume_from_checkpoint=trial.checkpoint)


if __name__ == "__main__":
    space = {"rank": Int(1, 16, log=True), "learning_rate": Float(1e-5, 1e-1, log=True)}
    study = Study(space, "eval_accuracy", "search.db", max_epochs=3, budget="6 trials")
    study.optimize(lambda trial: main(trial, **trial.config))
    print(study.best)
