"""What activation checkpointing computes again for backward is on the account, as measured and as stated."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from paceline import engine
from paceline.engine.base import memory
from paceline.strategies.pipelining.blocks import blocks_of
from paceline.strategies.pipelining.chunks import Chunks
from paceline.strategies.pipelining.execute import forward as forward_of
from paceline.strategies.zero import Zero
from paceline.tasks.base import DataSpec
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.models.cnn import CNN
from paceline.tasks.models.gpt import GPT
from paceline.tasks.models.mlp import MLP

TEXT = DataSpec((16,), torch.int64, (16,), 50, None, None)
DIGITS = DataSpec((1, 8, 8), torch.float32, (), 10, None, None)

Step = Callable[[Tensor], Tensor]
Segments = list[tuple[Step, bool]]  # in order; whether it is computed again


def stored(tensors: Iterable[Tensor]) -> int:
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def saved_by(step: Step, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """(What plain autograd saves in this step, parameters aside; its output)."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        base = tensor if tensor._base is None else tensor._base
        if not isinstance(base, nn.Parameter):
            saved.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        return saved, step(x)


def peak_by_hand(segments: Segments, x: Tensor) -> int:
    """Chen et al. 2016 without torch.utils.checkpoint: of a segment its input is kept, and when backward has come to it
    there are the inputs before it and what it saves.
    """
    kept: list[list[Tensor]] = []
    peak, entering = 0, [x]
    for step, again in segments:
        saved, x = saved_by(step, x.detach().requires_grad_(x.is_floating_point()))
        kept.append([entering[-1]] if again else saved)
        entering.append(x.detach())
        peak = max(peak, stored(t for tensors in kept for t in tensors))
    for i in reversed(range(len(segments))):
        step, again = segments[i]
        if again:
            saved, _ = saved_by(step, entering[i].detach().requires_grad_(entering[i].is_floating_point()))
            kept[i] = [entering[i], *saved]
        peak = max(peak, stored(t for tensors in kept[: i + 1] for t in tensors))
    return peak


def measured(forward: Step, x: Tensor, y: Tensor) -> tuple[int, int]:
    """(The account's peak in forward, and in forward and backward)."""
    with memory.activations() as account:
        loss = cross_entropy(forward(x), y)
        before = account.peak
        loss.backward()
    assert account.recomputes
    return before, account.peak


def tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(50, (4, 16)), torch.randint(50, (4, 16))


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 1, 8, 8), torch.randint(10, (16,))


def gpt_case(dropout: float) -> tuple[Step, Segments, Tensor, Tensor]:
    x, y = tokens()
    model = GPT(TEXT, n_layer=3, n_head=2, width=32, dropout=dropout, recompute=True)
    plain = GPT(TEXT, n_layer=3, n_head=2, width=32, dropout=dropout)
    steps: Segments = [(layer, name.startswith("block")) for name, layer in plain.named_children()]
    return model, [*steps, (lambda out: cross_entropy(out, y), False)], x, y


def zero_case(model: nn.Sequential, batch: tuple[Tensor, Tensor]) -> tuple[Step, Segments, Tensor, Tensor]:
    x, y = batch
    zero = Zero(recompute=True)
    steps: Segments = [(layer, True) for layer in model]
    return lambda x: zero.forward(model, x), [*steps, (lambda out: cross_entropy(out, y), False)], x, y


def pipeline_case(model: nn.Sequential, batch: tuple[Tensor, Tensor]) -> tuple[Step, Segments, Tensor, Tensor]:
    x, y = batch
    chunks = Chunks(model, [blocks_of(model)])
    return (
        lambda x: forward_of(chunks, 0, x, recompute=True),
        [(model, True), (lambda out: cross_entropy(out, y), False)],
        x,
        y,
    )


CASES = {
    "gpt": lambda: gpt_case(0.0),
    "gpt with dropout": lambda: gpt_case(0.1),
    "gpt by zero": lambda: zero_case(GPT(TEXT, n_layer=3, n_head=2, width=32), tokens()),
    "cnn by zero": lambda: zero_case(CNN(DIGITS), images()),
    "mlp by zero": lambda: zero_case(MLP(DIGITS), images()),
    "gpt by pipeline": lambda: pipeline_case(GPT(TEXT, n_layer=3, n_head=2, width=32), tokens()),
    "cnn by pipeline": lambda: pipeline_case(CNN(DIGITS), images()),
    "mlp by pipeline": lambda: pipeline_case(MLP(DIGITS), images()),
}


