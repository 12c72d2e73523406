"""TruVaR: truncated variance reduction, for optimisation and level sets."""
