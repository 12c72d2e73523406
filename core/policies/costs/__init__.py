"""What trainings cost, and what is left of a budget."""
