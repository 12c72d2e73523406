"""The commands of `haltune`, in the order of its help."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from haltune.display import visible

from . import actions, listings
from .common import DONE, INTERRUPTED, RUNS, STOPPED, STORE, USAGE, errors
from .doctor import doctor

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_show_locals=False, add_completion=False,
    help="Run a search for good hyperparameters, look at it, stop it, resume it.\n\n"
    "A search is a study file (digits.toml) or the database that it writes (digits.db, or a URL). Several machines "
    "may run it at the same time.\n\n"
    f"Exit codes: {DONE} done; 1 the training failed, or the doctor found an error; "
    f"{USAGE} wrong usage; {STORE} no such study, or its store "
    f"failed; {STOPPED} stopped before the search was over; {RUNS} (of status) not over yet; "
    f"{INTERRUPTED} interrupted.",
)  # fmt: skip


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(visible(version("haltune")))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


class _WithProgram(TyperCommand):
    """A command that takes a program after --."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # Typer has its own copy of Click's classes, or imports them
            if type(error).__name__ == "NoSuchOption" and "--" not in words:
                error.message += " If it belongs to your program, write -- before the program."  # type: ignore[attr-defined]
            raise


for command in (
    actions.run, actions.resume, actions.stop, listings.status, listings.trials, listings.best, listings.explain,
    listings.export, listings.report, listings.compare, listings.figure, actions.watch, actions.enqueue, actions.note,
    doctor, actions.track,
):  # fmt: skip
    trains = command in (actions.run, actions.resume, doctor)
    app.command(no_args_is_help=True, cls=_WithProgram if trains else None)(errors()(command))
app.add_typer(actions.maps, name="maps")
