"""Cost-constrained rollout: nonmyopic Bayesian optimisation under a budget."""
