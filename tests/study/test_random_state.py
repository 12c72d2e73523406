"""The random state of a plain loop, and of what comes before it: a trial that resumes draws as without a pause."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import itertools
import json
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paused_studies import pausing_study

from haltune import Finish, Float, Study, Trial
from haltune._utils.own_generators import generators_in
from haltune._utils.randomness import capture
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import InvalidInput
from haltune.log.events import Status

SEEDS = itertools.count()


def draws() -> list[float]:
    return [random.random(), float(np.random.random())]  # noqa: NPY002 (as programs do)


def study_of(folder: Path, at: tuple[int, ...]) -> Study:
    return pausing_study(f"{folder}/{at}.db", at=at, epochs=5, trials=2, folder=folder / "states", verbose=0)


def saves_after(trial: Trial) -> list[float]:
    drawn = load(trial)
    for _ in trial.epochs():
        drawn += draws()
        verdict = trial.report(drawn[-1])
        trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
        draws()  # an evaluation after the save
        if verdict.stops:
            break
    return drawn


def saves_before(trial: Trial) -> list[float]:
    drawn = load(trial)
    for _ in trial.epochs():
        drawn += draws()
        trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
        trial.report(draws()[0])
    return drawn


def saves_at_once(trial: Trial) -> list[float]:
    drawn = load(trial)
    for _ in trial.epochs():
        drawn += draws()
        if trial.report(drawn[-1]).stops:
            trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
    return drawn


def over_folds(trial: Trial) -> list[float]:
    drawn: list[float] = []
    for fold in trial.folds(2):
        drawn = load(fold)
        for _ in fold.epochs():
            drawn += draws()
            fold.report(drawn[-1])
            fold.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
    return drawn


def saves_at_halves(trial: Trial) -> list[float]:
    drawn = load(trial)
    for epoch in trial.epochs():
        if trial.epoch < epoch - 0.5:
            drawn += draws()
            trial.report(drawn[-1], epoch - 0.5)
            trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
        drawn += draws()
        trial.report(drawn[-1], epoch)
    return drawn


HELD: list[Iterator[int]] = []


def holds_its_iterator(trial: Trial) -> list[float]:
    draws()  # the weights of a new model
    drawn = load(trial)
    HELD[:] = [trial.epochs()]  # closes that of the trial before; a progress bar does the same
    for _ in HELD[0]:
        drawn += draws()
        trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
        if trial.report(draws()[0]).stops:
            break
    return drawn


def saves_between_loops(trial: Trial) -> list[float]:
    drawn = load(trial)
    if trial.epoch < 3:
        for epoch in trial.epochs():
            drawn += draws()
            if trial.report(drawn[-1]).stops or epoch == 3:
                break
        trial.save(lambda path: path.write_text(json.dumps(drawn)))
    for _ in trial.epochs():
        drawn += draws()
        trial.report(drawn[-1])
    return drawn


def splits_at_random(trial: Trial) -> list[float]:
    held_out = draws()  # before it reads its state, as a split of the data, or features of a random net
    drawn = load(trial)
    for _ in trial.epochs():
        drawn += draws()
        trial.report(drawn[-1])
        trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
    return held_out + drawn


def splits_for_its_folds(trial: Trial) -> list[float]:
    ends = draws()
    for fold in trial.folds(2):
        held_out, drawn = draws(), load(fold)
        for _ in fold.epochs():
            drawn += held_out + draws()
            fold.report(drawn[-1])
            fold.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
        ends = ends[:2] + held_out + drawn
    return ends


def load(trial: Trial) -> list[float]:
    return json.loads(Path(trial.checkpoint).read_text()) if trial.checkpoint else []


class Rows:
    """A data set that augments its rows by a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)


class Wrapper:
    def __init__(self, env: Any) -> None:
        self.env = env


