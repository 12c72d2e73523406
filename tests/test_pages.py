"""Pages that are programs: their blocks run from top to bottom, as a reader would paste them, with a small budget."""

import pytest
from documents import ROOT, blocks

SMALL = {  # what is put in the place of what would take long
    "start.md": {'"20 trials"': '"3 trials"', "explain(4)": "explain(1)"},
    "faq.md": {},
    "recipes/deadline.md": {
        '9, budget="5s")': '9, budget="5 trials")',
        'budget="5s", policy': 'budget="4 trials", policy',
    },
    "recipes/good_settings.md": {'"30 trials"': '"9 trials"'},
    "recipes/noise.md": {'"16 trials"': '"8 trials"', '"8 trials", policy': '"4 trials", policy'},
    "recipes/crash.md": {},
    "recipes/several_goals.md": {},
    "recipes/compare.md": {'"60 epochs"': '"20 epochs"'},
    "loops/plain.md": {'"12 trials"': '"3 trials"'},
    "scale/distributed.md": {},
    "scale/spot.md": {},
}  # fmt: skip
ELSEWHERE = {
    "loops/lightning.md",
    "loops/keras.md",
    "loops/transformers.md",
    "loops/xgboost.md",
    "recipes/hydra.md",
    "scale/ray.md",
}
SHOWN = {  # a part of what the page promises, on the terminal
    "start.md": "trial 1: ",
    "recipes/crash.md": "killed after 7 epochs, at trial and epoch (",
    "recipes/compare.md": "(3 searches, 5 seeds each)",
    "recipes/good_settings.md": "val_acc at least 0.9: ",
}


@pytest.mark.parametrize("page", SMALL)
def test_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    if page == "start.md":
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.chdir(tmp_path)
    names, code = {"__name__": "page"}, blocks(f"docs/{page}")
    left = dict(SMALL[page])
    for block in code:
        here = {ours: theirs for ours, theirs in left.items() if ours in block.text}
        block.run(names, here)
        left = {ours: theirs for ours, theirs in left.items() if ours not in here}
    assert left == {}
    assert names["study"].outcome.over
    assert names["study"].trials
    assert SHOWN.get(page, "") in capsys.readouterr().out


def test_every_page_that_is_a_program_is_run():
    rooms = ("loops", "scale", "recipes", "how")
    pages = [
        *(page for room in rooms for page in (ROOT / "docs" / room).glob("*.md")),
        ROOT / "docs/start.md",
        ROOT / "docs/faq.md",
    ]
    programs = {page.relative_to(ROOT / "docs").as_posix() for page in pages if blocks(page)}
    assert programs == set(SMALL) | ELSEWHERE
