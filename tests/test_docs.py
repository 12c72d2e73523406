"""The pages of documentation keep their word: their code runs, their links lead somewhere, their commands are taken.

What a page takes for granted, a network, data, a study with a best run, is put in its place, small.
"""

import importlib.util
import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from documents import PAGES, ROOT, blocks

import haltune.policies
from haltune.launch.metric_logs import KINDS

COMING = "docs/coming_from.md"
OTHERS = (  # what another tool's program starts with: compiled, or run by a test below
    "import optuna", "from ray import tune", "import keras_tuner", "import wandb", "from syne_tune import",
    "from transformers import Trainer",
)  # fmt: skip
BRIDGE, SEARCH = "from haltune.optuna", "from haltune import Float\nfrom haltune.callbacks.transformers"
TUNERS = ("from haltune.ray_tune", "from haltune.keras_tuner", "from haltune.syne_tune")


def the(start, page=COMING):
    (found,) = blocks(page, lambda text: text.startswith(start))
    return found


def of_keras(text):  # run by callbacks/keras, which chooses its backend
    return "trial.load_model()" in text and not text.startswith(OTHERS)


@pytest.mark.parametrize("block", [b for page in PAGES for b in blocks(page)], ids=repr)
def test_every_block_is_python(block):
    compile(block.text, str(block), "exec")


def test_the_scripts_for_other_tools_search():
    ran = blocks(COMING, lambda text: not text.startswith((*OTHERS, BRIDGE, SEARCH, *TUNERS)) and not of_keras(text))
    for block in ran:
        trained = []

        def make_model(trained=trained, **config):
            trained.append(config)
            return config

        names = {"__name__": "__main__", "make_model": make_model}
        names["train_one_epoch"] = lambda model: 1 / (1 + model["lr"])
        instead = {'"digits.db", max_epochs=30': "max_epochs=3", '"20 trials"': '"2 trials"'}
        if "workers=4" in block.text:
            instead["workers=4"] = "workers=1"  # tests/launch trains in processes
        block.run(names, instead)
        assert {config["width"] for config in trained} == {t.config["width"] for t in names["study"].trials}
    assert len(ran) == 3


@pytest.mark.slow
def test_an_optuna_program_is_switched_by_a_line_and_its_past_is_taken_along(tmp_path, monkeypatch, capsys):
    optuna = pytest.importorskip("optuna", reason="Optuna is not installed")
    monkeypatch.chdir(tmp_path)
    theirs = the("import optuna\n\n\ndef objective", COMING)
    switched, taken, shown = blocks(COMING, lambda text: text.startswith(BRIDGE))
    names = {"__name__": "__main__", "make_model": lambda lr, width: lr, "train_one_epoch": lambda lr: 1 / (1 + lr)}
    few = {"n_trials=20": "n_trials=3"}
    theirs.run(names, few)
    switched.run(names, few)
    printed = capsys.readouterr().out
    assert printed.count("COMPLETE") + printed.count("PRUNED") == 3
    ours = the("from haltune import Float, Int, Study\n\n\ndef objective(trial):", COMING)
    ours.run(names, {'"digits.db", max_epochs=30': "max_epochs=3", '"20 trials"': '"1 trials"'})
    taken.run(names, {'"20 trials"': '"2 trials"'})
    assert (len(names["past"].trials), len(names["study"].trials)) == (3, 2)
    shown.run(names)
    (name,) = optuna.get_all_study_names("sqlite:///optuna.db")
    assert len(optuna.load_study(study_name=name, storage="sqlite:///optuna.db").trials) == 2


@pytest.mark.slow  # a process a trial
def test_a_syne_tune_program_is_switched_by_its_scheduler(tmp_path, monkeypatch):
    syne_tune = pytest.importorskip("syne_tune", reason="Syne Tune is not installed")
    from syne_tune.backend import LocalBackend
    from syne_tune.config_space import lograndint, loguniform

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYNETUNE_FOLDER", str(tmp_path / "syne"))
    lines = ["from syne_tune import Reporter", "report = Reporter()"]
    Path("train.py").write_text("\n".join([*lines, "for e in (1, 2, 3): report(epoch=e, accuracy=0.1 * e)"]))
    names = {"Tuner": syne_tune.Tuner, "LocalBackend": LocalBackend}
    names |= {"StoppingCriterion": syne_tune.StoppingCriterion}
    names["config_space"] = {"lr": loguniform(1e-4, 1e-1), "width": lograndint(8, 128)}
    few = {"max_epochs=30": "max_epochs=3", "max_num_trials_finished=20": "max_num_trials_finished=2"}
    the(TUNERS[2], COMING).run(names, few | {"n_workers=4": "n_workers=1"})
    assert len(names["scheduler"].study.trials) >= 2


@pytest.mark.slow  # Ray's processes
def test_a_tune_program_is_switched_by_two_arguments(tmp_path, monkeypatch):
    tune = pytest.importorskip("ray.tune", reason="Ray Tune is not installed")
    import ray

    monkeypatch.chdir(tmp_path)

    def train(config):
        for epoch in range(3):
            tune.report({"accuracy": epoch / (1 + config["lr"])})

    few = {"num_samples=20": "num_samples=2", "max_concurrent_trials=4": "max_concurrent_trials=1"}
    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
    try:
        names = the(TUNERS[0], COMING).run({"tune": tune, "train": train}, {"max_epochs=30": "max_epochs=3"} | few)
    finally:
        ray.shutdown()
    assert len(names["search"].study.trials) == 2
    assert Path("digits.db").exists()