def draws_from_an_environment(trial: Trial) -> list[float]:
    drawn, env = load(trial), Wrapper(Wrapper(Wrapper(Wrapper(Rows(trial.id)))))
    for epoch in trial.epochs():
        drawn += [*env.env.env.env.env.rng.random(epoch)]
        trial.report(drawn[-1])
        trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
    return drawn


class Holds:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


def loader_of(seed: int) -> Any:
    """Return a loader whose data are transformed as by MONAI: transforms of dicts draw from others within them."""
    shift, affine = Holds(shifter=Rows(seed)), Holds(affine=Holds(grid=Rows(9)))
    several = Holds(transforms=[Holds(transforms=(Holds(), shift)), affine])
    return Holds(dataset=Holds(dataset=Holds(transform=several, rows=[[i] for i in range(100)])))


def draws_from_a_transform_within_a_transform(trial: Trial) -> list[float]:
    drawn, loader = load(trial), loader_of(trial.id)
    for epoch in trial.epochs():
        several, affine = loader.dataset.dataset.transform.transforms
        drawn += [*several.transforms[1].shifter.rng.random(epoch), affine.affine.grid.rng.random()]
        del several, affine
        if trial.report(drawn[-1]).stops:
            trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
    return drawn


def draws_from_generators_of_its_own(trial: Trial) -> list[float]:
    drawn, rng, rows, unused = load(trial), random.Random(trial.id), Rows(trial.id), np.random.default_rng(0)
    for epoch in trial.epochs():
        drawn += [rng.random(), *rows.rng.random(epoch)]
        if trial.report(drawn[-1]).stops:
            trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
    return [*drawn, float(unused.random())]


class Foam:
    rng = np.random.default_rng(7)


def crest() -> float:
    return float(noises.waves.random() + Foam.rng.random())


def draws_from_generators_of_classes_and_of_a_module_that_it_imports(trial: Trial) -> list[float]:
    vars(noises)["waves"], Foam.rng, Waves.tides = (np.random.default_rng([trial.id, n]) for n in range(3))
    drawn, waves = load(trial), Waves()
    for _ in trial.epochs():
        drawn += [crest(), waves()]
        if trial.report(drawn[-1]).stops:
            trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
    return drawn


def leaves_a_loop_in_a_variable_by_break(trial: Trial) -> list[float]:
    drawn, rng, epochs = load(trial), random.Random(trial.id), trial.epochs()
    for _ in epochs:
        drawn.append(rng.random())
        verdict = trial.report(drawn[-1])
        trial.save(lambda path: path.write_text(json.dumps(drawn)))
        if verdict.stops:
            break  # the iterator is closed when this function has ended
    return drawn


def draws_in_a_loop_of_haltune_from_generators_of_its_own(trial: Trial) -> list[float]:
    drawn, rows = load(trial), [Rows(trial.id), Rows(9)]
    loop = TrainingLoop(trial, save=lambda path: path.write_text(json.dumps(drawn)))
    for _ in loop:
        drawn += [one.rng.random() for one in rows]
        loop.report(drawn[-1])
    return drawn


def restores_its_generator_itself(trial: Trial) -> list[float]:
    drawn, rng = load(trial), np.random.default_rng(trial.id)
    for _ in range(int(trial.epoch)):
        rng.permutation(7)
    for _ in trial.epochs():
        drawn += [int(i) for i in rng.permutation(7)]
        if trial.report(drawn[-1]).stops:
            trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
    return drawn


PROGRAMS: list[Any] = [
    draws_from_generators_of_its_own,
    draws_from_generators_of_classes_and_of_a_module_that_it_imports,
    draws_in_a_loop_of_haltune_from_generators_of_its_own,
    saves_after,
    saves_before,
    saves_at_halves,
    splits_for_its_folds,
    *(
        pytest.param(program, marks=pytest.mark.slow)
        for program in (
            draws_from_an_environment,
            draws_from_a_transform_within_a_transform,
            leaves_a_loop_in_a_variable_by_break,
            restores_its_generator_itself,
            saves_between_loops,
            holds_its_iterator,
            splits_at_random,
        )
    ),
]


