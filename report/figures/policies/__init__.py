"""Figures that belong to one policy, or to one kind of decision: each shows what it knew when it decided."""
