"""The page of a search that runs: served, `haltune watch`, or in a notebook's cell."""
