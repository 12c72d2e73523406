"""MultiFidelity: one search that learns at which epoch runs can be told apart."""
