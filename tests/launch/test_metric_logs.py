"""Logs of programs as they grow: the rows do not depend on how the bytes arrive, nor on what happens to the file."""

import json
import math
import os
import shutil
import sqlite3
import struct
import sys
from contextlib import closing, nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haltune.errors import InvalidInput, NotSupported
from haltune.launch.log_formats import Csv, Events, JsonLines, Matched, MlflowMetric, WandbRuns
from haltune.launch.metric_logs import KINDS, Curve, Followed, MetricLog, Metrics, matching
from haltune.log.problem import Measures

NUMBERS = st.floats(width=32) | st.integers(-1000, 1000)
TABLES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12)
ACC = Measures("acc")


def pieces(data, cuts):
    """Return the bytes in pieces, cut at these shares of their length."""
    ends = sorted({int(share * len(data)) for share in cuts} | {len(data)})
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def rows_of(reader, parts):
    return [row for part in parts for row in reader.feed(part)] + list(reader.end())


def equal(a, b):
    return repr(a) == repr(b)


def record_of_events(step, name, value):
    """Return a record of TensorBoard: Event.step 2, summary 5, its value 1 with tag 1 and simple_value 2."""
    inner = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(inner)]) + inner
    event = b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
    return struct.pack("<Q", len(event)) + b"\0" * 4 + event + b"\0" * 4


def record_of_wandb(values):
    """Return W&B's record of a call of log, by its own protocol."""
    protocol = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    record = protocol.Record(num=7)
    for name, value in values.items():
        record.history.item.add(nested_key=[name], value_json=json.dumps(value))
    return record.SerializeToString()


def blocks(records):
    """Return records as a LevelDB log does: in pieces that fill blocks, behind W&B's header of the file."""
    data = b":W&B\xe1\xbe\x00"
    for record in records:
        first = True
        while first or record:
            left = 32768 - len(data) % 32768
            if left < 7:
                data, left = data + b"\0" * left, 32768
            piece, record = record[: left - 7], record[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not record]
            data += b"\0" * 4 + struct.pack("<HB", len(piece), kind) + piece
            first = False
    return data


def written(kind, table):
    """Return a reader, a log of a table in its format, and the rows that it holds."""
    rows = [{"epoch": float(a), "acc": float(b)} for a, b in table]
    if kind == "csv":
        text = "\ufeff epoch , acc\r\n" + "".join(f"{a!r},{b!r}\n" for a, b in table)
        return Csv({"acc"}), text.encode(), rows
    if kind == "jsonl":
        lines = (json.dumps({"epoch": a, "acc": b, "é": "text", "is": True}) for a, b in table)
        return JsonLines(), ("warming up\n" + "\n".join(lines)).encode(), rows
    if kind == "pattern":
        text = "\r".join(f"\x1b[32mepoch {a!r}\x1b[0m: acc={b!r}%é" for a, b in table)
        return Matched(Metrics(pattern=r"epoch (?P<epoch>\S+): acc=(?P<acc>[^%]+)").patterns), text.encode(), rows
    if kind == "mlflow":
        text = "".join(f"1700000000000 {b!r} {a!r}\n" for a, b in table)
        return MlflowMetric("acc"), text.encode(), [{"acc": row["acc"], "step": row["epoch"]} for row in rows]
    if kind == "wandb":
        records = [record_of_wandb({"epoch": a, "acc": b, "_runtime": 1.0, "is": "text " * 3000}) for a, b in table]
        return WandbRuns(), blocks(records), rows
    assert kind == "tensorboard", f"write a log of {kind} here"
    pytest.importorskip("tensorboard")
    steps = [(n + 1, struct.unpack("<f", struct.pack("<f", b))[0]) for n, (_, b) in enumerate(table)]
    data = b"".join(record_of_events(step, "acc", value) for step, value in steps)
    return Events(), data, [{"acc": value, "step": float(step)} for step, value in steps]


@pytest.mark.parametrize("kind", KINDS)
@given(TABLES, st.lists(st.floats(0, 1), max_size=8))
def test_rows_do_not_depend_on_the_pieces_in_which_bytes_arrive(kind, table, cuts):
    reader, data, rows = written(kind, table)
    got = rows_of(reader, pieces(data, cuts))
    assert equal([{n: row[n] for n in want} for row, want in zip(got, rows, strict=True)], rows)


class Counted(bytes):
    """Bytes that count what is cut out of them."""

    cut = 0

    def __radd__(self, before):
        return Counted(before + bytes(self))

    def __getitem__(self, place):
        found = super().__getitem__(place)
        if isinstance(place, slice):
            Counted.cut, found = Counted.cut + len(found), Counted(found)
        return found


@pytest.mark.parametrize("kind", ["tensorboard", "wandb"])
def test_a_file_of_many_records_is_cut_into_them_once(kind, monkeypatch):
    monkeypatch.setattr(Counted, "cut", 0)
    reader, data, rows = written(kind, [(float(n), 0.5) for n in range(100)])
    assert len(list(reader.feed(Counted(data)))) == len(rows)
    assert Counted.cut < 10 * len(data)


