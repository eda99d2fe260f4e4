"""`paceline advise --model llama_8b --gpus 8xH100`: shorthands of overrides."""

from pathlib import Path

import pytest

from paceline.cli.advise_asked import with_shorthands
from paceline.conf.errors import ConfigError


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("8xH100", ["hardware=h100_8"]),
        ("64xH100", ["hardware=h100_8", "hardware.hosts=8"]),
        ("h100", ["hardware=h100"]),
        ("h100_8", ["hardware=h100_8"]),
        ("1xRTX4090", ["hardware=rtx_4090"]),
        (" 8 × Nvidia RTX-4090 ", ["hardware=rtx_4090_8"]),
        ("8*A6000", ["hardware=a6000_8"]),
        ("16xA100-80GB", ["hardware=a100_8", "hardware.hosts=2"]),
        ("8xa100 40gb", ["hardware=a100_40gb_8"]),
        ("8xMI300X", ["hardware=mi300x_8"]),
        ("144xGB200", ["hardware=gb200_72", "hardware.hosts=2"]),
        ("4x tpu-v5p", ["hardware=tpu_v5p_4"]),
    ],
)
def test_cards_are_a_choice_of_hardware(asked: str, words: list[str]) -> None:
    assert with_shorthands(["seed=1"], None, asked, None) == [*words, "seed=1"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("0xH100", "--gpus 0xH100: there is no such number of cards. Choose 1, 8 or a multiple of 8."),
        ("2X a100", "--gpus 2X a100: there is no such number of cards. Choose 1, 8 or a multiple of 8."),
        ("16xRTX3090", "there is no such number of cards. Choose 1 or 8."),
        ("gb200", "there is no such number of cards. Choose 72 or a multiple of 72."),
        ("8xH101", "there is no such accelerator; did you mean h100 (1, 8 or a multiple of 8 of them) or "),
        ("8xA100-60GB", "there is no such accelerator; did you mean a100"),
        ("8x4090", "did you mean rtx_4090 (1 or 8 of them)"),
        ("8xabacus", "there is no such accelerator; there are a100, a100_40gb, "),
        ("", "there is no such accelerator; there are a100, "),
    ],
)
def test_other_cards_are_refused_with_the_nearest_and_their_numbers(asked: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_shorthands([], None, asked, None)
    assert says in str(refused.value)


def test_a_gpt_gets_tokens_if_no_data_are_typed() -> None:
    assert with_shorthands([], "Llama-8B", None, None) == ["model=llama_8b", "data=tokens"]
    assert with_shorthands(["data=text"], "gpt_1b", None, None) == ["model=gpt_1b", "data=text"]
    assert with_shorthands(["data.context=4096"], "gpt", None, None)[:2] == ["model=gpt", "data=tokens"]
    assert with_shorthands([], "cnn", None, None) == ["model=cnn"]


def test_choices_of_ones_own_have_shorthands(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "abacus_4.yaml").write_text("machine:\n  devices: 4\n  network: {latency: 1}\n")
    (tmp_path / "hardware" / "odd.yaml").write_text("machine: 3\n")
    assert with_shorthands([], None, "12xAbacus", tmp_path) == ["hardware=abacus_4", "hardware.hosts=3"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpus", "8xH100", "hardware=h100"), "--gpus 8xH100: hardware= is typed, too. Choose one of them."),
        (("--gpus", "8xH100", "hardware.hosts=2"), "--gpus 8xH100: hardware.hosts= is typed, too."),
        (("--model", "gpt", "model=cnn"), "--model gpt: model= is typed, too. Choose one of them."),
        (("--model", "lama_8b"), "--model lama_8b: there is no such choice; did you mean llama_8b"),
        (("--model", "a=b\x1b"), "--model a=b\\u001b: there is no such choice; "),
    ],
)
def test_what_cannot_be_is_refused_by_name(paceline, words: tuple[str, ...], says: str) -> None:
    ended = paceline("advise", *words)
    assert (ended.status, ended.out) == (2, "") and says in ended.err and "Traceback" not in ended.err


def test_the_answer_has_full_commands(paceline) -> None:
    words = ("--model", "gpt-100m", "--gpus", "16xH100", "strategy=data_parallel", "--batch", "64", "--top", "1")
    ended = paceline("advise", *words, "--format", "csv")
    assert ended.status == 0
    assert "paceline train model=gpt_100m data=tokens hardware=h100_8 hardware.hosts=2" in ended.out
