"""Where the log, the leases and the checkpoints are kept."""
