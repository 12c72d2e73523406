"""The Trainer with NEFTune's noise, label smoothing, batches grouped by length and evaluations twice in an epoch."""

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from transformers.trainer_pt_utils import LabelSmoother

from haltune import Float, Minimize
from haltune.callbacks.transformers import HaltuneCallback

ids = np.random.default_rng(0).integers(2, 32, size=(96, 8))
rows = [{"input_ids": row, "labels": int((row > 16).sum() > 4)} for row in torch.tensor(ids)]
size = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)


def search(study):
    for trial in study:
        with trial:
            arguments = TrainingArguments(
                f"runs/{trial.id}", num_train_epochs=trial.max_epochs, per_device_train_batch_size=16,
                eval_strategy="steps", eval_steps=1 / 6, neftune_noise_alpha=5.0, label_smoothing_factor=0.1,
                train_sampling_strategy="group_by_length", report_to="none", disable_tqdm=True, use_cpu=True,
                save_strategy="no", lr_scheduler_type="constant_with_warmup", warmup_steps=3, **trial.config)
            trainer = Trainer(model_init=lambda: BertForSequenceClassification(size), args=arguments,
                              train_dataset=rows[:64], eval_dataset=rows[64:], callbacks=[HaltuneCallback(trial)])
            trainer.train(resume_from_checkpoint=trial.checkpoint)


def evaluate(path, config):
    model = BertForSequenceClassification.from_pretrained(path).eval()
    labels = torch.tensor([row["labels"] for row in rows[64:]])
    with torch.no_grad():
        found = model(torch.stack([row["input_ids"] for row in rows[64:]]))
    return LabelSmoother(0.1)(found, labels).item()


zoo = dict(
    needs=["torch", "transformers", "accelerate"],
    slow=True,
    space={"learning_rate": Float(1e-4, 1e-1, log=True)},
    goal=Minimize("eval_loss"),
    max_epochs=3,
    trials=[{"learning_rate": 0.003}, {"learning_rate": 0.01}],
    pauses=[0.5, 2],
    updates=4,
)
