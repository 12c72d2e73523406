"""Bayesian optimisation: surrogate, acquisition, its maximiser; GP-UCB and expected improvement."""
