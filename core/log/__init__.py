"""What happened: the problem, the events of a search, their fold, and the contract of who decides."""
