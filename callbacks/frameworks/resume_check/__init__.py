"""Proves that a training which is paused goes on as if it had not been."""
