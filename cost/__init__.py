"""Predicts what training costs (time, bytes, memory, money and energy) by closed forms, before anything runs."""
