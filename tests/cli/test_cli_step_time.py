"""`paceline plan` with a predicted step: for people, for programs, and where it is refused."""

import json

import pytest

GPT = ["plan", "hardware=a100_8", "model=gpt", "data=text", "data.context=128"]


def test_people_read_the_step_its_parts_with_formulas_an_epoch_and_tokens(paceline) -> None:
    ended = paceline(*GPT, "--tokens", "20B")
    assert ended.status == 0
    assert "on 8 A100 in float32" in ended.out and "nothing of it was measured here" in ended.out
    assert "a roofline for each kernel (Williams et al. 2009)" in ended.out
    assert "\nan epoch of " in ended.out
    assert "\n2e+10 tokens: " in ended.out and ", $" in ended.out
    assert ended.out.rstrip().endswith("paceline cost uses the rates of long runs, with their pauses")


def test_programs_read_raw_values(paceline) -> None:
    raw = json.loads(paceline(*GPT, "--tokens", "1e9", "--format", "json").out)["step"]
    assert raw["tokens"]["seconds"] == pytest.approx(1e9 / raw["tokens_per_second"])
    assert raw["tokens"]["dollars"] == pytest.approx(raw["tokens"]["seconds"] * 27.44705 / 3600)
    assert raw["epoch"]["seconds"] > raw["seconds"] > 0


def test_where_no_accelerator_is_described_a_plan_has_no_step_and_says_why_in_json(paceline) -> None:
    raw = json.loads(paceline("plan", "--format", "json").out)
    assert raw["step"] is None
    assert raw["step_why"].startswith("hardware.machine names no accelerator")
    assert "predicted step" not in paceline("plan").out


def test_where_one_is_described_people_read_why_there_is_no_prediction(paceline) -> None:
    out = paceline("plan", "hardware=t4", "model=cnn", "data=fashion_mnist").out
    assert "predicted step: none; model=cnn: on accelerators, times are known of model=gpt and" in out


def test_what_does_not_fit_says_so(paceline) -> None:
    small = (*GPT, "hardware.machine.device_memory=100000000")
    assert "it does not fit: " in paceline(*small).out
    assert json.loads(paceline(*small, "--format", "json").out)["step"]["fits"] is False
    assert json.loads(paceline(*GPT, "--format", "json").out)["step"]["fits"] is True


def test_a_dry_run_of_what_does_not_fit_notes_it(paceline) -> None:
    words = ("train", *GPT[1:], "--dry-run")
    small = (*words, "hardware.machine.device_memory=100000000")
    assert "note: it does not fit: " in paceline(*small).err
    assert "it does not fit" not in paceline(*words).err
    assert json.loads(paceline(*small, "--format", "json").out)["device_memory"]["fits"] is False


def test_memory_of_a_device_has_the_range_of_published_runs_also_without_a_step(paceline) -> None:
    shown = paceline(*GPT).out
    assert "\nmemory of a device: 1.2 GiB of 79.2 GiB, with the runtime's\n" in shown
    assert "14 published runs of PyTorch held 0.99 to 1.12 times as much" in shown
    raw = json.loads(paceline(*GPT, "--format", "json").out)["device_memory"]
    assert raw["range"] == [int(raw["held"] * 0.99), int(raw["held"] * 1.12)] and raw["margin"] is True
    tight = (*GPT, f"hardware.machine.device_memory={raw['held'] + 2**20}")
    assert "it may run out of memory: the range goes beyond a device of 1.2 GiB" in paceline(*tight).out
    assert json.loads(paceline(*tight, "--format", "json").out)["device_memory"]["margin"] is False
    untimed = paceline("plan", "hardware=t4", "model=cnn", "data=fashion_mnist").out
    assert "memory of a device: " in untimed and "predicted step: none" in untimed
    assert "memory of a device" not in paceline("plan").out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tokens", "-3"], "--tokens -3: must be at least 1 and at most 1e18"),
        (["--tokens", "1e40"], "--tokens 1e40: must be at least 1 and at most 1e18"),
        (["--tokens", "nan"], "--tokens nan: must be a number such as 300e9, 300B or 0.5"),
        (["--tokens", "1e9", "--fit"], "--tokens: is of one plan, and --fit makes many"),
        (["--tokens", "1e9", "sync=asp"], "--tokens: a step's time is not predicted: sync=asp"),
    ],
)
def test_tokens_that_cannot_be_are_refused(paceline, arguments: list[str], says: str) -> None:
    ended = paceline(*GPT, *arguments)
    assert ended.status == 2
    assert says in ended.err
