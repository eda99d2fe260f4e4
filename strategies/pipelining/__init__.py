"""Pipeline schedules as data: what they are, what they need, and what they cost."""
