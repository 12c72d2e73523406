"""The README keeps its word: its code runs, its links lead somewhere, its table names every policy."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

import haltune
import haltune.policies

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def block(start):
    return next(b for b in BLOCKS if b.startswith(start))


def test_every_block_is_python():
    for text in BLOCKS:
        compile(text, "README.md", "exec")


def test_the_space_is_one():
    names = {name: getattr(haltune, name) for name in haltune.__all__}
    space = eval(block("Space("), names)
    assert space.names == ("kernel", "degree", "k2", "k1")


def test_the_loop_sets_up_a_study_of_what_the_package_offers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = block("from lightning").split("for trial")[0].splitlines()
    names = {}
    exec("\n".join(line for line in lines if not line.startswith("from lightning")), names)
    assert names["study"].ask().config.keys() == {"lr", "channels", "dropout"}


def test_the_plain_loop_trains():
    study = haltune.Study(
        haltune.Problem(haltune.Space({"lr": haltune.Float(0, 1)}), haltune.Maximize("acc", (0, 1)), 3),
        haltune.policies.RandomSearch(trials=1),
    )
    for trial in study:
        with trial:
            names = {"trial": trial, "model": None, "train_one_epoch": id, "accuracy": lambda _: 0.5}
            exec(block("for epoch"), names)
    assert list(study.trials[0].epochs) == [1, 2, 3]


def test_the_loop_that_pauses_continues_where_it_was():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from scripted import scripted_study

    from haltune.callbacks.loop import TrainingLoop

    steps = []

    def train_one_epoch(net, sgd):
        net(torch.ones(1, 2)).sum().backward()
        sgd.step()
        steps.append(net.weight.detach().clone())

    study = scripted_study("last", at=(2,), budget=haltune.Budget(trials=1))
    for trial in study:
        with trial:
            torch.manual_seed(trial.attempt)
            net = torch.nn.Linear(2, 1)
            names = {
                "torch": torch, "TrainingLoop": TrainingLoop, "trial": trial, "net": net,
                "sgd": torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), "train_one_epoch": train_one_epoch,
                "accuracy": lambda net: 0.5,
            }  # fmt: skip
            exec(block("loop = TrainingLoop"), names)
    assert [t.epochs.tolist() for t in study.trials] == [[1, 2, 3]]
    assert len(steps) == 3
    assert torch.equal(torch.load(study.best.checkpoint)["net"]["weight"], steps[-1])


def test_its_commands_are_taken():
    testing = pytest.importorskip("typer.testing")
    from haltune.cli.app import app

    lines = [
        line.partition("#")[0] for text in SHELL for line in text.splitlines() if line.startswith("haltune ")
    ]
    taken = [testing.CliRunner().invoke(app, [*shlex.split(line)[1:2], "--help"]) for line in lines]
    assert [line for line, done in zip(lines, taken, strict=True) if done.exit_code] == []
    assert len(lines) >= 6
    usage = re.sub(r"\x1b\[[0-9;]*m", "", taken[0].stdout)
    assert [
        word for word in lines[0].split() if word.startswith("--") and len(word) > 2 and word not in usage
    ] == []


def test_its_extras_are_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    named = {extra for group in re.findall(r"\.\[([a-z,]+)\]", TEXT) for extra in group.split(",")}
    assert named >= {"lightning", "keras", "report", "cli", "postgres", "ray"}
    assert named <= set(extras)


def test_every_link_leads_to_a_file():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_table_names_every_policy():
    table = "\n".join(line for line in TEXT.splitlines() if line.startswith("| `"))
    assert {name for name in haltune.policies.NAMES if f"`{name}(" not in table} == set()


def test_the_picture_is_small():
    assert (ROOT / "examples" / "digits.png").stat().st_size < 150_000
