"""Rank 1 reads the same as rank 0 from a study, in every state of a search, under every policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from two_ranks import SUPPORT, run_ranks
from worlds import POLICIES

Said = dict[str, dict[str, dict[str, str]]]
SOME = ["truvar-level-set"]


def said(where: Path, *policies: str) -> tuple[Said, Said]:
    """Return the readings of rank 0 and rank 1: policy -> state -> reading -> answer."""
    run_ranks([str(SUPPORT / "rank_readings.py"), *policies], where, seconds=500, HALTUNE_RANK_TIMEOUT="200")
    first, second = (json.loads((where / f"said-{rank}.json").read_text()) for rank in range(2))
    return first, second


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> tuple[Said, Said]:
    return said(tmp_path_factory.mktemp("readings"), *SOME)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [*SOME, "whims"])
def test_rank_1_answers_every_question_as_rank_0_does(read: tuple[Said, Said], policy: str) -> None:
    first, second = read
    assert first[policy] == second[policy]


@pytest.mark.slow
def test_a_budget_that_is_spent_while_a_trial_is_paused_is_reported_on_rank_1(read: tuple[Said, Said]) -> None:
    states = read[1]["whims"]
    paused = states["trial 1, attempt 1 is paused"]
    assert "over=False" in paused["outcome"]  # Whims would continue with it
    assert "1 paused" in paused["summary"]
    assert not [a for answers in states.values() for a in answers.values() if a.startswith("AttributeError")]


@pytest.mark.slow
def test_rank_1_answers_as_rank_0_does_under_every_other_policy(tmp_path: Path) -> None:
    first, second = said(tmp_path, *(name for name in POLICIES if name not in SOME))
    assert first == second
