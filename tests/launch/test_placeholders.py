"""Placeholders: whatever the value, it reaches the program as it is."""

import json
import sys
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haltune import Float, Minimize, Problem, Space
from haltune.errors import InvalidInput
from haltune.launch.placeholders import ConfigFile, Texts, overrides, plain
from haltune.launch.programs import Program

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
VALUES = LEAVES | st.lists(LEAVES, max_size=3)
NAMES = st.text("abc_.-é ", min_size=1)


@given(
    st.dictionaries(NAMES, VALUES, min_size=1, max_size=4),
    st.text("ab{}$\"' -:=", max_size=9),
    st.text("ab-= ", max_size=5),
)
def test_a_word_holds_its_value_whatever_it_is_and_other_braces_are_text(config, text, head):
    names = list(config)
    texts = Texts([f"{head}{{{name}}}" for name in names], names, [])
    assert texts.words(config, {}) == [head + plain(value) for value in config.values()]
    assert [str(value) for value in Texts([f"{{{name}}}" for name in names], names, []).values(config, {})] == [
        str(value) for value in config.values()
    ]
    try:
        assert Texts([text], ["x"], []).words({"x": 1}, {}) == [text]
    except InvalidInput:
        assert (
            any(f"{{{name}}}" in text for name in ("a", "b", "ab", "ba", "aa", "bb", "a-", "b-", "b-a"))
            or "{a" in text
            or "{b" in text
        )


@given(
    st.dictionaries(NAMES.filter(lambda name: "." not in name), VALUES, max_size=4),
    st.sampled_from(["yaml", "json", "toml"]),
)
def test_a_configuration_file_is_read_as_it_was(config, format):
    yaml = pytest.importorskip("yaml")
    if format == "toml" and ("None" in str(config)):
        return
    text = ConfigFile(format=format).text(config, {})
    assert ({"yaml": yaml.safe_load, "json": json.loads, "toml": tomllib.loads}[format](text) or {}) == config


def test_a_text_of_the_base_that_some_take_for_a_number_keeps_its_quotes_or_none(tmp_path):
    pytest.importorskip("yaml")
    base = "lr: 2e-5\nname: '2e-5'\nversion: 1.2.3\nsizes:\n- 3x3\n- 0.5\n2e-5: 1e3\n"
    (tmp_path / "base.yaml").write_text(base)
    assert ConfigFile(base=tmp_path / "base.yaml").text({}, {}) == base
    changed = ConfigFile(base=tmp_path / "base.yaml").text({"lr": 1e-5, "name": "1e-5"}, {})
    assert changed == base.replace("lr: 2e-5", "lr: 1.0e-05").replace("name: '2e-5'", "name: '1e-5'")


def test_a_number_in_a_name_is_also_found_as_a_number_in_the_base(tmp_path):
    yaml = pytest.importorskip("yaml")
    (tmp_path / "base.yaml").write_text("groups: {0: {lr: 1}, '1': {lr: 1}}\nlayers: [{lr: 1}]\n")
    names = {"groups.0.lr": 2, "groups.1.lr": 3, "layers.0.lr": 4, "groups.2.lr": 5}
    text = ConfigFile(tmp_path / "base.yaml").text(names, {})
    assert yaml.safe_load(text) == {
        "groups": {0: {"lr": 2}, "1": {"lr": 3}, "2": {"lr": 5}}, "layers": [{"lr": 4}],
    }  # fmt: skip


def test_an_entry_with_an_absent_value_is_left_out_also_within_a_table():
    file = ConfigFile(format="toml", values={"a": "{x}", "b": {"c": "{x}", "d": {"e": "{y}"}}, "n": 1})
    texts = Texts(file.texts(), ["x", "y"], [])
    assert file.filled(texts.values({"y": 2}, {})) == {"b": {"d": {"e": 2}}, "n": 1}
    assert tomllib.loads(file.text({}, file.filled(texts.values({}, {})))) == {"b": {"d": {}}, "n": 1}


@given(VALUES)
def test_an_override_is_read_by_hydra_and_by_omegaconf_as_it_was(value):
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    from hydra.core.override_parser.types import QuotedString

    if "${" in str(value):
        return  # an interpolation, which Hydra resolves

    def unquoted(read):
        return (
            [*map(unquoted, read)] if isinstance(read, list) else read.text if isinstance(read, QuotedString) else read
        )

    (word,) = overrides({"model.size": value})
    read = unquoted(parser.parse_override(word).value())
    assert (read, type(read)) == (value, type(value))


@given(st.booleans(), st.booleans())
def test_an_absent_value_takes_its_option_along_and_nothing_else(resumes, active):
    words = ["run", "-v", "{lr}", "--resume", "{checkpoint}", "--k={k}", "--k", "{k}", "end"]
    own = {"checkpoint": "a b.ckpt" if resumes else None}
    got = Texts(words, ["lr", "k"], ["checkpoint"]).words({"lr": 0.1} | ({"k": 2} if active else {}), own)
    assert got == [
        "run", "-v", "0.1", *(["--resume", "a b.ckpt"] if resumes else []), *(["--k=2", "--k", "2"] if active else []),
        "end",
    ]  # fmt: skip


def test_only_a_program_with_a_configuration_file_in_yaml_needs_pyyaml(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    problem = Problem(Space({"lr": Float(0.0, 1.0)}), Minimize("loss"), max_epochs=3)
    Program((sys.executable, "--lr", "{lr}")).check(problem)
    Program((sys.executable, "{config}"), config=ConfigFile(format="json")).check(problem)
    with pytest.raises(InvalidInput, match="needs PyYAML"):
        Program((sys.executable, "{config}")).check(problem)
