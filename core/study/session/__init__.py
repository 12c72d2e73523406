"""What one process does for a study."""
