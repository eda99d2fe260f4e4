"""`paceline advise --export FORMAT=FILE`."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml

from paceline.advise.formats import FORMATS
from paceline.cli.advise_export import NAMES

GPT = ("advise", "model=gpt", "data=text", "hardware=h100_8", "--batch", "8", "--top", "3")


def test_each_format_has_its_name_on_the_command_line() -> None:
    assert tuple(FORMATS) == NAMES


@pytest.mark.budget(2)
def test_the_recommended_layout_is_written_in_each_format(paceline, here: Path) -> None:
    words = ("--export", "torchtitan=run.toml", "--export", "deepspeed=run.json", "--export", "accelerate=run.yaml")
    ended = paceline(*GPT, "strategy=torch_fsdp", *words)
    assert ended.status == 0, ended.err
    first = ended.out.splitlines()[0].removeprefix("recommended: ")
    assert (here / "run.toml").read_text().startswith(f"# {first}\n")
    assert tomllib.loads((here / "run.toml").read_text())["parallelism"]["data_parallel_shard_degree"] == 8
    assert yaml.safe_load((here / "run.yaml").read_text())["num_processes"] == 8
    assert json.loads((here / "run.json").read_text())["train_batch_size"] == 8
    told = ended.err.splitlines()
    assert told[0] == "torchtitan: run.toml" and told[1].startswith("note: run.toml: Set name and flavor of [model]")
    assert "accelerate: run.yaml" in told and "deepspeed: run.json" in told


@pytest.mark.budget(2)
def test_a_typed_group_of_shards_is_written(paceline, here: Path) -> None:
    ended = paceline(*GPT, "strategy=torch_fsdp", "strategy.shard_over=4", "--export", "torchtitan=run.toml")
    assert ended.status == 0, ended.err
    made = tomllib.loads((here / "run.toml").read_text())["parallelism"]
    assert (made["data_parallel_replicate_degree"], made["data_parallel_shard_degree"]) == (2, 4)


@pytest.mark.budget(2)
def test_a_layout_is_refused_with_the_formats_that_can_be_written(paceline, here: Path) -> None:
    """Nothing is written, not even in the formats that have the layout."""
    files = ("--export", "deepspeed=run.json", "--export", "torchtitan=run.toml")
    ended = paceline(*GPT, "strategy=zero", "strategy.stage=1", *files)
    assert (ended.status, ended.out, ended.last) == (
        2,
        "",
        "--export torchtitan=run.toml: torchtitan shards no optimizer state without gradients. Choose deepspeed.",
    )
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--export", "run.toml"), "--export run.toml: names no format. Choose torchtitan=run.toml, torchtitan=run.py"),
        (("--export", "megatron=a"), "--export megatron=a: names no format."),
        (("--export", "deepspeed="), "--export deepspeed=: names no file."),
        (("--export", "deepspeed=no/run.json"), "--export no/run.json: must name a file to write"),
        (("--export", "deepspeed=a", "--export", "accelerate=a"), "the file is that of another --export."),
        (("--export", "deepspeed=a", "--race", "2"), "--export: writes a prediction, and --race trains."),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_looked_at(
    paceline, words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.advise.question.ask", None)
    ended = paceline(*GPT, *words)
    assert (ended.status, ended.out) == (2, "") and says in ended.last
