"""Who goes on: how few, from which rung, whether runs can pause, and what goes on as the budget ends."""
