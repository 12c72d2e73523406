"""`haltune doctor`: is everything here that a search needs?"""
