"""Searches in lock-step: all pay one evaluation a turn, and what each found is one line of JSON."""

from __future__ import annotations

import json
import math
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .engine import Slots, State
from .instances import Instance
from .searches import Limits, Method, Search, Turn

TENTHS = 10  # points of the curve for each full training


@dataclass
class Seat:
    """One search with its slot: what it paid, and the incumbent after each payment.

    Best epoch counts: every evaluation may become the incumbent. Last epoch: complete trainings alone. The incumbent is
    chosen by the value that was shown; `true` is its value over all examples.
    """

    label: str
    instance: Instance
    limits: Limits
    search: Search
    deciding: float = 0.0
    paid: list[float] = field(default_factory=list)
    shown: list[float] = field(default_factory=list)
    true: list[float] = field(default_factory=list)
    finals: list[float] = field(default_factory=list)
    states: dict[int, State] = field(default_factory=dict)
    trials: set[int] = field(default_factory=set)
    turn: Turn | None = None
    bests: dict[int, tuple[float, float]] = field(default_factory=dict)  # of each trial: shown, true

    def next(self, value: float | None) -> bool:
        """Ask for the next turn; False when the search is over."""
        began = time.process_time()
        try:
            self.turn = self.search.send(value)  # type: ignore[arg-type]
        except StopIteration:
            self.turn = None
        self.deciding += time.process_time() - began
        return self.turn is not None

    def note(self, shown: float, true: float, evaluations: int) -> bool:
        """Pay for an evaluation and write down its value; False when the budget is spent."""
        assert self.turn is not None
        self.trials.add(self.turn.trial)
        price = self.limits.price(self.instance, self.turn.config)
        self.paid.append((self.paid[-1] if self.paid else 0.0) + price)
        complete, best = evaluations == self.instance.horizon, self.instance.of == "best"
        kept, exact = self.bests.get(self.turn.trial, (math.nan, math.nan))
        if not best or self.better(shown, kept):
            self.bests[self.turn.trial] = kept, exact = shown, true
        if complete:
            self.finals.append(exact)
        counts = best or complete
        incumbent, was = (self.shown[-1], self.true[-1]) if self.shown else (math.nan, math.nan)
        wins = counts and self.better(shown, incumbent)
        self.shown.append(shown if wins else incumbent)
        self.true.append(true if wins else was)
        return self.paid[-1] < self.limits.budget(self.instance) - 1e-9

    def better(self, value: float, than: float) -> bool:
        return self.instance.goal.better(value, than)

    def line(self) -> dict[str, Any]:
        """What is written down."""
        instance, limits = self.instance, self.limits
        at = np.arange(1, TENTHS * limits.trainings + 1) * (instance.horizon / TENTHS)
        place = np.searchsorted(self.paid, at + 1e-9, side="right")
        shown, true = (np.array([math.nan, *curve])[place] for curve in (self.shown, self.true))
        return {
            "family": instance.family, "instance": instance.number, "method": self.label, "seed": limits.seed,
            "by": "cost" if limits.by_cost else "epochs", "trainings": limits.trainings,
            "goal": "max" if instance.goal.sign > 0 else "min", "of": instance.of, "horizon": instance.horizon,
            "dim": len(instance.domains), "started": len(self.trials), "full": len(self.finals),
            "epochs": len(self.paid), "deciding": round(self.deciding, 3), "finals": numbers(self.finals),
            "shown": numbers(shown), "true": numbers(true),
        }  # fmt: skip


def numbers(values: Any) -> list[float | None]:
    """Five digits; null for what is not finite."""
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in values]


def training_seed(instance: Instance, seed: int, trial: int) -> int:
    """Of the weights and the batches of a trial: the same for trial n of every search."""
    return zlib.crc32(f"{instance.family} {instance.number} {seed} {trial}".encode())


def together(
    instance: Instance, methods: dict[str, Method], asked: list[tuple[str, int]], trainings: int, by_cost: bool
) -> list[Seat]:
    """Run searches (method, seed) of one instance as slots of one batch; one whose package is missing is left out."""
    seats = []
    for label, seed in asked:
        limits = Limits(trainings, by_cost, seed)
        try:
            seats.append(Seat(label, instance, limits, methods[label](instance, limits)))
        except ImportError as missing:
            print(f"{label} is left out, for its package is not installed: {missing}")
    active = [seat for seat in seats if seat.next(None)]
    slots = Slots(instance, len(active))
    holds: list[int | None] = [None] * len(active)  # the trial in each slot
    while active:
        for slot, seat in enumerate(active):
            place(slots, slot, seat, holds)
        shown, true = slots.train()
        stay = []
        for slot, seat in enumerate(active):
            goes_on = seat.note(float(shown[slot]), float(true[slot]), int(slots.evaluations[slot]))
            if seat.next(float(shown[slot])) and goes_on:  # the last value is told, too
                stay.append(slot)
        if len(stay) < len(active):
            active, holds = [active[s] for s in stay], [holds[s] for s in stay]
            slots.keep(stay)
    return seats


def place(slots: Slots, slot: int, seat: Seat, holds: list[int | None]) -> None:
    """Put the trial of a search's turn into its slot; the one before is saved if the search may resume it."""
    turn, before = seat.turn, holds[slot]
    assert turn is not None
    if before is not None and turn.keeps:
        seat.states[before] = slots.save(slot)
    if before != turn.trial or slots.evaluations[slot] != turn.evaluations:
        if turn.evaluations == 0:
            slots.start(slot, turn.config, training_seed(seat.instance, seat.limits.seed, turn.trial))
        else:
            slots.load(slot, seat.states.pop(turn.trial))
        holds[slot] = turn.trial
    assert slots.evaluations[slot] == turn.evaluations, "a trial goes on from where it was"


def write(path: Path, seats: list[Seat]) -> None:
    """Append what was found, each line at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for seat in seats:
            file.write(json.dumps(seat.line(), separators=(",", ":")) + "\n")
            file.flush()


def read(folder: Path) -> list[dict[str, Any]]:
    """All lines of a folder."""
    return [
        json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines()
    ]
