"""Converts a row of runs.csv to the prediction of `paceline.cost`, or to the reason why there is none."""

import csv
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.cost.device import Device, Efficiency
from paceline.cost.devices import DEVICES, INSIDE
from paceline.cost.layout import Offload, ParallelLayout, Recompute
from paceline.cost.links import Link, Links
from paceline.cost.memory import HALF_GRADIENTS, Software, held
from paceline.cost.published import PYTORCH, with_attention
from paceline.cost.rules import CostError
from paceline.cost.step import Cluster, step_time
from paceline.cost.transformer import Factors, Transformer

Row = dict[str, str]

VTRAIN = "vtrain"  # how the names of its groups begin: Megatron-DeepSpeed on one kind of A100
KINDS = {  # the first whose word is in the framework's name
    "DeepSpeed": ("DeepSpeed",),
    "NeMo and Megatron": ("NeMo", "Megatron"),
    "PyTorch": ("torchtitan", "llm-foundry", "FSDP", "DDP", "litgpt", "lit-gpt", "PyTorch", "anotron"),
    "JAX": ("MaxText", "Pax", "JAX"),
}
FITTED_GROUP, FITTED_SHAPES = "vtrain-single-node", {("1024", "24"), ("2048", "12")}  # width, layers
# fused attention
FUSED_2023 = ("NeMo 24", "NeMo 25", "Megatron-Bridge", "InternEvo", "torchtitan", "fms-fsdp", "anotron", "litgpt")
FUSED = (*FUSED_2023, "llm-foundry", "NeMo", "Megatron-Core", "MaxText", "Pax", "lit-gpt")
# conf/training/gpt3 of NVIDIA/NeMo-Framework-Launcher: apply_query_key_layer_scaling, which no fused kernel has
SCALED_BY_LAYER = ("NeMo Framework 23.07",)
# lit-gpt's rmsnorm.py without a compiler: 7 kernels, of which 6 read or write float32
EAGER_NORMS = ("litgpt (FSDP, eager", "litgpt (DDP, eager", "litgpt (single, eager")
# Megatron-LM 1.1.5, whose fusions are off unless a flag asks for them: ds_pretrain_gpt2_pipe.sh of AMP and the scripts
# of bigscience-workshop's old branches have none of these flags. A bias, an activation function, dropout, a residual's
# sum and a mask are kernels of their own
SEPARATE = {"residual": 7, "activation": 4, "scores": 6}
LORA_RANK = 32  # NeMo's default; its recipes that are timed adapt linear_qkv alone
# of a text of SQuAD with its question and answer, which NeMo's fine-tuning packs into its samples (packed_sequence=True
# in scripts/performance of Megatron-Bridge)
TEXT = 200
FLASH_2 = {"attention": 0.6, "attention_back": 0.5}  # fused attention of Dao 2023, as shares of `Efficiency`
# NVTE_FUSED_ATTN: 0 in conf/config.yaml of NVIDIA/NeMo-Framework-Launcher until its pull request 422 of August 2024:
# attention is that of FlashAttention 2, and not cuDNN's
WITHOUT_CUDNN = ("NeMo 24.03", "NeMo 24.07")
OVERLAPS = (*FUSED, "DDP", "FSDP")  # gradients' sums go on during backward
BETWEEN = Link(6e-5, 1e11)  # of a host, where the source does not say
DGX = Link(6e-5, 4e11)  # between DGX H100, B200 and B300: 8 cards of 400 Gb/s by their data sheets
CARD = {"GB200": 5e10, "GB300": 1e11}  # of each device of DGX GB200 and GB300 by their data sheets: 400 and 800 Gb/s
# in one kernel: loss_fn=fused_crossentropy is llm-foundry's default; torchtitan compiles its loss since April 2025, and
# torchao's runs on H100 are of version 0.0.2, before that
FUSED_LOSS = (*(name for name in FUSED_2023 if name != "litgpt"), "llm-foundry")
STEPWISE_LOSS = ("torchao-h100",)
# the container from which on the same layouts of experts take two thirds of the time; and before it, experts of a fixed
# capacity, whose shapes a graph can hold
GROUPS_EXPERTS = "26.06"
FREES_RESULTS = ("NeMo", "Megatron-Bridge")  # of stages: Megatron-LM's since 2022
# of a step in NeMo's table of long sequences: a later edition of the page states 1,024 sequences of 4,096 to 4 of 2^20
TOKENS = {"nemo-long-context": 2**22}
COUNTED = {  # what a tool prints of memory; others are taken as nvidia-smi is, in GiB
    "litgpt": ("allocated", 1e9),
    "torchtitan": ("reserved", 2**30),
}
MEBIBYTES = {"T4": 15109}  # that nvidia-smi prints, where they are fewer than the name says: ECC takes a sixteenth


