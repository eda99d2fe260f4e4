"""The contents of a batch: one tensor, or several of the same samples, and how a model is called with them."""

from .fields import Fields, Samples, call, lone, of_each, tensors_of
from .inference import always_infer, infers

__all__ = ["Fields", "Samples", "always_infer", "call", "infers", "lone", "of_each", "tensors_of"]
