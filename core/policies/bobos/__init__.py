"""BO-BOS: Bayesian optimisation with Bayesian optimal stopping (Dai et al. 2019)."""
