"""`paceline import`: a line to copy, alone on standard output."""

import json
import shlex
from pathlib import Path

from test_cli_start import HEAVY, loaded_by

FILES = Path(__file__).parents[1] / "advise" / "imported"
ZERO = str(FILES / "zero3.json")


def test_the_line_is_alone_on_standard_output_and_is_accepted(paceline) -> None:
    ended = paceline("import", "deepspeed", ZERO)
    assert ended.status == 0 and ended.out.count("\n") == 1
    assert "left out: scheduler.type=WarmupLR\n" in ended.err and "note: The file names no model" in ended.err
    assert "'optimizer.betas=[0.9,0.95]'" in ended.out  # quoted for a shell
    checked = paceline(*shlex.split(ended.out)[1:], "--dry-run", "tracking=none")
    assert checked.status == 0 and checked.out.startswith("ok: zero + bsp")


def test_as_json_it_is_one_document(paceline) -> None:
    ended = paceline("import", "torchtitan", str(FILES / "staged.toml"), "--format", "json")
    found = json.loads(ended.out)
    assert set(found) == {"command", "left_out", "notes"} and ended.err == ""
    assert found["command"].startswith("paceline train strategy=hybrid")
    assert "model.flavor=16B" in found["left_out"]


def test_an_unknown_tool_or_a_missing_file_ends_with_2(paceline, here: Path) -> None:
    for arguments, says in (
        (("megatron", ZERO), "Choose deepspeed, accelerate, torchtitan."),
        (("deepspeed", "none.json"), "none.json: cannot be read (No such file or directory). Choose another file."),
    ):
        ended = paceline("import", *arguments)
        assert (ended.status, ended.out) == (2, "") and ended.last.endswith(says)


def test_it_loads_nothing_heavy(here: Path) -> None:
    status, names = loaded_by(["import", "deepspeed", ZERO], here)
    assert status == 0 and not names & (HEAVY - {"pydantic"})  # Typer reads arguments with pydantic
