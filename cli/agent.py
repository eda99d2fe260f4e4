"""Reads the words that `wandb agent` writes on a sweep's command line, in Hydra's grammar."""

import os


def from_agent(overrides: list[str]) -> list[str]:
    """The overrides; under W&B's agent, which writes values as Python does, with `optimizer={'lr': 0.1}` as
    `optimizer.lr=0.1` and `steps=None` as `steps=null`.
    """
    if "WANDB_SWEEP_ID" not in os.environ:
        return overrides
    return [plain for text in overrides for plain in _plain(text)]


def _plain(text: str) -> list[str]:
    from ast import literal_eval

    key, _, value = text.partition("=")
    if value == "None":
        return [f"{key}=null"]
    if not value.startswith("{'"):
        return [text]
    try:
        nested = literal_eval(value)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two of what is nested deeply
        nested = None
    if not isinstance(nested, dict):
        return [text]  # refused as no override
    return [plain for name, inner in nested.items() for plain in _plain(f"{key}.{name}={inner}")]
