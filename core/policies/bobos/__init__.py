"""BO-BOS: Bayesian optimal stopping within Bayesian optimisation (Dai et al. 2019)."""
