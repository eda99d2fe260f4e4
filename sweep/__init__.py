"""Sweeps: many runs of one definition, none of them lost. It uses the engine; the engine knows nothing of it.

definition.py   what is searched, in Hydra's sweep grammar; schema.py: in W&B's sweep schema
directory.py    a sweep's directory and study, made or opened again
study.py        Optuna: which point comes next, and what has been acknowledged
sweeper.py      runs the trials, several at once; results.py: what each has to show
preview.py      plans every point without running it
"""
