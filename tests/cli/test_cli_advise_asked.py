"""`paceline advise --model llama_8b --gpus 8xH100`: shorthands of overrides."""

import json
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
        ("AMD Instinct MI300X", ["hardware=mi300x"]),
        ("144xGB200", ["hardware=gb200_72", "hardware.hosts=2"]),
        ("4x tpu-v5p", ["hardware=tpu_v5p_4"]),
    ],
)
def test_cards_are_a_choice_of_hardware(asked: str, words: list[str]) -> None:
    assert with_shorthands(["seed=1"], gpus=asked) == [*words, "seed=1"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("0xH100", "--gpus 0xH100: there is no such number of cards. Choose 1, 8 or a multiple of 8."),
        ("2X a100", "--gpus 2X a100: there is no such number of cards. Choose 1, 8 or a multiple of 8."),
        ("16xRTX3090", "there is no such number of cards. Choose 1 or 8."),
        ("gb200", "there is no such number of cards. Choose 72 or a multiple of 72."),
        ("8xH101", "there is no such accelerator; did you mean h100 (1, 8 or a multiple of 8 of them) or "),
        ("8xA100-60GB", "there is no such accelerator; did you mean a100"),
        ("8xA100-96GB", "there is no such accelerator; did you mean a100"),
        ("8x4090", "did you mean rtx_4090 (1 or 8 of them)"),
        ("8xabacus", "there is no such accelerator; there are a100, a100_40gb, "),
        ("", "there is no such accelerator; there are a100, "),
    ],
)
def test_other_cards_are_refused_with_the_nearest_and_their_numbers(asked: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_shorthands([], gpus=asked)
    assert says in str(refused.value)


def test_a_gpt_gets_tokens_if_no_data_are_typed() -> None:
    assert with_shorthands([], "Llama-8B") == ["model=llama_8b", "data=tokens"]
    assert with_shorthands(["data=text"], "gpt_1b") == ["model=gpt_1b", "data=text"]
    assert with_shorthands(["data.context=4096"], "gpt")[:2] == ["model=gpt", "data=tokens"]
    assert with_shorthands([], "cnn") == ["model=cnn"]


def test_choices_of_ones_own_have_shorthands(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "abacus_4.yaml").write_text("machine:\n  devices: 4\n  network: {latency: 1}\n")
    (tmp_path / "hardware" / "odd.yaml").write_text("machine: 3\n")
    assert with_shorthands([], gpus="12xAbacus", config_dir=tmp_path) == ["hardware=abacus_4", "hardware.hosts=3"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpus", "8xH100", "hardware=h100"), "--gpus 8xH100: hardware is typed, too. Choose one of them."),
        (("--gpus", "8xH100", "hardware.hosts=2"), "--gpus 8xH100: hardware.hosts is typed, too."),
        (("--model", "gpt", "model=cnn"), "--model gpt: model is typed, too. Choose one of them."),
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


def test_a_hugging_face_model_is_read_and_its_notes_are_told(paceline, tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
    more = {"vocab_size": 1000, "max_position_embeddings": 512, "rope_scaling": {"type": "linear"}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes, **more}))
    words = ("--hf", str(tmp_path), "--gpus", "h100", "--batch", "8", "--top", "1", "--format", "csv")
    ended = paceline("advise", *words, "model.n_layer=2")
    assert ended.status == 0 and "rope_scaling: model=gpt does not scale angles (linear)" in ended.err
    assert "paceline train model=gpt model.vocabulary=1000 model.context=512 model.n_head=4" in ended.out
    assert "data=tokens data.vocabulary=1000 data.context=512 hardware=h100 model.n_layer=2" in ended.out
    for more in (("model=cnn",), ("--model", "gpt")):
        ended = paceline("advise", *words, *more)
        assert ended.status == 2 and "model is typed, too. Choose one of them." in ended.err
    ended = paceline("advise", "--hf", str(tmp_path / "none"))
    assert ended.status == 2 and ended.last == f"--hf {tmp_path}/none: cannot be read (No such file or directory)"