@pytest.mark.parametrize("reopened", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_plain_loop_that_resumes_draws_as_without_a_pause(
    program: Callable[[Trial], list[float]], reopened: bool, tmp_path: Path
) -> None:
    ends: dict[bool, dict[int, list[float]]] = {True: {}, False: {}}
    for pauses in (False, True):
        study = study_of(tmp_path, (2, 4) if pauses else ())
        while isinstance(trial := study.ask(), Trial):
            random.seed(trial.id if trial.attempt == 1 else f"another process {next(SEEDS)}")
            np.random.seed(trial.id if trial.attempt == 1 else 1000 + next(SEEDS))  # noqa: NPY002
            with trial:
                ends[pauses][trial.id] = program(trial)
            study = study_of(tmp_path, (2, 4) if pauses else ()) if reopened else study
        if pauses:
            assert {t.attempt for t in study.trials} == {3}
    assert len(ends[True]) == 2
    assert ends[True] == ends[False]


@pytest.mark.parametrize("own_loop", [True, False])
def test_data_that_a_loop_shuffles_in_place_are_named_when_it_resumes(
    own_loop: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(trial: Trial) -> None:
        texts, history, made, data = [f"text {i}" for i in range(9)], [0, 1], [0, 1, 2], Holds(rows=[*range(300, 320)])
        same, numbers, index, rng = data.rows, np.ones(12), np.arange(12), np.random.default_rng(trial.id)
        ragged = np.array([[1], [1, 2]], dtype=object)
        load(trial)
        loop = trial.epochs() if own_loop else TrainingLoop(trial, save=lambda path: path.write_text("[]"))
        for _ in loop:
            random.shuffle(texts)
            random.shuffle(same)
            rng.shuffle(index)
            history.append(random.randrange(999))
            history.reverse()
            made = random.sample(made, 3)
            numbers *= 2
            ragged[0] = [*texts]
            trial.report(0.5) if own_loop else loop.report(0.5)
            if own_loop:
                trial.save(lambda path: path.write_text("[]"))

    with caplog.at_level("INFO", "haltune"):
        pausing_study(at=(2,), epochs=4, trials=2, folder=tmp_path).optimize(train)
    (hint,) = [text for text in caplog.messages if "reorders" in text]
    assert "Trial 0 has resumed after epoch 2, and its program reorders data.rows, index, texts. haltune" in hint


@pytest.mark.parametrize("own_loop", [True, False])
def test_an_iterator_from_which_a_loop_reads_on_is_named_when_it_resumes(
    own_loop: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(trial: Trial) -> None:
        data = [*range(9)]
        passes, skipped, looked_at = (itertools.cycle(data) for _ in range(3))
        colours, rows = itertools.cycle("rgb"), (row for row in data)
        next(looked_at)
        load(trial)
        for _ in range(int(trial.epoch)):
            next(skipped)
        loop = trial.epochs() if own_loop else TrainingLoop(trial, save=lambda path: path.write_text("[]"))
        for _ in loop:
            made = iter(data)
            value = float(next(passes) + next(skipped) + next(rows) + next(made) + len(next(colours)))
            trial.report(value) if own_loop else loop.report(value)
            if own_loop:
                trial.save(lambda path: path.write_text("[]"))

    with caplog.at_level("INFO", "haltune"):
        pausing_study(at=(2,), epochs=4, trials=2, folder=tmp_path).optimize(train)
    (hint,) = [text for text in caplog.messages if "of which it had read a part" in text]
    assert "Trial 0 has resumed after epoch 2, but its program reads from the start of passes, rows again, of" in hint


@pytest.mark.parametrize("plain", [True, False])
def test_a_new_trial_draws_nothing_twice_from_a_generator_that_trials_share(plain: bool, tmp_path: Path) -> None:
    shared, drawn = np.random.default_rng(0), dict[int, list[float]]()

    def train(trial: Trial) -> None:
        rng, own = shared, load(trial)

        def save(path: Path) -> None:
            path.write_text(json.dumps(own))

        loop = TrainingLoop(trial, save=save)
        for _ in trial.epochs() if plain else loop:
            own.append(float(rng.random()))
            if not plain:
                loop.report(0.5)
            elif trial.report(0.5).stops:
                trial.save(save)
        drawn[trial.id] = own

    study = pausing_study(at=(2,), epochs=5, trials=3, folder=tmp_path, verbose=0)
    first, second = study.ask(), study.ask()
    for trial in (second, first):  # the trial that resumes last paused before the other one trained
        with trial:
            train(trial)
    for trial in study:
        with trial:
            train(trial)
    assert {t.attempt for t in study.trials} == {2}
    assert not {*drawn[2]} & {*drawn[0], *drawn[1]}


class Settings:
    """Answers each name from a dict, as attribute dicts do."""

    def __init__(self) -> None:
        self.values = {"rate": 0.1}

    def __getattr__(self, name: str) -> float:
        return self.values[name]


def test_a_plain_loop_looks_past_an_object_that_raises_where_it_is_asked(tmp_path: Path) -> None:
    study = study_of(tmp_path, (2,))
    for trial in study:
        with trial:
            own, settings = load(trial), Settings()
            for _ in trial.epochs():
                own.append(settings.rate)
                if trial.report(own[-1]).stops:
                    trial.save(lambda path, own=own: path.write_text(json.dumps(own)))
    assert [t.epoch for t in study.trials] == [5, 5]


def test_a_shuffled_loader_of_torch_continues_where_a_plain_loop_paused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    def program(trial: Trial) -> list[float]:
        data = torch.utils.data.TensorDataset(torch.arange(16.0))
        loader = torch.utils.data.DataLoader(data, 4, shuffle=True, generator=torch.Generator().manual_seed(0))
        drawn = load(trial)
        for _ in trial.epochs():
            drawn += [float(batch[0]) for (batch,) in loader]
            if trial.report(drawn[-1]).stops:
                trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
        return drawn

    test_a_plain_loop_that_resumes_draws_as_without_a_pause(program, True, tmp_path)


rng = np.random.default_rng(3)


class Draws:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(4)

    def __call__(self) -> float:
        return float(rng.random() + self.rng.random())


def test_generators_with_one_name_in_an_object_and_in_its_module_are_both_found() -> None:
    one = Draws()
    assert {id(held) for held in generators_in(one).values()} == {id(rng), id(one.rng)}


noises = ModuleType("noises")  # a module of the program that another one imports
vars(noises)["waves"] = np.random.default_rng(5)


class Waves:
    tides = np.random.default_rng(6)

    def __call__(self) -> float:
        return float(noises.waves.random() + self.tides.random())


def test_generators_of_a_class_and_of_a_module_that_its_code_names_are_found() -> None:
    assert {id(held) for held in generators_in(Waves()).values()} == {id(noises.waves), id(Waves.tides)}


def counted(method: Any) -> Any:
    """A decorator."""

    @functools.wraps(method)
    def inner(*given: Any) -> Any:
        return method(*given)

    return inner


swell, foam = np.random.default_rng(7), np.random.default_rng(8)


class Surf:
    @property
    def height(self) -> float:
        return float(swell.random())

    @counted
    def width(self) -> float:
        return float(foam.random())


def test_generators_that_a_property_and_a_decorated_method_name_are_found() -> None:
    assert {id(held) for held in generators_in(Surf()).values()} == {id(swell), id(foam)}


later: Any = None  # a module that is imported at its first use


def test_a_loop_does_not_import_a_module_before_its_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "later.py").write_text("")
    spec = importlib.util.spec_from_file_location("later", tmp_path / "later.py")
    assert spec is not None
    assert spec.loader is not None
    module, loader = importlib.util.module_from_spec(spec), importlib.util.LazyLoader(spec.loader)
    loader.exec_module(module)
    monkeypatch.setitem(globals(), "later", module)
    for trial in study_of(tmp_path, (2,)):
        with trial:
            if trial.epoch > 9:
                later.draws()
            saves_after(trial)
    assert type(module) is not ModuleType
    assert later.__name__ == "later"
    assert type(module) is ModuleType


@pytest.mark.slow
def test_a_plain_loop_resumes_with_another_bit_generator_of_numpy(tmp_path: Path) -> None:
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        test_a_plain_loop_that_resumes_draws_as_without_a_pause(saves_after, True, tmp_path)
    finally:
        np.random.set_bit_generator(before)


def test_a_full_disk_keeps_no_part_of_a_state_without_its_random_state(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    trial = pausing_study(folder=tmp_path, verbose=0).ask()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in trial.epochs():
        trial.report(0.5)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                trial.save(lambda path: path.write_text("state"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        break
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


KILLED = """
import json, os, random, sys
from haltune.policies import RandomSearch
from haltune import Study, Float
study = Study({"x": Float(0.0, 1.0)}, "loss", "killed.db", max_epochs=4, policy=RandomSearch(trials=1), verbose=0)
for trial in study:
    with trial:
        random.seed(0 if trial.attempt == 1 else None)
        drawn = json.loads(open(trial.checkpoint).read()) if trial.checkpoint else []
        for epoch in trial.epochs():
            drawn.append(random.random())
            trial.save(lambda path: path.write_text(json.dumps(drawn)))
            trial.report(random.random())  # an evaluation
            if sys.argv[1] == f"{trial.attempt} {epoch}":
                os.kill(os.getpid(), 9)
        print(trial.attempt, *drawn)
"""


def test_a_plain_loop_killed_after_its_report_resumes_exactly(tmp_path: Path) -> None:
    def ends(name: str, *kills: str) -> list[list[str]]:
        (tmp_path / name).mkdir()
        run = partial(subprocess.run, cwd=tmp_path / name, capture_output=True, text=True, timeout=60)
        return [run([sys.executable, "-c", KILLED, at]).stdout.split() for at in (*kills, "never")]

    [[attempt, *whole]] = ends("whole")
    [_, [again, *resumed]] = ends("killed", "1 2")
    assert (attempt, again, len(whole)) == ("1", "2", 4)
    assert resumed == whole


IMPORTS_TORCH_LATE = """
import os, sys
from haltune.policies import RandomSearch
from haltune import Study, Float
study = Study({"x": Float(0.0, 1.0)}, "loss", "late.db", max_epochs=2, policy=RandomSearch(trials=3), verbose=0)
for trial in study:
    with trial:
        import torch
        trial.checkpoint  # whose state it loads
        held_out, drawn = torch.rand(1).item(), []
        for epoch in trial.epochs():
            drawn.append(torch.rand(1).item())
            trial.report(0.5)
            trial.save(lambda path: path.write_text("state"))
            if sys.argv[1] == f"{trial.id} {trial.attempt} {epoch}":
                print(held_out, flush=True)
                os.kill(os.getpid(), 9)
        print(held_out, *drawn)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.slow), 1])  # 0: before torch is imported
def test_a_trial_whose_new_process_imports_torch_late_splits_its_data_as_before(killed: int, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    ends = [run([sys.executable, "-c", IMPORTS_TORCH_LATE, at]).stdout for at in (f"{killed} 1 1", "never")]
    before, (resumed, new, *_) = ([line.split() for line in end.splitlines()] for end in ends)
    assert resumed[0] == before[-1][0]
    assert not {*resumed} & {*new}


def leaves_its_block(trial: Trial) -> None:
    with trial:
        saves_after(trial)
        trial.finish()
        draws()  # of the training


def raises(trial: Trial) -> None:
    with suppress(ValueError), trial:
        load(trial)
        next(iter(trial.epochs()))
        if trial.attempt > 1:
            raise ValueError("a bug")
        trial.report(draws()[0])
        trial.save(lambda path: path.write_text("[]"))


def is_within_the_block_of_another(trial: Trial) -> None:
    with pausing_study(verbose=0).ask() as other:
        leaves_its_block(trial)
        other.report(0.5)


def has_no_block(trial: Trial) -> None:
    saves_after(trial)
    trial.finish()


def restores_its_own_state(trial: Trial) -> None:
    with trial:
        if trial.checkpoint is not None:
            random.setstate(random.Random(5).getstate())
            np.random.seed(5)  # noqa: NPY002
        saves_after(trial)


def changes_the_kind_of_generator(trial: Trial) -> None:
    with trial:
        if trial.checkpoint is not None:
            np.random.set_bit_generator(np.random.PCG64(1))
        saves_after(trial)


def trains_over_folds(trial: Trial) -> None:
    with trial:
        over_folds(trial)


@pytest.mark.filterwarnings("ignore:2 of 2 trials failed:haltune.errors.HaltuneWarning")
@pytest.mark.parametrize(
    "program",
    [
        leaves_its_block,
        raises,
        pytest.param(is_within_the_block_of_another, marks=pytest.mark.slow),
        has_no_block,
        pytest.param(restores_its_own_state, marks=pytest.mark.slow),
        pytest.param(changes_the_kind_of_generator, marks=pytest.mark.slow),
        trains_over_folds,
    ],
)
def test_a_plain_loop_that_resumes_leaves_the_random_state_of_the_process(
    program: Callable[[Trial], None], tmp_path: Path
) -> None:
    study = study_of(tmp_path, (1, 2, 2.5))
    while isinstance(trial := study.ask(), Trial):
        before = capture()
        program(trial)
        assert trial.attempt == 1 or capture() == before
    assert {t.attempt > 1 for t in study.trials} == {True}


def test_a_trial_of_a_thread_does_not_let_those_of_other_threads_draw_their_numbers_again(tmp_path: Path) -> None:
    study = study_of(tmp_path, (1,))
    has_no_block(study.ask())
    trial, before = study.ask(), capture()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(has_no_block, trial).result()
    assert (trial.ended, trial.attempt) == ("completed", 2)
    assert capture() != before


def begins_again(trial: Trial) -> list[float]:
    """A fourth epoch that fails, and is trained again from the state after the second one."""
    drawn, failed = load(trial), False
    while True:
        try:
            for epoch in trial.epochs():
                drawn += draws()
                if epoch == 4 and not failed:
                    raise MemoryError
                trial.report(drawn[-1])
                if epoch == 2:
                    trial.save(lambda path, drawn=drawn: path.write_text(json.dumps(drawn)))
            return drawn
        except MemoryError:
            failed, drawn = True, load(trial)


@pytest.mark.filterwarnings("ignore:.*now trains again after epoch 2:haltune.errors.HaltuneWarning")
def test_a_training_that_begins_again_draws_the_same_after_a_pause(tmp_path: Path) -> None:
    found = []
    for at in ((), (2,)):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        drawn = {}
        for trial in study_of(tmp_path, at):
            with trial:
                drawn[trial.id] = begins_again(trial)
        found.append(drawn[0])
    assert found[0] == found[1]


def with_a_damaged_first_state(folder: Path) -> Study:
    study = study_of(folder, (1,))
    with study.ask() as trial:
        saves_after(trial)
    Path(f"{study.trials[0].checkpoint}.start").write_text("{")
    return study


def test_a_block_whose_first_random_state_is_damaged_is_not_entered(tmp_path: Path) -> None:
    study = with_a_damaged_first_state(tmp_path)
    trial, handler = study.ask(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(InvalidInput, match="random state of the checkpoint is damaged"), trial:
        pass
    assert signal.getsignal(signal.SIGTERM) == handler
    trial.fail(ValueError("its files are lost"))
    assert study.trials[0].status is Status.FAILED


def test_a_trial_whose_first_random_state_is_damaged_is_given_back(tmp_path: Path) -> None:
    study = with_a_damaged_first_state(tmp_path)
    for status in (Status.INTERRUPTED, Status.FAILED):  # its file may be restored in between
        with pytest.raises(InvalidInput, match="random state of the checkpoint is damaged"):
            next(iter(study))
        assert study.trials[0].status is status
    assert next(iter(study)).id == 1


@pytest.mark.parametrize(("text", "named"), [("[" * 100_000, "RecursionError"), ("null", "ValueError: it lacks")])
def test_a_damaged_random_state_is_named_where_the_loop_starts(tmp_path: Path, text: str, named: str) -> None:
    study = study_of(tmp_path, (1,))
    with study.ask() as trial:
        saves_after(trial)
    Path(f"{study.trials[0].checkpoint}.random").write_text(text)
    refused = rf"^The random state of the checkpoint is damaged \({named}"
    with pytest.raises(InvalidInput, match=refused), study.ask() as trial:
        saves_after(trial)


OF_A_FRAMEWORK = """
import os, random, sys
from haltune.policies import RandomSearch
from haltune import Study, Float
study = Study({"x": Float(0.0, 1.0)}, "loss", "killed.db", max_epochs=4, policy=RandomSearch(trials=1), verbose=0)
for trial in study:
    held_out = random.random()
    trial.checkpoint  # whose state it loads
    for epoch in range(trial.epoch + 1, 5):
        trial.report(0.5, epoch)
        trial.save(lambda path: path.write_text(str(epoch)))
        if sys.argv[1] == f"{trial.attempt} {epoch}":
            print(held_out, flush=True)
            os.kill(os.getpid(), 9)
    print(held_out)
"""


@pytest.mark.slow
def test_a_killed_program_without_a_block_splits_its_data_as_before(tmp_path: Path) -> None:
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    splits = [run([sys.executable, "-c", OF_A_FRAMEWORK, at]).stdout for at in ("1 2", "2 3", "never")]
    assert splits[0]
    assert len({*splits}) == 1, splits


@pytest.mark.slow
def test_no_new_trial_begins_with_the_random_state_of_another_one(tmp_path: Path) -> None:
    study, begun = Study({"x": Float(0.0, 1.0)}, "val_loss", max_epochs=9, seed=0, budget="40 trials", verbose=0), []
    random.seed(0)
    for trial in study:
        with trial:
            if trial.attempt == 1:
                begun.append(random.getstate())
            saves_after(trial)
    assert len(set(begun)) == len(begun) == 40


def trains_in_a_loop_of_while(trial: Trial, draws: bool = True) -> None:
    done = load(trial)
    while len(done) < 5:
        done.append(random.random() if draws else 0.5)
        verdict = trial.report(done[-1], len(done))
        trial.save(lambda path: path.write_text(json.dumps(done)))
        if verdict.stops:
            break


def writes_its_own_file(trial: Trial, folder: Path) -> None:
    _ = [random.random() for _ in range(99)]  # the weights of a new model
    done = load(trial)
    for epoch in trial.epochs():
        done.append(random.random())
        trial.report(done[-1])
        (path := folder / f"{trial.id}.{epoch}").write_text(json.dumps(done))
        trial.checkpointed(str(path))


def own_state() -> Any:
    return random.getstate(), np.random.get_state()  # noqa: NPY002


def restores_in_a_loop_over_range(trial: Trial, own_file: bool = False, numpy: bool = True) -> None:
    """Restore the random state itself, perhaps of Python alone."""
    start, done = 1, draws()  # the weights of a new model
    if trial.checkpoint:
        start, done, (python, of_numpy) = pickle.loads(Path(trial.checkpoint).read_bytes())
        random.setstate(python)
        if numpy:
            np.random.set_state(of_numpy)  # noqa: NPY002
    for epoch in range(start, 6):
        done += draws()
        np.random.permutation(200)  # noqa: NPY002 (an order takes more words at one time than at another)
        verdict = trial.report(done[-1], epoch)
        state = pickle.dumps((epoch + 1, done, own_state()))
        if own_file:
            (path := trial.folder / f"{epoch}.pkl").write_bytes(state)
            trial.checkpointed(str(path))
        else:
            trial.save(partial(Path.write_bytes, data=state))
        if verdict.stops:
            break


def seeds_each_epoch(trial: Trial, first: int = 0) -> None:
    done = load(trial)
    for epoch in range(len(done) + 1, 6):
        random.seed(first + epoch)
        done.append(random.random())
        verdict = trial.report(done[-1], epoch)
        trial.save(lambda path: path.write_text(json.dumps(done)))
        if verdict.stops:
            break


def seeds_each_attempt(trial: Trial) -> None:
    random.seed(trial.attempt)
    trains_in_a_loop_of_while(trial)


@pytest.mark.parametrize(("reopened", "at"), [(True, 1), (False, 2)])
@pytest.mark.parametrize(
    ("program", "why"),
    [
        (trains_in_a_loop_of_while, "its loop is not over trial.epochs()"),
        (seeds_each_attempt, "its loop is not over trial.epochs()"),
        (partial(restores_in_a_loop_over_range, numpy=False), "its loop is not over trial.epochs()"),
        (partial(trains_in_a_loop_of_while, draws=False), None),
        (restores_in_a_loop_over_range, None),
        (seeds_each_epoch, None),
        (writes_its_own_file, "its state is a file that your program wrote"),
        (saves_after, None),
        (saves_at_once, None),
    ],
)
def test_a_loop_whose_random_state_is_not_restored_is_hinted_at(
    program: Callable[..., object],
    why: str | None,
    reopened: bool,
    at: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if program is writes_its_own_file:
        program = partial(program, folder=tmp_path)
    with caplog.at_level("INFO", "haltune"):
        study = pausing_study(f"{tmp_path}/s.db", at=(at,), epochs=5, trials=2, folder=tmp_path / "states")
        while isinstance(trial := study.ask(), Trial):
            with trial:
                program(trial)
            if reopened:
                study = pausing_study(f"{tmp_path}/s.db", at=(at,), epochs=5, trials=2, folder=tmp_path / "states")
    hints = [text for text in caplog.messages if "restored its random state" in text]
    assert [text.split(", so haltune")[0] for text in hints[:1]] == (
        [] if why is None else [f"Trial 0 has resumed after epoch {at}, but {why}"]
    )
    assert reopened or len(hints) < 2


async def trains_in_a_coroutine(trial: Trial) -> None:
    _ = draws()  # the weights of a new model
    done = load(trial)
    while len(done) < 5:
        done.append(0.5)
        for _ in range(1 + 3 * trial.id):  # so another trial starts between two reports
            await asyncio.sleep(0)
        verdict = trial.report(done[-1], len(done))
        trial.save(lambda path: path.write_text(json.dumps(done)))
        if verdict.stops:
            break


async def works(study: Study) -> None:
    while not isinstance(trial := study.ask(), Finish):
        if isinstance(trial, Trial):
            with trial:
                await trains_in_a_coroutine(trial)
        await asyncio.sleep(0)


def test_what_another_coroutine_draws_is_no_draw_of_a_loop(caplog: pytest.LogCaptureFixture) -> None:
    study = pausing_study(at=(1, 3), epochs=5, trials=4)

    async def work() -> None:
        await asyncio.gather(works(study), works(study))

    with caplog.at_level("INFO", "haltune"):
        asyncio.run(work())
    assert [trial.attempt for trial in study.trials][:2] == [3, 3]
    assert not [text for text in caplog.messages if "restored its random state" in text]


def test_a_loop_that_restores_the_state_of_its_own_file_is_not_hinted_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "haltune"):
        study_of(tmp_path, (2,)).optimize(partial(restores_in_a_loop_over_range, own_file=True))
    assert not [text for text in caplog.messages if "restored its random state" in text]
