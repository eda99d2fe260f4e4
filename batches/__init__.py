"""What a batch is made of: one tensor, or several of the same samples, and how a model is called with them."""

from .fields import Fields, Samples, call, lone, of_each, tensors_of

__all__ = ["Fields", "Samples", "call", "lone", "of_each", "tensors_of"]
