"""The problem, the events of a search, their fold, and the interface of policies."""