@pytest.mark.parametrize(
    "group",
    [
        r"[\d.]+",
        r"\d+\.\d+",
        r"-?\d*\.\d*",
        r"[\d.]*",
        r"\d+(?:\.\d+)?",
        r"(\d+)(\.(\d+))?",
        r"[\d.]+|nan",
        r"[\d.]+|-",
        r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?",
    ],
)
@pytest.mark.parametrize(
    ("text", "value"), [("0.25", 0.25), ("9.8e-05", 9.8e-05), ("nan", math.nan), ("inf", math.inf)]
)
def test_a_group_for_decimal_numbers_takes_the_whole_number_and_what_is_none(group, text, value):
    reader = Matched(Metrics(pattern=rf"loss: (?P<loss>{group})").patterns)
    assert equal(rows_of(reader, [f"loss: {text}, lr 1\nloss: info\n".encode()]), [{"loss": value}])
    reader = Matched(Metrics(pattern=rf"loss: (?P<loss>{group}), lr (?P<epoch>\d+)").patterns)
    assert equal(rows_of(reader, [f"loss: {text}, lr 1e5\n".encode()]), [{"loss": value, "epoch": 1.0}])


@pytest.mark.parametrize("group", [r"\S+", r"[^)]+", r"(?:\S+)", r"[^,)]*", r"\d+", r"[(\d]+"])
def test_other_groups_are_as_the_user_wrote_them(group):
    pattern = rf"loss=(?P<loss>{group})"
    assert [found.pattern for found in Metrics(pattern=pattern).patterns] == [pattern]


def test_a_group_within_another_one_with_a_name_takes_the_whole_number():
    reader = Matched(Metrics(pattern=r"(?P<row>at (?P<epoch>\d+): (?P<loss>[\d.]+))").patterns)
    assert rows_of(reader, [b"at 1: 9.8e-05\n"]) == [{"epoch": 1.0, "loss": 9.8e-05}]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("step 900, loss 0.5", {"step": 900.0, "loss": 0.5}),
        ("step 1,000, loss 0.5", {"step": 1000.0, "loss": 0.5}),
        ("step 1,048,576, loss 3", {"step": 1048576.0, "loss": 3.0}),
        ("step 1000, loss 1,125.50", {"step": 1000.0, "loss": 1125.5}),
        ("at 1,000 it has 0.5", {"step": 1000.0, "loss": 0.5}),
        ("[3,500] loss 0.5", {"step": 3.0, "loss": 0.5}),  # the pattern has the comma
        ("step 3, loss 0,95", {"step": 3.0}),  # 0 would be wrong
        ("step 3, loss -1,125", {"step": 3.0}),
        ("step 3, loss 0.5,0.75", {"step": 3.0, "loss": 0.5}),
        ("step 3, loss 2,0.75", {"step": 3.0, "loss": 2.0}),
        ("3,2,40", {"step": 3.0, "loss": 2.0}),
    ],
)
@pytest.mark.parametrize("steps", [r"\d+", r"[\d,]+"])
def test_a_number_with_a_comma_is_a_thousand_in_the_position_and_no_value(line, row, steps):
    patterns = [rf"step (?P<step>{steps})", r"loss (?P<loss>-?[\d.]+)", r"^(?P<step>\d+),(?P<loss>\d+)"]
    patterns += [rf"at (?P<step>{steps}).*has (?P<loss>[\d.]+)", r"\[(?P<step>\d+),\d+\]"]
    reader = Matched(Metrics(pattern=patterns, position="step").patterns, "step")
    assert rows_of(reader, [f"{line}\n".encode()]) == [row]


def test_a_group_with_two_values_in_a_line_is_noted(tmp_path):
    log = MetricLog(Metrics(pattern=r"acc=(?P<acc>\S+)"), ["acc"], tmp_path, tmp_path / "out")
    for line, twice in [("acc=0.5 and acc=0.5", None), ("acc=0.5 best acc=0.75", ("acc", "acc=0.5 best acc=0.75"))]:
        with (tmp_path / "out").open("a") as file:
            file.write(line + "\n")
        log.read()
        assert log.twice == twice


def test_an_object_of_json_counts_before_its_line_ends(tmp_path):
    path, got = tmp_path / "metrics.json", []
    followed = Followed(path, JsonLines())
    for epoch in (1, 2):
        path.write_text(json.dumps({"epoch": epoch, "val": {"acc": 0.5}}))
        os.utime(path, ns=(epoch, epoch))  # also where the clock of files is coarse
        got.append(followed.read())
    assert got == [[{"epoch": 1.0, "val.acc": 0.5}], [{"epoch": 2.0, "val.acc": 0.5}]]
    reader = JsonLines()
    assert [list(reader.feed(part)) for part in (b'{"val": {"acc": 0.5}', b', "epoch": 3}', b'\n{"epoch": 4}\n')] == [
        [], [{"val.acc": 0.5, "epoch": 3.0}], [{"epoch": 4.0}],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "step,name,value\n1,loss,2.0\n1,acc,0.5\n2,acc,nan\n",
        "Key\tValue\tstep\nloss\t2.0\t1\nacc\t0.5\t1\nacc\tnan\t2\n",
        '{"step": 1, "tag": "loss", "value": 2}\n{"step": 1, "tag": "acc", "value": 0.5}\n'
        '{"step": 2, "tag": "acc", "value": NaN}\n',
    ],
)
def test_in_a_log_with_a_row_for_each_metric_a_value_has_the_name_of_its_metric(text):
    reader = (JsonLines if text.startswith("{") else Csv)({"acc", "step"}, "step")
    rows = rows_of(reader, [text.encode()])
    assert equal(rows, [{"step": 1.0, "loss": 2.0}, {"step": 1.0, "acc": 0.5}, {"step": 2.0, "acc": math.nan}])
    assert set(reader.texts) <= {"step"}


