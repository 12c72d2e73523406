"""A study file describes a whole search; errors name the line."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import many
from haltune import Budget, Checkpointing, Choice, Constant, Constraint, Float, Int, Maximize, Minimize, Space, Storage
from haltune.cli.study_file import read
from haltune.errors import HaltuneError, InvalidInput
from haltune.policies import BOBOS, GPUCB, Halting, Hyperband, OptimalStopping

GOOD = """# a search
[study]
max_epochs = 30
seed = 4

[goal]
maximize = "val_acc"
bounds = [0, 1]

[space]
lr = { float = [1e-4, 1e-1], log = true }
kernel = { choice = [
    "rbf",
    "lr = 3",
] }
degree = { int = [2, 5], when = { kernel = "rbf" } }
wide = { int = ["degree", 9], when = { degree = [">", 2] } }
batch = 64

[policy]
name = "BOBOS"

[budget]
time = "30min"
"""


def test_a_minimum_of_epochs_and_the_settings_of_optimal_stopping_are_read(file):
    policy = '"BOBOS"\nstopping = { reference_curves = false }'
    found = read(file(("max_epochs = 30", "max_epochs = 30\nmin_epochs = 4"), ('"BOBOS"', policy)))
    assert found.problem.min_epochs == 4
    assert not found.policy.stopping.reference_curves
    with pytest.raises(InvalidInput, match=r"line 4.*min_epochs=40 is above max_epochs=30"):
        read(file(("max_epochs = 30", "max_epochs = 30\nmin_epochs = 40")))


def test_a_goal_is_smoothed_and_ranked_by_another_metric(file):
    goal = 'minimize = "loss"\nsmooth = ["median", 9]\nrank_by = "eval_loss"'
    found = read(file(('maximize = "val_acc"\nbounds = [0, 1]', goal)))
    assert found.problem.goal == Minimize("loss", smooth=("median", 9), rank_by="eval_loss")
    with pytest.raises(InvalidInput, match=r"goal\.smooth"):
        read(file(('maximize = "val_acc"', 'maximize = "val_acc"\nsmooth = -1')))


def test_a_study_file_counts_steps_or_another_unit(file):
    steps = file(("max_epochs = 30", "max_steps = 3000\njudge_every = 100"), ('time = "30min"', "steps = 90_000"))
    found = read(steps)
    assert (found.problem.unit, found.problem.max_epochs, found.problem.judge_every) == ("step", 3000, 100)
    assert found.budget.epochs == 90_000
    games = file(("max_epochs = 30", 'max_epochs = 500\nunit = "game"'), ('time = "30min"', "games = 9000"))
    assert (read(games).problem.unit, read(games).budget.epochs) == ("game", 9000)
    with pytest.raises(InvalidInput, match="counts in one unit"):
        read(file(("max_epochs = 30", "max_epochs = 30\nmax_tokens = 9")))
    with pytest.raises(InvalidInput, match=r"budget.epochs"):
        read(file(("max_epochs = 30", "max_steps = 3000"), ('time = "30min"', "epochs = 90")))


@pytest.fixture
def file(tmp_path):
    """Writes a study file, by default the good one with some of its text replaced."""

    def write(*replaced, text=GOOD):
        for old, new in replaced:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / "digits.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_file_is_read_as_it_says(file, tmp_path):
    study = read(file())
    assert study.problem.max_epochs == 30
    assert study.problem.goal == Maximize("val_acc", (0, 1))
    assert study.problem.space == Space(
        {
            "lr": Float(1e-4, 1e-1, log=True),
            "kernel": Choice(["rbf", "lr = 3"]),
            "degree": Int(2, 5, when={"kernel": "rbf"}),
            "wide": Int("degree", 9, when={"degree": (">", 2)}),
            "batch": Constant(64),
        }
    )
    assert study.policy == BOBOS()
    assert study.budget == Budget(time=1800)
    storage = Storage(f"sqlite:///{tmp_path / 'digits.db'}")
    assert study.options == {"seed": 4, "store": storage, "checkpoints": Checkpointing()}


def test_configurations_to_start_with_are_part_of_the_problem(file):
    first = '[[start]]\nlr = 1e-3\nkernel = "lr = 3"\n[[start]]\nlr = 0.1\nkernel = "lr = 3"\n\n[policy]'
    study = read(file(("[policy]", first)))
    assert [dict(config) for config in study.problem.start] == [
        {"lr": lr, "kernel": "lr = 3", "batch": 64} for lr in (1e-3, 0.1)
    ]


def test_store_and_checkpoints_are_tables_too(file, tmp_path):
    kept = 'checkpoints = { folder = "ck", keep = 3 }'
    study = read(file(("seed = 4", f"store = {{ lease = 120 }}\n{kept}"))).open()
    assert (study.session.settings.store.lease, study.checkpoints.keep) == (120.0, 3)
    assert study.checkpoints.folder.is_relative_to(tmp_path / "ck")
    found = read(file(("seed = 4", 'store = { url = "a.db", lease = 30 }')))
    assert found.options["store"] == Storage(f"sqlite:///{tmp_path / 'a.db'}", lease=30)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("sqlite:///runs/other.db", "sqlite:///{}/runs/other.db"),
        ("/var/other.db", "sqlite:////var/other.db"),
        ("postgresql+psycopg://u:p@host/d", "postgresql+psycopg://u:p@host/d"),
    ],
)
def test_a_store_is_next_to_the_study_file_from_any_working_directory(said, meant, file, tmp_path, monkeypatch):
    path = file(("seed = 4", f'store = "{said}"'))
    monkeypatch.chdir("/")
    assert read(path).store == meant.format(tmp_path)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert read("../digits.toml").store.replace("/below/..", "") == meant.format(tmp_path)


def test_a_search_written_down_learns_from_an_earlier_one(file, tmp_path):
    text = '[study]\nmax_epochs = 3\nstore = "one.db"\n[goal]\nmaximize = "a"\n[space]\nx = { float = [0, 1] }\n'
    for name, more in (("one", ""), ("two", 'learn_from = ["one.db"]\n')):
        said = text.replace("one", name, 1).replace("[study]\n", f"[study]\n{more}")
        study = read(file(text=said)).open(Budget(trials=2))
        for trial in study:
            for epoch in trial.epochs():
                trial.report(trial.config["x"] * epoch)
            trial.finish()
    assert [(e.name, e.trials) for e in study.policy.learn_from] == [("study", 2)]


def test_policies_within_policies_and_their_stopping_are_read(file):
    text = 'name = "Halting"\npolicy = { name = "Hyperband", eta = 2 }\nstopping = { first = 4, mode = "faithful" }'
    study = read(file(('name = "BOBOS"', text)))
    assert study.policy == Halting(Hyperband(eta=2), OptimalStopping("faithful", first=4))
    nested = 'name = "Hyperband"\n[policy.sampler]\nname = "GPUCB"\ninitial = 3'
    assert read(file(('name = "BOBOS"', nested))).policy == Hyperband(sampler=GPUCB(initial=3))


ERRORS = [
    ("[goal]", "[gaol]", 6, "unknown key. Perhaps you mean 'goal'"),
    ("max_epochs = 30", 'maximize = "val_acc"', 3, "unknown key. It belongs under [goal]"),
    ("max_epochs = 30", "max_epoch = 30", 3, "Perhaps you mean 'max_epochs'"),
    ("[policy]", "[[start]]\nlr = 0.01\n\n[policy]", 20, "has no 'kernel'"),
    ("[policy]", "[start]\nlr = 0.01\n\n[policy]", 20, "two brackets, [[start]]"),
    ('name = "BOBOS"', 'name = "Halting"', 21, 'Add a table [policy.policy] with it, such as name = "RandomSearch"'),
    ("seed = 4", 'learn_from = [{ store = "a.db" }]', 4, "For a store with several studies"),
    ("seed = 4", 'checkpoints = { disk_quota = "lots" }', 4, "'20GB'"),
    ("seed = 4", "store = { path = 'a.db' }", 4, "Known keys: url, lease"),
    ('maximize = "val_acc"', 'maximize = "val_acc"\nminimize = "loss"', 6, "write either maximize"),
    ("bounds = [0, 1]", "bounds = [1, 0]", 8, "the smaller first"),
    ("float = [1e-4, 1e-1]", "float = [1e-1, 1e-4]", 11, "1e-1|0.1"),
    ("{ float = [1e-4, 1e-1], log = true }", "[1e-4, 1e-1]", 11, "is ambiguous"),
    ("{ float = [1e-4, 1e-1], log = true }", "{ floats = [1e-4, 1e-1] }", 11, "must have exactly one type"),
    ("log = true", "logs = true", 11, "Perhaps you mean 'log'"),
    ('kernel = "rbf"', 'kernel = "linear"', 16, "'kernel' is never 'linear'"),
    ('name = "BOBOS"', 'name = "BoBos"', 21, "no policy 'BoBos'. Perhaps you mean 'BOBOS'"),
    ('name = "BOBOS"', 'name = "BOBOS"\nintial = 3', 22, "Perhaps you mean 'initial'"),
    ('time = "30min"', 'time = "30min"\n[study.policy]\nname = "BOBOS"', 25, "Write the table as [policy]"),
    ('time = "30min"', 'time = "half an hour"', 24, "Use a positive duration"),
    ('time = "30min"', 'time = "30min', 24, "(at line 24, column"),
]


@pytest.mark.parametrize(("old", "new", "line", "teaches"), ERRORS, ids=[f"{e[1]!r}" for e in ERRORS])
def test_an_error_names_the_line_and_says_what_to_do(old, new, line, teaches, file):
    with pytest.raises(InvalidInput) as caught:
        read(file((old, new)))
    text = str(caught.value)
    assert f"line {line}" in text, text
    assert any(part in text for part in teaches.split("|")), text
    assert "digits.toml" in text


def test_a_missing_table_a_missing_file_and_what_is_not_utf8_are_reported(file, tmp_path):
    with pytest.raises(InvalidInput, match=r"the table \[goal\] is missing. Add it, such as \[goal\]"):
        read(file(text="[space]\nx = 1\n"))
    with pytest.raises(InvalidInput, match="there is no study file"):
        read(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'[goal]\nmaximize = "pr\xe9cision"')
    with pytest.raises(InvalidInput, match="utf-8"):
        read(tmp_path / "latin.toml")


def test_a_search_that_would_never_end_is_refused_when_it_is_opened(file):
    study = read(file(('time = "30min"', "")))
    with pytest.raises(InvalidInput, match=r"digits.toml: BOBOS never ends by itself. Add a \[budget\]"):
        study.open()
    assert study.open(Budget(trials=3)).budget.trials == 3


# -- any space --------------------------------------------------------------------------------

NAMES = st.text(min_size=1, max_size=6).filter(lambda name: name == name.strip())


def reads_as_number(name):
    try:
        float(name)
    except ValueError:
        return False
    return True


VALUES = st.booleans() | st.integers(-9, 9) | st.floats(-3, 3).map(lambda x: x + 0.0) | st.text(max_size=5)


def spoken(value):
    """A value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        return "".join(f"\\u{ord(c):04x}" if 0x80 <= ord(c) < 0xA0 else c for c in text)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(spoken, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{spoken(k)} = {spoken(v)}' for k, v in value.items())} }}"
    return repr(value)


def written(space):
    """A space as the table of a study file."""
    lines = []
    for name, d in space.parameters.items():
        if isinstance(d, Choice):
            table = {"choice": list(d.options), "ordered": d.ordered}
        elif isinstance(d, Constant):
            table = {"constant": d.value}
        else:
            table = {"float" if isinstance(d, Float) else "int": [d.low, d.high], "log": d.log}
        lines.append(f"{spoken(name)} = {spoken(table | ({'when': dict(d.when)} if d.when else {}))}\n")
    return "".join(lines)


@st.composite
def spaces(draw):
    found = {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=5, unique=True)):
        when = draw(conditions(found))
        kind = draw(st.sampled_from(["float", "int", "choice", "constant"]))
        low = draw(st.integers(1, 50))
        bounds = (n for n, d in found.items() if type(d) is Int and d.high == 99 and not reads_as_number(n))
        bound = draw(st.sampled_from([None, *bounds]))
        if kind == "float":
            found[name] = Float(low / 7, low / 7 + draw(st.floats(0, 9)), log=draw(st.booleans()), when=when)
        elif kind == "int":
            found[name] = Int(low, 99, log=draw(st.booleans()), when=when) if bound is None else Int(1, bound)
        elif kind == "choice":
            options = draw(st.lists(VALUES, min_size=1, max_size=4, unique_by=lambda v: repr(level(v))))
            found[name] = Choice(options, ordered=draw(st.booleans()), when=when)
        else:
            found[name] = Constant(draw(VALUES | st.lists(VALUES, max_size=3)), when=when)
    return Space(found)


