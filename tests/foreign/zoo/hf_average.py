"""A Trainer that evaluates an average of the weights, kept in a callback, and loads its best model at the end."""

import numpy as np
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from haltune import Float, Minimize
from haltune.callbacks.transformers import HaltuneCallback

ids = np.random.default_rng(0).integers(2, 32, size=(96, 8))
rows = [{"input_ids": row, "labels": int((row > 16).sum() > 4)} for row in torch.tensor(ids)]
size = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)


class EMA(TrainerCallback):
    def __init__(self, model):
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def on_step_end(self, args, state, control, model, **others):
        self.average.update_parameters(model)


class EMATrainer(Trainer):
    def evaluate(self, *arguments, **options):
        own = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(self.ema.average.module.state_dict())
        found = super().evaluate(*arguments, **options)
        self.model.load_state_dict(own)
        return found


def search(study):
    for trial in study:
        with trial:
            arguments = TrainingArguments(
                f"runs/{trial.id}", num_train_epochs=trial.max_epochs, per_device_train_batch_size=16,
                eval_strategy="epoch", save_strategy="epoch", load_best_model_at_end=True, report_to="none",
                disable_tqdm=True, use_cpu=True, lr_scheduler_type="constant", **trial.config)
            model = BertForSequenceClassification(size)
            trainer = EMATrainer(model, arguments, train_dataset=rows[:64], eval_dataset=rows[64:])
            trainer.ema = EMA(model)
            trainer.add_callback(trainer.ema)
            trainer.add_callback(HaltuneCallback(trial))
            trainer.train(resume_from_checkpoint=trial.checkpoint)


def evaluate(path, config):
    raise FileNotFoundError("no model is kept")


zoo = dict(
    needs=["torch", "transformers", "accelerate"],
    slow=True,
    space={"learning_rate": Float(1e-4, 1e-1, log=True)},
    goal=Minimize("eval_loss"),
    max_epochs=3,
    trials=[{"learning_rate": 0.003}, {"learning_rate": 0.01}],
    pauses=[1, 2],
    updates=4,
    declines=r"EMA\.average changes in training",
    says=["load_best_model_at_end=True keeps the best"],
    late=["other weights than the model that the Trainer saves"],
    keeps=False,
)
