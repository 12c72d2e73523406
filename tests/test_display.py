"""Text for people: numbers with units, and what users typed, which no terminal and no browser obeys."""

import ast
import io
import json
import logging
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import haltune
from haltune import Budget, Choice, Float, Maximize, Problem, Space, Study
from haltune.cli.app import app
from haltune.cli.common import as_json
from haltune.display import amount, chance, numeral, one_line, plural, short, visible
from haltune.errors import HaltuneWarning, InvalidInput, warn
from haltune.launch.crew import progress_of
from haltune.policies import RandomSearch
from haltune.report import live

rich_console = pytest.importorskip("rich.console")

# numbers and units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (plural(1.0, "epoch"), "1 epoch"), (plural(2.5, "epoch"), "2.5 epochs"),
        (plural(1_266_704, "epoch"), "1,266,704 epochs"), (plural(3, "study", "studies"), "3 studies"),
        (numeral(0.1 + 0.05), "0.15"), (numeral(12_345), "12,345"),
        (numeral(10 * 2**20), "10.49M"), (amount(1, "of cost"), "1 of cost"),
        (short(0.91344), "0.9134"), (short(1.23e-05, 3), "1.23e-05"), (short(-13310.4), "-13310"),
        (short(float("nan")), "nan"), (chance(0.0383, 4000), "= 0.04"), (chance(0.0, 4000), "< 0.0008"),
        (chance(0.9986, 4000), "> 0.99"),
        (one_line(ValueError("shapes differ\nsecond line")), "ValueError: shapes differ"),
        (one_line(ValueError("a: Traceback (most recent call last):\n f()\nKeyError: 1")), "ValueError: KeyError: 1"),
    ],
)  # fmt: skip
def test_a_number_has_few_digits_and_its_unit(text, expected):
    assert text == expected


# what users typed

EVIL = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202eGNP\u2066\x00\r\x7f<b>&'\""  # title, clear, colour, reading backwards
SHOWN = visible(EVIL)
OBEYED = set(EVIL) - set("GNP]0;pwned[2J31m<b>&'\"")
EVERYDAY = "größe 学習率 معدل 👩‍🔬 é [red]x[/red] :smile: 100%\tλ→∞"


def harmless(text):
    """Check that a terminal obeys none of its characters; return it."""
    assert sorted(OBEYED & set(text)) == []
    return text


@given(st.text(st.characters(), max_size=40))
def test_nothing_that_a_terminal_obeys_is_left_and_no_word_is_touched(text):
    shown = visible(text, lines=False)
    # the categories of Unicode: control, surrogate, line and paragraph separators, and the 9 codes of direction
    kept = [c for c in shown if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}]
    assert kept == []
    assert not {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"} & set(
        map(unicodedata.bidirectional, shown)
    )
    ordinary = "".join(c for c in text if c == visible(c, lines=False))
    assert visible(ordinary, lines=False) == ordinary


def test_letters_of_all_scripts_and_emoji_stay_as_they_are():
    assert visible(EVERYDAY) == EVERYDAY
    assert visible("two\nlines") == "two\nlines"
    assert visible("two\nlines", lines=False) == "two\\nlines"
    assert visible("img_\udcff.png") == "img_\\udcff.png"


@pytest.fixture
def study(tmp_path):
    """A search in which everything that has a name has a hostile one."""
    space = Space({f"opt{EVIL}": Choice([f"a{EVIL}", f"b{EVIL}"]), "lr": Float(0.25, 0.5)})
    problem = Problem(space, Maximize(f"acc{EVIL}"), 3)
    name = f"n{EVIL}".replace("\x00", "")
    study = Study(problem, RandomSearch(), tmp_path / "evil.db", name, 1, Budget(trials=4), verbose=0)
    with study.ask() as trial:
        for _ in trial.epochs():
            trial.report(0.5, metrics={f"m{EVIL}": 1.0})
    failed = study.ask()
    failed.report(0.125)
    failed.fail(ValueError(f"[red]error{EVIL}"))
    study.ask().report(0.2)
    return study


def texts(told):
    """All texts in what JSON held."""
    if isinstance(told, dict):
        told = [*told, *told.values()]
    return [told] if isinstance(told, str) else [t for v in told for t in texts(v)] if isinstance(told, list) else []


def printed(*arguments, color=True):
    """Return the output of a command on a terminal, for which click keeps escape sequences."""
    done = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "900"}, color=color)
    return done.output


