"""Which of several vectors no other dominates: the Pareto front.

One dominates another when it is at least as good in every goal, and better in one.
"""

from __future__ import annotations

import numpy as np

from haltune._utils.arrays import Array, Mask


def dominates(one: Array, others: Array) -> Mask:
    """(n,) whether a vector (m,), larger better, dominates each of others (n, m)."""
    return np.asarray((one >= others).all(axis=-1) & (one > others).any(axis=-1))


def non_dominated(vectors: Array) -> Mask:
    """(n,) True where no other of the vectors (n, m), larger better, dominates; equal ones do not dominate each other.

    The best in the first goal come first, of equals those that are better in the second, and so on: then what dominates
    a vector stands before it, and it is enough to look at those that are on the front already.
    """
    found = np.zeros(len(vectors), dtype=bool)
    front = np.empty((0, vectors.shape[1]))
    for i in np.lexsort(-vectors.T[::-1]):
        one = vectors[i]
        if not ((front >= one).all(axis=1) & (front > one).any(axis=1)).any():
            found[i] = True
            front = np.vstack([front, one])
    return found


def hypervolume(vectors: Array, reference: Array) -> float:
    """The volume that vectors (n, m), larger better, dominate above a reference (m,); exact, by slices.

    While, Bradstreet and Barone (2012) are quicker for many goals; these are fronts of few points and few goals.
    """
    above = vectors[(vectors > reference).all(axis=1)]
    if not len(above):
        return 0.0
    above = above[non_dominated(above)]
    if above.shape[1] == 1:
        return float(above.max() - reference[0])
    order = above[np.argsort(-above[:, 0], kind="stable")]
    nexts = np.append(order[1:, 0], reference[0])
    slices = (
        (order[i, 0] - nexts[i]) * hypervolume(order[: i + 1, 1:], reference[1:]) for i in range(len(order))
    )
    return float(sum(slices))
