"""The live page of a search: served by `haltune watch`, or in a notebook's cell."""
