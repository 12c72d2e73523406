"""What leaves for a terminal: text of which a terminal obeys nothing and shows everything.

Names, choices, metrics and errors come from users, from other workers and from foreign logs. An escape sequence in
one would clear the screen, set a title or write the clipboard; an override of the writing direction would show
another order than there is; half a surrogate pair breaks whatever encodes it. All of these are shown as Python writes
them, \\x1b, \\u202e, \\udcff; letters of all scripts and emoji stay as they are. Messages of errors and warnings, the
log "haltune", summaries, receipts, tables and the command line pass here, and nothing passes by.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

# control characters (C0 and C1), what separates lines and paragraphs, embeddings, overrides and isolates of the
# writing direction, lone surrogates
_REST = "\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f{_REST}]")  # newline and tab stay
_IN_A_LINE = re.compile(f"[\x00-\x1f{_REST}]")


def visible(text: object, lines: bool = True) -> str:
    """`text` with what a terminal would obey shown escaped. lines: newlines and tabs stay what they are."""
    return (_IN_LINES if lines else _IN_A_LINE).sub(_escaped, str(text))


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def cell(text: object, style: str = "") -> Text:
    """One line for Rich: not read as markup, as emoji or as anything but text."""
    from rich.text import Text

    return Text(visible(text, lines=False), style=style)


class _Visible(logging.Filter):
    """What the log says, made visible before any handler has it."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = visible(record.getMessage()), None
        return True


logging.getLogger("haltune").addFilter(_Visible())
