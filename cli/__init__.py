"""The command line: parse, hand over to the engine or to tracking, print. One file a command.

Nothing here imports torch, hydra or wandb before a command needs it: `--help`, `list` and completion answer at once.
"""
