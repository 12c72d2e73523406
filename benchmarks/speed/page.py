"""The page: what it weighs, how long it is written, and how quick it is to the hand.

Targets: at most 1.5 MB for 100 trials; under 2 s with 1,000 trials of up to 50 epochs, an interaction under 100 ms.
The last needs Playwright and a Chromium; each interaction is timed from its event to the second frame after it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.policies import RandomSearch
from haltune.report.watch.watched import Watched
from haltune.study.view import RecordedStudy, follow_study

HANDS = """async () => {
  const found = {};
  const timed = async (name, act) => {
    const began = performance.now();
    act();
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
    found[name] = performance.now() - began;
  };
  const svg = document.querySelector("figure[data-figure=curves] .panel > svg[role=img]");
  const box = svg.getBoundingClientRect();
  const point = (x, y) =>
    svg.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y }));
  const words = document.querySelector(".filters input");
  const type = (text) => { words.value = text; words.dispatchEvent(new Event("input")); };
  await timed("pointing at a curve", () => point(400, 200));
  await timed("pointing at another", () => point(700, 120));
  await timed("sorting the table", () => document.querySelectorAll("th button")[2].click());
  await timed("filtering it", () => type("stopped"));
  await timed("all of it again", () => type(""));
  const entry = document.querySelector("figure[data-figure=curves] .key-entry");
  await timed("hiding a group of curves", () => entry.click());
  return found;
}"""


def searched(folder: Path, trials: int, epochs: int) -> Path:
    """A search of a table of curves, two thirds of the runs stopped early."""
    space = Space({f"p{i}": Float(0.0, 1.0) for i in range(5)})
    path = folder / f"{trials}.db"
    study = Study(
        Problem(space, Maximize("acc", (0, 1)), epochs), RandomSearch(), f"sqlite:///{path}", seed=0,
        budget=Budget(trials=trials), verbose=0,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for trial in study:
        with trial:
            last = epochs if trial.id % 3 == 0 else 1 + int(rng.integers(epochs // 2))
            for epoch in trial.epochs():
                value = 0.9 - 0.5 / epoch - 0.2 * trial.config["p0"] + 0.01 * rng.random()
                trial.report(value, seconds=1.0)
                if epoch == last:
                    break
    return path


def hands(page: Path) -> dict[str, float]:
    """Milliseconds of each interaction, the median of five visits."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        visits = []
        for _ in range(5):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.goto(page.as_uri())
            tab.wait_for_timeout(1000)
            visits.append(tab.evaluate(HANDS))
            tab.close()
        browser.close()
    return {name: statistics.median(visit[name] for visit in visits) for name in visits[0]}


def followed(study: RecordedStudy, trials: int) -> None:
    """Print the updates of a page that follows the search: a trial's start, two reports, its end."""
    watched = Watched(study, rests=False)  # never too early
    writer = Study(
        study.problem, RandomSearch(), study.store.url, study.name, budget=Budget(trials=trials + 1), verbose=0
    )  # fmt: skip
    trial = writer.ask()
    steps = {
        "a trial that begins": lambda: None,
        "its first report": lambda: trial.report(0.5, seconds=1.0),
        "its second report": lambda: trial.report(0.6, seconds=1.0),
        "its end": trial.finish,
    }
    for what, happens in steps.items():
        happens()
        mark, began = watched.mark, time.perf_counter()
        watched.look()
        took = time.perf_counter() - began
        if watched._thread is not None:  # models are sent, too
            watched._thread.join()
        sent = len(watched.since(mark)[1]) / 1e3
        print(f"  {what:<28} {took:6.2f} s until it is told (target: under 1), {sent:.1f} kB in all")


def main() -> None:
    """Print what the page weighs and takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small = follow_study(searched(folder, 100, 50)).report(folder / "small.html")
        print(f"100 trials                     {small.stat().st_size / 1e6:6.2f} MB   (target: at most 1.5)")
        study = follow_study(searched(folder, trials, 50))
        began, cpu = time.perf_counter(), time.process_time()
        page = study.report(folder / "page.html")
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        print(f"{trials} trials                    {page.stat().st_size / 1e6:6.2f} MB")
        print(f"  written in                   {wall:6.2f} s    ({cpu:.2f} s of processor; target: under 2)")
        followed(study, trials)
        try:
            for what, milliseconds in hands(page).items():
                print(f"  {what:<28} {milliseconds:6.0f} ms   (target: under 100)")
        except ImportError:
            print("  interactions: pip install playwright, and a Chromium")


if __name__ == "__main__":
    main()
