"""What a person sees: text made plain for a terminal, small tables for a notebook."""
