"""Models: each an nn.Sequential whose children pass one tensor on, so that a pipeline can cut between any two.

Cut one with `nn.Sequential(*list(model)[a:b])`; slicing the model itself would call its own constructor.
"""
