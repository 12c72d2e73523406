"""What has to be done before a program starts is done by then, whoever starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from haltune.ranks import before_programs


def start_a_program() -> None:
    subprocess.run([sys.executable, "-S", "-c", ""], check=True)


def in_a_thread(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_it_is_done_once_and_an_error_forbids_no_program() -> None:
    done: list[str] = []
    before_programs(lambda: done.append("first"))
    before_programs(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    before_programs(lambda: done.append("last"))
    assert not done
    start_a_program()
    start_a_program()
    assert done == ["first", "last"]


def test_a_second_threads_program_waits_until_it_is_done() -> None:
    order: list[str] = []
    begun, passed = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        passed.wait(0.5)  # for what must not come
        order.append("written")

    def second() -> None:
        begun.wait()
        start_a_program()
        order.append("started")
        passed.set()

    before_programs(slow)
    threads = [in_a_thread(start_a_program), in_a_thread(second)]
    [thread.join(60) for thread in threads]
    assert order == ["written", "started"]


def test_what_is_done_may_start_a_program_itself() -> None:
    done: list[str] = []

    def starts() -> None:
        start_a_program()
        done.append("started")

    before_programs(starts)
    in_a_thread(start_a_program).join(60)
    assert done == ["started"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_process_forked_while_another_thread_is_at_it_starts_programs() -> None:
    begun, forked = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        forked.wait(60)

    before_programs(slow)
    thread = in_a_thread(start_a_program)
    begun.wait(60)
    if (child := os.fork()) == 0:
        signal.alarm(30)  # ends one that waits for ever
        sys.audit("subprocess.Popen", "a program", [], None, None)
        os._exit(0)
    forked.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
