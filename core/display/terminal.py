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
import sys
from contextlib import suppress
from importlib.util import find_spec
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


class _Said(logging.Handler):
    """The log "haltune" of a program that set up no logging: on stderr, in colours where that is a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        """Written at once, unless another handler has it by now; a pipe that broke ends no search."""
        with suppress(Exception):
            if is_set_up() or sys.stderr is None:
                return
            if in_notebook() and record.levelno < logging.WARNING:
                sys.stdout.write(f"{self.format(record)}\n")  # what comes by stderr looks like an error there
                return
            style = getattr(record, "style", "")
            if style and sys.stderr.isatty() and find_spec("rich") is not None:
                from rich.console import Console

                console = Console(stderr=True)
                with console.capture() as drawn:
                    console.print(cell(self.format(record), style), soft_wrap=True)
                # a live display of Rich's puts it above itself; another bar, half drawn, is drawn again below
                bar = getattr(record, "within", False) and not hasattr(sys.stderr, "rich_proxied_file")
                sys.stderr.write("\r\x1b[2K" * bar + drawn.get())
            else:
                sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


def in_notebook() -> bool:
    """Whether this program is a notebook's."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


_log, _said = logging.getLogger("haltune"), _Said()
_log.addFilter(_Visible())


def is_set_up() -> bool:
    """Whether the program set up logging."""
    return any(h is not _said for h in _log.handlers) or (
        _log.propagate and logging.getLogger().hasHandlers()
    )


def heard() -> bool:
    """Whether what the log says at level INFO is shown: by whatever handlers the program has, or on stderr.

    A level that was given to the logger "haltune", or one above WARNING to the root, stays as it is.
    """
    if _log.level == logging.NOTSET and logging.getLogger().level <= logging.WARNING:
        _log.setLevel(logging.INFO)
    if not is_set_up() and _said not in _log.handlers:
        _log.addHandler(_said)
    return _log.isEnabledFor(logging.INFO)
