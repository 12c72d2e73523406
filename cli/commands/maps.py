"""Value maps of AutoBCT, built ahead of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from haltune._utils.words import duration

from ..find import errors
from ..options import say

maps = typer.Typer(
    no_args_is_help=True, help="Value maps, with which AutoBCT looks further ahead than on the fly."
)


@maps.callback()
def _group() -> None:
    """Keeps `build` a command of its own while it is the only one."""


@maps.command(no_args_is_help=True)
def build(
    out: Annotated[Path, typer.Option("--out", "-o", help="the file, such as map.npz", show_default=False)],
    dim: Annotated[int, typer.Option(help="hyperparameters, 1 or 2")] = 1,
    depth: Annotated[int, typer.Option(help="trainings that it looks ahead, from 3")] = 3,
    states: Annotated[
        int, typer.Option(help="states that it learns from: more take longer and are more exact")
    ] = 20_000,
    seed: Annotated[int, typer.Option(help="of the states")] = 0,
) -> None:
    """Build a map: AutoBCT(value_map="map.npz") takes one exact step on top of it."""
    from haltune.policies.autobct.value.build_map import build_map  # no other command needs it

    columns = (BarColumn(), TextColumn("{task.percentage:.0f}%"), TextColumn("{task.description}"))
    with errors(), Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def tell(share: float, left: float) -> None:
            bar.update(task, completed=share, description=f"{duration(left)} left")

        built = build_map(dim, depth, states, seed, tell)
        built.save(out)
        error, worst = built.header["error"], built.header["worst"]
        say(f"{out}: depth {built.depth}; error {error:.4f}, of one state in a hundred over {worst:.4f}")
