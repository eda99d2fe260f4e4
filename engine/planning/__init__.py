"""What a run would do and hold, before anything starts."""
