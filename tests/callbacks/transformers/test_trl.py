"""HaltuneCallback in TRL's trainers: adapters of LoRA, paused within an epoch and resumed."""

import pytest
from paused_studies import pausing_study

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("peft", reason="PEFT is not installed")
trl = pytest.importorskip("trl", reason="TRL is not installed")

from datasets import Dataset  # noqa: E402
from peft import AutoPeftModelForCausalLM, LoraConfig  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

from haltune.callbacks.transformers import HaltuneCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning"),
    pytest.mark.usefixtures("own_folder"),
]

WORDS = ["<pad>", "<eos>", "<unk>", "the", "is", "red", "green", "blue", "one", "two", "three"]
BASE = "base"  # folder of the model whose adapters are trained


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(WORDS), **size)).save_pretrained(BASE)


def trainer(kind, folder, *callbacks, **more):
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    prompts = [{"prompt": f"the {WORDS[5 + n % 3]} is"} for n in range(12)]
    answers = {"SFT": ["completion"], "DPO": ["chosen", "rejected"]}[kind]
    said = [
        row | {name: f" {WORDS[8 + (n + k) % 3]}" for k, name in enumerate(answers)} for n, row in enumerate(prompts)
    ]
    arguments = getattr(trl, f"{kind}Config")(
        folder, num_train_epochs=1, eval_strategy="steps", eval_steps=1, save_strategy="no", seed=3, learning_rate=0.05,
        per_device_train_batch_size=2, report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, **more,
    )  # fmt: skip
    torch.manual_seed(0)  # of the first adapters
    return getattr(trl, f"{kind}Trainer")(
        model=BASE, args=arguments, train_dataset=Dataset.from_list(said), eval_dataset=Dataset.from_list(said),
        processing_class=tokenizer, callbacks=list(callbacks),
        peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.2, task_type="CAUSAL_LM"),
    )  # fmt: skip


@pytest.mark.slow  # what TRL imports takes longer than its trainings, and its trainers are of transformers
@pytest.mark.parametrize(
    ("kind", "unit", "horizon", "at", "more"),
    [
        ("SFT", "epoch", 1, (1 / 3, 2 / 3), {"gradient_accumulation_steps": 2}),
        ("SFT", "token", 90, (20, 60), {"include_num_input_tokens_seen": True, "max_steps": 9}),
        ("DPO", "step", 6, (2, 4), {}),
    ],
)
def test_adapters_that_were_paused_within_an_epoch_train_on_as_if_they_had_not_been(kind, unit, horizon, at, more):
    straight = trainer(kind, "straight", **more)
    straight.train()
    study = pausing_study("s.db", at=at, epochs=horizon, unit=unit, metric="eval_loss", keep=1)
    for trial in study:
        with trial:
            resumed = trainer(kind, "out", HaltuneCallback(trial), **more)
            torch.rand(trial.attempt - 1)  # not the state that a resumed training is to find
            resumed.train(resume_from_checkpoint=trial.checkpoint)
    (record,) = study.trials
    assert record.attempt == 3
    assert record.values.tolist() == [line["eval_loss"] for line in straight.state.log_history if "eval_loss" in line]
    best = AutoPeftModelForCausalLM.from_pretrained(study.best.checkpoint).state_dict()
    assert all(torch.equal(best[name], value) for name, value in straight.model.state_dict().items())
