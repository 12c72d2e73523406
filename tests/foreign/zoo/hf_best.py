"""The Trainer of transformers with load_best_model_at_end, early stopping and a schedule with warm-up."""

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, Trainer, TrainingArguments

from haltune import Float, Maximize
from haltune.callbacks.transformers import HaltuneCallback

ids = np.random.default_rng(0).integers(2, 32, size=(96, 8))
rows = [{"input_ids": row, "labels": int((row > 16).sum() > 4)} for row in torch.tensor(ids)]
size = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)


def accuracy(predictions):
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


def search(study):
    for trial in study:
        with trial:
            arguments = TrainingArguments(
                f"runs/{trial.id}", num_train_epochs=trial.max_epochs, per_device_train_batch_size=16,
                eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, save_total_limit=1,
                metric_for_best_model="accuracy", warmup_steps=4, report_to="none", disable_tqdm=True, use_cpu=True,
                **trial.config)
            trainer = Trainer(
                model_init=lambda: BertForSequenceClassification(size), args=arguments, train_dataset=rows[:64],
                eval_dataset=rows[64:], compute_metrics=accuracy,
                callbacks=[EarlyStoppingCallback(3), HaltuneCallback(trial)])
            trainer.train(resume_from_checkpoint=trial.checkpoint)


def evaluate(path, config):
    model = BertForSequenceClassification.from_pretrained(path).eval()
    with torch.no_grad():
        logits = model(torch.stack([row["input_ids"] for row in rows[64:]])).logits
    return float(np.mean(logits.argmax(-1).numpy() == [row["labels"] for row in rows[64:]]))


zoo = dict(
    needs=["torch", "transformers", "accelerate"],
    slow=True,
    space={"learning_rate": Float(1e-4, 1e-1, log=True)},
    goal=Maximize("eval_accuracy"),
    max_epochs=4,
    trials=[{"learning_rate": 0.003}, {"learning_rate": 0.01}],
    pauses=[1, 3],
    updates=4,
    says=["before the end of its learning-rate schedule", "load_best_model_at_end=True keeps the best"],
)
