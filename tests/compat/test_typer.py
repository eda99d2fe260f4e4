"""Typer's script for bash."""

import typer
import typer._completion_classes
import typer._completion_shared
from pytest import MonkeyPatch
from typer.testing import CliRunner

from paceline.compat.typer import set_bash_script


def test_bash_gets_our_script(monkeypatch: MonkeyPatch) -> None:
    scripts = typer._completion_shared._completion_scripts
    monkeypatch.setattr(typer._completion_shared, "_completion_scripts", dict(scripts))
    monkeypatch.setattr(typer._completion_classes.BashComplete, "source_template", "")
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    set_bash_script("ours for %(prog_name)s: %(complete_func)s %(autocomplete_var)s")
    app = typer.Typer()
    app.command()(lambda: None)
    shown = CliRunner().invoke(app, ["--show-completion", "bash"], prog_name="try").output
    assert shown.strip() == "ours for try: _try_completion _TRY_COMPLETE", (
        "Typer takes its script for bash from elsewhere, so that model=c<TAB> completes c"
    )
