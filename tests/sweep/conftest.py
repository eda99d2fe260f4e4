"""Sweeps train with what the engine's tests have: short_runs.py, and the saboteur that fails on purpose."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "engine"))
