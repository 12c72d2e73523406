"""Gaussian processes side by side: haltune, BoTorch's SingleTaskGP, scikit-learn; d = 8, one thread, one run.

    python benchmarks/speed/gp.py [--sizes 50 200 500] [--repeats 3]

Each peer is met on its own ground: BoTorch with the kernel, priors and bounds that SingleTaskGP ships,
scikit-learn with its flat priors within equal bounds and equally many starts. All log marginal likelihoods
are recomputed by one function at the hyperparameters found, on targets of mean 0 and deviation 1.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
import warnings
from collections.abc import Callable
from math import log, sqrt
from typing import Any

import numpy as np

from haltune import Choice, Float, Int
from haltune.gp import Kernel, LogNormal, Posterior, Priors, condition_on, fit
from haltune.policies.acquisition import Surface, log_ei, maximise
from haltune.space import Space

DIM = 8
STARTS = 3
BOTORCH = Priors(  # as SingleTaskGP ships them; its lengthscales and noise have no upper bound
    lengthscale=LogNormal(sqrt(2) + 0.5 * log(DIM), sqrt(3), 2.5e-2, 1e6),
    variance=1.0,
    noise=LogNormal(-4.0, 1.0, 1e-4, 1e2),
)
FLAT = Priors(  # log-normals this wide and this centred are flat in log theta
    lengthscale=LogNormal(1e6, 1e3, 1e-2, 1e3),
    variance=LogNormal(1e6, 1e3, 1e-3, 1e3),
    noise=LogNormal(1e6, 1e3, 1e-6, 1.0),
)


def data(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Eight inputs of falling importance, noise of a twentieth of the signal; y has mean 0 and deviation 1."""
    rng = np.random.default_rng(n)
    X = rng.random((n, DIM))
    y = np.sin(5 * X[:, 0]) + 2 * X[:, 1] * X[:, 2] + (X[:, 3] - 0.5) ** 2 + 0.05 * rng.standard_normal(n)
    return X, (y - y.mean()) / y.std()


def log_posterior(found: Posterior, priors: Priors) -> float:
    """The objective that both sides maximise: log marginal likelihood plus log priors."""
    parts = [(priors.lengthscale, scale) for scale in found.kernel.lengthscales]
    parts += [(priors.variance, found.kernel.variance), (priors.noise, found.noise)]
    logs = (prior.log_density(log(value)) for prior, value in parts if isinstance(prior, LogNormal))
    return found.log_marginal_likelihood + sum(logs)


def botorch(X: np.ndarray, y: np.ndarray) -> Posterior:
    """SingleTaskGP as shipped, by fit_gpytorch_mll."""
    import torch
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.set_num_threads(1)
    model = SingleTaskGP(torch.tensor(X), torch.tensor(y)[:, None], outcome_transform=None)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    kernel = Kernel("se", 1.0, model.covar_module.lengthscale.detach().numpy().ravel())
    return condition_on(kernel, X, y, noise=model.likelihood.noise.item(), constant=model.mean_module.constant.item())


def sklearn(X: np.ndarray, y: np.ndarray) -> Posterior:
    """GaussianProcessRegressor with an ARD Matern-5/2, a variance and a noise, from STARTS starts."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    signal = ConstantKernel(1.0, (1e-3, 1e3)) * Matern(np.ones(DIM), (1e-2, 1e3), nu=2.5)
    model = GaussianProcessRegressor(
        signal + WhiteKernel(0.01, (1e-6, 1.0)), n_restarts_optimizer=STARTS - 1, random_state=0
    ).fit(X, y)
    part = model.kernel_
    kernel = Kernel("matern52", part.k1.k1.constant_value, part.k1.k2.length_scale)
    return condition_on(kernel, X, y, noise=part.k2.noise_level)


def timed(call: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median seconds of a call, and its last result; one call before is not counted."""
    result, seconds = call(), []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)), result


def compare(n: int, repeats: int) -> None:
    """One block of the table."""
    X, y = data(n)
    rows = [
        ("BoTorch SingleTaskGP", BOTORCH, lambda: botorch(X, y), None),
        ("haltune, its priors", BOTORCH, lambda: fit(X, y, kernel="se", priors=BOTORCH, starts=STARTS), 0),
        (f"scikit-learn, {STARTS} starts", FLAT, lambda: sklearn(X, y), None),
        ("haltune, its priors", FLAT, lambda: fit(X, y, priors=FLAT, starts=STARTS), 2),
        ("haltune, as it comes", Priors.default(DIM), lambda: fit(X, y), None),
    ]
    seconds = []
    for name, priors, call, against in rows:
        spent, found = timed(call, repeats)
        seconds.append(spent)
        ratio = "" if against is None else f"{seconds[against] / spent:7.1f} x"
        objective = "" if priors is FLAT else f"{log_posterior(found, priors):12.3f}"
        print(f"{n:5d}  {name:24s} {spent:9.3f} s {ratio:9s} {found.log_marginal_likelihood:12.3f} {objective}")


def decisions(n: int, repeats: int) -> None:
    """Prediction, conditioning and a proposal in a mixed space, after n reports (2,000 of them kept)."""
    space = Space({f"x{i}": Float(0, 1) for i in range(5)} | {"n": Int(1, 64, log=True), "c": Choice(["a", "b", "c"])})
    configs = space.sample(n, np.random.default_rng(0))
    X = space.encode_many(configs)
    y = -((X[:, :5] - 0.4) ** 2).sum(axis=1) + 0.1 * X[:, 6] + 0.01 * np.random.default_rng(1).standard_normal(n)
    learning, model = timed(lambda: fit(X, y), 1)
    where = np.random.default_rng(3).random((1000, space.dim))
    predicting, _ = timed(lambda: model.predict(where), repeats)
    conditioning, _ = timed(lambda: model.condition(np.full(space.dim, 0.5), 0.0), repeats)
    around, tried = [configs[i] for i in np.argsort(-y)[:5]], set(space.keys(configs))
    surface = Surface(model, lambda mean, variance: log_ei(mean, variance, float(y.max())))
    proposing, _ = timed(
        lambda: maximise(surface, space, np.random.default_rng(2), tried=tried, around=around), repeats
    )
    times = {"fit": learning, "predict 1,000": predicting, "condition": conditioning, "maximise": proposing}
    shown = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in times.items())
    print(f"{n:6d} reports, {model.n:5d} kept: {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200, 500])
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print("    n  fit                         seconds   faster   log likelihood  with log prior")
    for n in given.sizes:
        compare(n, given.repeats if n < 500 else 1)
    for n in (50, 200, 500, 2_000, 20_000):
        decisions(n, given.repeats)


if __name__ == "__main__":
    main()
