"""What callbacks of several frameworks share."""
