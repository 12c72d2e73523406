"""Helpers that know nothing of haltune; any program could use them."""
