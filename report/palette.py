"""Few colours, told apart by everyone: greys for what ended, one accent for the best (Okabe and Ito)."""

from dataclasses import dataclass

INK, MUTED, RULE, PAPER = "#1c2530", "#5f6b78", "#e2e6ea", "#ffffff"
ACCENT = "#d55e00"
ACCENT_INK = "#a84a00"  # the accent dark enough for small text on paper
COOL, COOL_SOFT = "#3b6ea5", "#c9d8e8"  # what models believe
FAINT, SOFT = "#b9c1c9", "#8d98a3"
COLOURS = {  # as the page's style sheet calls them: each follows its theme
    INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", PAPER: "var(--paper)", ACCENT: "var(--accent)",
    ACCENT_INK: "var(--accent-ink)", COOL: "var(--cool)", COOL_SOFT: "var(--cool-soft)", FAINT: "var(--faint)",
    SOFT: "var(--soft)",
}  # fmt: skip
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"


@dataclass(frozen=True)
class GroupStyle:
    """How the trials of one group are drawn."""

    label: str
    line: str  # colour
    width: float  # px
    dash: str
    mark: str  # Plotly's name
    size: float  # px
    rich: str  # style in a terminal


GROUP_STYLES = {  # drawn in this order, the last on top
    "stopped": GroupStyle("stopped early", FAINT, 1.3, "solid", "x-thin", 7, "dim"),
    "paused": GroupStyle("paused", FAINT, 1.3, "solid", "square-open", 7, "dim"),
    "left": GroupStyle("not continued", FAINT, 1.3, "solid", "square-open", 7, "dim"),
    "failed": GroupStyle("failed", FAINT, 1.3, "dot", "triangle-down-open", 8, "red"),
    "interrupted": GroupStyle("interrupted", SOFT, 1.3, "dash", "circle-open", 7, "yellow"),
    "aside": GroupStyle("paused by you", SOFT, 1.3, "dash", "square-open", 7, "yellow"),
    "held": GroupStyle("stopped for now", SOFT, 1.3, "dash", "square-open", 7, "yellow"),
    "lost": GroupStyle("lost", SOFT, 1.3, "dash", "circle-open", 7, "yellow"),
    "running": GroupStyle("running", MUTED, 1.3, "dash", "circle-open", 7, "cyan"),
    "nothing": GroupStyle("ended without a value", FAINT, 1.3, "dot", "triangle-down-open", 8, "red"),
    "part": GroupStyle("trained in part", SOFT, 1.3, "solid", "circle-open", 6, "default"),
    "itself": GroupStyle("ended by itself", MUTED, 1.5, "solid", "diamond", 6, "default"),
    "schedule": GroupStyle("trained to the end of its schedule", MUTED, 1.5, "solid", "circle", 6, "default"),
    "completed": GroupStyle("trained in full", MUTED, 1.5, "solid", "circle", 6, "default"),
    "best": GroupStyle("best", ACCENT, 3.0, "solid", "circle", 11, "bold #e07b1f"),
}
