"""Differences search by search, which the verdicts of docs/experiments/index.md count, in their standard errors."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


def differences(found: Mapping[str, NDArray[np.float64]], base: str, heads: Sequence[str]) -> None:
    """Print (searches, marks) values of `base` minus those of each other method, with errors and their number."""
    if base not in found or len(found) < 2:
        return
    print(f"\n{base + ' minus':34s}" + "".join(f"{head:>26s}" for head in heads))
    for name, values in found.items():
        if name != base:
            cells = [cell(column) for column in (found[base] - values).T]
            print(f"{name:34s}" + "".join(f"{one:>26s}" for one in cells), flush=True)


def cell(difference: NDArray[np.float64]) -> str:
    """Mean, standard error, and the mean in standard errors."""
    mean, n = float(difference.mean()), len(difference)
    error = float(difference.std(ddof=1)) / n**0.5 if n > 1 else float("nan")
    errors = f"{mean / error:+.1f}" if error > 0 else "-"
    return f"{mean:+.4f}±{error:.4f} ({errors})"
