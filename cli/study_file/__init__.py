"""A search written down in TOML."""
