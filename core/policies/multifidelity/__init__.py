"""MultiFidelity: one search that learns from which epoch on trials can be compared."""
