"""Value maps from the command line."""

from typer.testing import CliRunner

from haltune.cli.app import app
from haltune.policies.autobct.value_maps import load_map


def test_a_map_that_was_built_is_read_back_with_what_was_asked_for(tmp_path):
    out = tmp_path / "map.npz"
    done = CliRunner().invoke(app, ["maps", "build", "--out", str(out), "--states", "120", "--seed", "3"])
    assert done.exit_code == 0, done.output
    header = load_map(out).header
    assert (header["dim"], header["depth"], header["states"]) == (1, 3, 120)
    assert f"{header['error']:.4f}" in done.stdout


def test_a_dimension_without_maps_is_refused_in_words(tmp_path):
    done = CliRunner().invoke(app, ["maps", "build", "--out", str(tmp_path / "map.npz"), "--dim", "3"])
    assert done.exit_code == 2
    assert "one or two coordinates" in done.stderr