@pytest.mark.parametrize("goal", ["acc", "value"])
def test_a_table_that_has_the_metric_as_a_column_may_have_columns_of_a_name_and_a_value(goal):
    rows = rows_of(Csv({goal}), [b"epoch,name,value,acc\n1,run-7,3,0.5\n2,acc,4,0.75\n"])
    assert rows == [{"epoch": 1.0, "value": 3.0, "acc": 0.5}, {"epoch": 2.0, "value": 4.0, "acc": 0.75}]


@given(TABLES, st.lists(st.floats(0, 1), max_size=8), st.sampled_from([None, 2]))
def test_objects_of_json_may_have_several_lines_or_be_in_a_list(table, cuts, indent):
    history = [{"epoch": a, "val": {"acc": b}, "tags": ["x", "y"]} for a, b in table]
    texts = [json.dumps(whole, indent=indent) for whole in (history, {"best": {"loss": 1}, "log_history": history})]
    texts.append("starts\n" + "\n".join(json.dumps(one, indent=indent) for one in history))
    for text in texts:
        rows = rows_of(JsonLines({"val.acc", "epoch"}, "epoch"), pieces(text.encode(), cuts))
        assert equal(rows, [{"epoch": float(a), "val.acc": float(b)} for a, b in table])


def test_objects_of_json_need_no_line_ends_between_them():
    parts = [b'{"acc": 1}{"acc": 2} {"acc": 3', b'}{"acc": {"x": 4}', b'}\n{"acc"', b': 5}\n{"acc": 6\n']
    reader = JsonLines()
    assert list(reader.feed(b'[{"x": 1},\n{"acc": 0},\n')) == [{"acc": 0.0}]  # of a list that is written row by row
    got = [row for part in parts for row in reader.feed(part)]
    assert got == [{"acc": 1.0}, {"acc": 2.0}, {"acc": 3.0}, {"acc.x": 4.0}, {"acc": 5.0}]
    assert (reader.torn, reader.lost) == ('{"acc": 6', 1)


def test_two_columns_of_a_table_with_the_name_of_a_metric_are_noted():
    for header, twice in [("epoch,loss,acc,loss", None), ("epoch,acc,acc", ("acc", "epoch,acc,acc"))]:
        reader = Csv({"acc"})
        rows_of(reader, [f"{header}\n1,2,3,4\n".encode()])
        assert reader.twice == twice


def test_a_comma_at_the_end_of_each_row_of_a_table_is_no_cell():
    reader = Csv({"acc"})
    assert rows_of(reader, [b"epoch,acc\n1,0.5,\n2,0.75,,\n3,0.8,1\n"]) == [
        {"epoch": 1.0, "acc": 0.5}, {"epoch": 2.0, "acc": 0.75},
    ]  # fmt: skip
    assert (reader.torn, reader.lost) == ("3,0.8,1", 1)


def test_a_table_of_classes_within_an_object_of_json_is_no_curve():
    row = {"epoch": 1, "loss": 0.5, "classes": [{"class": "cat", "acc": 0.1}, {"class": "dog", "acc": 0.2}]}
    assert rows_of(JsonLines({"acc", "epoch"}, "epoch"), [json.dumps(row).encode()]) == [{"epoch": 1.0, "loss": 0.5}]


def test_a_history_in_json_that_is_written_anew_repeats_no_row(tmp_path):
    path, got = tmp_path / "trainer_state.json", []
    followed = Followed(path, JsonLines({"eval_loss", "epoch"}, "epoch"))
    rows = [row for n in range(1, 4) for row in ({"loss": 1.0, "epoch": n - 0.5}, {"eval_loss": 0.5, "epoch": n})]
    for epochs in (1, 2, 3):
        path.write_text(json.dumps({"epoch": epochs, "log_history": rows[: 2 * epochs], "step": epochs}, indent=2))
        os.utime(path, ns=(epochs, epochs))  # also where the clock of files is coarse
        got += followed.read()
    assert got == rows


def test_a_history_in_json_that_is_written_anew_next_to_a_backup_repeats_no_row(tmp_path):
    path, got = tmp_path / "history.json", []
    followed = Followed(path, JsonLines({"acc"}))
    for count in (1, 2, 3):
        if count > 1:
            path.rename(tmp_path / "history.json.bak")
        path.write_text(json.dumps([{"acc": n / 10} for n in range(1, count + 1)]))
        got += followed.read()
    assert got == [{"acc": 0.1}, {"acc": 0.2}, {"acc": 0.3}]


@given(TABLES, st.lists(st.floats(0, 1), max_size=6), st.booleans())
def test_a_file_that_is_written_anew_repeats_no_row(tmp_path_factory, table, cuts, in_place):
    path = tmp_path_factory.mktemp("log") / "log.csv"
    followed, got = Followed(path, Csv({"acc"})), []
    lines = ["epoch,acc", *(f"{n},{b!r}" for n, (_, b) in enumerate(table))]
    for share in [*sorted(cuts), 1.0]:
        wide = f",loss{share}"  # a new column, for which the whole file is written again
        text = "".join(
            f"{line}{wide if n == 0 else ',0.5'}\n" for n, line in enumerate(lines[: 1 + int(share * len(table))])
        )
        if in_place:
            path.write_text(text)
        else:
            path.with_suffix(".new").write_text(text)
            os.replace(path.with_suffix(".new"), path)
        got += followed.read()
    assert equal([(row["epoch"], row["acc"]) for row in got], [(float(n), float(b)) for n, (_, b) in enumerate(table)])


