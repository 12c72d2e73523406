"""TRL's GRPOTrainer: completions are drawn and rewarded; evaluations draw the same ones each time."""

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from haltune import Float, Maximize
from haltune.callbacks.transformers import HaltuneCallback

WORDS = ["<pad>", "<eos>", "<unk>", "the", "is", "red", "green", "blue", "one", "two", "three"]
words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
rows = [{"prompt": f"the {WORDS[5 + n % 3]} is"} for n in range(6)]


def reward(completions, **others):
    return [float(completion.split().count("one")) for completion in completions]


class Trainer(trl.GRPOTrainer):
    def evaluate(self, *given, **named):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return super().evaluate(*given, **named)


def trainer(*callbacks, folder="runs", epochs=1, model="base", **config):
    torch.manual_seed(0)
    arguments = trl.GRPOConfig(
        folder, num_train_epochs=epochs, eval_strategy="epoch", save_strategy="no", per_device_train_batch_size=4,
        per_device_eval_batch_size=4, num_generations=4, max_completion_length=4, report_to="none", disable_tqdm=True,
        use_cpu=True, bf16=False, lr_scheduler_type="constant", **config)
    return Trainer(
        model=model, reward_funcs=reward, args=arguments, train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:3]), processing_class=tokenizer, callbacks=list(callbacks))


def search(study):
    torch.manual_seed(0)
    size = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **size)).save_pretrained("base")
    for trial in study:
        with trial:
            t = trainer(HaltuneCallback(trial), folder=f"runs/{trial.id}", epochs=trial.max_epochs, **trial.config)
            t.train(resume_from_checkpoint=trial.checkpoint)


def evaluate(path, config):
    t = trainer(model=path, **config)
    t.evaluate()
    return t.state.log_history[-1]["eval_reward"]


zoo = dict(
    needs=["torch", "transformers", "accelerate", "trl"],
    slow=True,
    space={"learning_rate": Float(1e-4, 1.0, log=True)},
    goal=Maximize("eval_reward"),
    max_epochs=3,
    trials=[{"learning_rate": 0.01}, {"learning_rate": 0.1}],
    pauses=[1, 2],
    updates=6,
)
