"""The base of the engine: errors, checkpoints, memory, signals. It knows no experiment."""

from pathlib import Path

ROOT = Path("runs")  # where run directories are made, relative to where the command is given
