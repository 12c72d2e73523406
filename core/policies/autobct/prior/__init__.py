"""What AutoBCT believes before it has seen anything."""
