"""A device's memory as a pool, and a step whose layers are fetched into it; see offload.py."""
