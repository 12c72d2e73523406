"""A Trainer with a sampler of its own, which keeps its order in a list, a callback that shuffles the data set, and random weights."""

import random

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)  # fmt: skip

from haltune import Float, Minimize
from haltune.callbacks.transformers import HaltuneCallback

ids = torch.randint(2, 32, (96, 8), generator=torch.Generator().manual_seed(0))
rows = [{"input_ids": row, "labels": int((row > 16).sum() > 4)} for row in ids]
size = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.order = random.sample(range(64), 64)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return rows[self.order[index]]


class Order(torch.utils.data.Sampler):
    def __init__(self):
        self.places = random.sample(range(64), 64)

    def __len__(self):
        return 64

    def __iter__(self):
        random.shuffle(self.places)
        return iter(list(self.places))


class Masks:
    """Makes batches; in those of the training it masks tokens, fewer with each batch."""

    def __init__(self):
        self.share = 0.5

    def __call__(self, rows):
        batch = default_data_collator(rows)
        if len(rows) == 16:
            self.share *= 0.9
            batch["input_ids"][torch.rand(batch["input_ids"].shape) < self.share] = 1
        return batch


class Noisy(BertForSequenceClassification):
    """Weighs each batch by a number from a generator of its own, which is nearer to 1 with each batch."""

    def __init__(self, config):
        super().__init__(config)
        self.numbers = torch.Generator().manual_seed(1)
        self.register_buffer("batches", torch.ones(()), persistent=False)

    def forward(self, input_ids, labels=None):
        found = super().forward(input_ids, labels=labels)
        if self.training:
            self.batches += 1
            found.loss = found.loss * (1 + torch.randn((), generator=self.numbers) / self.batches)
        return found


class Ordered(Trainer):
    def _get_train_sampler(self, *args):
        return Order()


class Shuffle(TrainerCallback):
    def __init__(self, data):
        self.data = data

    def on_epoch_end(self, args, state, control, **others):
        random.shuffle(self.data.order)


def search(study):
    for trial in study:
        with trial:
            arguments = TrainingArguments(
                f"runs/{trial.id}", num_train_epochs=trial.max_epochs, per_device_train_batch_size=16,
                eval_strategy="epoch", save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
                lr_scheduler_type="constant", **trial.config)
            data = Rows()
            trainer = Ordered(
                Noisy(size), arguments, train_dataset=data, eval_dataset=rows[64:],
                data_collator=Masks(), callbacks=[Shuffle(data), HaltuneCallback(trial)])
            trainer.train(resume_from_checkpoint=trial.checkpoint)


def evaluate(path, config):
    model = BertForSequenceClassification.from_pretrained(path).eval()
    labels = torch.tensor([row["labels"] for row in rows[64:]])
    with torch.no_grad():
        return model(ids[64:], labels=labels).loss.item()


zoo = dict(
    needs=["torch", "transformers", "accelerate"],
    slow=True,
    space={"learning_rate": Float(1e-4, 1e-1, log=True)},
    goal=Minimize("eval_loss"),
    max_epochs=4,
    trials=[{"learning_rate": 0.003}, {"learning_rate": 0.01}],
    pauses=[1, 3],
    updates=4,
)
