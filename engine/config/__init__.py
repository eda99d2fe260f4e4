"""Overrides, files and objects become one validated experiment, and the objects that it names."""