@st.composite
def conditions(draw, found):
    parents = {n: d for n, d in found.items() if not isinstance(d, Constant)}
    if not parents or draw(st.booleans()):
        return None
    name = draw(st.sampled_from(sorted(parents)))
    parent = parents[name]
    if isinstance(parent, Choice):
        return {name: draw(st.lists(st.sampled_from(parent.options), min_size=1, unique_by=repr))}
    if isinstance(parent.low, str) or isinstance(parent.high, str):
        return None
    return {name: draw(st.sampled_from([(">=", parent.low), [("<=", parent.high), parent.low], parent.low]))}


def level(value):
    return int(value) if isinstance(value, float) and value.is_integer() else value


@settings(max_examples=many(60), deadline=None)
@given(space=spaces())
def test_a_space_written_down_is_read_back_equal(space, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "space.toml"
    path.write_text('[goal]\nmaximize = "acc"\n[space]\n' + written(space), encoding="utf-8", newline="")
    assert read(path).problem.space == space


@settings(max_examples=many(40), deadline=None)
@given(space=spaces(), data=st.data())
def test_the_line_of_a_parameter_is_found_whatever_stands_around_it(space, data, tmp_path_factory):
    lines = written(space).split("\n")[:-1]
    at = data.draw(st.integers(0, len(lines)))
    noise = data.draw(st.sampled_from(["", "# wrong = 1\n\n", 'text = """\n[goal]\nwrong = 1\n"""\n']))
    text = '[goal]\nmaximize = "acc"\n[space]\n' + noise + "\n".join([*lines[:at], "wrong = [1, 2]", *lines[at:]])
    path = tmp_path_factory.getbasetemp() / "space.toml"
    path.write_text(text + "\n", encoding="utf-8", newline="")
    line = text.split("\n").index("wrong = [1, 2]") + 1
    with pytest.raises(InvalidInput, match=rf"line {line}: space.wrong: .*is ambiguous"):
        read(path)


# -- files that no editor of ours wrote ------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GOOD.encode("utf-16"), "text in UTF-8"),
        (b"a = " + b"[" * 50_000 + b"]" * 50_000, "nested too deep"),
        (GOOD.replace("batch = 64", "batch = 9" + "9" * 40).encode(), "line 18: space.batch: a whole number of"),
        (GOOD.replace("seed = 4", 'store = "\\u0000"').encode(), "line 4: study.store: .*without the character 0"),
        (
            GOOD.replace("seed = 4", 'seed = 4\nbudget = "2 trials"').encode(),
            r"line 5: study.budget: use a table \[budget\]",
        ),
    ],
)
def test_a_file_that_cannot_be_meant_is_a_sentence_with_its_place(content, says, tmp_path):
    path = tmp_path / "digits.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=says) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("path", ["", "a\0b.toml", "/"])
