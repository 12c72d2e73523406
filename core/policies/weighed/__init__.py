"""A search for several goals, or within constraints, by a policy for one: Knowles 2006, ParEGO."""
