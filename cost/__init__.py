"""What training takes: time, bytes, memory, money and energy, by closed forms, before anything runs."""
