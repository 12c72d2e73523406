"""Seq2SeqTrainer that generates while it evaluates; the search is by exact matches, which it maximizes."""

import numpy as np
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration

from haltune import Float, Maximize
from haltune.callbacks.transformers import HaltuneCallback

ids = torch.tensor(np.random.default_rng(0).integers(2, 6, size=(80, 3)))
rows = [{"input_ids": row, "labels": row[:1]} for row in ids]
size = T5Config(vocab_size=8, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)


def matches(predictions):
    return {"match": float((predictions.predictions[:, 1] == predictions.label_ids[:, 0]).mean())}


def search(study):
    for trial in study:
        with trial:
            torch.manual_seed(0)
            model = T5ForConditionalGeneration(size)
            arguments = Seq2SeqTrainingArguments(
                f"runs/{trial.id}", num_train_epochs=trial.max_epochs, per_device_train_batch_size=16,
                predict_with_generate=True, generation_max_length=3, eval_strategy="epoch", save_strategy="no",
                lr_scheduler_type="constant", report_to="none", disable_tqdm=True, use_cpu=True, **trial.config)
            trainer = Seq2SeqTrainer(model, arguments, train_dataset=rows[:64], eval_dataset=rows[64:],
                                     compute_metrics=matches, callbacks=[HaltuneCallback(trial)])
            trainer.train(resume_from_checkpoint=trial.checkpoint)


def evaluate(path, config):
    model = T5ForConditionalGeneration.from_pretrained(path).eval()
    return (model.generate(ids[64:], max_length=3)[:, 1] == ids[64:, 0]).float().mean().item()


zoo = dict(
    needs=["torch", "transformers", "accelerate"],
    slow=True,
    space={"learning_rate": Float(1e-4, 1e-1, log=True)},
    goal=Maximize("eval_match"),
    max_epochs=3,
    trials=[{"learning_rate": 0.01}, {"learning_rate": 0.03}],
    pauses=[1, 2],
    updates=4,
)
