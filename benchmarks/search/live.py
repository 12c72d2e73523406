"""Searches of live trainings: every proposed point is trained, in a continuous or mixed space, and may come again.

    python benchmarks/search/live.py --data DIR [--families all] [--instances 0-29] [--methods random,default]
        [--policy "LABEL=EXPRESSION" ...] [--seeds 1] [--trainings 20] [--by epochs] [--processes 2] [--device cpu]
    python benchmarks/search/live.py --table [--against LABEL] [--by epochs]
    python benchmarks/search/live.py --look [--families mlp] [--instances 0-9]

All searches of one instance are slots of one batch (see live_trainings/engine.py): each pays one evaluation a turn, and
says whether its trial goes on, is saved or ends. An instance is drawn from its number: data, architecture, optimizer,
schedule, length, space, noise and goal. Settings are chosen on instances 0 to 99; 100 to 199 are fresh and need
--fresh. Results are lines of JSON in --into, one for each search; what is there is not run again. With --by cost
budgets count operations, in mean trainings of random configurations.

The table: normalised regret, 0 at the best value that any search of the instance found, 1 at the median of random
search's full trainings (of every method whose name starts with "random"); errors are over instances. If the best epoch
counts, each evaluation may become the incumbent, otherwise complete trainings only. An incumbent is chosen by the value
that the search saw, and counts with its value over all examples kept aside. --look prints what the curves of random
configurations are like.

Data: spambase.csv, mnist_10k.npz, the tables of scikit-learn, and as text the sources of Python's own standard library:
text instances differ between versions of Python. Needs PyTorch and scikit-learn; a peer whose package is not installed
is left out, with a line.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
import warnings
from multiprocessing import get_context
from pathlib import Path
from typing import Any

FRESH = 100  # the first instance on which nothing may be chosen


def numbers(text: str) -> list[int]:
    """Read "0-3,7"."""
    parts = [part.split("-") for part in text.split(",")]
    return [n for part in parts for n in range(int(part[0]), int(part[-1]) + 1)]


def methods(policies: list[str]) -> dict[str, Any]:
    """All searches by their labels, with those of --policy."""
    from live_trainings.peers import PEERS
    from live_trainings.searches import OWN, expression

    given = dict(text.split("=", 1) for text in policies)
    return OWN | PEERS | {label: expression(text) for label, text in given.items()}


def one(family: str, number: int, asked: list[tuple[str, int]], args: argparse.Namespace) -> str:
    """Run the searches of an instance and write them down. Returns what to print."""
    import torch
    from live_trainings.families import FAMILIES
    from live_trainings.runs import together, write

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    began = time.process_time()
    instance = FAMILIES[family](number, args.data, args.device)
    seats = together(instance, methods(args.policy), asked, args.trainings, args.by == "cost")
    for seat in seats:
        seat.label += args.label_suffix
    write(args.into / f"{family}.jsonl", seats)
    took = time.process_time() - began
    turns = sum(len(seat.paid) for seat in seats)
    deciding = sum(seat.deciding for seat in seats)
    each = 1e3 * (took - deciding) / max(1, turns)
    return (
        f"{family} {number}: {len(seats)} searches, {turns} evaluations of {each:.1f} ms, {deciding:.1f} s of deciding"
    )


def missing(args: argparse.Namespace) -> list[tuple[str, int, list[tuple[str, int]]]]:
    """The instances, with the searches that are not in the results."""
    from live_trainings.runs import read

    known = {(x["family"], x["instance"], x["method"], x["seed"], x["by"], x["trainings"]) for x in read(args.into)}
    jobs = []
    for number in args.instances:
        for family in args.families:
            asked = [
                (label, seed)
                for seed in range(args.seeds)
                for label in args.methods
                if (family, number, label + args.label_suffix, seed, args.by, args.trainings) not in known
            ]
            if asked:
                jobs.append((family, number, asked))
    return jobs


def look(family: str, number: int, args: argparse.Namespace) -> str:
    """Curves of random configurations, in a line."""
    import torch
    from live_trainings.families import FAMILIES
    from live_trainings.looks import line

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    return line(FAMILIES[family](number, args.data, args.device))


def main() -> None:
    from live_trainings.families import FAMILIES
    from live_trainings.peers import PEERS
    from live_trainings.results import draw, table
    from live_trainings.runs import read
    from live_trainings.searches import OWN

    known = (*OWN, *PEERS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of spambase.csv and mnist_10k.npz")
    parser.add_argument("--families", default="all")
    parser.add_argument("--instances", type=numbers, default=numbers("0-29"))
    parser.add_argument("--methods", default="random,default,optuna_tpe_median", help=f"of {', '.join(known)}")
    parser.add_argument(
        "--policy", action="append", default=[], metavar="LABEL=EXPRESSION", help="over haltune.policies"
    )
    parser.add_argument("--label-suffix", default="", help="behind every method's name in the results")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trainings", type=int, default=20)
    parser.add_argument("--by", choices=("epochs", "cost"), default="epochs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--into", type=Path, default=Path("build/live"))
    parser.add_argument("--fresh", action="store_true", help=f"instances from {FRESH} on, once, for the page")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--against", help="a method; prints the paired differences from it")
    parser.add_argument("--value", choices=("true", "shown"), default="true", help="of the incumbents, for --table")
    parser.add_argument("--svg", action="store_true", help="with --table: write the figure of the page")
    parser.add_argument("--look", action="store_true")
    args = parser.parse_args()
    args.families = list(FAMILIES) if args.families == "all" else args.families.split(",")
    args.methods = [*filter(None, args.methods.split(",")), *(text.split("=", 1)[0] for text in args.policy)]
    if args.table:
        lines = [x for x in read(args.into) if x["by"] == args.by and x["trainings"] == args.trainings]
        chosen = [x for x in lines if x["family"] in args.families and (x["instance"] >= FRESH) == args.fresh]
        print(table(chosen, args.against, args.value))
        if args.svg:
            draw(chosen, args.value)
        return
    if max(args.instances) >= FRESH and not args.fresh:
        parser.error(f"instances from {FRESH} on are for the page: nothing may be chosen on them. Pass --fresh")
    unknown = {*args.methods} - {*known} - {text.split("=", 1)[0] for text in args.policy}
    if unknown:
        parser.error(f"unknown method {', '.join(sorted(unknown))}; use some of {', '.join(known)}, or --policy")
    with get_context("spawn").Pool(args.processes) as pool:
        if args.look:
            looks = [pool.apply_async(look, (family, n, args)) for n in args.instances for family in args.families]
            for found in looks:
                print(found.get(), flush=True)
            return
        begun = time.perf_counter()
        jobs = [pool.apply_async(one, (*job, args)) for job in missing(args)]
        for done, job in enumerate(jobs, 1):
            text = job.get()
            print(f"{time.perf_counter() - begun:6.0f} s  {done}/{len(jobs)}  {text}", flush=True)


if __name__ == "__main__":
    main()