def test_a_file_that_holds_only_the_last_row_is_read_each_time(tmp_path):
    path, got = tmp_path / "last.json", []
    followed = Followed(path, JsonLines())
    for epoch in (1, 2, 3):
        path.write_text(json.dumps({"epoch": epoch}) + "\n")
        os.utime(path, ns=(epoch, epoch))  # also where the clock of files is coarse
        got += followed.read()
    assert got == [{"epoch": 1.0}, {"epoch": 2.0}, {"epoch": 3.0}]


def test_a_rotated_file_counts_after_the_one_before(tmp_path):
    path = tmp_path / "log.csv"
    log = MetricLog(Metrics(csv="*.csv"), ["acc"], tmp_path, tmp_path / "out")
    curve = Curve(Metrics(csv="*.csv"), ACC)
    path.write_text("acc\n0.1\n0.2\n")
    got = [place for row in log.read() for place, _ in curve.add(row)]
    path.write_text("acc\n0.3\n")
    got += [place for row in log.read() for place, _ in curve.add(row)]
    assert got == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("path", ["train.log", "train.log*"])
@pytest.mark.parametrize("late", [False, True])
def test_the_last_rows_of_a_file_that_is_renamed_count_once_and_before_those_of_the_next_one(tmp_path, path, late):
    looks = iter(float(99**n) for n in range(1, 99)).__next__
    metrics = Metrics(pattern=r"acc (?P<acc>\S+)", file=path)
    log = MetricLog(metrics, ["acc"], tmp_path, tmp_path / "out", looks)
    file, wanted = tmp_path / "train.log", [0.5, 0.5]
    file.write_text("acc 0.5\nacc 0.5\n")
    got = log.read()
    for n in (1, 2):
        with file.open("a") as before:
            before.write(f"acc 0.6{n}\n")
            before.flush()
            if n == 2:
                (tmp_path / "train.log.1").rename(tmp_path / "train.log.2")
            file.rename(tmp_path / "train.log.1")
            if late:  # another program renames it, and this one still writes there
                got += log.read()
                before.write(f"acc 0.7{n}\n")
        file.write_text(f"acc 0.{n}\n")
        got += log.read()
        wanted += [0.6 + n / 100, *([0.7 + n / 100] if late else []), n / 10]
    assert [row["acc"] for row in got] == pytest.approx(wanted)


ROTATIONS = {  # what happens to a log after its n-th row
    "a new empty file": lambda log, n: (log.rename(log.with_name(f"log.csv.{n}")), log.touch()),
    "no new file": lambda log, n: log.rename(log.with_name(f"log-{n}.csv")),
    "any name": lambda log, n: (log.rename(log.with_name(f"old{n}-log.csv")), log.touch()),
    "a date": lambda log, n: log.rename(log.with_name(f"log.2026-12-0{n}_10-11-12.csv")),
    "copied and cut": lambda log, n: (shutil.copy(log, log.with_name(f"log.csv.{n}")), os.truncate(log, 0)),
    "shifted": lambda log, n: [
        *(log.with_name(f"log.csv.{m}").rename(log.with_name(f"log.csv.{m + 1}")) for m in range(n - 1, 0, -1)),
        log.rename(log.with_name("log.csv.1")),
    ],
}


@pytest.mark.parametrize("path", ["log.csv", "*log*.csv*"])
@pytest.mark.parametrize("looks", [1, 2, 3])  # a look after each so many rows
@pytest.mark.parametrize("rotate", ROTATIONS.values(), ids=ROTATIONS)
def test_a_file_that_is_renamed_after_each_row_loses_none(tmp_path, rotate, looks, path):
    days = iter(float(99**n) for n in range(1, 99)).__next__
    log, file = MetricLog(Metrics(csv=path), ["acc"], tmp_path, tmp_path / "out", days), tmp_path / "log.csv"
    file.write_text("acc\n0.0\n")
    got = log.read()
    for n in range(1, 7):
        old = file.exists() and file.stat().st_size
        with file.open("a") as rows:
            rows.write(f"{'' if old else f'acc{chr(10)}'}{n / 10}\n")
        os.utime(file, ns=(n, n))  # also where the clock of files is coarse
        rotate(file, n)
        got += log.read() if n % looks == 0 else []
    assert [row["acc"] for row in [*got, *log.read(whole=True)]] == [n / 10 for n in range(7)]


def test_a_file_that_was_renamed_before_the_first_look_is_read_unless_it_is_of_an_earlier_attempt(tmp_path):
    (tmp_path / "log.jsonl.2").write_text('{"acc": 0.1}\n')
    log = MetricLog(Metrics(jsonl="log.jsonl"), ["acc"], tmp_path, tmp_path / "out")
    (tmp_path / "log.jsonl.1").write_text('{"acc": 0.2}\n')
    (tmp_path / "log.jsonl").touch()
    assert log.read(whole=True) == [{"acc": 0.2}]


def test_a_file_of_another_rank_is_not_read_for_an_earlier_one(tmp_path):
    log = MetricLog(Metrics(csv="log.csv"), ["acc"], tmp_path, tmp_path / "out")
    for number in (1, 2, 3):
        for name in ("log.csv", "log.csv.1"):
            (tmp_path / name).write_text("acc\n" + "".join(f"{n}\n" for n in range(number)))
        assert log.read() == [{"acc": number - 1.0}]


def test_the_last_rows_of_a_file_that_is_renamed_at_the_end_count(tmp_path):
    log = MetricLog(Metrics(csv="log.csv"), ["acc"], tmp_path, tmp_path / "out")
    (tmp_path / "log.csv").write_text("acc\n0.1\n")
    got = log.read()
    with (tmp_path / "log.csv").open("a") as file:
        file.write("0.2\n0.3")
    (tmp_path / "log.csv").rename(tmp_path / "done.csv")
    assert [row["acc"] for row in [*got, *log.read(whole=True)]] == [0.1, 0.2, 0.3]


