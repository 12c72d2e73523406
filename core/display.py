"""Text for people: numbers with units, and text that is safe on a terminal and in HTML.

Names, choices, metrics and errors come from users, other workers and foreign logs. On a terminal, an escape sequence
could clear the screen or write to the clipboard, and a direction override could reorder the text. A lone surrogate
cannot be encoded. `visible` escapes these characters as Python does (\\x1b, \\u202e, \\udcff). Errors, warnings, the
log "haltune", explanations, tables and the command line use it; HTML uses `escaped`.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

# -- numbers and units -------------------------------------------------------------------------------------------------

_WRITTEN_OUT = 1e7  # larger numbers are shown with a power of ten
_ONE = {f"{one}s": one for one in ("epoch", "step", "token", "second", "trial", "sample")}


def counted(count: float) -> str:
    """Return a count: 7, 2.5, 9999, 100,000."""
    return f"{count:g}" if abs(count) < 10_000 else f"{count:,.0f}"


def numeral(position: float) -> str:
    """Return an epoch, a number of steps, ... : 3, 0.35, 1200, 250,000, 10.49M, 2.1B."""
    for least, name in ((1e9, "B"), (1e6, "M")):
        if abs(position) >= least:
            return f"{position / least:.4g}{name}"
    return f"{position:.4g}" if abs(position) < 9999.5 else f"{position:,.0f}"


def several_of(one: str) -> str:
    """Return the plural of a noun: epochs, steps, batches."""
    return f"{one}es" if one.endswith(("s", "x", "tch", "sh")) else f"{one}s"


def plural(count: float, one: str, several: str | None = None) -> str:
    """Return 1 epoch, 14 epochs, 2.5 epochs, 1,266,704 epochs; with `several` also 2 studies."""
    return f"{counted(count)} {one if count == 1 else several or several_of(one)}"


def amount(count: float, unit: str, digits: int = 6) -> str:
    """Return an amount of a unit, which is given in the plural: 1 epoch, 2M steps. Users' units do not change."""
    text = numeral(count) if 9999.5 <= abs(count) < 1e12 else f"{count:.{digits}g}"
    return f"{text} {_ONE.get(unit, unit) if text == '1' else unit}"


def ordinal(n: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def short(value: Any, digits: int = 4) -> str:
    """Return a value with few digits: 0.9134, 1.2e-05, 13310, 1.2e+08, True, adam."""
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < _WRITTEN_OUT else text


def settings(config: Mapping[str, Any], digits: int = 3) -> str:
    """Return a configuration on one line: lr=0.01, width=32."""
    return ", ".join(f"{k}={short(v, digits)}" for k, v in config.items()) or "the only one there is"


def duration(seconds: float) -> str:
    """Return 0.4 s, 48 s, 3 min 20 s, 7 min, 34 min, 2 h 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


def clock(seconds: float) -> str:
    """Return 0:07, 4:10, 1:04:10."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(share: float) -> str:
    """Return 2%, 45.9%."""
    return f"{100.0 * share:.3g}%"


def chance(p: float, of: int) -> str:
    """Return a probability estimated from `of` simulated curves: "= 0.04", "< 0.0008", "> 0.99".

    It has two decimals or, below 0.01, one significant digit. If its standard error is above 0.1, it has one decimal.
    If none of the curves wins, the bound is 3 / of, at 95% confidence (the rule of three).
    """
    if p == 0.0 and of:
        most = min(1.0, 3.0 / of)
        digits = max(1, math.ceil(-math.log10(most)))
        return f"< {min(1.0, math.ceil(most * 10.0**digits) / 10.0**digits):.{digits}f}"
    few = of > 0 and p >= 0.05 and p * (1.0 - p) > 0.01 * of
    if p > 0.995:
        return "> 0.9" if few else "> 0.99"
    if 0.0 < p < 0.01:
        p = float(f"{p:.0e}")
    digits = 1 if few else 2 if p >= 0.01 or p == 0.0 else math.ceil(-math.log10(p))
    return f"= {p:.{digits}f}"


def clipped(text: str, most: int = 2000) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


def one_line(error: BaseException) -> str:
    """Return the type of an exception and its first line; its last one if it begins with a traceback, as CatBoost's."""
    kind, lines = type(error).__name__, text_of(error).strip().splitlines() or [""]
    line = lines[-1] if lines[0].endswith("Traceback (most recent call last):") else lines[0]
    return f"{kind}: {line}" if line else kind


# -- a terminal, and the log "haltune" ---------------------------------------------------------------------------------

# control characters (C0 and C1), line and paragraph separators, embeddings, overrides and isolates of the text
# direction, lone surrogates
_REST = "\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f{_REST}]")  # keeps newline and tab
_IN_A_LINE = re.compile(f"[\x00-\x1f{_REST}]")


