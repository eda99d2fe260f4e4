"""The tables of `make predictions`, from a folder that is made here: what is scored, what is not, and why."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.published.fitting import fitted
from benchmarks.published.levels import AlikeRuns, beside_plan, figures, fitted_levels, level, predicted
from benchmarks.published.rows import Row, Unscored, UnusableFolder, case_of, cases_of, measured, read, software_of
from benchmarks.published.tables import held, links_inside, memory, plans, rankings, software, times
from paceline.cost.device import Efficiency
from paceline.cost.memory import held as bytes_of
from paceline.cost.step import step_time
from paceline.cost.transformer import Factors

ROOT = Path(__file__).parents[1]
COLUMNS = [
    "id", "group", "model", "arch", "hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "seq", "gpu",
    "gpu_mem_gb", "peak_tflops", "gpus", "gpus_per_node", "interconnect", "framework", "precision", "dp", "tp",
    "pp", "vp", "cp", "ep", "zero", "micro_batch", "global_batch", "recompute", "offload", "step_s", "samples_per_s",
    "tokens_per_s", "tokens_per_s_gpu", "tflops_gpu", "flops_kind", "mfu_pct", "hfu_pct", "mem_gb", "outcome", "note",
]  # fmt: skip
USUAL = {
    "group": "some",
    "model": "GPT",
    "arch": "gpt",
    "hidden": "2048",
    "layers": "16",
    "heads": "16",
    "seq": "1024",
    "gpu": "A100-SXM",
    "gpu_mem_gb": "80",
    "gpus": "8",
    "framework": "Megatron-LM",
    "precision": "fp16",
    "micro_batch": "2",
    "global_batch": "32",
    "recompute": "full",
    "step_s": "1.5",
    "outcome": "ok",
}


def row(**values: object) -> Row:
    return {column: str({**USUAL, **values}.get(column, "")) for column in COLUMNS}


def test_a_row_becomes_what_is_predicted_of_it() -> None:
    case = case_of(row(dp=2, tp=2, pp=2, interconnect="NVSwitch + 8x200 Gb/s HDR", peak_tflops=300))
    assert (case.of.layers, case.of.width, case.of.feed_forward) == (16, 2048, 8192)
    assert (case.layout.data, case.layout.tensor, case.layout.stages, case.layout.micro_batches) == (2, 2, 2, 8)
    assert case.cluster.links.between.bandwidth == 2e11
    assert case.cluster.device.peak["float16"] == 3e14
    assert measured(case) == 1.5
    assert case.predicted(Efficiency()) == step_time(case.of, case.layout, case.cluster, Efficiency()).total


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({"step_s": "", "samples_per_s": 64}, 0.5),
        ({"step_s": "", "tokens_per_s": 8192}, 4.0),
        ({"step_s": "", "tokens_per_s_gpu": 8192}, 0.5),
        ({"step_s": ""}, None),
        ({"outcome": "oom", "step_s": ""}, None),
    ],
)
def test_a_step_s_time_follows_from_any_throughput(values: dict[str, object], seconds: float | None) -> None:
    assert case_of(row(**values)).seconds == seconds


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"arch": "moe", "model": "DeepSeekV3"}, "a shape that is not modelled"),
        ({"arch": "bert"}, "arch=bert is not modelled"),
        ({"note": "INCONSISTENT AS PUBLISHED: 1x4x8 is not 16"}, "contradicts itself in its source"),
        ({"hidden": ""}, "no hidden"),
        ({"gpu": "T4 + V100"}, "devices of different kinds"),
        ({"gpu": "Abacus"}, "gpu=Abacus is not in paceline.cost.devices"),
    ],
)
def test_what_cannot_be_predicted_says_why(values: dict[str, object], why: str) -> None:
    with pytest.raises(Unscored, match=why):
        case_of(row(**values))


@pytest.mark.parametrize(
    ("text", "bandwidth"),
    [
        ("NVLink + 8x200 Gb/s HDR", 2e11),
        ("NVLink + 32 x 100 Gb/s", 4e11),
        ("NVLink + 400 Gb/s a GPU", 4e11),
        ("NVLink + 1600 Gb/s RoCE a node", 2e11),
    ],
)
def test_links_between_hosts_are_read_as_they_are_written(text: str, bandwidth: float) -> None:
    assert case_of(row(interconnect=text)).cluster.links.between.bandwidth == bandwidth


def test_a_batch_of_long_sequences_is_read_from_the_later_edition_of_their_table() -> None:
    values = {"group": "nemo-long-context", "seq": 32768, "global_batch": "", "gpus": 32, "dp": 8, "tp": 2, "cp": 2}
    layout = case_of(row(**values)).layout
    assert (layout.batch, layout.context, layout.devices) == (128, 2, 32)
    assert case_of(row(**values | {"global_batch": 64})).layout.batch == 64


def test_nemo_of_the_launcher_has_the_attention_of_flash_attention_2_on_an_h100() -> None:
    values = {"gpu": "H100-SXM", "seq": 8192, "recompute": "none", "micro_batch": 1}
    old, new = (case_of(row(framework=name, **values)).predicted(Efficiency()) for name in ("NeMo 24.07", "NeMo 25.02"))
    assert old > 1.1 * new


@pytest.mark.parametrize(
    ("values", "hides"),
    [
        ({"framework": "NeMo 25.02 (Megatron-Core, distributed Adam, TP overlap, sequence parallel)"}, True),
        ({"framework": "NeMo 24.07"}, False),
        ({"framework": "NeMo 24.07", "model": "GPT3-175B"}, True),
        ({"framework": "NeMo / Megatron-Bridge 26.02"}, True),
        ({"framework": "NeMo / Megatron-Bridge 26.02", "precision": "NVFP4", "gpu": "B200"}, False),
        (
            {"framework": "NeMo / Megatron-Bridge 26.02", "arch": "moe", "model": "Qwen3_30B_a3B", "gpu": "H100-SXM"},
            False,
        ),
    ],
)
def test_sums_within_layers_are_hidden_where_the_source_says_so(values: dict[str, object], hides: bool) -> None:
    assert case_of(row(**values)).layout.hides_sums is hides


def test_samples_of_nemos_fine_tuning_are_packed_texts() -> None:
    names = ("LLAMA3_70B SFT", "LLAMA3_70B LoRA", "LLAMA3_70B")
    assert [case_of(row(framework="NeMo 25.02", model=name)).of.text for name in names] == [200, 200, None]
    assert case_of(row(framework="litgpt", model="Llama 8B LoRA")).of.text is None


@pytest.mark.parametrize(("scope", "over"), [("all replicas (zero1=all)", None), ("4 GPUs of a node (zero1=4)", 4)])
def test_the_replicas_that_share_shards_are_read(scope: str, over: int | None) -> None:
    assert case_of(row(zero=1, note=f"optimizer state shared over {scope}")).layout.shard_over == over


AMP = {"framework": "DeepSpeed 0.3.1 + Megatron 1.1.5 (AMP pipeline engine, fp16)", "gpu": "T4", "dp": 4}


def test_amp_s_megatron_has_kernels_of_their_own_and_sums_gradients_in_float32() -> None:
    amp, other = (case_of(row(**AMP | {"framework": name})) for name in (AMP["framework"], "DeepSpeed 0.5 + Megatron"))
    assert (amp.layout.wide_sums, other.layout.wide_sums) == (True, False)
    narrow = replace(amp, layout=replace(amp.layout, wide_sums=False))
    assert narrow.predicted(Efficiency()) > 1.05 * other.predicted(Efficiency())


def test_old_branches_of_jean_zay_s_megatron_have_kernels_of_their_own() -> None:
    old, new = (case_of(row(note=note)).predicted(Efficiency()) for note in ("512 GPUs (old branch)", "512 GPUs"))
    assert old > 1.05 * new


def test_what_jax_keeps_of_a_layer_is_read() -> None:
    values = {"framework": "Pax (JAX)", "recompute": "selective"}
    policies = ("checkpoint policy SAVE_DOT_WITH_NO_BATCH_DIM", "")
    assert [case_of(row(**values, note=each)).layout.recompute for each in policies] == ["others", "selective"]


@pytest.mark.parametrize(
    ("framework", "arch", "fused"),
    [
        ("Pax (JAX, without Transformer Engine)", "gpt", False),
        ("Pax (JAX, without Transformer Engine)", "llama", True),
        ("Pax (JAX)", "gpt", True),
    ],
)
def test_gpts_of_early_pax_have_attention_in_one_kernel_with_transformer_engine_alone(
    framework: str, arch: str, fused: bool
) -> None:
    assert case_of(row(framework=framework, arch=arch)).layout.fused is fused


def test_what_a_row_says_of_its_software_is_read() -> None:
    selective = case_of(row(recompute="selective + sequence parallel", dp=4, tp=2)).layout
    assert (selective.recompute, selective.sequence) == ("selective", True)
    assert case_of(row(precision="bf16+float8 rowwise")).layout.dtype == "float8"
    assert case_of(row(framework="Megatron-Core")).layout.fused and case_of(row(framework="MaxText")).layout.fused
    assert not case_of(row(framework="Pax", note="no flash attention")).layout.fused
    assert case_of(row(model="Llama 8B LoRA")).of.factors == Factors(32, narrow=True, only_queries=True)
    operators = case_of(row(recompute="selective op", framework="torchtitan")).layout
    assert (operators.recompute, operators.fused) == ("operators", True)
    launcher = {"framework": "NeMo Framework 23.07", "recompute": "", "gpus": 8}
    one, stages = (case_of(row(**launcher, tp=1, pp=pp)).layout for pp in (1, 8))
    assert (one.fused, one.recompute, stages.recompute) == (False, "none", "selective")
    mixed = case_of(row(precision="bf16+float8 rowwise", gpu="H100-SXM", peak_tflops=989)).cluster.device
    assert mixed.peak["float8"] == 1979e12
    eager, compiled = (
        case_of(row(framework=f"litgpt (FSDP, {how}, flash attention by SDPA)", arch="llama"))
        for how in ("eager", "thunder + nvfuser")
    )
    assert eager.predicted(Efficiency()) > compiled.predicted(Efficiency())
    assert software_of(row(framework="NeMo / Megatron-Bridge 26.02")) == "NeMo and Megatron"
    assert software_of(row(framework="torchtitan (FSDP2, torch.compile)")) == "PyTorch"
    assert software_of(row(framework="Megatron-DeepSpeed")) == "DeepSpeed"
    assert software_of(row(group="vtrain-multi-node")).startswith("vTrain")
    bridges = [
        software_of(row(arch="moe", framework=f"NeMo / Megatron-Bridge {x} NeMo")) for x in ("26.04.01", "26.06")
    ]
    assert bridges == [
        "NeMo, experts, before 26.06",
        "NeMo, experts, from 26.06",
    ]


def test_a_micro_batch_that_is_not_stated_is_the_largest_that_fits() -> None:
    stated = case_of(row(dp=8, micro_batch=4))
    assert case_of(row(dp=8, micro_batch="")).layout.micro_batch == 4
    tight = row(dp=8, micro_batch="", gpu_mem_gb=stated.need / 2**30 * 0.99)
    assert case_of(tight).layout.micro_batch == 2
    assert case_of(row(dp=4, pp=2, micro_batch="")).layout.micro_batch == 1


def test_a_step_s_time_follows_from_the_rate_of_a_device() -> None:
    case = case_of(row(step_s="", tflops_gpu=100, flops_kind="model", recompute="full"))
    assert case.seconds == pytest.approx(case.of.pass_flops(32, recomputed=False) / 1e14 / 8)
    hardware = case_of(row(step_s="", tflops_gpu=100, flops_kind="hardware", recompute="full"))
    assert hardware.seconds == pytest.approx(case.of.pass_flops(32, recomputed=True) / 1e14 / 8)
    share = case_of(row(step_s="", mfu_pct=50, peak_tflops=300))
    assert share.seconds == pytest.approx(case.of.pass_flops(32, recomputed=False) / 1.5e14 / 8)


def test_errors_by_software_and_device_say_how_long_runs_took() -> None:
    first = predicted(case_of(row(framework="FSDP")), Efficiency())
    rows = [row(framework="FSDP", step_s=first * times) for times in (1.0, 1.2, 1.4)]
    lines = software(cases_of(rows)[0], Efficiency())
    assert lines[2].startswith("| PyTorch | A100 | 3 | 16.7 % |") and lines[2].endswith(
        "| -16.7 % | 1.04 to 1.36 times |"
    )
    assert lines[-2].startswith("| **one host, without vTrain** |  | 3 |")
    assert lines[-1].startswith("| **one host, without vTrain, whole groups left out** |  | 3 |")
    assert plans(cases_of(rows)[0], Efficiency())[2:] == [
        f"| PyTorch | {device} | 3 | 16.7 % | 15.1 % | 26.2 % | 1.04 to 1.36 times |" for device in ("A100", "all")
    ]


def test_a_level_is_that_of_other_groups_and_of_the_generation_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        AlikeRuns("some", "Ampere", 16, "first", "A100"): 1.21,
        AlikeRuns("some", "Hopper", 16, "second", "H100"): 2.0,
        AlikeRuns("some", "Hopper", 8, "second", "H100"): 8.0,
        AlikeRuns("other", "Hopper", 16, "third", "H100"): 5.0,
    }
    monkeypatch.setattr("benchmarks.published.levels.figures", lambda: made)
    ampere = 1.21**0.5  # the mean of its logarithm and of 0
    assert level(AlikeRuns("some", "Ampere", 16, "", "")) == pytest.approx(ampere)
    assert level(AlikeRuns("some", "Hopper", 16, "", "")) == pytest.approx((ampere * 2.0) ** 0.5)
    assert level(AlikeRuns("some", "Hopper", 32, "", "")) == pytest.approx((ampere * 4.0) ** 0.5)  # of 2 and 8
    assert level(AlikeRuns("some", "Blackwell", 8, "", "")) == level(AlikeRuns("some", "Hopper", 8, "", ""))
    assert level(AlikeRuns("some", "Hopper", 16, "second", "H100")) == pytest.approx(ampere)
    made[AlikeRuns("some", "Hopper", 16, "second", "H200")] = 3.0
    assert level(AlikeRuns("some", "Hopper", 16, "second", "H100")) > ampere
    assert level(AlikeRuns("some", "Hopper", 16, "second", "H100"), whole_group=True) == pytest.approx(ampere)
    assert level(AlikeRuns("some", "Volta", 16, "", "")) == 1.0
    assert level(AlikeRuns("some", "Hopper", 16, "vtrain-single-node", "A100")) == 1.0


def test_a_software_that_no_run_speaks_of_has_the_mean_of_the_others_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        AlikeRuns("some", "Ampere", 16, "first", "A100"): 1.21,
        AlikeRuns("other", "Hopper", 16, "second", "H100"): 4.0,
        AlikeRuns("own", "Hopper", 16, "third", "H100"): 5.0,
        AlikeRuns("late", "Blackwell", 16, "fourth", "B200"): 9.0,
    }
    monkeypatch.setattr("benchmarks.published.levels.figures", lambda: made)
    both = (1.21**0.5 * 4.0**0.5) ** 0.5
    assert level(AlikeRuns("own", "Hopper", 16, "third", "H100")) == pytest.approx(both)
    assert level(AlikeRuns("own", "Ampere", 16, "", "")) == pytest.approx(1.21**0.5)
    assert level(AlikeRuns("own", "Hopper", 16, "second", "H100")) == pytest.approx(5.0**0.5)
    made[AlikeRuns("other", "Hopper", 16, "third", "H100")] = 16.0  # the same group by another software
    assert level(AlikeRuns("own", "Hopper", 16, "third", "H100")) == pytest.approx(both)


def test_a_level_makes_its_runs_take_as_long_as_measured() -> None:
    cases = [case_of(row(group="new", framework="FSDP", dp=8, gpu=gpu)) for gpu in ("A100-SXM", "H100-SXM")]
    rows = [
        case.row | {"step_s": str(case.predicted(Efficiency(level=times)))}
        for case, times in zip(cases, (1.3, 0.8), strict=True)
    ]
    heading, *lines = fitted_levels(cases_of(rows)[0], Efficiency())
    assert heading == "software,generation,bits,group,device,runs,level"
    assert lines == ["PyTorch,Ampere,16,new,A100,1,1.300", "PyTorch,Hopper,16,new,H100,1,0.800"]
    vtrain = case_of(row(group="vtrain-single-node"))
    vtrain = case_of(vtrain.row | {"step_s": str(vtrain.predicted(Efficiency()))})
    assert fitted_levels([vtrain], Efficiency())[1:] == ["DeepSpeed,Ampere,16,vtrain-single-node,A100,1,1.000"]


def test_a_run_has_no_part_in_its_own_prediction_but_the_plan_s_where_no_other_group_has_its_generation() -> None:
    assert {place.group for place in figures() if place[:2] == ("PyTorch", "Hopper")} == {"torchao-h100"}
    own = case_of(row(group="torchao-h100", framework="torchtitan", gpu="H100-SXM", precision="bf16"))
    other = case_of(own.row | {"group": "another"})
    assert predicted(own, Efficiency()) < predicted(other, Efficiency()) == beside_plan(own, Efficiency())
    mpt = case_of(row(group="mpt-a100_80gb", framework="llm-foundry (FSDP)"))
    assert predicted(mpt, Efficiency()) == beside_plan(mpt, Efficiency())
    zero = case_of(row(group="vtrain-single-node", framework="Megatron-DeepSpeed"))
    assert predicted(zero, Efficiency()) == zero.predicted(Efficiency()) < beside_plan(zero, Efficiency())


def test_as_few_layers_are_recomputed_as_make_an_unstated_run_fit() -> None:
    whole = case_of(row(recompute="", gpus=1, dp=1, global_batch=8, micro_batch=8))
    assert whole.layout.recompute == "none"
    some = case_of(whole.row | {"gpu_mem_gb": str(0.9 * whole.need / 2**30)})
    assert some.layout.recompute == "full" and 1 / 16 < some.layout.recomputed < 1
    assert (
        some.need
        <= (some.room or 0)
        < replace(some, layout=replace(some.layout, recomputed=some.layout.recomputed - 1 / 16)).need
    )
    none_fits = case_of(whole.row | {"gpu_mem_gb": "1"})
    assert (none_fits.layout.recompute, none_fits.layout.recomputed) == ("full", 1.0)


def test_a_mixture_has_its_published_shape_and_shares_its_experts_as_stated() -> None:
    case = case_of(row(arch="moe", model="Qwen3_30B_a3B", dp=16, gpus=16, ep=8, seq=4096, hidden="", layers=""))
    assert case.of.entries() / 1e9 == pytest.approx(30.5, abs=0.05)
    assert (case.of.experts, case.of.active, case.layout.experts) == (128, 8, 8)


def test_hosts_of_dgx_are_linked_as_their_data_sheets_say() -> None:
    values = {"framework": "NeMo 24.07", "gpu": "H100-SXM", "interconnect": "NVLink + InfiniBand"}
    assert case_of(row(**values)).cluster.links.between.bandwidth == 4e11
    assert case_of(row(**values | {"framework": "FSDP"})).cluster.links.between.bandwidth == 1e11
    for gpu, rate in (("GB200", 5e10), ("GB300", 1e11)):
        links = case_of(row(gpu=gpu, interconnect="NVLink (72-GPU NVL domain)")).cluster.links
        assert (links.per_host, links.between.bandwidth) == (72, 72 * rate)


def test_errors_stand_beside_one_constant_efficiency_and_what_is_left_out_is_counted() -> None:
    rows = [row(dp=8, global_batch=batch, step_s=batch / 32) for batch in (16, 32, 64)]
    cases, unscored = cases_of(
        [*rows, row(arch="moe"), row(arch="moe", group="mixtures"), row(outcome="oom", step_s="")]
    )
    _, _, some, mixtures, total = times(cases, unscored, Efficiency(), 0, [])
    cells = [cell.strip() for cell in some.strip("|").split("|")]
    assert cells[:2] == ["some", "3"]
    assert cells[6] == "0.0 %"  # time goes with the samples, as one constant says
    assert cells[8].startswith("1 a shape that is not modelled") and cells[8].endswith("; 1 oom")
    assert mixtures.startswith("| mixtures | 0 |") and "1 a shape that is not modelled" in mixtures
    excess = sorted(abs(predicted(case, Efficiency()) / measured(case) - 1) for case in cases if case.seconds)
    assert f"{100 * excess[1]:.1f} %" == cells[2]
    assert total.startswith("| **one host, not fitted** | 3 |")


def test_a_ranking_asks_where_the_measured_best_layout_is_in_ours() -> None:
    degrees = [(8, 1), (4, 2), (2, 4), (1, 8)]
    cases, _ = cases_of([row(dp=dp, tp=tp) for dp, tp in degrees])
    order = sorted(cases, key=lambda case: case.predicted(Efficiency()))
    for place, share in ((0, "100.0 %"), (2, "100.0 %"), (3, "0.0 %")):
        best = order[place].layout
        timed, _ = cases_of([row(dp=dp, tp=tp, step_s=1 if dp == best.data else 2) for dp, tp in degrees])
        line = rankings(timed, Efficiency())[2]
        assert line.split("|")[5].strip() == share


def test_stated_peaks_and_what_ran_out_of_memory_stand_beside_ours() -> None:
    case = case_of(row(dp=8))
    need = case.need
    rows = [row(dp=8, mem_gb=need / 2**30 * 0.8), row(dp=8, gpu_mem_gb=1, outcome="oom", step_s=""), row(dp=8)]
    line = memory(cases_of(rows)[0])[2]
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["some", "1", "25.0 %", "2 of 2", "1 of 1"]


@pytest.mark.parametrize(
    ("framework", "counted", "unit"),
    [
        ("litgpt (FSDP, eager)", "allocated", 1e9),
        ("torchtitan (FSDP2, torch.compile)", "reserved", 2**30),
        ("Megatron-LM", "total", 2**30),
    ],
)
def test_a_stated_peak_is_compared_with_what_its_tool_counts(framework: str, counted: str, unit: float) -> None:
    case = case_of(row(framework=framework, dp=8, mem_gb=10))
    bytes_held = getattr(bytes_of(case.of, case.layout, case.software), counted)
    assert case.excess == pytest.approx(bytes_held / (10 * unit) - 1)
    assert case_of(row(framework=framework)).excess is None


def test_memory_by_software_has_a_range_and_the_runs_that_keep_a_margin() -> None:
    need = case_of(row(dp=8, framework="FSDP")).need / 2**30
    values = {"dp": 8, "framework": "FSDP", "mem_gb": need * 1.1}
    rows = [row(**values, gpu_mem_gb=room) for room in (need * 2, need * 1.01, need * 0.9)]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in held(cases_of(rows)[0])]
    assert lines[2] == [
        "PyTorch", "3", "9.1 %", "9.1 %", "9.1 %", "-9.1 %", "1.10 to 1.10 times", "2 of 3", "1 of 3", "",
    ]  # fmt: skip
    assert lines[3][:2] == ["**all**", "3"]


def test_amps_runs_recompute_nothing_also_where_they_would_fit_with_it() -> None:
    case = case_of(row(framework="DeepSpeed 3D (Megatron 1.1.5)", recompute="", gpu_mem_gb=1, outcome="failed"))
    assert case.layout.recompute == "none" and case.recompute_stated
    assert case_of(row(recompute="", gpu_mem_gb=1)).layout.recompute == "full"


def test_collectives_in_one_host_stand_beside_the_constants() -> None:
    usual = {"kind": "all_reduce", "hardware": "8x A100, NVLink 3", "gpus": "8", "nodes": "1", "algbw_GBps": ""}
    usual["note"] = ""
    rows = [usual | {"payload_bytes": "1e9", "time_us": str((55 + 2 * 7 / 8 * 1e9 / 220e3) * 2)}]
    rows += [
        usual | {"payload_bytes": "1e3", "time_us": "50"},
        usual | {"nodes": "2", "payload_bytes": "1e9", "time_us": "9"},
    ]
    assert links_inside(rows)[2:] == ["| 8x A100, NVLink 3 | 1 | 50.0 % | 50.0 % |"]
    seconds = 55e-6 + 2 * 7 / 8 * 1e9 / 220e9
    doubled = {"payload_bytes": "1e9", "time_us": "", "algbw_GBps": str(2 / seconds), "note": "algorithmic throughput"}
    assert links_inside([usual | doubled])[2:] == ["| 8x A100, NVLink 3 | 1 | 0.0 % | 0.0 % |"]


def test_what_software_holds_follows_from_the_framework() -> None:
    megatron = case_of(row()).software
    assert (megatron.gradient_copy, megatron.loss, megatron.keeps_results) == (4, 14, True)
    foundry = case_of(row(framework="llm-foundry (FSDP)", precision="bf16")).software
    assert (foundry.gradient_copy, foundry.loss) == (0, 4)
    assert foundry.frees_gradients and foundry.gathers_head and foundry.fused
    titan = {"framework": "torchtitan (FSDP2)", "recompute": "selective op", "precision": "bf16"}
    compiled = case_of(row(**titan)).software
    assert compiled.loss == 4
    assert case_of(row(**titan, group="torchao-h100")).software.loss == 14
    ddp = case_of(row(framework="litgpt (DDP, eager)", note="Adam in bfloat16 too", precision="bf16")).software
    assert (ddp.states, ddp.loss, ddp.fused, ddp.repeats_keys, ddp.buckets) == (4, 14, False, True, True)
    assert not case_of(row(framework="NeMo 24.07", precision="bf16")).software.keeps_results


def test_a_t4_has_less_memory_than_its_name_says() -> None:
    assert case_of(row(gpu="T4", gpu_mem_gb=16)).room == 15109 * 2**20
    assert case_of(row(gpu_mem_gb=80)).room == 80 * 2**30


def test_jean_zay_s_runs_of_zero_3_wait_for_shards_and_keep_layers_inputs_on_the_host() -> None:
    zero = row(dp=8, note="section: Megatron + Deepspeed ZeRO (old branch)")
    layout = case_of(zero).layout
    assert (layout.zero, layout.overlap, layout.split_inputs, layout.inputs_on_host) == (3, False, True, True)
    assert not case_of(zero | {"note": zero["note"] + "; checkpoint-in-cpu=N"}).layout.inputs_on_host


def test_fitting_finds_constants_that_made_the_times() -> None:
    made = Efficiency(launch=8e-5, step=1e-2)
    shapes = [(layers, width) for layers in (1, 4, 16) for width in (256, 1024)]
    rows = [row(gpus=1, global_batch=b, micro_batch=b, layers=n, hidden=w, heads=4) for b in (1, 8) for n, w in shapes]
    cases, _ = cases_of([each | {"step_s": str(case_of(each).predicted(made))} for each in rows])
    found = fitted(cases, ("launch", "step"))
    assert found.launch == pytest.approx(8e-5, rel=0.05)
    assert found.step == pytest.approx(1e-2, rel=0.2)


HARDWARE = {"kind": "matmul", "hardware": "A100", "gpus": "1", "nodes": "1"}
OF_HARDWARE = ["kind", "hardware", "gpus", "nodes", "payload_bytes", "time_us", "algbw_GBps", "note"]


def folder_of(path: Path, rows: list[Row]) -> Path:
    for name, columns, its in (("runs", COLUMNS, rows), ("hardware", OF_HARDWARE, [HARDWARE])):
        with (path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(its)
    return path


def scored(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.published", str(folder), "--worst", "1"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
def test_the_command_prints_all_tables(tmp_path: Path) -> None:
    ended = scored(folder_of(tmp_path, [row(dp=8), row(dp=4, tp=2), row(dp=2, tp=4), row(tp=8)]))
    assert ended.returncode == 0, ended.stderr
    for title in ("step time: group", "ranking: group", "memory: group", "memory: software", "all-reduce in one host"):
        assert title in ended.stdout


@pytest.mark.slow
def test_without_sets_to_rank_there_is_no_ranking(tmp_path: Path) -> None:
    ended = scored(folder_of(tmp_path, [row(dp=8)]))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"step_s": "nan"}, "runs.csv, row 2, step_s=nan: must be a number above 0"),
        ({"step_s": -1}, "step_s=-1: must be a number above 0"),
        ({"layers": 0}, "layers=0: must be a whole number above 0"),
        ({"hidden": "x"}, "hidden=x: must be a whole number above 0"),
    ],
)
def test_a_row_that_makes_no_sense_is_refused(tmp_path: Path, values: dict[str, object], says: str) -> None:
    with pytest.raises(UnusableFolder, match=says):
        read(folder_of(tmp_path, [row(**values)]) / "runs.csv")


def test_a_folder_without_its_files_or_columns_is_refused_in_one_line(tmp_path: Path) -> None:
    ended = scored(tmp_path)
    assert ended.returncode == 2 and "runs.csv: cannot be read" in ended.stderr and "Traceback" not in ended.stderr
    (tmp_path / "runs.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UnusableFolder, match="has no column arch, global_batch"):
        read(tmp_path / "runs.csv")
    (tmp_path / "runs.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnusableFolder, match="cannot be read"):
        read(tmp_path / "runs.csv")