def test_a_file_that_is_renamed_before_its_first_row_counts_at_its_new_place(tmp_path):
    log = MetricLog(Metrics(csv="*.csv"), ["acc"], tmp_path, tmp_path / "out")
    (tmp_path / "new.csv").touch()
    assert log.read(whole=True) == []
    (tmp_path / "new.csv").rename(tmp_path / "log.csv")
    (tmp_path / "log.csv").write_text("acc\n0.5\n")
    assert log.read(whole=True) == [{"acc": 0.5}]


@pytest.mark.parametrize(
    "texts",
    [
        ("epoch;acc\n1;0.1\n", "2;0.2\n", "epoch;loss;acc\n3;1;0.3\n"),
        ("epoch,name,value\n1,acc,0.1\n", "2,acc,0.2\n", "epoch,host,name,value\n3,a,acc,0.3\n"),
    ],
)
def test_a_table_that_continues_in_a_next_file_needs_no_second_header(tmp_path, texts):
    path = tmp_path / "log.csv"
    followed, got = Followed(path, Csv({"acc", "epoch"}, "epoch")), []
    for text in texts:
        path.write_text(text)
        got += followed.read()
        path.rename(tmp_path / "log.csv.1")
    assert [(row["epoch"], row["acc"]) for row in got] == [(1.0, 0.1), (2.0, 0.2), (3.0, 0.3)]


def test_a_file_that_is_seen_twice_while_it_is_written_again_repeats_no_row(tmp_path):
    path, got = tmp_path / "log.csv", []
    followed = Followed(path, Csv({"acc"}))
    for count in (4, 2, 1, 5):
        path.write_text("acc\n" + "".join(f"0.{n}\n" for n in range(1, count + 1)))
        os.utime(path, ns=(count, count))  # also where the clock of files is coarse
        got += followed.read()
    assert [row["acc"] for row in got] == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_file_that_a_link_leads_to_as_well_counts_once(tmp_path):
    log = MetricLog(Metrics(csv="runs/*/log.csv"), ["acc"], tmp_path, tmp_path / "out")
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "latest").symlink_to("one")
    (tmp_path / "runs" / "one" / "log.csv").write_text("acc\n0.1\n0.2\n")
    assert log.read(whole=True) == [{"acc": 0.1}, {"acc": 0.2}]
    assert log.files_with("acc") == ["runs/one/log.csv"]


def test_what_an_earlier_attempt_left_does_not_count_and_its_torn_line_spoils_none(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,acc\n1,0.1\n2,0.2\n3,0.")
    log = MetricLog(Metrics(csv="log.csv"), ["acc"], tmp_path, tmp_path / "out")
    with path.open("a") as file:
        file.write("2,0.25\n3,0.3\n")
    assert [(row["epoch"], row["acc"]) for row in log.read()] == [(2, 0.25), (3, 0.3)]


def test_files_that_come_late_are_found_and_a_header_may_change(tmp_path):
    metrics, days = (
        Metrics(csv="logs/**/metrics.csv", position="epoch"),
        iter(float(99**n) for n in range(1, 99)).__next__,
    )
    log = MetricLog(metrics, ["acc"], tmp_path, tmp_path / "out", days)
    assert log.read() == []
    (tmp_path / "logs" / "version_0").mkdir(parents=True)
    (tmp_path / "logs" / "version_0" / "metrics.csv").write_text("epoch,loss\n1,2.0\nepoch,loss,acc\n1,,0.5\n2,1,nan")
    rows = log.read()
    assert rows == [{"epoch": 1.0, "loss": 2.0}, {"epoch": 1.0, "acc": 0.5}]
    (last,) = log.read(whole=True)
    assert math.isnan(last["acc"])
    assert log.names == ["acc", "epoch", "loss"]


@pytest.mark.parametrize("before", ["Training started, on cpu\n", "run 3; seed 1\n", "#\n# run 3\n# epoch, loss\n", ""])
@pytest.mark.parametrize(("mark", "ending"), [(",", "\n"), ("\t", "\r\n"), (";", "\n"), ("  ", "\n")])
@pytest.mark.parametrize("comment", ["", "# "])
def test_a_table_is_found_behind_other_lines_in_a_file(before, mark, ending, comment):
    table = [f"{comment}epoch", "acc"], ["1", "0.5"], ["# the best acc", "so far"], ["2", "0.75"]
    text = before + "".join(mark.join(row) + ending for row in table)
    rows = rows_of(Csv({"acc"}), [text.encode()])
    assert rows == [{"epoch": 1.0, "acc": 0.5}, {"epoch": 2.0, "acc": 0.75}]


def test_the_index_of_pandas_is_no_metric():
    assert rows_of(Csv({"acc"}), [b",epoch,acc\n0,1,0.5\n1,2,0.75\n"]) == [
        {"epoch": 1.0, "acc": 0.5}, {"epoch": 2.0, "acc": 0.75},
    ]  # fmt: skip
    assert rows_of(Csv({"acc"}), [b",epoch,acc\n0,1,0.5\n,epoch,loss,acc\n0,2,1,0.75\n"]) == [
        {"epoch": 1.0, "acc": 0.5}, {"epoch": 2.0, "loss": 1.0, "acc": 0.75},
    ]  # fmt: skip


def test_a_database_of_mlflow_is_read_as_it_grows(tmp_path):
    log, curve = (
        make(Metrics(mlflow="*.db"), *more) for make, *more in ((MetricLog, ["acc"], tmp_path, tmp_path), (Curve, ACC))
    )
    got = []
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        for step in (1, 2, 3, 4):
            if step == 2:  # after the file exists
                database.execute("CREATE TABLE metrics (key TEXT, value FLOAT, step INTEGER, is_nan BOOLEAN)")
            if step > 1:
                value = -sys.float_info.max if step == 4 else step / 10  # MLflow's infinity
                database.execute("INSERT INTO metrics VALUES ('acc', ?, ?, ?)", (value, step, step == 3))
            database.commit()
            got += [(place, row["acc"]) for row in log.read(whole=True) for place, row in curve.add(row)]
    assert equal(got, [(2.0, 0.2), (3.0, math.nan), (4.0, -math.inf)])


def test_a_folder_that_the_program_deletes_during_a_look_does_not_end_the_search(tmp_path, monkeypatch):
    run = tmp_path / "mlruns" / "run"
    (run / "metrics").mkdir(parents=True)
    (run / "metrics" / "acc").write_text("1700000000000 0.5 1\n")
    (run / "artifacts").mkdir()
    scandir = os.scandir

    def deletes(path="."):
        if str(path) == str(run / "artifacts"):
            shutil.rmtree(path, ignore_errors=True)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deletes)
    log = MetricLog(Metrics(mlflow="mlruns"), ["acc"], tmp_path, tmp_path / "out.log")
    (run / "metrics" / "loss").write_text("1700000000000 0.25 1\n")
    assert log.read() in ([], [{"loss": 0.25, "step": 1.0}])
    assert not (run / "artifacts").exists()


