"""The pages claim exactly the numbers of benchmarks/claims.toml; the runner reports those that changed."""

from __future__ import annotations

import importlib.util
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from documents import ROOT

pytest.importorskip("rich", reason="rich is not installed")


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    """Import benchmarks/claims.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("haltune_claims", ROOT / "benchmarks/claims.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_each_claim_is_named_once_and_says_how_it_was_measured(claims: ModuleType) -> None:
    listed = claims.read()
    assert len({claim.id for claim in listed}) == len(listed) > 15
    for claim in listed:
        assert claim.script.is_file(), f"{claim.id}: there is no {claim.script}"
        assert claim.command.startswith("python "), claim.id
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", claim.date), claim.id
        assert re.fullmatch(r"[0-9a-f]{7}", claim.commit), claim.id
        assert claim.machine in claims.machines(), claim.id
        assert claim.seconds > 0, claim.id
        for number in claim.numbers:
            assert re.compile(number.pattern, re.MULTILINE).groups == 1, f"{claim.id}: {number.name}"
            assert number.within >= 0, f"{claim.id}: {number.name}"
            assert number.claimed == number.claimed, f"{claim.id}: {number.name} is no number"


def test_each_sentence_still_stands_where_it_is_said(claims: ModuleType) -> None:
    gone = [(claim.id, said.file) for claim in claims.read() for said in claim.said if not said.stands()]
    assert gone == [], "change claims.toml with the page: the number, its date and its commit"


def test_each_number_is_said_by_a_sentence_of_its_claim(claims: ModuleType) -> None:
    for claim in claims.read():
        told = " ".join(said.text for said in claim.said)
        for number in claim.numbers:
            assert re.search(rf"(?<![\d.]){re.escape(number.says)}(?!\d)", told), f"{claim.id}: {number.says}"


def test_the_page_of_claims_is_written_from_the_table(claims: ModuleType) -> None:
    page = claims.README.read_text(encoding="utf-8")
    assert page == claims.written(page, claims.read()), "python benchmarks/claims.py --write"


def test_every_benchmark_that_a_page_names_is_there_and_has_its_claim(claims: ModuleType) -> None:
    """A page that names a script with a number claims its output; pages of experiments show the output."""
    scripts = {claim.script.relative_to(ROOT).as_posix() for claim in claims.read()}
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        name
        for page in pages
        if page.parent != ROOT / "docs" / "experiments"  # tests/test_site.py
        for name in re.findall(r"benchmarks/\w+/\w+\.py", page.read_text("utf-8"))
    }
    assert [name for name in named if not (ROOT / name).is_file()] == []
    told_to_run = {
        "benchmarks/speed/decide.py",
        "benchmarks/speed/frames.py",
        "benchmarks/speed/rollout.py",
        "benchmarks/speed/saving.py",
    }  # by who reads, on their machine
    assert named - scripts == told_to_run


WITHOUT = {30, 31, 34}  # rows by seconds, which differ between machines


def test_the_rows_of_the_papers_experiments_have_short_forms_of_ten_minutes_in_all(claims: ModuleType) -> None:
    page = (ROOT / "docs/experiments/index.md").read_text(encoding="utf-8")
    short = [claim for claim in claims.read() if claim.seconds < 60]  # those of make claims
    rows = [int(row) for row in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert len(set(rows)) == len(rows) > 60
    assert {row for claim in short for row in claim.rows} == set(rows) - WITHOUT
    assert sum(claim.seconds for claim in short) < 2 * 630  # about that: two commands at a time


FAKE = """
import sys
print("regret of random search 0.34±0.02")
print("2 regrets, 1,234 epochs")
sys.exit("--fail" in sys.argv and "the table is not there")
"""
TABLE = """
[machines]
cpu = "none"
[[claim]]
id = "a"
what = "A search"
command = "python {script}{more}"
seconds = {seconds}
date = 2026-01-01
commit = "0123456"
said = [{{ file = "README.md", text = "haltune" }}]
needs = {needs}
numbers = [
  {{ name = "regret", says = ".33", pattern = '^regret of random search ([\\d.]+)', within = {within}, error = 0.02 }},
  {{ name = "epochs", says = "many", value = 1234, pattern = '{pattern}', within = 0 }},
]
"""


@pytest.fixture
def tried(claims: ModuleType, tmp_path: Path):
    """Run a table of one claim; the exit code, and what was printed."""
    from rich.console import Console

    def run(
        *arguments: str, within=0.01, more="", needs="[]", seconds=1, pattern=r"([\d,]+) epochs"
    ) -> tuple[int, str]:
        (tmp_path / "fake.py").write_text(FAKE)
        told = {"within": within, "more": more, "needs": needs, "seconds": seconds, "pattern": pattern}
        (tmp_path / "claims.toml").write_text(TABLE.format(script=tmp_path / "fake.py", **told))
        shown = io.StringIO()
        code = claims.main(arguments, tmp_path / "claims.toml", Console(file=shown, width=120))
        return code, shown.getvalue()

    return run


def test_a_number_within_its_bound_holds(tried) -> None:
    code, shown = tried()
    assert code == 0
    assert "2 holds" in shown
    assert "0.34" in shown
    assert "1234" in shown


def test_a_number_beyond_its_bound_moved(tried) -> None:
    code, shown = tried(within=0.009)
    assert code == 1
    assert "1 moved, 1 holds" in shown


def test_what_cannot_run_here_is_neither_moved_nor_failed(tried) -> None:
    code, shown = tried(needs='["no_such_package"]')
    assert code == 0
    assert "Not checked: a (needs no_such_package)" in shown
    assert "1 not run" in shown