class Unscored(Exception):
    """A row is not scored; the message gives the reason."""


@dataclass(frozen=True)
class Case:
    row: Row
    of: Transformer
    layout: ParallelLayout
    cluster: Cluster
    recompute_stated: bool
    seconds: float | None  # of a step, as measured
    software: Software

    @property
    def need(self) -> float:
        """Bytes that a device holds."""
        return held(self.of, self.layout, self.software).total

    @property
    def excess(self) -> float | None:
        """Returns predicted / measured - 1 of the stated peak, of what its tool counts; None where none is stated."""
        if not self.row["mem_gb"]:
            return None
        tool = next((tool for tool in COUNTED if tool in self.row["framework"]), "")
        counted, unit = COUNTED.get(tool, ("total", 2**30))
        return getattr(held(self.of, self.layout, self.software), counted) / (float(self.row["mem_gb"]) * unit) - 1

    @property
    def room(self) -> float | None:
        """Bytes of a device, where the source states them."""
        return room(self.row)

    @property
    def flops(self) -> float:
        return self.of.pass_flops(self.layout.batch, self.layout.recompute == "full")

    def predicted(self, fits: Efficiency) -> float:
        """Seconds of a step. From 2023 on fused attention is that of Dao 2023, or PyTorch's on newer devices."""
        if _has(self.row["framework"], FUSED_2023):
            fits = replace(fits, **FLASH_2)
            if software_of(self.row) == PYTORCH or _has(self.row["framework"], WITHOUT_CUDNN):
                fits = with_attention(fits, self.cluster.device)
        if _has(self.row["framework"], EAGER_NORMS):
            fits = replace(fits, norm=20)
        if "Megatron 1.1.5" in self.row["framework"] or "(old branch)" in self.row["note"]:
            fits = replace(fits, **SEPARATE)
        return step_time(self.of, self.layout, self.cluster, fits).total

    @property
    def several_hosts(self) -> bool:
        return self.layout.devices > self.cluster.links.per_host


class UnusableFolder(Exception):  # as a person is told it
    """A file that is not there, or a row that makes no sense: the file, the row, the column and the rule."""


NEEDED = {
    "runs.csv": {"id", "group", "model", "arch", "hidden", "layers", "gpu", "gpus", "global_batch", "outcome", "note"},
    "hardware.csv": {"kind", "hardware", "gpus", "nodes", "payload_bytes", "time_us", "algbw_GBps", "note"},
}
NUMBERS = ("hidden", "layers", "heads", "seq", "vocab", "ffn", "gpus", "micro_batch", "global_batch")
TIMES = ("step_s", "samples_per_s", "tokens_per_s", "tokens_per_s_gpu", "mem_gb", "gpu_mem_gb", "peak_tflops")


