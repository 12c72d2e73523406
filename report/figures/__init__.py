"""Figures of a search: each a function that returns one of Plotly's, and the same as plain data for the page."""
