"""The command line for a user without access to the database."""

from __future__ import annotations

import pytest
from other_user import as_another_user, needs_another_user, open_folder
from typer.testing import CliRunner

from haltune import Float, Study
from haltune.cli.app import app
from haltune.policies import RandomSearch

pytestmark = [needs_another_user, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_every_command_says_that_it_may_not_look():
    def said(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments])
        return f"{done.exit_code} {type(done.exception).__name__} {done.output}"

    with open_folder() as folder:
        path = folder / "private" / "a.db"
        path.parent.mkdir()
        study = Study({"x": Float(0, 1)}, "acc", path, max_epochs=1, policy=RandomSearch(trials=1), verbose=0)
        study.optimize(lambda trial: 0.5)
        study.store.close()
        (folder / "a.toml").write_text(
            '[study]\nstore = "private/a.db"\nmax_epochs = 1\n[goal]\nmaximize = "acc"\n[space]\nx = {float = [0, 1]}\n'
            "[budget]\ntrials = 1\n"
        )
        calls = [
            ["status"],
            ["best"],
            ["stop"],
            ["trials"],
            ["report", "-o", f"{folder}/x.html"],
            ["export"],
            ["resume"],
        ]
        for where in (path, folder / "a.toml"):  # and all that this imports
            for command, *options in calls:
                assert not said(command, str(where), *options).startswith("1 "), command
        path.parent.chmod(0o700)
        for where in (path, folder / "a.toml"):
            for command, *options in calls if where == path else calls[:1]:
                told = as_another_user(lambda c=command, o=options, w=where: said(c, str(w), *o))
                assert told.startswith("3 SystemExit"), (command, told)
                assert f"may not enter the folder {path.parent}" in told, (command, told)


def test_a_page_is_not_written_where_this_user_may_not():
    def said(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments])
        return f"{done.exit_code} {type(done.exception).__name__} {done.output}"

    with open_folder() as folder:
        path = folder / "a.db"
        study = Study({"x": Float(0, 1)}, "acc", path, max_epochs=1, policy=RandomSearch(trials=1), verbose=0)
        study.optimize(lambda trial: 0.5)
        study.store.close()
        (folder / "private" / "deeper").mkdir(parents=True)
        calls = [
            [command, str(path), "-o", f"{folder}/{where}/x"]
            for command in ("report", "export")
            for where in ("private", "private/deeper")
        ]
        for call in calls:
            assert said(*call).startswith("0 ")
        (folder / "private").chmod(0o700)
        for call in calls:
            told = as_another_user(lambda c=call: said(*c))
            assert told.startswith("2 SystemExit"), told
            assert f"annot write {call[-1]}: Permission denied" in told
