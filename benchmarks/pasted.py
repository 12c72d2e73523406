"""A page's program, run from top to bottom as a reader pastes it, in an empty folder: what it prints is checked.

    python benchmarks/pasted.py docs/start.md [--then "print(study.best)"]

The program is all blocks of Python of a page (.md), all cells of a notebook (.ipynb), or a script (.py).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def program(path: Path) -> list[str]:
    """Its blocks of code, in their order."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        return [re.sub(r"^( *)%.*", r"\1pass", cell, flags=re.MULTILINE) for cell in cells]  # %pip installs
    if path.suffix == ".md":
        return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    return [text]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("page", nargs="?", help="in the repository")
    parser.add_argument("--then", default="", help="a statement at the end")
    args = parser.parse_args()
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    logging.getLogger("haltune").setLevel(logging.INFO)
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.argv = [args.page or "-"]
        for code in (*(program(ROOT / args.page) if args.page else ()), args.then):
            exec(compile(code, sys.argv[0], "exec"), names)
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
