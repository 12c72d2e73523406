"""Figures of a search: each function returns a Plotly figure; its `_spec` function returns plain data for the page."""
