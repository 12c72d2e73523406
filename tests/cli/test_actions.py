"""`haltune watch`, `haltune track` and `haltune maps`: what they ask for, what they refuse and what they print."""

import os
import re
import sys
import threading
from types import ModuleType

import pytest
from typer.testing import CliRunner

from haltune import Float, Study
from haltune.cli.actions import kept_token
from haltune.cli.app import app
from haltune.errors import InvalidInput
from haltune.policies.autobct.value import load_map


def haltune(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def log(tmp_path):
    """A search of two trials that is over."""
    path = tmp_path / "a.db"
    study = Study({"lr": Float(0.01, 1.0)}, "loss", path, max_epochs=2, seed=0, budget="2 trials", verbose=0)
    for trial in study:
        for epoch in trial.epochs():
            trial.report(trial.config["lr"] / epoch)
    return path


def test_a_token_is_made_once_and_its_owner_alone_may_read_it(tmp_path):
    path = tmp_path / "token"
    token = kept_token(path)
    assert len(token) >= 20
    assert kept_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600
    assert kept_token(tmp_path / "other") != token
    with pytest.raises(InvalidInput, match="Cannot keep a token"):
        kept_token(tmp_path / "none" / "token")


@pytest.mark.skipif(os.name != "posix", reason="modes and owners of files")
def test_a_token_that_others_may_read_or_of_another_user_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "token"
    kept_token(path)
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        kept_token(path)
    path.chmod(0o600)
    if os.getuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr("os.getuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(InvalidInput, match="another user"):
        kept_token(path)


@pytest.mark.parametrize("text", ["", "a/../" * 10])
def test_what_is_no_token_is_refused(tmp_path, text):
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(InvalidInput, match="token"):
        kept_token(path)


def test_a_browser_is_started_with_a_ticket_and_not_with_the_token(log, monkeypatch):
    pytest.importorskip("uvicorn", reason="haltune watch serves with it")
    opened, begun, serves = [], threading.Event(), threading.Event()

    def a_browser_in_the_terminal(address):
        """It ends when it has seen the page."""
        opened.append(address)
        begun.set()
        assert serves.wait(60)

    def serving(server, sockets):
        serves.set()
        assert begun.wait(60)
        sockets[0].close()

    monkeypatch.setattr("webbrowser.open", a_browser_in_the_terminal)
    monkeypatch.setattr("uvicorn.Server.run", serving)
    said = haltune("watch", log, "--port", 0).output
    (address,) = opened
    assert address.rpartition("/0/")[1] == "/0/"
    token = address.split("/")[3]
    assert len(token) >= 20
    assert token not in said
    assert address.replace(token, "") == re.sub(r"(?<=\d/)[\w-]{20,}", "", re.search(r"http\S+", said)[0])


def test_a_tracker_gets_all_of_a_search_that_is_over(log, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))  # else it imports TensorFlow
    done = haltune("track", log)
    assert done.exit_code == 2
    assert "--mlflow URI, --wandb PROJECT or --tensorboard FOLDER" in done.stderr
    pytest.importorskip("tensorboard")
    done = haltune("track", log, "--tensorboard", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("logged 2 trials: the budget of 2 trials is spent")
    assert sorted(path.name for path in (tmp_path / "runs").glob("trial-*")) == ["trial-0", "trial-1"]


def test_a_map_that_was_built_is_read_back_with_what_was_asked_for(tmp_path):
    out = tmp_path / "map.npz"
    done = haltune("maps", "build", "--out", out, "--states", 120, "--seed", 3)
    assert done.exit_code == 0, done.output
    header = load_map(out).header
    assert (header["dim"], header["depth"], header["states"]) == (1, 3, 120)
    assert f"{header['error']:.4f}" in done.stdout
    done = haltune("maps", "build", "--out", out, "--dim", 3)
    assert done.exit_code == 2
    assert "one or two coordinates" in done.stderr