def test_a_place_where_no_study_file_is_is_a_sentence(path):
    with pytest.raises(InvalidInput):
        read(path)


_ODD = [
    '""', '"x"', "0", "-1", "1.5", "nan", "inf", "1e400", "9" * 400, str(2**63 - 1), "true", "[]", "[1]", "[[1]]",
    '[1, "a"]', "{}", "{a = 1}", "1979-05-27", "07:32:00", '["a", "a"]', "[nan, nan]", "[2, 1]", "{ float = 1 }",
    "{ int = [1.5, 2] }", "{ float = [0, 1], log = true }", "{ float = [0, 1], when = 3 }", "{ choice = [] }",
    "{ float = [0, 1], when = { kernel = [] } }", "{ choice = [1979-05-27] }", "{ choice = [[1, 2], [3]] }",
    "{ constant = {a=1} }", '"BOBOS"', '"Nope"', "{ name = 3 }", '"sqlite://"', '"nonsense://x"', '"://"', '"-1GB"',
]  # fmt: skip
_LINES = [n for n, line in enumerate(GOOD.split("\n")) if " = " in line and '"lr = 3"' not in line]


@settings(max_examples=many(60), deadline=None)
@given(data=st.data())
def test_a_file_that_somebody_mistyped_is_read_or_a_sentence(data, tmp_path_factory):
    lines = GOOD.split("\n")
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.sampled_from(_LINES))
        key = lines[at].partition(" = ")[0]
        lines[at] = data.draw(
            st.sampled_from([f"{key} = {value}" for value in _ODD] + ["", key, f"{key} =", f"[{key}]"])
        )
    raw = bytearray("\n".join(lines).encode())
    for at in data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=2)):
        raw[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "mistyped.toml"
    path.write_bytes(raw)
    with suppress(HaltuneError):
        assert read(path).store


def test_several_goals_and_constraints_are_read(file):
    found = read(
        file(
            text='[study]\nmax_epochs = 3\n[[goal]]\nmaximize = "val_acc"\nbounds = [0, 1]\n[[goal]]\nminimize = "ms"\n'
            "[constraints]\nparams = { at_most = 5e6 }\n[space]\nlr = { float = [1e-4, 1e-1] }\n"
        )
    )
    assert found.problem.goals == (Maximize("val_acc", (0, 1)), Minimize("ms"))
    assert found.problem.constraints == (Constraint("params", at_most=5e6),)


@pytest.mark.parametrize(
    ("goal", "limits", "says"),
    [
        ('[[goal]]\nmaximize = "a"\n[[goal]]\nminimize = "a"', "", "two goals have the metric 'a'"),
        ('[goal]\nmaximize = "a"', "[constraints]\nparams = 5", "at_most = 5e6"),
    ],
)
def test_goals_and_constraints_that_cannot_be_meant_are_a_sentence(goal, limits, says, file):
    with pytest.raises(InvalidInput, match=says):
        read(file(text=f"[study]\nmax_epochs = 3\n{goal}\n{limits}\n[space]\nlr = {{ float = [1e-4, 1e-1] }}\n"))