def test_a_metric_of_mlflow_may_be_called_after_its_folder(tmp_path):
    log = MetricLog(Metrics(mlflow="mlruns"), ["metrics/mAP50"], tmp_path, tmp_path / "out.log")
    folder = tmp_path / "mlruns" / "0" / "run" / "metrics" / "metrics"
    folder.mkdir(parents=True)
    (folder / "mAP50").write_text("1700000000000 0.5 1\n")
    assert log.read() == [{"metrics/mAP50": 0.5, "step": 1.0}]


def test_rows_that_an_earlier_attempt_left_in_a_database_of_mlflow_do_not_count_again(tmp_path):
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        database.execute("CREATE TABLE metrics (key TEXT, value FLOAT, step INTEGER, is_nan BOOLEAN)")
        database.execute("INSERT INTO metrics VALUES ('acc', 0.1, 2, 0)")
        database.commit()
        log = MetricLog(Metrics(mlflow="*.db"), ["acc"], tmp_path, tmp_path)
        database.execute("INSERT INTO metrics VALUES ('acc', 0.2, 3, 0)")
        database.commit()
    assert log.began == 2.0
    assert log.read() == [{"acc": 0.2, "step": 3.0}]


@pytest.mark.parametrize("cut", [False, True])
def test_a_last_line_without_an_end_does_not_count_if_the_program_was_killed(tmp_path, cut):
    log = MetricLog(Metrics(csv="log.csv"), ["acc"], tmp_path, tmp_path / "out")
    (tmp_path / "log.csv").write_text("epoch,acc\n1,0.25\n2,0.5")  # of 0.55, perhaps
    assert [row["acc"] for row in log.read(whole=True, cut=cut)] == [0.25] + [0.5] * (not cut)


def test_what_an_earlier_attempt_printed_does_not_count_again_but_shows_where_its_log_began(tmp_path):
    metrics, out = Metrics(pattern=r"epoch (?P<epoch>\d+) acc (?P<acc>\S+)", position="epoch"), tmp_path / "out"
    out.write_text("epoch 1 acc 0.1\nepoch 2 acc 0.2\nepoch 3 ac")
    log = MetricLog(metrics, ["acc"], tmp_path, out)
    with out.open("a") as file:
        file.write("epoch 2 acc 0.3\n")
    assert log.began == 1.0
    assert log.read() == [{"epoch": 2.0, "acc": 0.3}]


