"""Fixtures that all tests may use."""

from postgres import postgres_server, postgres_url

__all__ = ["postgres_server", "postgres_url"]
