"""Predicts the time of a step on accelerators that are described but absent, for the GPTs that `cost/` models.

It covers strategies and sync modes whose communication follows from degrees alone. Everything else gets a reason.
"""

import inspect
from dataclasses import asdict
from math import ceil
from typing import Any

import torch

from ...conf.errors import ConfigError
from ...conf.groups import BY_NAME
from ...cost.device import Device
from ...cost.devices import DEVICES, INSIDE
from ...cost.layout import DTYPES, ParallelLayout, Recompute
from ...cost.links import Link, Links
from ...cost.predicted import NotPredicted, PredictedStep
from ...cost.published import efficiency, published
from ...cost.rules import CostError
from ...cost.step import ADAM_BYTES, Cluster, step_time
from ...cost.transformer import Transformer
from ...strategies import Strategy, Sync
from ...strategies.adapt import Adapt
from ...strategies.adapt.base import factors_of
from ...strategies.averages import Average
from ...strategies.core.clip import Clip
from ...strategies.core.protocols import HasZeroStage
from ...tasks.base import DataSpec
from ...tasks.models.gpt import GPT
from ..config.experiment import Experiment, Machine
from ..config.targets import build, load_class
from ..fabrics.layout import RunLayout as Workers
from ..features import injected
from ..features.order import FEATURES
from ..planning.build import pair_of

ONLY_USUAL = ("compress", "aggregate", "attack", "privacy", "stragglers")  # groups of which cost/ knows no other choice
FORMULAS = {
    "compute": "a roofline for each kernel (Williams et al. 2009) over 72 B s l h^2 (1 + s/6h + V/12lh) flops, "
    "96 B s l h^2 (1 + s/6h + V/16lh) with recomputation (Narayanan et al. 2021; other widths and gates alike), times "
    "the level of PyTorch's published runs on this generation of devices",
    "tensor": "4 sums a layer, 6 with recomputation, each alpha + 2 (t-1)/t S beta (Shoeybi et al. 2019)",
    "context": "messages of a ring that are longer than attention (Liu et al. 2023)",
    "experts": "4 all-to-alls a layer, 6 with recomputation, each alpha + (n-1)/n S beta (Lepikhin et al. 2020)",
    "bubble": "(p-1)/v passes of a stage (Narayanan et al. 2021)",
    "shards": "gathers of weights that are longer than the layers, and what is first or last (Rajbhandari et al. 2020)",
    "data": "alpha + 2 (d-1)/d S beta, less what backward hides (Patarasuk and Yuan 2009)",
    "optimizer": "the bytes that Adam (whatever the optimizer is), clipping and averaging read and write, over the "
    "memory's bandwidth",
    "offload": "gradients and weights over the host's link, Adam in its memory (Ren et al. 2021)",
    "host": "kernels that the device waits for, and what a step takes beside",
}

HOW = "docs/predictions.md; nothing of it was measured here"


def predict_step(
    experiment: Experiment, workers: Workers, spec: DataSpec, computes_on: torch.device, allowed: tuple[str, ...]
) -> PredictedStep:
    """Predicts the time of a step, by the description of the accelerators. Raises `NotPredicted`."""
    hardware = experiment.hardware
    if experiment.compile:
        raise NotPredicted("compile=true: what compiled passes take is not known")
    if hardware.calibration is not None:
        from .calibrated import predict_calibrated

        return predict_calibrated(experiment, allowed, workers)
    machine, device = device_of(experiment, computes_on)
    of = transformer_of(experiment, spec, allowed)
    layout = layout_of(experiment, workers, allowed)
    if of.factors is not None and layout.zero == 3:
        raise NotPredicted("how long gathers of frozen weights take is not known")
    if layout.dtype not in device.peak:
        raise NotPredicted(f"how fast {device.name} is in {layout.dtype} is not known")
    cluster = cluster_of(machine, device, workers)
    parts = asdict(step_time(of, layout, cluster, efficiency(device)))
    parts["optimizer"] *= 1 + _bytes_beside(experiment, allowed) / ADAM_BYTES
    hosts = ceil(workers.workers / machine.devices)
    hourly, samples = machine.price_per_hour, experiment.batch_size * workers.replicas
    return PredictedStep(
        parts=parts,
        formulas=FORMULAS,
        how=HOW,
        samples=samples,
        tokens=samples * of.context,
        flops=of.pass_flops(samples, recomputed=False),
        workers=workers.workers,
        on=device.name,
        peak=device.peak[layout.dtype],
        dtype=layout.dtype,
        price_per_second=None if hourly is None else hosts * hourly / 3600,
        published=published(_strategy(experiment, allowed)[0].traits.software, device.name),
    )


def _bytes_beside(experiment: Experiment, allowed: tuple[str, ...]) -> float:
    """Returns the bytes of memory traffic per entry beside the optimizer's.

    They are those of a clip, which reads a gradient for its norm and again to change it, and of an average of each
    step's weights.
    """
    clip = build("clip", experiment.choice("clip"), Clip, allowed, {})
    average = build("average", experiment.choice("average"), Average, allowed, {})
    passes = 2 + clip.measures if clip.clips else 0
    passes += 3 if average.kept and average.each_step else 0
    return 4.0 * passes


