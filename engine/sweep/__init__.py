"""Sweeps: many runs of one definition, none of them lost.

definition.py   what is searched: W&B's sweep schema, or Hydra's sweep grammar
study.py        Optuna: which point comes next, and what has been acknowledged
sweeper.py      runs the trials, several at once
preview.py      plans every point without running it
"""
