"""Predictions, from plans and measured machines: the time of a step, and the largest model that fits."""