def test_a_trainer_is_searched_by_a_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    need("accelerate")
    monkeypatch.chdir(tmp_path)
    from transformers_nets import Net, trainer

    t = trainer(tmp_path, epochs=2)
    t.model_init = lambda: Net()
    names = the(SEARCH, COMING).run({"trainer": t}, {"n_trials=20": "n_trials=2"})
    assert len(names["best"].run_summary.trials) == 2
    assert "learning_rate" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page):
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, heading = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link and (not target.exists() or (heading and heading not in headings(target))):
            wrong.append(link)
    assert wrong == []


def headings(page):
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_reached_from_the_readme():
    reached, new = set(), {PAGES[0]}
    while new:
        page = new.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^)\s#:]+\.md)", page.read_text(encoding="utf-8"))
        new |= {(page.parent / link).resolve() for link in links} - reached
    assert set(PAGES) - reached == set()


def test_the_table_and_the_reference_name_every_policy():
    names, docs = haltune.policies.POLICY_NAMES, ROOT / "docs"
    lines = (docs / "policies.md").read_text(encoding="utf-8").split("## All of them")[1].splitlines()
    table = "\n".join(line for line in lines if line.startswith("| `"))
    lacking = {name for name in names if f"| `{name}(" not in table}
    assert lacking == set(), 'each needs a row, "| `Name()` |", in the table "All of them" of docs/policies.md'
    shown = (docs / "reference" / "policies.md").read_text(encoding="utf-8").splitlines()
    lacking = {name for name in names if f"::: haltune.policies.{name}" not in shown}
    assert lacking == set(), "each needs a line, ::: haltune.policies.Name, in docs/reference/policies.md"


def test_the_extras_are_there():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    whole = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = {extra for group in re.findall(r"\.\[([a-z,]+)\]", whole) for extra in group.split(",")}
    assert named >= {"lightning", "keras", "report", "cli", "postgres", "ray", "demo", "dev"}
    assert named <= set(extras)


def test_each_callback_has_its_extra_its_page_and_its_section():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    asked = {re.match(r"[\w-]+", one)[0] for extra in extras.values() for one in extra}
    loops = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "loops").glob("*.md"))
    reference = (ROOT / "docs" / "reference" / "callbacks.md").read_text(encoding="utf-8")
    files = (*(ROOT / "callbacks").glob("*.py"), *(ROOT / "callbacks").glob("*/__init__.py"))
    named = {
        (file.parent if file.stem == "__init__" else file).stem: file.read_text(encoding="utf-8") for file in files
    }
    names = [name for name, text in named.items() if re.search(r"^class HaltuneCallback\b", text, re.M)]
    assert len(names) > 7
    assert [n for n in names if n.replace("_", "-") not in asked] == [], "each needs an extra in pyproject.toml"
    shown = [n for n in names if f"from haltune.callbacks.{n} import HaltuneCallback" in loops]
    assert shown == names, "each needs a program on a page of docs/loops"
    listed = [n for n in names if f"::: haltune.callbacks.{n}.HaltuneCallback\n" in reference]
    assert listed == names, "each needs a section in docs/reference/callbacks.md"


SCRIPT = """
import haltune
trial = haltune.current_trial()
with trial:
    if trial.checkpoint:
        assert int(open(trial.checkpoint).read()) == trial.epoch
    for epoch in trial.epochs():
        verdict = trial.report(1 - trial.config["lr"] / (1 + epoch))
        trial.save(lambda path: path.write_text(str(epoch)))
        if verdict.stops:
            break
"""


def test_a_trial_shows_nothing_but_what_its_reference_names():
    """What users call is on the page of the study, what only loops and launchers need on the page of the port."""
    members = set()
    for page, kind in (("study", "Trial"), ("port", "study.port.Port"), ("port", "study.loops.LoopPort")):
        reference = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
        (listed,) = re.findall(rf"::: haltune\.{kind}\n.*\n +members: \[(.*)\]", reference)
        members.update(listed.split(", "))
    trial = haltune.Study({"x": haltune.Float(0.0, 1.0)}, "acc", max_epochs=2, budget="1 trial", verbose=0).ask()
    assert {name for name in dir(trial) if not name.startswith("_")} == members


def test_every_source_of_metrics_is_a_key_on_the_page_of_unedited_programs():
    page = (ROOT / "docs" / "howto" / "unedited.md").read_text(encoding="utf-8")
    keys = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)))
    assert set(KINDS) <= set(keys)


@pytest.mark.slow
def test_the_commands_run_as_they_are_printed(tmp_path, monkeypatch):
    testing = pytest.importorskip("typer.testing")
    from haltune.cli import doctor as frameworks
    from haltune.cli.app import app

    monkeypatch.setattr(frameworks, "_CALLBACKS", {})  # the doctor would import them all
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    (tmp_path / "train_script.py").write_text(SCRIPT)
    shutil.copy(ROOT / "examples" / "digits.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    shell = re.findall(
        r"```sh\n(.*?)```", (ROOT / "docs/howto/command_line.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    lines = [line for text in shell for line in text.splitlines() if line.startswith("haltune ")]
    ran = {line: testing.CliRunner().invoke(app, shlex.split(line, comments=True)[1:]) for line in lines}
    assert {line: done.output for line, done in ran.items() if done.exit_code} == {}
    assert len(lines) >= 9


def need(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
