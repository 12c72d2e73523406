"""What a Space is made of: domains, grids, coordinates, conditions, constraints, designs."""
