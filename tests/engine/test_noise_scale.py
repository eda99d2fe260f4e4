"""The gradient noise scale: where it is known in closed form, and of runs, beside a plain loop."""

import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.engine.callbacks import NoiseScale, Norms, StepView
from paceline.engine.callbacks.noise_scale import estimates
from paceline.engine.planning.build import assemble
from paceline.tracking.compare import rows
from paceline.tracking.run_directory import RunDirectory

slow = pytest.mark.slow
SMALL = ("tracking=none", "data.limit=104", "batch_size=16", "model.hidden=[8]", "callbacks=noise_scale")
VIRTUAL = (*SMALL, "hardware=virtual", "evaluate.every=1000", "steps=8")


def norms_of(gradients: Tensor, sizes: list[int]) -> list[Norms]:
    """Of [times, samples, d], dealt to replicas of these sizes."""
    own = torch.stack([each.mean(dim=1).square().sum(dim=-1) for each in gradients.split(sizes, dim=1)]).mean(dim=0)
    mean = gradients.mean(dim=1).square().sum(dim=-1)
    harmonic = len(sizes) / sum(1 / size for size in sizes)
    return [Norms(float(a), harmonic, float(b), sum(sizes)) for a, b in zip(own, mean, strict=True)]


@pytest.mark.parametrize("sizes", [[4, 4, 4], [8, 1, 3]])
def test_both_estimates_are_without_bias_where_they_are_known_in_closed_form(sizes: list[int]) -> None:
    """l(w) = |w - x|^2 / 2 with x ~ N(m, diag(s^2)): G = w - m, Sigma = diag(s^2)."""
    generator, d, times = torch.Generator().manual_seed(0), 12, 4000
    s = torch.linspace(0.5, 2.0, d, dtype=torch.float64)
    away = torch.linspace(-0.4, 0.6, d, dtype=torch.float64)  # w - m
    gradients = away - s * torch.randn(times, sum(sizes), d, generator=generator, dtype=torch.float64)
    found = torch.tensor([estimates(norms) for norms in norms_of(gradients, sizes)], dtype=torch.float64)
    known = torch.tensor([away.square().sum(), s.square().sum()])
    error = found.std(dim=0) / math.sqrt(times)
    assert bool(((found.mean(dim=0) - known).abs() < 3 * error).all()), (found.mean(dim=0), known, error)
    assert bool((error < 0.05 * known).all()), "a bias would be seen"


def test_the_ratio_is_of_averages_which_a_resumed_run_goes_on_with() -> None:
    scale, told = NoiseScale(decay=0.8), {}
    drawn = [Norms(3.0, 4, 1.2, 16), Norms(1.0, 4, 1.5, 16), Norms(2.5, 4, 1.0, 16)]
    square = trace = weight = 0.0
    for step, norms in enumerate(drawn, start=1):
        if step == 3:
            again = NoiseScale(decay=0.8)
            again.load_state_dict(scale.state_dict())
            scale = again
        told = scale.each_step(StepView(step, 1.0, 1.0, {}, norms=norms))
        one, two = (16 * norms.big - 4 * norms.small) / 12, (norms.small - norms.big) / (1 / 4 - 1 / 16)
        square, trace, weight = 0.8 * square + 0.2 * one, 0.8 * trace + 0.2 * two, 0.8 * weight + 0.2
    assert told["noise_scale"] == pytest.approx(trace / square)
    assert told["gradient_square"] == pytest.approx(square / weight)
    assert told["gradient_noise"] == pytest.approx(trace / weight)
    assert scale.each_step(StepView(4, 1.0, 1.0, {})) == {}, "nothing was measured"
    shrinking = NoiseScale().each_step(StepView(1, 1.0, 1.0, {}, norms=Norms(1.0, 4, 2.0, 16)))
    assert "noise_scale" not in shrinking and shrinking["gradient_noise"] < 0