@pytest.mark.parametrize("name", CASES)
def test_the_measured_peak_is_that_of_recomputing_by_hand(name: str) -> None:
    forward, segments, x, y = CASES[name]()
    assert measured(forward, x, y)[1] == peak_by_hand(segments, x)


@pytest.mark.parametrize("name", ["gpt by pipeline", "mlp by pipeline", "cnn by pipeline"])
def test_the_peak_of_what_is_recomputed_is_in_backward(name: str) -> None:
    forward, _, x, y = CASES[name]()
    before, peak = measured(forward, x, y)
    assert peak > 1.1 * before


def test_nothing_that_was_recomputed_stays_on_the_account() -> None:
    forward, _, x, y = gpt_case(0.1)
    with memory.activations() as account:
        for _ in range(3):
            cross_entropy(forward(x), y).backward()
            assert account._bytes == 0


def test_what_is_recomputed_within_what_is_recomputed_counts_too() -> None:
    x, y = tokens()
    plain = GPT(TEXT, n_layer=3, n_head=2, width=32)
    twice = GPT(TEXT, n_layer=3, n_head=2, width=32, recompute=True)

    def peak(model: nn.Sequential) -> int:
        chunks = Chunks(model, [blocks_of(model)])
        return measured(lambda x: forward_of(chunks, 0, x, recompute=True), x, y)[1]

    block, _ = saved_by(plain[1], torch.randn(4, 16, 32, requires_grad=True))
    # of all blocks their inputs, of one all that it saves
    assert stored(block) + 2 * 4 * 16 * 32 * 4 < peak(twice) < 0.6 * peak(plain)


def test_gradients_are_the_same_with_and_without_an_account() -> None:
    forward, _, x, y = gpt_case(0.1)
    assert isinstance(forward, nn.Module)

    def gradients() -> list[Tensor]:
        torch.manual_seed(0)
        forward.zero_grad()
        cross_entropy(forward(x), y).backward()
        return [p.grad.clone() for p in forward.parameters() if p.grad is not None]

    alone = gradients()
    with memory.activations():
        watched = gradients()
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))


# -- stated

SETTINGS = ["tracking=none", "data.limit=64", "batch_size=16", "steps=2", "checkpoint.every=0"]
SMALL_GPT = ["model=gpt", "data=text", "model.n_layer=4", "model.width=64"]
HOW = {
    "model": ["strategy=single", "model.recompute=true"],
    "zero": ["strategy=zero", "strategy.recompute=true", "hardware.workers=2"],
    "pipeline": ["strategy=pipeline", "strategy.recompute=true", "hardware.workers=2"],
    "pipeline of uneven micro-batches": ["strategy=pipeline", "strategy.recompute=true", "strategy.micro_batches=3"],
    "naive pipeline": ["strategy=pipeline", "strategy.recompute=true", "strategy.schedule=naive"],
    "recomputing in both": ["strategy=pipeline", "strategy.recompute=true", "model.recompute=true"],
    "virtual": ["strategy=pipeline", "strategy.recompute=true", "hardware=virtual", "hardware.workers=4"],
    "virtual model": ["strategy=data_parallel", "model.recompute=true", "hardware=virtual", "hardware.workers=2"],
}
FAST = [("pipeline", "mlp"), ("virtual", "mlp")]
STATED = [
    pytest.param(how, model, marks=[] if (how, model) in FAST else pytest.mark.slow)
    for how, overrides in HOW.items()
    for model in ("mlp", "cnn", "gpt")
    if model == "gpt" or "model.recompute=true" not in overrides
]


@pytest.mark.dist
@pytest.mark.parametrize(("how", "model"), STATED)
def test_what_is_recomputed_is_as_predicted(how: str, model: str, tmp_path: Path, fork_server: None) -> None:
    overrides = [*HOW[how], *(SMALL_GPT if model == "gpt" else [f"model={model}", "data=digits"])]
    device = [] if "hardware=virtual" in overrides else ["hardware.device=cpu", "hardware.threads=1"]
    result = engine.run([*SETTINGS, *overrides, *device], root=tmp_path, quiet=True)
    assert result is not None
    found, stated = result.summary["memory"], result.summary["predicted"]["memory"]
    assert found["activations"] == pytest.approx(stated["activations"], rel=0.15)
