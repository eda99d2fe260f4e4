"""Measuring this machine: kernels, what training takes beside, links between workers, and the disk."""
