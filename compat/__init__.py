"""Names that torch, DeepSpeed, Optuna, Typer and W&B do not promise to keep, one file a library.

Each has a test in tests/compat/ that says in a sentence what broke; `make newest` runs those with the newest versions.
"""
