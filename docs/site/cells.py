"""Run the notebooks of the documentation, and show them as pages of the site.

    python docs/site/cells.py

runs docs/notebooks/*.ipynb by a kernel, each in an empty folder, and keeps what their cells print and their small
tables; larger outputs, such as the page of a search, become one word. `page` makes Markdown of one.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"
LARGEST = 20_000  # characters of an output that is kept
PAGE = "(the page of the search, in this cell)"  # kept in its place, and shown as a picture of it
Cell = dict[str, Any]


def page(text: str) -> str:
    """A notebook as Markdown: its words, its code, and beneath each cell what it shows."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_shown(output) for output in cell.get("outputs", ())]
    return "\n\n".join(parts) + "\n"


def _shown(output: Cell) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text']).rstrip()}\n```"
    if "text/html" in output["data"]:
        table = "".join(output["data"]["text/html"]).strip()
        return f'<div class="cell-shows">{table}</div>'
    text = "".join(output["data"]["text/plain"])
    return "![The page of the search](page.png)" if text == PAGE else f"```text\n{text}\n```"


def ran(path: Path) -> dict[str, Any]:
    """A notebook after a kernel has run it, with the outputs that are kept."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
        found: dict[str, Any] = json.loads(nbformat.writes(notebook).replace(f"{folder}/", ""))
    for cell in found["cells"]:
        cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell["outputs"] = [kept for output in cell["outputs"] if (kept := _kept(output))]
    found["metadata"] = {"kernelspec": found["metadata"]["kernelspec"], "language_info": {"name": "python"}}
    return found


def _kept(output: Cell) -> Cell | None:
    data = output.get("data")
    if data is None:
        return output
    html = "".join(data.get("text/html", ""))
    if len(html) > LARGEST or "<iframe" in html:
        data = output["data"] = {"text/plain": [PAGE]}
    return output if any(map("".join, data.values())) else None


def main() -> None:
    """Run all of them, and keep what they show."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        text = json.dumps(ran(path), indent=1, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
