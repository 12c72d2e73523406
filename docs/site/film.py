"""Run the program of the README and draw its search as a moving picture, docs/figures/film.svg.

    python docs/site/film.py

CSS moves the picture. Where nothing moves (print, or a reader who prefers less motion) it shows the end of the search.
The README's alternative text and its log are written with it, because they have the numbers of the search.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from haltune.study.view import RecordedStudy

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
INDEX = ROOT / "docs" / "index.md"
RUN, HOLD = 15.0, 5.0  # seconds of the search and of its last picture, in a loop
SHOWN = (0.1, 0.5, 0.8, 0.9, 0.95)  # accuracies on the axis, which is logarithmic in the error: most trials end close
STYLE = """
.film .log { font: 13px ui-monospace, SFMono-Regular, Menlo, monospace; }
.film .gone { opacity: 0; }
@media (prefers-color-scheme: dark) {
svg:root { --ink: #e6e9ee; --quiet: #9aa4b1; --faint: #2a3038; --paper: #0d1117; --two: #f0883e; }
}
"""


@dataclass
class Film:
    """Parts that appear, and their rules. Times are shares of the search."""

    parts: list[str] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)

    def _moved(self, frames: str, timing: str) -> str:
        name = f"f{len(self.rules)}"
        rule = f"#{name}{{animation:{name} {RUN + HOLD:g}s {timing} infinite}}"
        self.rules.append(f"@keyframes {name}{{{frames}}}{rule}")
        return name

    def draw(self, path: str, start: float, end: float) -> None:
        """A line that grows from start to end."""
        a, b = percent(start), percent(end)
        frames = f"0%,{a}{{stroke-dasharray:1 2;stroke-dashoffset:1.01}}"
        frames += f"{b},100%{{stroke-dasharray:1 2;stroke-dashoffset:0}}"
        self.parts.append(path.replace("<path ", f'<path id="{self._moved(frames, "linear")}" pathLength="1" ', 1))

    def show(self, part: str, start: float, end: float | None = None) -> None:
        """A part that is there from start to end; without an end it stays."""
        frames = f"0%{{opacity:0}}{percent(start)}{{opacity:1}}" if start else "0%{opacity:1}"
        frames += f"{percent(end)}{{opacity:0}}" if end is not None else ""
        gone = ' class="gone"' if end is not None else ""
        self.parts.append(f'<g id="{self._moved(frames, "step-end")}"{gone}>{part}</g>')


def percent(share: float) -> str:
    return f"{100 * share * RUN / (RUN + HOLD):.2f}%"


def searched(folder: str) -> tuple[RecordedStudy, list[str]]:
    """Run the README's program in a folder and return its study, and the lines that it logged."""
    from haltune.study.view import read_study

    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    program = next(block for block in blocks if "load_digits" in block)
    command = [sys.executable, "-W", "ignore", "-c", program]
    ran = subprocess.run(command, cwd=folder, check=True, stderr=subprocess.PIPE, text=True)
    return read_study(f"{folder}/first.db"), ran.stderr.splitlines()


def shortened(lines: list[str]) -> str:
    """The first two pauses of a log, the first training in full, and how it ended."""
    paused = [line for line in lines if " paused at " in line][:2]
    full = next(line for line in lines if "trained in full, " in line)
    over = next(line for line in lines if line.startswith("The search is over"))
    return "\n".join([*paused, "...", full, "...", over])


def filmed(study: RecordedStudy) -> tuple[Any, str]:
    """Return the sheet of a search, and the words that stand for it."""
    from haltune.log import events as ev
    from haltune.log.history import History
    from haltune.study.messages import ended_line

    sys.path.insert(0, str(ROOT / "docs" / "figures"))
    drawing = import_module("drawing")
    problem, trials, best = study.problem, study.trials, study.best
    assert best is not None
    events, whole = list(study.events()), problem.max_epochs or 0
    full = sum(t.complete for t in trials)
    trained = sum(isinstance(e, ev.Reported) for e in events)
    words = (
        f"A search as it ran. Of {len(trials)} trials, {full} trained in full; {len(trials) - full} ended early, each "
        f"at a cross. The search trained {trained} epochs instead of {len(trials) * whole}; the best {best.metric} is "
        f"{best.value:.3f}."
    )
    sheet = drawing.Sheet("film", words, height=310)
    panel = sheet.panel(52, 694, (0, whole), (1.0, 0.05), log_y=True)
    panel.height -= 26
    title, ticks = f"{len(trials)} trials of a small network on digits", range(0, whole + 1, 5)
    panel.axes(
        title, problem.unit, best.metric, ticks, [1 - y for y in SHOWN], lambda v: f"{v if v in ticks else 1 - v:g}"
    )
    film, history = Film(), History(problem)
    begun: dict[int, tuple[float, float]] = {}  # trial -> when its attempt started, and after which epoch
    points: dict[int, list[tuple[float, float]]] = {}  # trial -> epochs and errors
    crosses: dict[int, tuple[float, str]] = {}  # paused trial -> since when, and its mark
    status, line = ("", 0.0), ("", 0.0)  # words, and since when
    done = 0

    def words_at(y: float, text: str, kind: str, anchor: str = "start") -> str:
        x = {"start": 52, "end": 746}[anchor]
        return f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'

    for event in events:
        history.apply(event)
        now = done / trained
        if isinstance(event, (ev.Started, ev.Resumed)):
            there = points.setdefault(event.trial, [])
            begun[event.trial] = now, there[-1][0] if there else 0
            if event.trial in crosses:
                since, cross = crosses.pop(event.trial)
                film.show(cross, since, now)
        elif isinstance(event, ev.Reported):
            done += 1
            points[event.trial].append((event.epoch, 1 - event.value))
            present = history.best()
            if present and (done % 3 == 0 or done == trained):
                film.show(words_at(22, status[0], "quiet", "end"), status[1], now)
                # before a trial is complete, the best changes with the trial that leads, also to a lower value
                found = f", best {present.value:.3f}" if history.complete(present.trial) else ""
                status = f"trial {len(history)} of {len(trials)}, {done} epochs{found}", now
        elif isinstance(event, ev.Ended):
            record = history.trial(event.trial)
            since, first = begun[event.trial]
            xs, ys = zip(*(point for point in points[event.trial] if point[0] >= first), strict=True)
            look = ("two", 2.4) if event.trial == best.trial else ("quiet", 1.2)
            panel.line(xs, ys, *look)
            film.draw(panel.parts.pop(), since, now)
            if record.complete:
                panel.dots(xs[-1:], ys[-1:], look[0], 3.2)
                film.show(panel.parts.pop(), now)
            else:
                panel.cross(xs[-1], ys[-1])
                crosses[event.trial] = now, panel.parts.pop()
            film.show(words_at(300, line[0], "log"), line[1], now)
            said = ended_line(history, record, reasons=False)[0].split("; ")
            line = "; ".join(said[:2]), now
    for since, cross in crosses.values():
        film.show(cross, since)
    film.show(words_at(22, status[0], "quiet", "end"), status[1])
    film.show(words_at(300, line[0], "log"), line[1], 1)
    film.show(words_at(300, f"The search is over: {study.outcome.reason}".partition(", ")[0], "log"), 1)
    moves = "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(film.rules) + "\n}"
    parts = sorted(film.parts, key=lambda part: drawing.colour("two") in part)  # the best above the others
    panel.parts += [f"<style>{STYLE}{moves}</style>", '<g class="film">', *parts, "</g>"]
    return sheet, words


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        study, lines = searched(folder)
        sheet, words = filmed(study)
    print(sheet.write(ROOT / "docs" / "figures"))
    for page in (README, INDEX):
        text = page.read_text(encoding="utf-8")
        text = re.sub(r"!\[[^\]]*\](?=\([\w/]*film\.svg\))", f"![{words}]", text)
        text = re.sub(r"(?<=\n```\n)Trial 0 paused .*?(?=\n```)", lambda _: shortened(lines), text, flags=re.DOTALL)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
