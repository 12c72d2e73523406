"""A plain loop that trains again after an error, in a new model of torch: the curve starts again.

Each program runs out of memory after some reports, and its retry builds a new model and counts from its start.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from clocked import World

from haltune import HaltuneWarning

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

CLAIM = "trains again from its start.*updates the weights of another model"


class OutOfMemory(Exception):
    pass


def net_and_optimizer(width: int = 3) -> tuple[Any, Any]:
    net = torch.nn.Linear(3, width)
    return net, torch.optim.SGD(net.parameters(), 0.1)


def step(net: Any, sgd: Any) -> None:
    net(torch.ones(1, 3)).sum().backward()
    sgd.step()


def train(trial: Any, epochs: int, value: float, position: bool, width: int = 3, fails: bool = False) -> None:
    net, sgd = net_and_optimizer(width)
    for epoch in range(1, epochs + 1):
        step(net, sgd)
        trial.report(value, epoch) if position else trial.report(value)
    if fails:
        raise OutOfMemory


def in_a_while(trial: Any, first: int, position: bool) -> None:
    """As accelerate's find_executable_batch_size: the error is handled before the next try."""
    width = 4
    while True:
        try:
            return train(trial, first if width > 3 else 3, 0.5 - width / 10, position, width, fails=width > 3)
        except OutOfMemory:
            width -= 1


def in_a_handler(trial: Any, first: int, position: bool) -> None:
    try:
        train(trial, first, 0.1, position, 4, fails=True)
    except OutOfMemory:
        train(trial, 3, 0.2, position)


def within_another_handler(trial: Any, first: int, position: bool) -> None:
    """As after an error of CatBoost, which Python takes for handled from then on."""
    try:
        raise KeyError
    except KeyError:
        in_a_handler(trial, first, position)


def keeping_the_error(trial: Any, first: int, position: bool) -> None:
    """As tenacity: the error, and so the former model, is kept in an object."""
    kept = None
    try:
        train(trial, first, 0.1, position, fails=True)
    except OutOfMemory as error:
        kept = error
    train(trial, 3, 0.2, position)
    assert kept is not None


@pytest.mark.parametrize("position", [True, False])
@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("program", [in_a_while, in_a_handler, within_another_handler, keeping_the_error])
def test_the_curve_is_that_of_the_retry(program: Any, first: int, position: bool) -> None:
    world = World()
    claim = CLAIM if position else f"{CLAIM}.*If this is no retry, give each report its position"
    with world.ask() as trial, pytest.warns(HaltuneWarning, match=claim if first == 1 else "trains again from its"):
        program(trial, first, position)
    (record,) = world.study.trials
    late = (
        first == 1 and not position and program in (in_a_while, keeping_the_error)
    )  # its second report shows that it is a retry
    assert (record.epochs.tolist(), record.values.tolist()) == ([1, 2, 3][late:], [0.2] * (3 - late))
    assert record.attempt == 2


def test_a_model_that_was_trained_before_the_trial_is_not_its_first_model() -> None:
    world = World()
    world.succeed()  # from now on steps are noted
    base, sgd = net_and_optimizer(2)
    step(base, sgd)
    with world.ask() as trial, pytest.warns(HaltuneWarning, match=CLAIM):
        in_a_while(trial, 1, position=True)
    record = world.study.trials[trial.id]
    assert (record.attempt, record.values.tolist()) == (2, [0.2] * 3)


@pytest.mark.parametrize("position", [True, False])
def test_one_report_for_each_of_several_models_is_a_curve(position: bool) -> None:
    world = World()
    with world.ask() as trial, warnings.catch_warnings(action="error"):
        for fold in range(1, 4):
            net, sgd = net_and_optimizer()
            for _ in range(3):
                step(net, sgd)
            trial.report(0.1 * fold, fold) if position else trial.report(0.1 * fold)
    assert world.study.trials[0].epochs.tolist() == [1, 2, 3]


def test_phases_that_train_other_layers_continue_the_curve() -> None:
    world = World()
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
    with world.ask() as trial, warnings.catch_warnings(action="error"):
        for layer in reversed(net):
            sgd = torch.optim.SGD(layer.parameters(), 0.1)
            for _ in range(2):
                step(net, sgd)
                trial.report(0.5)
    assert world.study.trials[0].epochs.tolist() == [1, 2, 3, 4]


def test_a_repeated_report_of_an_epoch_is_no_retry() -> None:
    world = World()
    net, sgd = net_and_optimizer()
    with world.ask() as trial, pytest.warns(HaltuneWarning, match="the report is ignored"):
        step(net, sgd)
        trial.report(0.5, 1)
        trial.report(0.4, 1)
    assert world.study.trials[0].values.tolist() == [0.5]
