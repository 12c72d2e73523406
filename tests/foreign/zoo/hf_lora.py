"""LoRA adapters of PEFT around a model that stays as it is."""

import numpy as np
import torch
from peft import AutoPeftModelForSequenceClassification, LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from haltune import Float, Minimize
from haltune.callbacks.transformers import HaltuneCallback

ids = np.random.default_rng(0).integers(2, 32, size=(96, 8))
rows = [{"input_ids": row, "labels": int((row > 16).sum() > 4)} for row in torch.tensor(ids)]
size = BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)


def search(study):
    torch.manual_seed(0)
    BertForSequenceClassification(size).save_pretrained("base")
    for trial in study:
        with trial:
            arguments = TrainingArguments(
                f"runs/{trial.id}", num_train_epochs=trial.max_epochs, per_device_train_batch_size=16,
                eval_strategy="epoch", save_strategy="epoch", report_to="none", disable_tqdm=True, use_cpu=True,
                **trial.config)
            lora = LoraConfig(task_type="SEQ_CLS", r=2, lora_dropout=0.1, target_modules=["query", "value"])
            model = get_peft_model(BertForSequenceClassification.from_pretrained("base"), lora)
            trainer = Trainer(model, arguments, train_dataset=rows[:64], eval_dataset=rows[64:],
                              callbacks=[HaltuneCallback(trial)])
            trainer.train(resume_from_checkpoint=trial.checkpoint)


def evaluate(path, config):
    model = AutoPeftModelForSequenceClassification.from_pretrained(path).eval()
    labels = torch.tensor([row["labels"] for row in rows[64:]])
    with torch.no_grad():
        return model(torch.stack([row["input_ids"] for row in rows[64:]]), labels=labels).loss.item()


zoo = dict(
    needs=["torch", "transformers", "accelerate", "peft"],
    slow=True,
    space={"learning_rate": Float(1e-4, 1e-1, log=True)},
    goal=Minimize("eval_loss"),
    max_epochs=3,
    trials=[{"learning_rate": 0.003}, {"learning_rate": 0.01}],
    pauses=[1, 2],
    updates=4,
    says=["before the end of its learning-rate schedule"],
)
