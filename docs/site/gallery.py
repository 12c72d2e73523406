"""Run the programs of the gallery and write its page: the curves, the log and the saved files of each.

    python docs/site/gallery.py [NAME ...]

The programs are those that the tests hold to the same rules, tests/foreign/zoo. Each runs as the page shows it, in an
empty folder and in a process of its own. With names, the other sections stay as they are.
"""

from __future__ import annotations

import json
import logging
import os
import re
import runpy
import subprocess
import sys
import tempfile
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from haltune.report.figures.drawing import first_view

ROOT = Path(__file__).parents[2]
ZOO, GALLERY = ROOT / "tests" / "foreign" / "zoo", ROOT / "docs" / "gallery"
NAMES = (
    "lightning_plateau", "keras_callbacks", "hf_best", "hf_lora", "torch_cosine", "torch_folds",
    "accelerate_ema", "fastai_one_cycle", "xgboost_early_stopping", "lightgbm_train", "sklearn_partial_fit", "sb3_ppo",
)  # fmt: skip
# their authors keep the model of the best epoch; the tests leave of="best" out, so that haltune advises it
OF_BEST = ("keras_callbacks", "hf_best", "fastai_one_cycle", "xgboost_early_stopping", "lightgbm_train")
SHOWN = 7  # lines of a log
HEAD = """# Gallery

Programs as their authors write them, each with one callback or one line for haltune. Each runs as it is shown.
`make gallery` runs them and writes this page: the curves (a cross: paused or stopped), the log, and the files.
The tests hold these programs to the same rules as every loop: what is counted was trained, and a resumed trial equals
one that never paused.
"""


def program(name: str) -> str:
    """Return a program of the zoo with its search, and without what its tests need."""
    source, _, declared = (ZOO / f"{name}.py").read_text(encoding="utf-8").partition("\n\n\nzoo = dict(")
    text = source.partition('"""\n')[2].partition("\n\n\ndef evaluate(")[0].strip()
    zoo = dict(re.findall(r"^    (\w+)=(.+),$", declared, re.M))
    goal = zoo["goal"].replace(")", ', of="best")') if name in OF_BEST else zoo["goal"]
    unit = zoo.get("unit", "epoch").strip('"')
    search = f"""study = Study(
    {zoo["space"]}, {goal}, "search.db", max_{unit}s={zoo["max_epochs"]}, budget="8 trials", seed=0,
)
search(study)
print(study.best)
"""
    return re.sub(r"^(from haltune import .*)", r"\1, Study", text, flags=re.M) + f"\n\n\n{search}"


def one(path: str) -> dict[str, Any]:
    """Run a program in the current folder; return what its section shows."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logging.getLogger("haltune").addHandler(Keep())
    study = runpy.run_path(path, run_name="__main__")["study"]
    best = study.best
    curves = [
        {
            "x": t.epochs.tolist(),
            "y": t.values.tolist(),
            "full": t.complete,
            "best": best is not None and t.id == best.trial,
        }
        for t in study.trials
    ]
    return {
        "log": lines, "curves": curves, "metric": study.problem.goal.metric, "unit": study.problem.units,
        "files": files(),
    }  # fmt: skip


def files() -> list[str]:
    """Return the files in the current folder: for each kind of folder their endings and their number.

    Within a kind, numbers differ.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(Path().rglob("*")):
        if path.is_file() and not path.name.endswith(("-shm", "-wal")):  # of the open log
            within = path.parent != Path()
            where = path.parent.as_posix() if within else path.name
            kind = re.sub(r"\d+", "N", re.sub(r"-[0-9a-f]{8,12}(?=[./]|$)", "-...", where))
            found.setdefault(kind, []).append(f"/*{path.suffix}" if within else "")
    return [
        kind + ", ".join(dict.fromkeys(endings)).replace(" /", " ") + (f" ({len(endings)})" if len(endings) > 1 else "")
        for kind, endings in found.items()
    ]


def drawn(name: str, recorded: dict[str, Any]) -> str:
    """Write the figure of a search; return its alternative text."""
    sys.path.insert(0, str(ROOT / "docs" / "figures"))
    curves = [{**c, "y": [y if isfinite(y) else None for y in c["y"]]} for c in recorded["curves"] if c["x"]]
    values = np.array([y for c in curves for y in c["y"] if y is not None])
    low, high = first_view(values) or [0.0, 1.0]
    last = max(max(c["x"]) for c in curves)
    text = f"Curves of {len(curves)} trials: {recorded['metric']} against {recorded['unit']}, the best in colour."
    sheet = import_module("drawing").Sheet(name, text, width=620, height=250)
    panel = sheet.panel(64, 530, (0, last), (low, high))
    ticks = [float(f"{v:.3g}") for v in np.linspace(low, high, 5)[1:4]]
    marks = sorted({float(round(v)) for v in np.linspace(0, last, 5)})
    panel.axes(f"{len(curves)} trials", recorded["unit"], recorded["metric"], marks, ticks)
    for c in sorted(curves, key=lambda c: (c["best"], c["full"])):
        points = [(x, min(max(y, low), high)) for x, y in zip(c["x"], c["y"], strict=True) if y is not None]
        if not points:
            continue
        xs, ys = zip(*points, strict=True)
        colour = "two" if c["best"] else "ink" if c["full"] else "quiet"
        panel.line(xs, ys, colour, 2 if c["best"] else 1.2)
        if c["full"]:
            panel.dots(xs[-1:], ys[-1:], colour, 3)
        else:
            panel.cross(xs[-1], ys[-1], "quiet")
    sheet.write(GALLERY / "figures")
    return text


def section(name: str, recorded: dict[str, Any]) -> str:
    source = (ZOO / f"{name}.py").read_text(encoding="utf-8")
    about = re.match(r'"""(.*?)"""', source, re.DOTALL)
    assert about is not None
    log = [line for line in recorded["log"] if not line.startswith("Lightning logs ")]
    shown = [*log[: SHOWN - 2], "...", *log[-2:]] if len(log) > SHOWN + 1 else log
    return "\n".join([
        f"## {name}\n", " ".join(about[1].split()) + "\n", f"![{drawn(name, recorded)}](figures/{name}.svg)\n",
        "```", *shown, "```\n", f"Files: {', '.join(f'`{kind}`' for kind in recorded['files'])}.\n",
        '<details markdown="1"><summary>The program</summary>\n', f"```py\n{program(name)}```\n", "</details>\n",
    ])  # fmt: skip


def main(names: list[str]) -> None:
    page = GALLERY / "index.md"
    (GALLERY / "figures").mkdir(parents=True, exist_ok=True)
    before = re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.M)[1:] if page.exists() else []
    sections = {part.partition("\n")[0].removeprefix("## "): part for part in before}
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(program(name))
            file.flush()
            environment = {"KERAS_BACKEND": "torch", "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1", **os.environ}
            command = [sys.executable, "-W", "ignore", __file__, "--one", file.name]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        sections[name] = section(name, json.loads(done.stdout.rpartition("\nTOLD ")[2]))
        parts = [sections[name] for name in NAMES if name in sections]
        page.write_text("\n".join([HEAD, *(part.rstrip("\n") + "\n" for part in parts)]), encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        found = one(sys.argv[2])
        print(f"\nTOLD {json.dumps(found)}")
    else:
        main(sys.argv[1:])
