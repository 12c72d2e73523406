"""What the data of a plain loop change, such as the order of a sampler, where a trial resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paused_studies import pausing_study

from haltune import HaltuneWarning, Trial

torch = pytest.importorskip("torch")
DataLoader, Dataset, Sampler = torch.utils.data.DataLoader, torch.utils.data.Dataset, torch.utils.data.Sampler


class Rows(Dataset):  # type: ignore[misc, valid-type]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


class Order(Sampler):  # type: ignore[misc, valid-type]
    """Turns its rows by one in each pass."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        if isinstance(self.rows, tuple):
            self.rows = (*self.rows[1:], self.rows[0])
        else:
            self.rows[:] = torch.roll(self.rows, 1) if isinstance(self.rows, torch.Tensor) else np.roll(self.rows, 1)
        return iter([int(row) for row in self.rows])


def trains(read: dict[int, list[list[int]]], loaders: Callable[[Trial], list[Any]]) -> Callable[[Trial], None]:
    """Return a loop that reads loaders, the last one never."""

    def train(trial: Trial) -> None:
        held: dict[str, Any] = {"loaders": loaders(trial)}
        if trial.checkpoint:
            json.loads(Path(trial.checkpoint).read_text())
        for epoch in trial.epochs():
            read.setdefault(trial.id, []).extend([int(i) for i in batch] for batch in held["loaders"][0])
            verdict = trial.report(1.0, epoch)
            trial.save(lambda path: path.write_text("[]"))
            if verdict.stops:
                break

    return train


@pytest.mark.parametrize(
    "rows",
    [
        lambda: [*range(8)],
        lambda: [*np.arange(8)],
        lambda: tuple(range(8)),
        lambda: np.arange(8),
        lambda: torch.arange(8),
    ],
)
def test_an_order_in_a_sampler_continues(rows: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    read: dict[str, dict[int, list[list[int]]]] = {}
    with caplog.at_level("INFO", "haltune"):
        for name, at in (("straight", ()), ("paused", (1, 3))):
            read[name] = {}
            train = trains(read[name], lambda trial: [DataLoader(Rows(), 4, sampler=Order(rows()))])
            pausing_study(at=at, epochs=4, trials=2).optimize(train)
    assert read["paused"] == read["straight"]
    assert len({str(batch) for batch in read["paused"][0]}) == len(read["paused"][0]) == 8
    assert not [text for text in caplog.messages if "order" in text]


def test_an_order_that_is_of_other_rows_where_a_trial_resumes_is_named(caplog: pytest.LogCaptureFixture) -> None:
    train = trains({}, lambda trial: [DataLoader(Rows(), 4, sampler=Order([*range(trial.attempt, 8 + trial.attempt)]))])
    with caplog.at_level("INFO", "haltune"):
        pausing_study(at=(2,), epochs=4, trials=1).optimize(train)
    (hint,) = [text for text in caplog.messages if "reorders" in text]
    assert "its program reorders held.loaders.0.sampler.rows. haltune does not restore that order" in hint


class OnDisk(Dataset):  # type: ignore[misc, valid-type]
    """Opens its file at the first reading in a process."""

    def __init__(self, path: Path) -> None:
        self.path, self.process, self.file, self.read = path, 0, None, 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if self.process != os.getpid():
            self.process, self.file = os.getpid(), self.path.open()
        self.read += 1
        self.file.seek(index)  # type: ignore[attr-defined]
        return int(self.file.read(1))  # type: ignore[attr-defined]


def test_the_numbers_of_data_that_have_opened_a_file_start_again_with_it(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("76543210")
    read: dict[int, list[list[int]]] = {}
    study = pausing_study(at=(2,), epochs=4, trials=1)
    study.optimize(trains(read, lambda trial: [DataLoader(OnDisk(tmp_path / "rows.txt"), 8)]))
    assert read[0] == 4 * [[*range(7, -1, -1)]]
    assert [(t.attempt, t.error) for t in study.trials] == [(2, None)]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_loop_that_reads_by_workers_that_persist_does_not_pause(first: bool) -> None:
    def loaders(trial: Trial) -> list[Any]:
        both = [DataLoader(Rows(), 4, num_workers=1, persistent_workers=True), DataLoader(Rows(), 4)]
        return both if first else both[::-1]  # the second one is for a test

    study = pausing_study(at=(2,), epochs=3, trials=1)
    if first:
        with pytest.warns(HaltuneWarning, match="the workers of held.loaders.0 persist, and no state has their random"):
            study.optimize(trains({}, loaders))
    else:
        study.optimize(trains({}, loaders))
    assert study.trials[0].attempt == (1 if first else 2)
