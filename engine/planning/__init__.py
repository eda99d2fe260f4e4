"""Plans: the actions and the memory of a run, before anything starts."""