@pytest.mark.parametrize("command", [["trials"], ["explain", 1], ["stop"], ["status", "--name", EVIL.split("\x00")[0]]])
def test_no_listing_lets_a_terminal_obey_what_things_are_called(study, tmp_path, command):
    text = harmless(printed(command[0], tmp_path / "evil.db", *command[1:]))
    assert "pwned" in text
    if command[0] == "trials":
        assert "[red]error" in text


def test_json_of_a_listing_is_obeyed_by_no_terminal_and_loses_nothing(study, tmp_path):
    for command in (["status"], ["trials"], ["best"], ["explain", 1]):
        text = harmless(printed(command[0], tmp_path / "evil.db", *command[1:], "--format", "json"))
        assert any(EVIL in said for said in texts(json.loads(text)))
    rows = json.loads(harmless(printed("export", tmp_path / "evil.db", "--format", "json")))
    assert rows[0][f"metric.m{EVIL}"] == 1.0
    assert rows[0][f"config.opt{EVIL}"] == study.trials[0].config[f"opt{EVIL}"]
    assert json.loads(as_json({EVIL: [EVIL]})) == {EVIL: [EVIL]}


def test_the_tables_that_renew_themselves_show_names_as_typed(study):
    for terminal in (True, False):
        console = rich_console.Console(file=io.StringIO(), force_terminal=terminal, color_system=None, width=300)
        with live(study, console):
            pass
        text = console.file.getvalue()
        assert f"acc{SHOWN}" in text
        assert r"[red]error\x1b]0;pwned" in text
        # Rich itself moves the cursor on a terminal; what users wrote is not among it
        assert not {"\x07", "\x9b", "\u202e", "\u2066", "\x00", "\x7f"} & set(text)
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text
    console = rich_console.Console(file=io.StringIO(), width=300)
    with progress_of(study, True, console) as show:
        show([(0, study.ask())], f"[i]over{EVIL}")
    text = harmless(console.file.getvalue())
    assert f"[i]over{SHOWN}" in text
    assert f"acc{SHOWN}" in text


def test_errors_warnings_and_the_log_are_made_visible(caplog):
    assert str(InvalidInput(f"no {EVIL}\nnext")) == f"no {SHOWN}\nnext"
    with pytest.warns(HaltuneWarning) as given:
        warn(f"careful {EVIL}")
    harmless(str(given[0].message))
    with caplog.at_level(logging.INFO, "haltune"):
        logging.getLogger("haltune").info("trial %d: %s", 3, EVIL)
    assert caplog.messages == [f"trial 3: {SHOWN}"]


def test_nothing_prints_by_another_door():
    # the second before Typer is known to be there; the third imports no haltune, and prints a repr
    doors = {"cli/common.py", "cli/__init__.py", "launch/supervisor.py"}
    root = Path(haltune.__file__).resolve().parents[1]
    rooms = [root / room for room in ("core", "callbacks", "launch", "report", "bridges", "cli")]
    if not all(room.is_dir() for room in rooms):
        pytest.skip("not a checkout")
    found = []
    for path in sorted(path for room in rooms for path in room.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            said = ast.unparse(call.func)
            shown = [ast.unparse(a) for a in call.args]
            if said.split(".")[-1] in ("print", "echo", "secho") and name not in doors:
                fine = all(a.startswith(("visible(", "cell(", "_picture(", "table", "line(")) for a in shown)
                found += [] if fine else [f"{name}:{call.lineno} {ast.unparse(call)}"]
            if said in ("Text", "Text.from_markup", "warnings.warn") and name not in ("core/display.py",):
                fine = said == "warnings.warn" and "visible(text)" in shown[0]
                found += [] if fine else [f"{name}:{call.lineno} {ast.unparse(call)}"]
    assert found == []


# a notebook

TAGS = re.compile(r"</?(div|b|br|table|thead|tbody|tr|th|td|pre)( style=\"text-align:left\")?>")


def no_markup(html):
    """Check that it has no tag except haltune's own, no quote, and no control character."""
    rest = TAGS.sub(" ", html)
    assert not set(rest) & set("<>\"'\x1b\u202e"), rest
    return rest


def test_a_study_shows_its_trials_and_how_it_stands(study):
    shown = no_markup(study._repr_html_())
    assert "best acc]0;pwned".replace("]", "\\x1b]") in shown
    assert "&lt;b&gt;" in shown
    assert " 3 of 4 trials, 5 epochs, " in shown
    assert re.search(r" 0 +trained in full +3 +0\.5 +opt", shown)
    assert re.search(r" 1 +failed +1 +0\.125 ", shown)
