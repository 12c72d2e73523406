"""Nothing of haltune: what any program could use."""