def read(path: Path) -> list[Row]:
    """Raises `UnusableFolder`."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UnusableFolder(f"{path}: cannot be read: {error}") from error
    if not rows or (lacks := NEEDED["hardware.csv" if path.name == "hardware.csv" else "runs.csv"] - rows[0].keys()):
        what = f"has no column {', '.join(sorted(lacks))}" if rows else "has no rows"
        raise UnusableFolder(f"{path}: {what}")
    for line, row in enumerate(rows, 2):
        for key in (*NUMBERS, *TIMES):
            if row.get(key):
                _check_number(f"{path}, row {line}, {key}={row[key]}", row[key], whole=key in NUMBERS)
    return rows


def _check_number(where: str, text: str, whole: bool) -> None:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf or (whole and value != int(value)):
        raise UnusableFolder(f"{where}: must be a {'whole ' if whole else ''}number above 0")


def cases_of(rows: list[Row]) -> tuple[list[Case], dict[str, Counter[str]]]:
    cases: list[Case] = []
    unscored: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        try:
            cases.append(case_of(row))
        except (Unscored, CostError) as error:
            unscored[row["group"]][re.sub(r"\d+", "N", str(error))] += 1
    return cases, unscored


def case_of(row: Row) -> Case:
    if row["arch"] == "moe":
        row = _with_experts(row)
    elif row["arch"] not in ("gpt", "llama"):
        raise Unscored(f"arch={row['arch']} is not modelled")
    if "INCONSISTENT" in row["note"]:
        raise Unscored("contradicts itself in its source")
    if row["group"] in TOKENS and not row["global_batch"]:
        row = row | {"global_batch": str(TOKENS[row["group"]] // _whole(row, "seq", 1))}
    for key in ("hidden", "layers", "global_batch", "gpus"):
        if not row[key]:
            raise Unscored(f"no {key}")
    of = _shape(row)
    device, dtype = _device(row)
    tensor, stages, context = (_whole(row, key, 1) for key in ("tp", "pp", "cp"))
    data = _whole(row, "dp", _whole(row, "gpus", 1) // (tensor * stages * context))
    batch = _whole(row, "global_batch", 1)
    stated = bool(row["recompute"]) or "Megatron 1.1.5" in row["framework"]  # AMP's script recomputes nothing
    layout = ParallelLayout(
        batch,
        _whole(row, "micro_batch", 1),
        data=data,
        tensor=tensor,
        stages=stages,
        context=context,
        chunks=_whole(row, "vp", 1) if stages > 1 else 1,
        zero=_zero(row),
        shard_over=int(found[1]) if (found := re.search(r"zero1=(\d+)", row["note"])) else None,
        recompute=_recompute(row),
        offload=_offload(row),
        fused=_has(row["framework"], FUSED)
        and not _has(row["framework"], SCALED_BY_LAYER)
        and "no flash attention" not in row["note"]
        and not _is_early_pax(row),
        sequence=tensor > 1 and ("NeMo" in row["framework"] or _has(row["recompute"], ("sequence",))),
        overlap=_has(row["framework"], OVERLAPS) or (_zero(row) > 0 and not _deepspeeds_zero(row)),
        hides_sums=_hides_sums(row),
        dtype=dtype,
        wide_sums="Megatron 1.1.5" in row["framework"],  # fp32_allreduce in ds_config.json of AMP
        split_inputs=_deepspeeds_zero(row),
        inputs_on_host=_deepspeeds_zero(row) and "checkpoint-in-cpu=N" not in row["note"],
        experts=_whole(row, "ep", 1) if row["arch"] == "moe" else 1,
        grouped="tokendrop" in row["model"] or software_of(row).endswith(f"from {GROUPS_EXPERTS}"),
    )
    seconds = _seconds(row) or _by_rate(row, of, layout, device)
    case = Case(row, of, layout, _cluster(row, device), stated, seconds, _software(row))
    if not row["micro_batch"]:
        case = _with_micro_batch(case)
    return case if stated or not case.room or case.need <= case.room else _recomputed(case)


def _recomputed(case: Case) -> Case:
    """Returns the case with as few layers of a stage recomputed as make it fit, as --recompute-method block of
    Megatron-LM has it, or all of them.
    """
    here = math.ceil(case.of.layers / case.layout.stages)
    tried = [
        replace(case, layout=replace(case.layout, recompute="full", recomputed=some / here))
        for some in range(1, here + 1)
    ]
    return next((each for each in tried if each.need <= (case.room or math.inf)), tried[-1])


def _with_micro_batch(case: Case) -> Case:
    """Returns the case with a micro-batch that its source does not state: all of a replica's samples without stages,
    one with stages; or the most that fit.
    """
    layout, samples = case.layout, case.layout.batch // case.layout.data
    usual = 1 if layout.stages > 1 else samples
    sizes = [size for size in range(usual, 0, -1) if samples % size == 0]
    tried = [replace(case, layout=replace(layout, micro_batch=size)) for size in sizes]
    return next((each for each in tried if each.room is None or each.need <= each.room), tried[-1])


def _by_rate(row: Row, of: Transformer, layout: ParallelLayout, device: Device) -> float | None:
    """Returns the seconds of a step whose source states the flops a second of a device, or their share of its peak."""
    if row["outcome"] != "ok":
        return None
    if row.get("tflops_gpu"):
        recomputed, rate = row["flops_kind"].startswith("hardware"), float(row["tflops_gpu"]) * 1e12
    elif share := row.get("mfu_pct") or row.get("hfu_pct"):
        recomputed, rate = not row["mfu_pct"], float(share) / 100 * device.peak[layout.dtype]
    else:
        return None
    return of.pass_flops(layout.batch, recomputed and layout.recompute == "full") / rate / layout.devices


# Published shapes, by the beginning of the model's name: the configurations on Hugging Face of Qwen3-30B-A3B and
# Qwen3-235B-A22B (Qwen team 2025) and of gpt-oss-120b (OpenAI 2025, whose windows of attention are left out).
EXPERTS: dict[str, dict[str, int]] = {
    "Qwen3_30B_a3B": dict(layers=48, hidden=2048, heads=32, kv_heads=4, vocab=151936, ffn=768, head=128, k=8),
    "Qwen3_235B_a22B": dict(layers=94, hidden=4096, heads=64, kv_heads=4, vocab=151936, ffn=1536, head=128, k=8),
    "GPT OSS 120B": dict(layers=36, hidden=2880, heads=64, kv_heads=8, vocab=201088, ffn=2880, head=64, k=4),
}


def _with_experts(row: Row) -> Row:
    """Returns the row with the shape of its model, of 128 experts. Raises `Unscored`."""
    name = next((name for name in EXPERTS if row["model"].startswith(name)), None)
    if name is None:
        raise Unscored("a shape that is not modelled: latent attention, state spaces or layers that differ")
    return row | {key: str(value) for key, value in EXPERTS[name].items()}


def _software(row: Row) -> Software:
    framework = row["framework"]
    halves = row["precision"] == "fp16" and _has(framework, ("Megatron", "DeepSpeed"))
    return replace(
        HALF_GRADIENTS if halves else Software(),
        states=4 if "Adam in bfloat16" in row["note"] else 12,
        loss=4 if _has(framework, FUSED_LOSS) and row["group"] not in STEPWISE_LOSS else 14,
        keeps_results=not _has(framework, FREES_RESULTS),
        fused="eager" not in framework,
        repeats_keys="litgpt" in framework,
        buckets="DDP, eager" in framework,
        frees_gradients="FSDP" in framework or _deepspeeds_zero(row),
        gathers_head="FSDP" in framework,
    )


def _deepspeeds_zero(row: Row) -> bool:
    """Jean Zay's runs of ZeRO 3: --synchronize-each-layer, --partition-activations and --checkpoint-in-cpu, as
    experiments/gpt2-meg-ds-zero of bigscience-workshop/bigscience has them."""
    return "Deepspeed ZeRO" in row["note"]


def room(row: Row) -> float | None:
    if not row["gpu_mem_gb"]:
        return None
    return MEBIBYTES.get(row["gpu"], float(row["gpu_mem_gb"]) * 1024) * 2**20


def _shape(row: Row) -> Transformer:
    width, gated = _whole(row, "hidden", 0), row["arch"] in ("llama", "moe")
    return Transformer(
        _whole(row, "layers", 0),
        width,
        _whole(row, "heads", max(1, width // 64)),
        _whole(row, "seq", 1024),
        _whole(row, "vocab", 51200),
        _whole(row, "kv_heads", 0) or None,
        _whole(row, "ffn", 8 * width // 3 if gated else 4 * width),
        gated=gated,
        tied=not gated,
        positions=not gated,
        dropout=not gated and "llm-foundry" not in row["framework"],
        head_width=_whole(row, "head", 0) or None,
        experts=128 if row["arch"] == "moe" else 0,
        active=_whole(row, "k", 1),
        factors=Factors(LORA_RANK, narrow=True, only_queries=True) if "LoRA" in row["model"] else None,
        text=TEXT if "NeMo" in row["framework"] and _has(row["model"], ("LoRA", "SFT")) else None,
    )


def _device(row: Row) -> tuple[Device, str]:
    """Returns the device, with the peak that the source states for its precision."""
    gpu = row["gpu"]
    if "+" in gpu:
        raise Unscored("devices of different kinds")
    name = next((name for name in sorted(DEVICES, key=len, reverse=True) if gpu.startswith(name)), None)
    if name == "A100" and row["gpu_mem_gb"] == "40":
        name = "A100 40 GB"
    if name is None:
        raise Unscored(f"gpu={gpu} is not in paceline.cost.devices")
    precision = row["precision"].lower()
    dtype = "float4" if "fp4" in precision else "float8" if _has(precision, ("fp8", "float8")) else "float16"
    if precision in ("fp32", "tf32"):
        dtype = {"fp32": "float32", "tf32": "tf32"}[precision]
    device = DEVICES[name]
    if row["peak_tflops"] and "+" not in precision:  # of a mix it is that of the wider one
        device = replace(device, peak={**device.peak, dtype: float(row["peak_tflops"]) * 1e12})
    return device, dtype


def _cluster(row: Row, device: Device) -> Cluster:
    text, per_host = row["interconnect"], _whole(row, "gpus_per_node", 8)
    between = DGX if "NeMo" in row["framework"] and device.name in ("H100", "B200", "B300") else BETWEEN
    if "measured 23-57 Gb/s" in text:  # 2 S / t, as a ring's links have it: see DOUBLED
        between = Link(BETWEEN.latency, 5.0e9)
    elif found := re.search(r"(?:(\d+)\s*x\s*)?(\d+) Gb/s", text):
        cards = int(found[1] or 1) * (per_host if re.search(r"Gb/s[^+]*\b(a|per) GPU", text) else 1)
        between = Link(BETWEEN.latency, cards * int(found[2]) / 8 * 1e9)
    if "NVL domain" in text:
        per_host = int(found[1]) if (found := re.search(r"(\d+)-GPU", text)) else 72
        between = Link(between.latency, per_host * CARD[device.name])
    return Cluster(device, Links(INSIDE[device.name], between, per_host))


def _seconds(row: Row) -> float | None:
    if row["outcome"] != "ok":
        return None
    if row["step_s"]:
        return float(row["step_s"])
    samples = float(row["global_batch"])
    if row["samples_per_s"]:
        return samples / float(row["samples_per_s"])
    if row["tokens_per_s_gpu"] and row["seq"]:
        return samples * float(row["seq"]) / float(row["tokens_per_s_gpu"]) / float(row["gpus"])
    if row["tokens_per_s"] and row["seq"]:
        return samples * float(row["seq"]) / float(row["tokens_per_s"])
    return None


def _recompute(row: Row) -> Recompute:
    match row["recompute"]:
        case "" if _has(row["framework"], SCALED_BY_LAYER) and _whole(row, "pp", 1) > 1:
            return "selective"  # as conf/training/gpt3/175b.yaml has it, where 5b.yaml has none
        case "" | "none":
            return "none"
        case kind if kind.startswith("selective"):
            if "SAVE_DOT_WITH_NO_BATCH_DIM" in row["note"]:
                return "others"
            return "operators" if "op" in kind.split() else "selective"
        case _:
            return "full"


def _is_early_pax(row: Row) -> bool:
    """The GPTs of Pax's container of 2023, whose attention is one kernel in Transformer Engine alone."""
    return "without Transformer Engine" in row["framework"] and row["arch"] == "gpt"


