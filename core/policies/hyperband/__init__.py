"""Successive halving in all its forms (Li et al. 2018, 2020)."""
