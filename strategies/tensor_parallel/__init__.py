"""Components of strategy=tensor: layers that hold a piece, the choice of such layers, and the bytes sent."""
