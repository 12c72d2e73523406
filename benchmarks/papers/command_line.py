"""Arguments of the papers' experiments: the number of runs, finished results, the data, the figure."""

import argparse
import os
import sys
from pathlib import Path


def command_line(doc: str | None, runs: int, data: str | None = None, word: str = "seeds") -> argparse.ArgumentParser:
    """A parser of `--seeds` (or another word for runs), `--keep`, `--svg` and, where a file is needed, `--data`."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(f"--{word}", type=int, default=runs)
    made.add_argument("--keep", type=Path, help="a file of what is finished, which is not run again")
    made.add_argument("--svg", action="store_true", help="draw the figures of docs/experiments again")
    if data is not None:
        made.add_argument("--data", type=Path, help=f"folder of {data}; default: HALTUNE_DATA")
    return made


def data_file(folder: Path | None, name: str) -> Path:
    """Return a file of the data folder, or exit with the name of what is missing."""
    folder = folder or (Path(named) if (named := os.environ.get("HALTUNE_DATA")) else None)
    if folder is None or not (folder / name).is_file():
        where = "no folder was named" if folder is None else f"it is not in {folder}"
        sys.exit(f"{name} is needed and {where}: give --data FOLDER, or set HALTUNE_DATA")
    return folder / name
