"""HaltuneCallback in TRL's SFTTrainer: adapters of LoRA, paused and resumed."""

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


def trainer(folder, *callbacks, r=2):
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    said = Dataset.from_list([{"text": f"the {WORDS[5 + n % 3]} is {WORDS[8 + n % 3]}"} for n in range(12)])
    arguments = trl.SFTConfig(
        folder, num_train_epochs=3, eval_strategy="epoch", logging_strategy="epoch", save_strategy="no", seed=3,
        learning_rate=0.05, per_device_train_batch_size=4, report_to="none", disable_tqdm=True, use_cpu=True,
        bf16=False,
    )  # fmt: skip
    return trl.SFTTrainer(
        model=BASE, args=arguments, train_dataset=said, eval_dataset=said, processing_class=tokenizer,
        peft_config=LoraConfig(r=r, target_modules=["q_proj", "v_proj"], lora_dropout=0.2), callbacks=list(callbacks),
    )  # fmt: skip


def test_adapters_that_were_paused_train_on_as_if_they_had_not_been():
    straight = trainer("straight")
    straight.train()
    study = pausing_study("s.db", at=(1, 2), epochs=3, metric="eval_loss", keep=1)
    for trial in study:
        torch.manual_seed(trial.attempt)  # not the state that a resumed training is to find
        with trial:
            trainer("out", HaltuneCallback(trial)).train(resume_from_checkpoint=trial.checkpoint)
    (record,) = study.trials
    assert record.attempt == 3
    assert record.values.tolist() == [line["eval_loss"] for line in straight.state.log_history if "eval_loss" in line]
    best = AutoPeftModelForCausalLM.from_pretrained(study.best.checkpoint).state_dict()
    assert all(torch.equal(best[name], value) for name, value in straight.model.state_dict().items())
