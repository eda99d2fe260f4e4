"""Inputs that are changed a little so that a model errs: who may change what, how, and training against it."""
