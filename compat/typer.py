"""Typer's script for completion in bash, which cannot be replaced otherwise, and its own copy of Click's errors."""

import typer._completion_classes
import typer._completion_shared
from typer._click.exceptions import BadOptionUsage, ClickException, NoSuchOption

__all__ = ["BadOptionUsage", "ClickException", "NoSuchOption", "set_bash_script"]


def set_bash_script(script: str) -> None:
    """Sets the script that `--install-completion` writes, and `--show-completion` prints, for bash."""
    typer._completion_shared._completion_scripts["bash"] = script
    typer._completion_classes.BashComplete.source_template = script
