"""A handler is called once, right after the atomic step, with any exception and in any fork."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from interrupted import default_ctrl_c, uninterrupted

from haltune._utils import signals
from haltune._utils.signals import interrupts, undisturbed

__all__ = ["default_ctrl_c"]


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Return the signals that two handlers got; the handler of SIGTERM raises."""
    calls: list[str] = []

    def quiet(number: int, _: object) -> None:
        calls.append(signal.Signals(number).name)

    def raises(number: int, _: object) -> None:
        quiet(number, _)
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, handler)
        for number, handler in ((signal.SIGUSR1, quiet), (signal.SIGTERM, raises))
    }
    yield calls
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_handler_waits_for_the_end_of_the_outermost_block_and_is_called_once(heard: list[str]) -> None:
    with undisturbed:
        with undisturbed:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
        assert heard == []
    assert heard == ["SIGUSR1"]
    signal.raise_signal(signal.SIGUSR1)
    assert heard == ["SIGUSR1", "SIGUSR1"]


def test_a_handler_that_raises_keeps_no_other_from_being_called(heard: list[str]) -> None:
    own = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), undisturbed:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
        done = True
    assert done
    assert heard == ["SIGTERM", "SIGUSR1"]
    assert signal.getsignal(signal.SIGTERM) is own


@pytest.mark.parametrize("kept", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_is_ignored_or_left_to_the_system_stays_so(kept: signal.Handlers) -> None:
    before = signal.signal(signal.SIGUSR2, kept)
    try:
        with undisturbed:
            assert signal.getsignal(signal.SIGUSR2) is kept
    finally:
        signal.signal(signal.SIGUSR2, before)


def in_child(work: Callable[[], bool]) -> int:
    """The exit code of a fork: 0 where `work` is true."""
    child = os.fork()
    if not child:
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_of_another_thread_hears_signals_again(heard: list[str]) -> None:
    codes: list[int] = []

    def hears() -> bool:
        signal.raise_signal(signal.SIGUSR1)
        return heard == ["SIGUSR1"]

    with undisturbed:
        thread = threading.Thread(target=lambda: codes.append(in_child(hears)))
        thread.start()
        thread.join()
        codes.append(in_child(lambda: not hears()))  # the thread within goes on there, still undisturbed
    assert codes == [0, 0]


def blocks() -> bool:
    with undisturbed:
        with undisturbed:
            pass
        with undisturbed.heard:
            pass
    return True


@pytest.mark.usefixtures("default_ctrl_c")
def test_ctrl_c_on_the_way_in_or_out_leaves_every_handler_where_it_was(heard: list[str]) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before, place = [signal.getsignal(number) for number in numbers], 1
    while uninterrupted(blocks, place, (signals.__file__,)) is None:
        assert [signal.getsignal(number) for number in numbers] == before, place
        assert undisturbed.depth == 0, place
        place += 1
    assert place > 30
    signal.raise_signal(signal.SIGUSR1)
    assert heard == ["SIGUSR1"]


def test_a_part_of_a_block_is_left_by_a_handler_that_raises_and_the_rest_is_undisturbed(heard: list[str]) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), undisturbed:
        with pytest.raises(KeyboardInterrupt), undisturbed.heard:
            signal.raise_signal(signal.SIGTERM)
            done.append("not reached")
        signal.raise_signal(signal.SIGTERM)
        done.append("reached")
    assert done == ["reached"]
    assert heard == ["SIGTERM", "SIGTERM"]


def test_a_handler_that_was_set_within_and_calls_the_one_before_ends(heard: list[str]) -> None:
    """Libraries chain handlers: the previous one that they find is the temporary handler."""
    with undisturbed:
        before = signal.getsignal(signal.SIGUSR1)

        def chained(number: int, frame: object) -> None:
            heard.append("mine")
            before(number, frame)  # type: ignore[operator, arg-type]

        signal.signal(signal.SIGUSR1, chained)
    with undisturbed:
        signal.raise_signal(signal.SIGUSR1)
    assert heard == ["mine", "SIGUSR1"]
    assert signal.getsignal(signal.SIGUSR1) is chained


def test_a_collective_that_fails_as_a_rank_was_lost_interrupts() -> None:
    distributed = pytest.importorskip("torch.distributed", reason="PyTorch is not installed")
    assert interrupts(distributed.DistNetworkError("the store is gone"))
    assert interrupts(RuntimeError("[gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]"))
    assert not interrupts(RuntimeError("shapes do not match"))
