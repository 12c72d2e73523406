"""The exact map between configurations and the unit cube."""