def test_tensorboard_and_mlflow_log_a_position_in_epochs_as_one_more_metric(tmp_path):
    (tmp_path / "mlruns" / "0" / "run" / "metrics" / "val").mkdir(parents=True)
    metrics = Metrics(mlflow="mlruns", position="epoch", first=0)
    log, curve = MetricLog(metrics, ["val/acc"], tmp_path, tmp_path / "out"), Curve(metrics, Measures("val/acc"))
    for step in (10, 20):
        for name, value in (("val/acc", step / 100), ("epoch", step // 10 - 1)):
            with (tmp_path / "mlruns" / "0" / "run" / "metrics" / name).open("a") as file:
                file.write(f"1700000000000 {value} {step}\n")
    got = [(place, row["val/acc"]) for row in log.read() for place, row in curve.add(row)]
    assert got == [(1.0, 0.1), (2.0, 0.2)]


@pytest.mark.parametrize(("rows", "again"), [([(1.0, 0.51), (1.5, None)], False), ([(0.5, None), (1.0, 0.5)], True)])
def test_a_program_that_evaluates_before_it_continues_does_not_start_again(tmp_path, rows, again):
    def write(rows):
        with (tmp_path / "log.jsonl").open("a") as file:
            for epoch, acc in rows:
                file.write(json.dumps({"epoch": epoch} | ({} if acc is None else {"acc": acc})) + "\n")

    metrics = Metrics(jsonl="log.jsonl", position="epoch", first=1)
    write([(0.0, 0.1)] * (not again) + [(0.5, None), (1.0, 0.5)])
    log = MetricLog(metrics, ["acc"], tmp_path, tmp_path / "out")
    seconds = iter((0.0, 9.0, 18.0)).__next__
    curve = Curve(metrics, ACC, 1.0, [(1.0, 0.5, 9.0)], began=log.began, now=seconds)
    write([*rows, (2.0, 0.7)])
    got = [(place, row["acc"]) for row in log.read() for place, row in curve.add(row)]
    assert (got, curve.again) == ([(1.0, 0.5)] * again + [(2.0, 0.7)], again)


def resumed(rows, values, seconds=10.0, **options):
    """Return the curve of a program that resumes, with its reports of rows: (seconds since its start, epoch, acc)."""
    clock = [0.0]
    earlier = [(float(epoch), acc, seconds) for epoch, acc in values.items()]
    metrics = Metrics(csv="x", position="epoch")
    curve = Curve(metrics, ACC, earlier[-1][0], earlier, began=1.0, now=lambda: clock[0], **options)
    got = []
    for clock[0], epoch, acc in rows:
        got += curve.add({"epoch": float(epoch), "loss": 0.5} | ({} if acc is None else {"acc": acc}))
    return curve, [(place, row["acc"]) for place, row in got]


def test_a_program_that_repeats_its_log_when_it_resumes_does_not_train_again():
    history = [(1.0, epoch, epoch / 10) for epoch in (1, 2, 3)]
    curve, got = resumed([*history, (11.0, 4, 0.4)], {1: 0.1, 2: 0.2, 3: 0.3})
    assert (got, curve.again) == ([(4.0, 0.4)], False)


def test_a_program_that_repeats_its_only_epoch_when_it_resumes_does_not_train_again():
    curve, got = resumed([(1.0, 1, 0.1), (11.0, 2, 0.2)], {1: 0.1})
    assert (got, curve.again) == ([(2.0, 0.2)], False)


@pytest.mark.parametrize(
    ("wrote", "first", "second", "again"),
    [(False, 9, 13, False), (True, 9, 13, True), (None, 9, 13, True), (None, 6, 10, False), (None, 19, 19, False)],
)
def test_a_first_row_that_a_program_repeats_is_judged_by_its_checkpoint_or_its_time(wrote, first, second, again):
    """A program may print the state that it loads. It may also write its whole log together with its next row."""
    curve, got = resumed([(first, 1, 0.1), (second, 2, 0.2)], {1: 0.1}, wrote=lambda position: wrote)
    assert (got, curve.again) == ([(1.0, 0.1)] * again + [(2.0, 0.2)], again)


def test_a_program_that_continues_before_the_end_of_its_log_and_writes_it_again_loses_no_row(tmp_path):
    path, rows = tmp_path / "history.json", [{"epoch": float(n), "acc": n / 10} for n in (1, 2, 3)]
    path.write_text(json.dumps(rows))  # it was ended after epoch 3, and paused at 1
    log, got = MetricLog(Metrics(jsonl="history.json", position="epoch"), ["acc"], tmp_path, tmp_path / "out"), []
    for count in (2, 3):
        path.write_text(json.dumps(rows[:count]))
        os.utime(path, ns=(count, count))  # also where the clock of files is coarse
        got += log.read()
    assert got == rows


@pytest.mark.parametrize("second", [0.2, 0.21])
def test_a_program_that_trains_again_is_known_at_its_second_row(second):
    curve, got = resumed([(12.0, 1, 0.1), (22.0, 2, second)], {1: 0.1, 2: 0.2, 3: 0.3})
    assert (got, curve.again) == ([(1.0, 0.1), (2.0, second)], True)


def test_a_resumed_program_that_counts_from_1_and_first_evaluates_at_a_later_epoch_is_refused():
    # it evaluates in the first epoch and in each fifth one
    rows = [(float(epoch), epoch, None) for epoch in (1, 2, 3, 4)]
    with pytest.raises(NotSupported, match=r"its log starts at epoch 1 again: at 5 acc is 0\.9, and was 0\.5"):
        resumed([*rows, (5.0, 5, 0.9)], {1: 0.1, 5: 0.5})


@pytest.mark.parametrize(("value", "differs"), [(0.9, 0.9), (0.5001, None), (0.5, None)])
def test_another_value_where_a_program_continues_is_pointed_out(value, differs):
    curve, got = resumed([(5.0, 5, value), (6.0, 6, 0.6)], {1: 0.1, 5: 0.5})
    assert (curve.differs, got) == (differs, [(6.0, 0.6)])


@pytest.mark.parametrize(("places", "late"), [((1, 3, 2), (2.0, 3.0)), ((1, 2, 1), None), ((0.5, 1, 2), None)])
def test_a_value_that_comes_after_that_of_a_later_position_is_noted(places, late):
    curve = Curve(Metrics(csv="x", position="epoch"), ACC, 0.5)
    for place in places:
        curve.add({"epoch": float(place), "acc": 0.5})
    assert curve.late == late


def test_files_of_the_same_time_are_read_by_their_numbers(tmp_path):
    for n in (10, 9, 1):
        (tmp_path / f"epoch_{n}.json").write_text("{}")
        os.utime(tmp_path / f"epoch_{n}.json", ns=(7, 7))
    assert [path.name for path in matching(tmp_path, "*")] == ["epoch_1.json", "epoch_9.json", "epoch_10.json"]


def test_a_resumed_program_that_evaluates_first_continues_also_if_the_start_of_its_log_was_renamed():
    earlier = [(float(n), n / 10, 10.0) for n in range(1, 6)]
    curve = Curve(Metrics(csv="x", position="epoch"), ACC, 5.0, earlier, began=5.0)
    got = [report for row in ({"epoch": 5.0, "acc": 0.55}, {"epoch": 6.0, "acc": 0.6}) for report in curve.add(row)]
    assert (got, curve.differs, curve.again) == ([(6.0, {"acc": 0.6})], 0.55, False)


@pytest.mark.parametrize(("second", "repeated"), [((0.1, 0.2, 0.3), None), ((0.1, 0.25, 0.3), 2.0)])
def test_another_value_of_any_earlier_epoch_is_noted(second, repeated):
    """A rewritten log repeats its values; a second training, or steps that start again in each epoch, do not."""
    curve = Curve(Metrics(csv="x", position="epoch"), ACC)
    rows = [(epoch + 1.0, acc) for values in ((0.1, 0.2, 0.3), second) for epoch, acc in enumerate(values)]
    assert sum(len(curve.add({"epoch": epoch, "acc": acc})) for epoch, acc in rows) == 3
    assert curve.repeated == repeated


@pytest.mark.parametrize("early", [False, True])
def test_a_value_in_a_line_of_its_own_after_epoch_0_asks_for_the_first_epoch(early):
    """Unless values come before their epochs, which the end of the log shows."""
    curve = Curve(Metrics(pattern=[r"Epoch (?P<epoch>\d+)", r"acc (?P<acc>\S+)"], position="epoch"), ACC)
    for row in [{"acc": 0.1}] * early + [{"epoch": 0.0}]:
        assert curve.add(row) == []
    with nullcontext() if early else pytest.raises(InvalidInput, match=r"acc in the log has epoch 0.* first = 0"):
        assert curve.add({"acc": 0.5}) == []


@pytest.mark.parametrize("place", [{}, {"epoch": 0.0}, {"epoch": 1.0}, {"epoch": math.nan}])
def test_a_constraint_may_be_logged_before_the_first_epoch(place):
    curve = Curve(Metrics(csv="x", position="epoch"), Measures("acc", (), ("size",)))
    got = [report for row in (place | {"size": 3.0}, {"epoch": 1.0, "acc": 0.5}) for report in curve.add(row)]
    assert got == [(1.0, {"acc": 0.5, "size": 3.0})]


@pytest.mark.parametrize(
    ("evaluated", "last"),
    [
        ((1, 2), 2.0),
        ((1,), None),  # the first epoch, and then each tenth
        ((1, 2, 3, 4), None),
        ((2, 4), None),
        ((3,), None),
        ((), None),
        ((1, 2, 3, 4, 5, 6, 7, 8), None),
    ],
)
def test_a_goal_that_does_not_come_any_more_is_missed(evaluated, last):
    curve = Curve(Metrics(csv="x", position="epoch"), ACC)
    for epoch in range(1, 7 if len(evaluated) == 4 else 9):
        curve.add({"epoch": float(epoch), "loss": 0.5} | ({"acc": 0.5} if epoch in evaluated else {}))
    assert curve.missed == last


@pytest.mark.parametrize(
    ("evaluated", "gap"),
    [
        ((1, 2, 5), (2.0, 5.0)),
        ((10, 20, 40), (20.0, 40.0)),
        ((5, 10, 15), None),
        ((1, 5, 10), None),  # the first epoch, and each fifth one
        ((1, 2, 4, 8), (2.0, 4.0)),
        ((1, 3, 4, 8), None),  # as it improves
        ((3,), None),
    ],
)
@pytest.mark.parametrize("trains", [False, True])  # a row in each epoch, also without the goal
def test_a_gap_between_positions_is_one_after_regular_ones_and_without_a_row(evaluated, gap, trains):
    curve = Curve(Metrics(csv="x", position="epoch"), ACC)
    for epoch in range(1, max(evaluated) + 1):
        if trains or epoch in evaluated:
            curve.add({"epoch": float(epoch), "loss": 0.5} | ({"acc": 0.5} if epoch in evaluated else {}))
        if curve.gap is not None:
            break
    assert curve.gap == (None if trains else gap)


def test_metrics_that_follow_the_goal_in_the_same_epoch_are_recorded_too():
    curve = Curve(Metrics(csv="x", position="epoch"), ACC)
    rows = [{"epoch": n, name: n + 0.5} for n in (1.0, 2.0) for name in ("loss", "acc", "f1")]
    got = [report for row in [*rows, {"epoch": 2.0, "f1": 9.0}] for report in curve.add(row)]
    assert got == [(n, {"loss": n + 0.5, "acc": n + 0.5, "f1": n + 0.5}) for n in (1.0, 2.0)]


@given(st.permutations(["acc", "f1", "size"]), st.integers(1, 5), st.integers(0, 4))
def test_a_position_counts_once_it_has_every_goal_and_later_than_the_resume(names, epochs, after):
    curve = Curve(Metrics(csv="x", position="epoch"), Measures("acc", ("f1",), ("size",)), float(after), known=())
    got = []
    for epoch in range(1, epochs + 1):
        for name in names:
            if name != "size" or epoch == after + 1:  # a constraint is logged once
                got += curve.add({"epoch": float(epoch), name: epoch + 0.5})
        got += curve.add({"epoch": float(epoch), "acc": epoch + 0.5, "f1": epoch + 0.5})  # twice
    assert [place for place, _ in got] == [float(e) for e in range(after + 1, epochs + 1)]
    assert all(row["acc"] == row["f1"] == place + 0.5 for place, row in got)
