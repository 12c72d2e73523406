"""The work before a program starts is done by then, for any way to start it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from haltune.ranks.programs import before_programs


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
