"""Ranges of published runs are those of the software and the device, where there are some."""

from benchmarks.published.levels import PLANNED, AlikeRuns, level
from paceline.cost.device import Efficiency
from paceline.cost.devices import DEVICES, GENERATIONS
from paceline.cost.published import LEVELS, MEMORY, RUNS, efficiency, held_by, published
from paceline.engine import prepare


def test_runs_on_a_device_are_named_and_else_those_of_the_software() -> None:
    own = published("PyTorch", "A100")
    assert (own.device, own.runs) == ("A100", 61) and "61 published runs of PyTorch on A100 took 0.95 to" in str(own)
    other = published("PyTorch", "L4")
    assert other.device is None and "none of them on this device, took" in str(other)
    assert "most of 3 published runs" in str(published("PyTorch", "H100"))
    assert all(0 < each.low <= each.high for each in RUNS)


def test_kernels_have_the_level_of_their_device_s_generation() -> None:
    assert sorted(name for devices in GENERATIONS.values() for name in devices) == sorted(DEVICES)
    for name, devices in GENERATIONS.items():
        of_figures = level(AlikeRuns(PLANNED, name, 16, group="", device=""))
        assert round(of_figures, 2) == LEVELS.get(name, 1.0)
        assert efficiency(DEVICES[devices[0]]).level == LEVELS.get(name, 1.0)


def test_attention_on_an_h100_is_pytorchs_and_elsewhere_that_of_all_devices() -> None:
    shares = {name: (efficiency(DEVICES[name]).attention, efficiency(DEVICES[name]).attention_back) for name in DEVICES}
    assert shares["H100"] == shares["H200"] == (0.35, 0.3)
    assert shares["A100"] == (Efficiency().attention, Efficiency().attention_back) != (0.35, 0.3)


def test_memory_has_a_range_of_the_software_and_a_margin_that_is_its_high_end() -> None:
    own = held_by("PyTorch")
    assert own is not None and own.margin == own.high == 1.12
    assert str(own) == "8 in 10 of 14 published runs of PyTorch held 0.99 to 1.12 times as much"
    assert "most of 4 published runs" in str(held_by("DeepSpeed"))
    assert held_by("Megatron") is None
    assert all(0 < each.low <= each.high for each in MEMORY)


def test_a_predicted_step_has_the_range_of_what_computes_it() -> None:
    made = ["model=gpt", "data=text", "hardware=a100_8", "precision=bf16"]
    ready = {name: prepare([*made, f"strategy={name}"]) for name in ("torch_fsdp", "zero")}
    steps = {name: each.step_time(each.plan()) for name, each in ready.items()}
    for name, software in (("torch_fsdp", "PyTorch"), ("zero", "DeepSpeed")):
        step = steps[name]
        assert step.published is not None and step.published.software == software
        assert step.range == (step.published.low * step.seconds, step.published.high * step.seconds)
        assert step.as_dict()["range"] == [*(step.range or ())]
