"""The page of a search in a notebook's cell, renewed in its place while it runs.

The page stands in a frame of its own, from which no script reaches the notebook. What changed is handed to it by a
script of the cell's second output, as notebooks run them (Jupyter, VS Code, Colab). There is no server and no address,
so that it is seen wherever the notebook is; at the end the cell holds the page as it is then, for whoever opens the
notebook later. A front end that shows no HTML has the summary in words.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from haltune.display.notebook import escaped
from haltune.display.terminal import visible
from haltune.study import Study
from haltune.study.reading import follow_study

from ..page.page import script, style
from ..summary import summary
from .watched import Watched

_HEIGHT = 640  # pixels
_WHOLE = 20  # of so many renewals one tells all: a frame that the notebook made anew has the first page


class Cell:
    """The cell. shows: IPython.display."""

    def __init__(self, shows: Any, study: Study) -> None:
        self._study, self._watched = study, Watched(follow_study(study.store, study.name))
        self._id, self._mark, self._count, self.cost = f"haltune-{secrets.token_hex(6)}", "", 0, 0.0
        self._page = shows.display(self._framed(), raw=True, display_id=True)
        self._news = shows.display({"text/html": "", "text/plain": ""}, raw=True, display_id=True)

    def look(self) -> str:
        """What changed since the last look, as JSON; "" for nothing."""
        began = time.perf_counter()
        self._watched.look()
        self._count += 1
        if self._watched.mark == self._mark:
            return ""
        self._mark, told = self._watched.since("" if self._count % _WHOLE == 0 else self._mark)
        self.cost = time.perf_counter() - began
        return told

    def show(self, told: str) -> None:
        """Hand it to the page."""
        if told:
            text = visible(told).replace("<", "\\u003c")  # a literal of JavaScript within a script element
            handed = f'document.getElementById("{self._id}").contentWindow.postMessage({text}, "*")'
            self._news.update({"text/html": f"<script>{handed}</script>", "text/plain": ""}, raw=True)

    def close(self, cell: Cell) -> None:
        """The page at the end, to stay."""
        self._watched = Watched(follow_study(self._study.store, self._study.name))
        self._page.update(self._framed(), raw=True)
        self._news.update({"text/html": "", "text/plain": ""}, raw=True)

    def _framed(self) -> dict[str, str]:
        self._mark = self._watched.mark
        head = '<meta name="haltune-cell" content=""><meta name="haltune-mark" content="{mark}">\n'
        head += f"<style>{style()}</style>"
        page = escaped(self._watched.page(head, f"<script>{script()}</script>", bar=""))
        frame = (
            f'<iframe id="{self._id}" title="haltune: {escaped(self._study.name)}" sandbox="allow-scripts" '
            f'style="width:100%;height:{_HEIGHT}px;border:0" srcdoc="{page}"></iframe>'
        )
        return {"text/html": frame, "text/plain": summary(self._watched.study)}