def transformer_on(
    experiment: Experiment, workers: Workers, spec: DataSpec, computes_on: torch.device, allowed: tuple[str, ...]
) -> tuple[Device, Transformer, ParallelLayout]:
    """Returns the accelerator, the GPT, and its layout, for the prediction. Raises `NotPredicted`."""
    _, device = device_of(experiment, computes_on)
    return device, transformer_of(experiment, spec, allowed), layout_of(experiment, workers, allowed)


def device_of(experiment: Experiment, computes_on: torch.device) -> tuple[Machine, Device]:
    machine = experiment.hardware.machine
    if machine is None or machine.accelerator is None:
        raise NotPredicted("hardware.machine names no accelerator, as hardware=a100_8 does")
    if computes_on.type == "cpu":
        raise NotPredicted("workers do not compute on the accelerators of hardware.machine")
    return machine, DEVICES[machine.accelerator]


def transformer_of(experiment: Experiment, spec: DataSpec, allowed: tuple[str, ...]) -> Transformer:
    name, target = experiment.model.name, experiment.model.target
    try:
        is_gpt = load_class("model", target, GPT, allowed) is GPT
    except ConfigError:  # another class, or a function
        is_gpt = False
    if not is_gpt:
        raise NotPredicted(
            f"model={name}: on accelerators, times are known of model=gpt and the shipped models of its class alone, "
            "such as llama_8b"
        )
    for feature in FEATURES:
        if why := feature.unmodelled(experiment, allowed):
            chosen = f"{feature.key}={experiment.choice(feature.key).name}"
            raise NotPredicted(f"{chosen} {why}, and times are known of the passes of the model as it is")
    knobs = gpt_knobs(experiment)
    factors = factors_of(build("adapt", experiment.choice("adapt"), Adapt, allowed, {}))
    if factors is not None and knobs["experts"] is not None:
        raise NotPredicted("factors beside attention alone, as adapt has it with model.experts, have no known time")
    return Transformer(
        layers=knobs["n_layer"],
        width=knobs["width"],
        heads=knobs["n_head"],
        context=spec.input_shape[0],
        vocabulary=knobs["vocabulary"] or spec.classes,
        kv_heads=knobs["n_kv_head"],
        inner=knobs["ffn_width"],
        gated=knobs["gated"],
        tied=knobs["tied"],
        positions=knobs["rotary"] is None,
        dropout=knobs["dropout"] > 0,
        experts=knobs["experts"] or 0,
        active=knobs["active"],
        factors=factors,
    )


def gpt_knobs(experiment: Experiment) -> dict[str, Any]:
    """Returns the knobs of a GPT, with the default of each one that its choice leaves out."""
    parameters = inspect.signature(GPT).parameters.values()
    return {each.name: each.default for each in parameters} | experiment.model.knobs


def _strategy(experiment: Experiment, allowed: tuple[str, ...]) -> tuple[Strategy, Sync]:
    return pair_of(experiment, allowed, injected.make(experiment, allowed), experiment.strategy)


def layout_of(experiment: Experiment, workers: Workers, allowed: tuple[str, ...]) -> ParallelLayout:
    for group in ONLY_USUAL:
        if (chosen := experiment.choice(group).name) != BY_NAME[group].usual:
            raise NotPredicted(f"{group}={chosen}: the time that it takes on accelerators is not known")
    strategy, sync = _strategy(experiment, allowed)
    found = strategy.closed_form(experiment.accumulate)
    if found is None:
        raise NotPredicted(f"strategy={experiment.strategy.name}: the time that it takes on accelerators is not known")
    zero = found.zero
    if zero is None and isinstance(sync, HasZeroStage):
        zero = sync.zero_stage()
    if zero is None:
        raise NotPredicted(f"sync={experiment.sync.name} sends what the data and the run decide, or waits for nobody")
    precision, axes = experiment.choice("precision").name, workers.mesh.axes
    dtype = DTYPES.get(precision)
    if dtype is None:
        raise NotPredicted(f"what precision={precision} takes on an accelerator is not known")
    recompute: Recompute = "full" if found.recompute or gpt_knobs(experiment)["recompute"] else "none"
    samples = ceil(experiment.batch_size / found.micro_batches)  # of the largest micro-batch
    try:
        return ParallelLayout(
            batch=samples * found.micro_batches * workers.replicas,
            micro_batch=samples,
            data=workers.replicas,
            tensor=axes.get("tensor", 1),
            stages=axes.get("stage", 1),
            chunks=found.chunks,
            zero=zero,
            shard_over=found.shard_over,
            recompute=recompute,
            offload=found.offload,
            fused=True,
            sequence=found.sequence,
            overlap=True,
            dtype=dtype,
            kept=dtype if strategy.traits.rounds_weights else "float32",
        )
    except CostError as error:
        raise NotPredicted(str(error)) from error


def cluster_of(machine: Machine, device: Device, workers: Workers) -> Cluster:
    inside = INSIDE[device.name]
    if machine.link is not None:  # its bandwidth; latency is that of a collective, as it was measured
        inside = Link(inside.latency, machine.link.bandwidth)
    between = inside
    if workers.workers > machine.devices:
        if machine.network is None:
            raise NotPredicted(
                f"{workers.workers} workers are on several hosts of {machine.devices} devices, and "
                "hardware.machine.network does not say how these are linked"
            )
        between = Link(machine.network.latency, machine.network.bandwidth)
    return Cluster(device, Links(inside, between, machine.devices), machine.host_link or Cluster.host_link)
