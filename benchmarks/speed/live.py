"""A watched search of 1,000 trials with ten open pages: how soon a report is seen, and how quick the page is meanwhile.

Targets: a report is seen within a second, an interaction takes under 100 ms. Needs Playwright and a Chromium. A machine
with other work measures that: the load is printed, too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from page import HANDS, searched

from haltune.store.open import open_store
from haltune.store.studies import raise_limits
from haltune.study.loading import load_study

SEEN = """id => {
  window.seen = [];
  const look = () => {
    const cell = document.querySelector(`tr[data-trial="trial-${id}"] td:nth-child(3)`);
    const last = window.seen.at(-1);
    if (cell && !(last && last[0] === cell.textContent)) window.seen.push([cell.textContent, Date.now() / 1000]);
  };
  new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
}"""


def report(path: str, seconds: float) -> None:
    """One trial more, the best: a report each second and a half, of which the value and the time are printed."""
    study = load_study(open_store(path), "study")
    raise_limits(study.store, study.name, study.history, {"trials": len(study.trials) + 1})
    trial, begun, value = study.ask(), time.time(), 0.95
    while time.time() < begun + seconds and trial.epoch < 49:
        value += 1e-4
        trial.report(value, seconds=1.0)
        print(f"{value:.4f} {time.time()}", flush=True)
        time.sleep(1.5)


def watched(path: Path, trials: int, pages: int, seconds: float) -> tuple[list[float], list[dict[str, float]]]:
    """Seconds until each report was seen on the page in front, and milliseconds of each interaction on the first."""
    from playwright.sync_api import sync_playwright

    haltune = [sys.executable, "-m", "haltune", "watch", str(path), "--no-open", "--port", "0"]
    server = subprocess.Popen(haltune, stdout=subprocess.PIPE, text=True)
    found = next(m for line in server.stdout if (m := re.search(r"http://\S+", line)))  # type: ignore[union-attr]
    hands = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(120_000)
        tabs = [context.new_page() for _ in range(pages)]
        for tab in tabs:
            tab.goto(found[0].rstrip("/") + "/0/" * (not re.search(r"/0/?$", found[0])))
            tab.evaluate(SEEN, trials)
        writer = subprocess.Popen(
            [sys.executable, __file__, "--report", str(path), "--seconds", str(seconds)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        said: dict[str, float] = {}
        lines = (line.split() for line in writer.stdout)  # type: ignore[union-attr]
        threading.Thread(target=lambda: said.update((v, float(at)) for v, at in lines), daemon=True).start()
        tabs[0].bring_to_front()
        while writer.poll() is None:
            hands.append(tabs[0].evaluate(HANDS))
            time.sleep(1.0)
        time.sleep(2.0)
        seen = [(f"{float(v):.4f}", at) for tab in tabs for v, at in tab.evaluate("window.seen")]
        browser.close()
    server.terminate()
    return sorted(at - said[v] for v, at in seen if v in said), hands


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.report:
        report(args.report, args.seconds)
        return
    with tempfile.TemporaryDirectory() as name:
        path = searched(Path(name), args.trials, 50)
        late, hands = watched(path, args.trials, args.pages, args.seconds)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(
        f"a report is seen after {statistics.median(late):.2f} s, nine in ten within "
        f"{late[int(0.9 * len(late))]:.2f} s, of {len(late)}   (target: within 1)"
    )
    for what in hands[0]:
        took = [visit[what] for visit in hands]
        print(f"  {what:<28} {statistics.median(took):6.0f} ms, at most {max(took):.0f}   (target: under 100)")


if __name__ == "__main__":
    main()
