"""The page of a search that runs, served: `haltune watch`."""
