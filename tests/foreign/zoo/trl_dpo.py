"""TRL's DPOTrainer (preferences) with LoRA, from a model in a folder."""

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from haltune import Float, Minimize
from haltune.callbacks.transformers import HaltuneCallback

WORDS = ["<pad>", "<eos>", "<unk>", "the", "is", "red", "green", "blue", "one", "two", "three"]
words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
prompts = [{"prompt": f"the {WORDS[5 + n % 3]} is"} for n in range(12)]
answers = [{"chosen": f" {WORDS[8 + n % 3]}", "rejected": f" {WORDS[8 + (n + 1) % 3]}"} for n in range(12)]
rows = [prompt | answer for prompt, answer in zip(prompts, answers)]


def trainer(*callbacks, folder="runs", epochs=1, **config):
    torch.manual_seed(0)
    arguments = trl.DPOConfig(
        folder, num_train_epochs=epochs, eval_strategy="epoch", save_strategy="no", per_device_train_batch_size=4,
        report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, lr_scheduler_type="constant", **config)
    return trl.DPOTrainer(
        model="base", args=arguments, train_dataset=Dataset.from_list(rows), eval_dataset=Dataset.from_list(rows),
        processing_class=tokenizer, callbacks=list(callbacks),
        peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM"))


def search(study):
    torch.manual_seed(0)
    size = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **size)).save_pretrained("base")
    for trial in study:
        with trial:
            t = trainer(HaltuneCallback(trial), folder=f"runs/{trial.id}", epochs=trial.max_epochs, **trial.config)
            t.train(resume_from_checkpoint=trial.checkpoint)


def evaluate(path, config):
    t = trainer(**config)
    t.model.load_adapter(path, "default")
    return t.evaluate()["eval_loss"]


zoo = dict(
    needs=["torch", "transformers", "accelerate", "peft", "trl"],
    slow=True,
    space={"learning_rate": Float(1e-4, 1.0, log=True)},
    goal=Minimize("eval_loss"),
    max_epochs=3,
    trials=[{"learning_rate": 0.01}, {"learning_rate": 0.1}],
    pauses=[1, 2],
    updates=3,
)
