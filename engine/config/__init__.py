"""From overrides, files and objects to one validated experiment, and to the objects that it names."""
