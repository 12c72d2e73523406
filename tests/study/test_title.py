"""The title of the terminal's window shows the search, and leaves the progress bars of trainings whole."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from terminal import at_a_terminal

HEAD = """
import sys
from haltune import Float, Study
study = Study({"lr": Float(1e-3, 1.0, log=True)}, "acc", "search.db", max_epochs=4, budget="2 trials", seed=0, **MORE)
"""
TQDM = """
from tqdm import tqdm
for trial in study:
    with tqdm(total=4, desc=f"run {trial.id}", ncols=60) as bar:
        for epoch in trial.epochs():
            trial.report(1 - trial.config["lr"] / epoch)
            bar.update()
        bar.update(4 - bar.n)
"""
RICH = """
from rich.console import Console
from rich.progress import Progress
for trial in study:
    with Progress(console=Console(width=100)) as bars:
        bar = bars.add_task(f"run {trial.id}", total=4)
        for epoch in trial.epochs():
            trial.report(1 - trial.config["lr"] / epoch)
            bars.update(bar, advance=1, refresh=True)
        bars.update(bar, completed=4, refresh=True)
"""
KERAS = """
import keras
for trial in study:
    bar = keras.utils.Progbar(4)
    for epoch in trial.epochs():
        trial.report(1 - trial.config["lr"] / epoch)
        bar.update(epoch)
    bar.update(4, finalize=True)
"""
LIGHTNING = """
import torch
from lightning import LightningModule, Trainer
from torch.utils.data import DataLoader
from haltune.callbacks.lightning import HaltuneCallback
class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, _):
        return self.layer(batch).square().mean()
    def validation_step(self, batch, _):
        self.log("acc", torch.rand(()))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
data = DataLoader(torch.rand(4, 1))
for trial in study:
    callback = HaltuneCallback(trial)
    trainer = Trainer(max_epochs=4, callbacks=[callback], logger=False, enable_checkpointing=False)
    trainer.fit(Net(), data, data, ckpt_path=trial.checkpoint)
"""
TITLE = re.compile(r"\x1b\]2;([^\x07\x1b]*)\x07|\x1b\[2[23];2t")


def shown(program: str, folder: Path, more: str = "", term: str = "xterm") -> str:
    """Run a program whose output is a terminal of 100 columns, and return all that it wrote there."""
    text = (HEAD + program).replace("**MORE", more)
    variables = {"TERM": term, "LINES": "40", "KERAS_BACKEND": "torch"}
    code, written = at_a_terminal([sys.executable, "-W", "ignore", "-c", text], 100, folder, variables)
    assert code == 0, written
    return written


def screen(written: str) -> list[str]:
    """The lines of a terminal that no line leaves: carriage return, line feed, cursor up, erase."""
    lines, row, column = [""], 0, 0
    for found in re.finditer(r"\x1b\[([\d;?]*)([A-Za-z])|\r|\n|\x08|[^\x1b\r\n\x08]+", written):
        told, number = found[0], int(found[1]) if found[1] and found[1].isdigit() else 1
        if told == "\r":
            column = 0
        elif told == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif told == "\x08":
            column = max(0, column - 1)
        elif found[2] == "A":
            row = max(0, row - number)
        elif found[2] == "K":
            lines[row] = "" if found[1] == "2" else lines[row][:column]
        elif not found[2]:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + told + line[column + len(told) :]
            column += len(told)
    return [line.rstrip() for line in lines if line.strip()]


@pytest.mark.parametrize(
    ("program", "bar", "module"),
    [
        pytest.param(TQDM, r"run \d: 100%\|.*4/4", "tqdm", id="tqdm"),
        pytest.param(RICH, r"run \d .* 100%", "rich", id="rich", marks=pytest.mark.slow),
        pytest.param(KERAS, r"4/4 .*━━━.*", "keras", id="Keras", marks=pytest.mark.slow),
        pytest.param(LIGHTNING, r"Epoch \d+/3 .*it/s.*", "lightning", id="Lightning", marks=pytest.mark.slow),
    ],
)
def test_the_title_tells_of_the_search_and_the_bar_of_a_training_stays_whole(
    program: str, bar: str, module: str, tmp_path: Path
) -> None:
    pytest.importorskip(module)
    written = shown(program, tmp_path)
    titles = [found[1] for found in TITLE.finditer(written) if found[1]]
    assert re.fullmatch(r"haltune.*1 of 2 trials, \d epochs?, 0:\d\d; .*acc .*", titles[0])
    assert written.rindex("\x1b[23;2t") > written.rindex("\x1b]2;")  # the former title comes back
    rest = TITLE.sub("", written)
    assert "\x1b]" not in rest
    assert "\x07" not in rest
    lines = screen(rest)
    assert [line for line in lines if re.match(bar, line)] != []
    assert len([line for line in lines if re.match(r"Trial \d (paused|trained)", line)]) >= 2


@pytest.mark.parametrize(("more", "term"), [pytest.param("verbose=0", "xterm", marks=pytest.mark.slow), ("", "dumb")])
def test_no_title_is_set_where_nothing_is_logged_or_a_terminal_has_none(more: str, term: str, tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    assert TITLE.search(shown(TQDM, tmp_path, more, term)) is None
