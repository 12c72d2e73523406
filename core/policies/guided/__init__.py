"""A Gaussian process over all values at all epochs chooses configurations for any policy."""
