"""What strategy=tensor is made of: layers that hold a piece, which layers become such, and what their workers send."""