def plain(how: list[str], decay: float) -> list[dict[str, float]]:
    """The same steps in plain torch: each replica's gradient by itself, then a step with their mean."""
    experiment = prepare(how).experiment
    parts = assemble(experiment, ())
    split, partition = parts.load()[0], parts.deal()
    torch.manual_seed(experiment.seed)
    model, loss = parts.make_model(), torch.nn.functional.cross_entropy
    optimizer = parts.make_optimizer(model.parameters())
    found: list[dict[str, float]] = []
    square = trace = weight = 0.0
    for step in range(8):
        own: list[Tensor] = []
        sizes: list[int] = []
        for replica in range(partition.replicas):
            taken = split.take(partition.indices(step, replica))
            if len(taken.targets) == 0:
                continue
            gradients = torch.autograd.grad(loss(model(taken.inputs), taken.targets), list(model.parameters()))
            own.append(torch.cat([each.flatten() for each in gradients]).double())
            sizes.append(len(taken.targets))
        total = sum(sizes)
        mean = cast(Tensor, sum(size / total * each for size, each in zip(sizes, own, strict=True)))
        small = sum(float(each.square().sum()) for each in own) / len(own)
        b, big = len(sizes) / sum(1 / size for size in sizes), float(mean.square().sum())
        square = decay * square + (1 - decay) * (total * big - b * small) / (total - b)
        trace = decay * trace + (1 - decay) * (small - big) / (1 / b - 1 / total)
        weight = decay * weight + 1 - decay
        found.append({"gradient_square": square / weight, "gradient_noise": trace / weight})
        for parameter, piece in zip(
            model.parameters(), mean.split([p.numel() for p in model.parameters()]), strict=True
        ):
            parameter.grad = piece.view_as(parameter).float()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return found


def steps_of(path: Path) -> list[dict[str, Any]]:
    return [record for record in RunDirectory(path).records() if record["kind"] == "step"]


@pytest.mark.parametrize("sync", ["bsp", pytest.param("bsp_naive", marks=slow)])
def test_a_run_measures_what_a_plain_loop_does_before_clipping_and_sends_nothing_more(tmp_path, sync: str) -> None:
    how = [
        *VIRTUAL,
        "hardware.workers=3",
        "clip=norm",
        "clip.max=0.5",
        "callbacks.noise_scale.decay=0.9",
        f"sync={sync}",
    ]
    result = run(how, root=tmp_path, quiet=True)
    assert result is not None
    for told, expected in zip(steps_of(result.path), plain(how, 0.9), strict=True):
        assert {key: told[key] for key in expected} == pytest.approx(expected, rel=1e-4)
    wire, stated = result.summary["wire"]["bytes_per_step"], result.summary["predicted"]["bytes_per_step"]
    assert wire == pytest.approx(stated, abs=0.1), "a sum of eight bytes would be ten more"
    last = steps_of(result.path)[-1]
    assert last["noise_scale"] == pytest.approx(last["gradient_noise"] / last["gradient_square"])
    [row] = rows([result.summary])
    assert row["noise_scale"] == last["noise_scale"]


@slow
def test_it_is_measured_in_each_so_many_th_step(tmp_path: Path) -> None:
    result = run([*VIRTUAL, "hardware.workers=2", "callbacks.noise_scale.every=3"], root=tmp_path, quiet=True)
    assert result is not None
    assert [told["step"] for told in steps_of(result.path) if "gradient_noise" in told] == [3, 6]


@slow
@pytest.mark.dist
def test_real_processes_measure_it_and_a_resumed_run_goes_on_with_it(train) -> None:
    how = ["hardware.workers=2", "callbacks=noise_scale", "checkpoint.every_steps=3", "checkpoint.keep=9"]
    whole = train(*how, name="run")
    before = steps_of(whole.path)
    train(resume="run@step-00000003")
    again = steps_of(whole.path)[-3:]
    assert [told["gradient_noise"] for told in again] == [told["gradient_noise"] for told in before[-3:]]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (["hardware.workers=1"], "and hardware.workers=1 makes them the same. Choose hardware.workers=2 or more"),
        (["sync=local_sgd"], "and sync=local_sgd steps without the mean of all. Choose sync=bsp"),
        (
            ["sync.shard=optimizer"],
            "and sync.shard=optimizer leaves each worker a piece of the mean. Choose sync.shard=",
        ),
        (["compress=topk"], "and compress=topk sends them changed. Choose compress=none"),
        (
            ["aggregate=median"],
            "and aggregate=median makes something else than their mean of them. Choose aggregate=mean",
        ),
        (["attack=sign_flip"], "and attack=sign_flip has some workers send others. Choose attack=none"),
        (["strategy=pipeline"], "and strategy=pipeline does not show both whole on a worker. Choose"),
        (["strategy=zero"], "strategy=zero"),
        (["callbacks.noise_scale.every=0"], "callbacks.noise_scale.every=0"),
    ],
)
def test_where_there_are_no_two_gradients_it_is_refused_by_name(how: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        prepare(["callbacks=noise_scale", "hardware.workers=2", *how]).plan()
    assert says in str(refused.value) and refused.value.exit_code == 2


def test_a_run_that_is_too_short_to_measure_anything_is_noted() -> None:
    how = ["callbacks=noise_scale", "hardware.workers=2", "steps=3", "callbacks.noise_scale.every=4"]
    assert any("every=4: the run has 3 steps, and measures none" in note for note in prepare(how).plan().notes)