def _hides_sums(row: Row) -> bool:
    """tp_comm_overlap, as a row states it or as scripts/performance of Megatron-Bridge and 175b.yaml of NeMo's launcher
    set it.
    """
    if "Megatron-Bridge" in row["framework"]:
        return row["precision"] != "NVFP4" and not (row["arch"] == "moe" and row["gpu"].startswith("H100"))
    return "TP overlap" in row["framework"] or (row["framework"] == "NeMo 24.07" and row["model"] == "GPT3-175B")


def _zero(row: Row) -> int:
    if _deepspeeds_zero(row):
        return 3
    sharded = 1 if "NeMo" in row["framework"] else 0  # its recipes shard the optimizer's state over replicas
    return _whole(row, "zero", sharded)


def _offload(row: Row) -> Offload:
    return {"": "none", "none": "none", "optimizer": "optimizer"}.get(row["offload"], "all")  # pyright: ignore[reportReturnType]


def _whole(row: Row, key: str, otherwise: int) -> int:
    return int(float(row[key])) if row.get(key) else otherwise


def _has(text: str, words: Iterable[str]) -> bool:
    return any(word in text for word in words)


def software_of(row: Row) -> str:
    if row["group"].startswith(VTRAIN):
        return "vTrain's runs (DeepSpeed)"
    if row["arch"] == "moe" and (found := re.search(r"Megatron-Bridge (\d+\.\d+)", row["framework"])):
        return f"NeMo, experts, {'from' if found[1] >= GROUPS_EXPERTS else 'before'} {GROUPS_EXPERTS}"
    return next((kind for kind, words in KINDS.items() if _has(row["framework"], words)), row["framework"] or "other")


def is_fitted(row: Row) -> bool:
    return row["group"] == FITTED_GROUP and (row["hidden"], row["layers"]) in FITTED_SHAPES


def measured(case: Case) -> float:
    assert case.seconds is not None
    return case.seconds
