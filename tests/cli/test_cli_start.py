"""What the command loads, and what it says of itself."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from paceline.cli.main import Terminated, _status_of_stop
from paceline.engine.base.failures import place_in

HEAVY = {"torch", "hydra", "omegaconf", "pydantic", "wandb", "deepspeed", "rich", "numpy", "sklearn"}
OF_OTHERS = {  # what only some choices, or results, need
    *("deepspeed", "matplotlib", "opacus", "optuna", "pandas", "plotly", "psycopg", "reportlab"),
    *("resvg_py", "scipy", "sklearn", "sqlalchemy", "svglib", "wandb"),
}
LOADED = """
import sys
from paceline.cli.main import main
sys.argv = ["paceline", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    print("LOADED", end.code, *sys.modules)
"""


def loaded_by(arguments: list[str], here: Path) -> tuple[int, set[str]]:
    """The exit status and the modules that are loaded then."""
    command = [sys.executable, "-c", LOADED, *arguments]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60, check=True)
    _, status, *names = done.stdout.splitlines()[-1].split()
    return int(status), set(names)


@pytest.mark.budget(1)
@pytest.mark.parametrize("named", [["--name", "mine"], ["name=mine"]], ids=" ".join)
def test_a_taken_name_is_refused_before_torch_is_imported(named: list[str], here: Path) -> None:
    (here / "runs" / "mine").mkdir(parents=True)
    status, names = loaded_by(["train", *named], here)
    assert status == 2 and "torch" not in names


@pytest.mark.budget(4)
def test_a_dry_run_needs_neither_torchs_compiler_nor_what_only_training_and_results_need(here: Path) -> None:
    status, names = loaded_by(["train", "--dry-run"], here)
    assert status == 0 and "torch" in names
    assert not names & {"torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.distributed.fsdp"}
    assert not names & (OF_OTHERS | {"rich", "sympy"})


@pytest.mark.slow  # trains
@pytest.mark.parametrize("arguments", [["train", "tracking=none", "steps=1"], ["explain", "sync=ssp"]], ids=" ".join)
def test_a_plain_run_and_an_explanation_load_nothing_that_only_other_choices_need(
    arguments: list[str], here: Path
) -> None:
    status, names = loaded_by([*arguments, *(["hardware=virtual"] if arguments[0] == "train" else [])], here)
    assert status == 0 and "torch" in names and not names & OF_OTHERS


COMPILER = """
import sys
from paceline.engine.callbacks import Callback

class Compiler(Callback):
    def each_step(self, view):
        return {"compiler": float(hasattr(sys.modules.get("torch._dynamo"), "__file__"))}
"""
RUN = """
import sys
from mine import Compiler
from paceline import engine

settings = {"steps": 2, "optimizer": "adam", "hardware": sys.argv[1], "tracking": "none"}
print(engine.run(settings, callbacks=[Compiler], quiet=True).curves().compiler.tolist())
"""


@pytest.mark.slow  # trains, beside a fork server that has no more than the engine asks for
@pytest.mark.parametrize("hardware", ["local", "virtual"])
def test_workers_that_compile_nothing_do_without_torchs_compiler(hardware: str, here: Path) -> None:
    (here / "mine.py").write_text(COMPILER)
    command, more = [sys.executable, "-c", RUN, hardware], {"PYTHONPATH": str(here)}
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=110, env=os.environ | more)
    assert done.stdout.split() == ["[0.0,", "0.0]"], done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["plan", "--help"],
        ["cost", "--help"],
        ["compare", "--help"],
        ["sweep", "--help"],
        ["show", "--help"],
        ["diff", "--help"],
        ["export", "--help"],
        ["report", "--help"],
        ["watch", "--help"],
        ["upload", "--help"],
        ["doctor", "--help"],
        ["lab", "--help"],
        ["learn", "--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_help_loads_nothing_heavy(arguments: list[str], here: Path) -> None:
    status, names = loaded_by(arguments, here)
    assert status == 0 and "typer" in names
    assert not names & (HEAVY | {"yaml"})


@pytest.mark.parametrize("arguments", [["list"], ["compare"], ["upload"], ["learn"], ["learn", "1"]], ids=" ".join)
def test_list_compare_and_sync_need_neither_torch_nor_hydra(arguments: list[str], here: Path) -> None:
    assert not loaded_by(arguments, here)[1] & (HEAVY - {"pydantic"})  # Typer reads arguments with pydantic


@pytest.mark.parametrize(
    "arguments",
    [
        ["parameters=1B", "tokens=1B", "devices=1", "flops=1T"],
        ["time=9h", "between=9h", "checkpoint=9s", "restart=9s"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_costs_of_numbers_need_neither_torch_nor_hydra(arguments: list[str], here: Path) -> None:
    status, names = loaded_by(["cost", *arguments], here)
    assert status == 0 and not names & (HEAVY - {"pydantic"})


@pytest.mark.budget(1)
@pytest.mark.parametrize("override", ["strateg=single", "strategy=sngle", "optimizer.rl=1", "epochs=none"])
def test_a_misspelt_name_is_refused_before_torch_is_loaded(override: str, here: Path) -> None:
    status, names = loaded_by(["train", override], here)
    assert status == 2 and "hydra" in names
    assert not names & {"torch", "wandb", "deepspeed"}


def test_version(paceline) -> None:
    assert paceline("--version").out == f"paceline {version('paceline')}\n"


def test_every_command_teaches_by_example(paceline) -> None:
    for command in (
        "train",
        "plan",
        "cost",
        "watch",
        "sweep",
        "compare",
        "report",
        "show",
        "diff",
        "export",
        "upload",
        "list",
        "lab",
        "learn",
    ):
        ended = paceline(command, "--help")
        assert ended.status == 0 and f"  paceline {command}" in ended.out
    assert "training is possible" in paceline("doctor", "--help").out


def test_without_a_command_there_is_help(paceline) -> None:
    ended = paceline()
    assert "Commands:" in ended.out + ended.err


@pytest.mark.parametrize(
    ("stop", "status"), [(Terminated(143), 143), (KeyboardInterrupt(), 130), (OSError("no stop"), 0)], ids=repr
)
def test_a_library_that_stumbles_over_a_signal_is_no_mistake_of_ours(stop: BaseException, status: int) -> None:
    """omegaconf's context managers raise an AttributeError of their own when a signal comes while it is imported."""
    try:
        try:
            raise stop
        finally:
            raise AttributeError("'NoneType' object has no attribute '_invalidate_flags_cache'")
    except AttributeError as stumbled:
        assert _status_of_stop(stumbled) == status


def test_an_error_that_is_its_own_cause_is_said_and_not_followed_for_ever() -> None:
    error, other = ValueError("round"), ValueError("and round")
    error.__cause__, other.__cause__ = error, error
    assert _status_of_stop(error) == _status_of_stop(other) == 0 and place_in(other, lambda _: False) == ""
