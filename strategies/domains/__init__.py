"""Slabs of images: who has which rows, what is exchanged, and the layers that work on them."""