def visible(text: object, lines: bool = True) -> str:
    """Return `text` with escapes for characters that a terminal would interpret. lines: keep newlines and tabs."""
    pattern = _IN_LINES if lines else _IN_A_LINE
    return pattern.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(text))


def cell(text: object, style: str = "") -> Text:
    """Return one line for Rich, without markup or emoji."""
    from rich.text import Text

    return Text(visible(text, lines=False), style=style)


class _Stderr(logging.Handler):
    """Write the log "haltune" to stderr, in colours on a terminal, if the program set up no logging."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write at once, unless another handler was added. A broken pipe does not end the search."""
        with suppress(Exception):
            if is_set_up() or sys.stderr is None:
                return
            if notebook() is not None and record.levelno < logging.WARNING:
                sys.stdout.write(f"{self.format(record)}\n")  # a notebook shows stderr as an error
                return
            style = getattr(record, "style", "")
            if style and sys.stderr.isatty() and find_spec("rich") is not None:
                from rich.console import Console

                console = Console(stderr=True)
                with console.capture() as drawn:
                    console.print(cell(self.format(record), style), soft_wrap=True)
                # Rich's live display redraws itself below the line; other progress bars' lines are cleared first
                bar = getattr(record, "within", False) and not hasattr(sys.stderr, "rich_proxied_file")
                sys.stderr.write("\r\x1b[2K" * bar + drawn.get())
            else:
                sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


_PUSHED: list[bool] = []  # not empty: the terminal keeps its former title


def titled(text: str | None) -> None:
    """Set the title of the terminal's window; None restores the former one.

    A title moves no cursor and takes no line, so it does not disturb the progress bars of trainings.
    """
    stream = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # Rich's own stream reads what is written to it
    silent = stream is None or not stream.isatty() or os.environ.get("TERM", "dumb") in ("dumb", "linux")
    if silent or (text is None and not _PUSHED):
        return
    with suppress(Exception):
        if text is None:
            _PUSHED.clear()
            stream.write("\x1b[23;2t")
        else:
            if not _PUSHED:
                _PUSHED.append(True)
                atexit.register(titled, None)
                stream.write("\x1b[22;2t")
            stream.write(f"\x1b]2;{visible(text, lines=False)}\x07")
        stream.flush()


def _show(record: logging.LogRecord) -> bool:
    record.msg, record.args = visible(record.getMessage()), None
    return True


_log, _stderr = logging.getLogger("haltune"), _Stderr()
_log.addFilter(_show)


def is_set_up() -> bool:
    """Return whether the program has handlers for the log "haltune"."""
    own = any(h is not _stderr for h in _log.handlers)
    return own or (_log.propagate and logging.getLogger().hasHandlers())


def logs_elsewhere() -> bool:
    """Return whether the program logs to a place other than that of Python's warnings: stderr, or their own log."""
    if getattr(warnings.showwarning, "__module__", "") == "logging":  # by logging.captureWarnings
        return False
    handlers = [*_log.handlers, *(logging.getLogger().handlers if _log.propagate else ())]
    return any(h is not _stderr and getattr(h, "stream", None) is not sys.stderr for h in handlers)


def shown() -> bool:
    """Show INFO records of the log "haltune", on stderr unless the program has handlers; return whether they are shown.

    They are not if the program has set the log's level higher, or the root logger's above WARNING.
    """
    if _log.level == logging.NOTSET and logging.getLogger().level <= logging.WARNING:
        _log.setLevel(logging.INFO)
    if not is_set_up() and _stderr not in _log.handlers:
        _log.addHandler(_stderr)
    return _log.isEnabledFor(logging.INFO)


# -- a notebook, and HTML ----------------------------------------------------------------------------------------------


def notebook() -> Any:
    """Return IPython's module `display` in a notebook, None elsewhere."""
    ipython = sys.modules.get("IPython")
    kernel = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    return getattr(ipython, "display", None) if kernel else None


def escaped(text: object) -> str:
    import html  # imported here: it takes 10% of the time of `import haltune`

    return html.escape(visible(text), quote=True)


def facts(title: object, pairs: Iterable[tuple[object, object]]) -> str:
    """Return a title and a table of names and values, without empty values."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escaped(name)}</th><td style="text-align:left">{escaped(value)}</td></tr>'
        for name, value in pairs
        if value != ""
    )
    return f"<b>{escaped(title)}</b><table>{rows}</table>"


def table(lines: Iterable[object], titles: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """Return lines, the first one bold, and a table if it has rows."""
    first, *others = map(escaped, lines)
    above = "<br>".join([f"<b>{first}</b>", *others])
    head = "".join(f'<th style="text-align:left">{escaped(title)}</th>' for title in titles)
    cells = ["".join(f'<td style="text-align:left">{escaped(text)}</td>' for text in row) for row in rows]
    if not cells:
        return f"<div>{above}</div>"
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<div>{above}</div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def preformatted(text: object) -> str:
    return f"<pre>{escaped(text)}</pre>"
