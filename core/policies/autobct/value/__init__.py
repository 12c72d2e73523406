"""What going on is worth: value functions and maps."""
