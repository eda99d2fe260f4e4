"""optimizer=lars and optimizer=lamb against the papers' formulas tensor by tensor, and what a trust ratio promises."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from needs import needs_pytorch_optimizer, needs_timm
from oracles import identical
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.optimizers import trust
from paceline.strategies.optimizers.lamb import LAMB
from paceline.strategies.optimizers.lars import LARS

BOTH = pytest.mark.parametrize("kind", [LARS, LAMB])
slow = pytest.mark.slow


def model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """With a convolution, matrices, biases, and a norm's scale and shift."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 20), nn.LayerNorm(20), nn.Linear(20, 5, bias=False)
    ).to(dtype)


def backward(of: nn.Module, step: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    dtype = next(of.parameters()).dtype
    inputs = torch.randn(6, 1, 4, 4, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(5, (6,), generator=generator)
    of.zero_grad()
    (scale * F.cross_entropy(of(inputs), targets)).backward()


def length(x: Tensor) -> float:
    return math.sqrt(sum(entry**2 for entry in x.detach().flatten().tolist()))


def ratio(above: float, below: float) -> float:
    return above / below if above > 0 and below > 0 else 1.0


class PlainLARS:
    """Algorithm 1 with one tensor at a time, and entries out of place."""

    def __init__(self, params, lr, momentum, weight_decay, trust_coefficient, exclude_vectors):
        self.params, self.lr = list(params), lr
        self.m, self.wd, self.coefficient, self.excludes = momentum, weight_decay, trust_coefficient, exclude_vectors
        self.v = [0.0] * len(self.params)

    def step(self):
        for i, w in enumerate(self.params):
            g, wd, local = w.grad, 0.0, 1.0
            if w.dim() > 1 or not self.excludes:
                wd = self.wd
                local = ratio(self.coefficient * length(w), length(g) + wd * length(w))
            self.v[i] = self.m * self.v[i] + self.lr * local * (g + wd * w.detach())
            w.data = w.detach() - self.v[i]


class PlainLAMB:
    """Algorithm 2, likewise."""

    def __init__(self, params, lr, betas, eps, weight_decay, exclude_vectors):
        self.params, self.lr = list(params), lr
        self.betas, self.eps, self.wd, self.excludes = betas, eps, weight_decay, exclude_vectors
        self.m, self.v, self.t = [0.0] * len(self.params), [0.0] * len(self.params), 0

    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for i, x in enumerate(self.params):
            g = x.grad
            self.m[i] = b1 * self.m[i] + (1 - b1) * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * g * g
            update = self.m[i] / (1 - b1**self.t) / ((self.v[i] / (1 - b2**self.t)) ** 0.5 + self.eps)
            trusted = 1.0
            if x.dim() > 1 or not self.excludes:
                update = update + self.wd * x.detach()
                trusted = ratio(length(x), length(update))
            x.data = x.detach() - self.lr * trusted * update


LARS_KNOBS: dict[str, Any] = {"lr": 2.0, "momentum": 0.9, "weight_decay": 0.05, "trust_coefficient": 0.02}
LAMB_KNOBS: dict[str, Any] = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("kind", "plain", "knobs"),
    [
        (LARS, PlainLARS, LARS_KNOBS),
        (LARS, PlainLARS, {**LARS_KNOBS, "momentum": 0.0, "weight_decay": 0.0}),
        (LAMB, PlainLAMB, LAMB_KNOBS),
        (LAMB, PlainLAMB, {**LAMB_KNOBS, "weight_decay": 0.0}),
    ],
)
@pytest.mark.parametrize("exclude_vectors", [True, False])
@pytest.mark.parametrize("cached", [trust.CACHED, 100], ids=["together", "one by one"])
def test_it_equals_a_plain_loop_over_the_papers_formula(monkeypatch, kind, plain, knobs, exclude_vectors, cached):
    monkeypatch.setattr(trust, "CACHED", cached)
    ours, theirs = model(), model()
    optimizer = kind(ours.parameters(), **knobs, exclude_vectors=exclude_vectors)
    oracle = plain(theirs.parameters(), **knobs, exclude_vectors=exclude_vectors)
    for step in range(6):
        backward(ours, step)
        backward(theirs, step)
        if step == 3:  # a schedule changes the rate: LARS's velocity keeps the rate at which it was made
            optimizer.param_groups[0]["lr"] = oracle.lr = knobs["lr"] / 2
        optimizer.step()
        oracle.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-13)
    assert not torch.equal(ours.get_parameter("0.weight"), model().get_parameter("0.weight"))


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_without_weight_decay_a_step_of_lars_is_as_long_as_lr_and_coefficient_say_whatever_the_loss_scale(scale):
    w = nn.Parameter(torch.randn(7, 9, generator=torch.Generator().manual_seed(0)))
    before = w.detach().clone()
    w.grad = scale * torch.randn(7, 9, generator=torch.Generator().manual_seed(1))
    LARS([w], lr=0.5, momentum=0.0, weight_decay=0.0, trust_coefficient=0.02).step()
    assert length(w - before) == pytest.approx(0.5 * 0.02 * length(before), rel=1e-4)


def test_a_step_of_lamb_is_as_long_as_the_weights_times_lr():
    w = nn.Parameter(torch.randn(7, 9, generator=torch.Generator().manual_seed(0)))
    optimizer = LAMB([w], lr=0.05, weight_decay=0.1)
    for step in range(3):
        before = w.detach().clone()
        w.grad = 100 * torch.randn(7, 9, generator=torch.Generator().manual_seed(1 + step))
        optimizer.step()
        assert length(w - before) == pytest.approx(0.05 * length(before), rel=1e-4)


def test_vectors_have_plain_steps_without_weight_decay_unless_they_are_not_excluded():
    knobs = {"lr": 0.5, "momentum": 0.0, "weight_decay": 0.1, "trust_coefficient": 0.02}
    for excluded in (True, False):
        b = nn.Parameter(torch.tensor([3.0, 4.0]))
        b.grad = torch.tensor([1.0, 0.0])
        LARS([b], **knobs, exclude_vectors=excluded).step()
        rate = 0.5 if excluded else 0.5 * 0.02 * 5 / (1 + 0.1 * 5)
        decay = 0.0 if excluded else 0.1
        expected = torch.tensor([3 - rate * (1 + decay * 3), 4 - rate * decay * 4])
        torch.testing.assert_close(b.detach(), expected, rtol=1e-6, atol=0)


@BOTH
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_zero_weights_move_and_zero_gradients_leave_numbers(kind, weight_decay):
    zero, still = nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.ones(3, 4))
    zero.grad, still.grad = torch.ones(3, 4), torch.zeros(3, 4)
    kind([zero, still], weight_decay=weight_decay).step()
    assert torch.isfinite(zero).all() and bool((zero < 0).all())
    assert torch.equal(still, torch.ones(3, 4)) if weight_decay == 0 else bool((still < 1).all())


@BOTH
def test_a_parameter_without_gradient_is_left_alone_and_gradients_are_not_written(kind):
    used, idle = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3, 4))
    used.grad = torch.full((3, 4), 0.5)
    optimizer = kind([used, idle])
    optimizer.step()
    assert torch.equal(used.grad, torch.full((3, 4), 0.5)) and not torch.equal(used, torch.ones(3, 4))
    assert torch.equal(idle, torch.ones(3, 4)) and idle not in optimizer.state


@BOTH
def test_sparse_gradients_are_refused_before_a_weight_moves(kind):
    dense, embedding = nn.Parameter(torch.ones(2, 2)), nn.Embedding(5, 3, sparse=True)
    dense.grad = torch.ones(2, 2)
    embedding(torch.tensor([1, 4])).sum().backward()
    with pytest.raises(ConfigError, match=f"optimizer={kind.__name__.lower()}: .*sparse"):
        kind([dense, embedding.weight]).step()
    assert torch.equal(dense, torch.ones(2, 2))


@BOTH
def test_a_new_one_goes_on_from_its_saved_state_bit_for_bit(kind):
    straight = model(torch.float32)
    optimizer = kind(straight.parameters(), lr=0.7)
    for step in range(3):
        backward(straight, step)
        optimizer.step()
    resumed, saved = copy.deepcopy(straight), from_bytes(to_bytes(optimizer.state_dict()))
    other = kind(resumed.parameters(), lr=0.1, exclude_vectors=False)  # its knobs are saved too
    other.load_state_dict(saved)
    for step in range(3, 6):
        for each, its in ((straight, optimizer), (resumed, other)):
            backward(each, step)
            its.step()
    assert identical(straight.state_dict(), resumed.state_dict())


@needs_pytorch_optimizer
def test_lars_equals_pytorch_optimizers():
    """At one rate: its velocity is multiplied by the rate of the step."""
    from pytorch_optimizer.optimizer.lars import LARS as Theirs  # pyright: ignore[reportMissingImports]

    ours, theirs = model(), model()
    both = LARS(ours.parameters(), **LARS_KNOBS), Theirs(theirs.parameters(), **LARS_KNOBS)
    for step in range(6):
        for each, its in zip((ours, theirs), both, strict=True):
            backward(each, step)
            its.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


@needs_timm
def test_lamb_equals_timms_without_its_clipping():
    from timm.optim.lamb import Lamb  # pyright: ignore[reportMissingImports]

    ours, theirs = model(), model()
    same = {"bias_correction": True, "max_grad_norm": None, "always_adapt": True}
    both = (
        LAMB(ours.parameters(), **LAMB_KNOBS, exclude_vectors=False),
        Lamb(theirs.parameters(), **LAMB_KNOBS, **same),
    )
    for step in range(6):
        for each, its in zip((ours, theirs), both, strict=True):
            backward(each, step)
            its.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


# -- whole runs

DIGITS = ["model=mlp", "model.hidden=[16,12]", "data=digits", "data.limit=64", "batch_size=8"]
QUIET = ["tracking=none", "checkpoint.every=0"]
NAMES = pytest.mark.parametrize("name", ["lars", "lamb"])


def trained(root: Path, *overrides: str, **how: Any) -> tuple[dict[str, Tensor], dict]:
    result = run([*([] if "resume" in how else [*DIGITS, *QUIET]), *overrides], root=root, quiet=True, **how)
    assert result is not None
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary


def is_as_planned(summary: dict) -> bool:
    return summary["memory"]["optimizer"] == summary["predicted"]["memory"]["optimizer"] > 0


@pytest.mark.parametrize("name", ["lars", pytest.param("lamb", marks=slow)])
def test_its_state_is_as_planned(tmp_path, name):
    _, summary = trained(tmp_path, f"optimizer={name}", "hardware=virtual", "hardware.workers=2", "steps=4")
    assert is_as_planned(summary)


@slow
@NAMES
@pytest.mark.parametrize(
    "way",
    [
        ["strategy=data_parallel", "hardware.workers=2"],
        ["strategy=pipeline", "hardware.workers=2", "strategy.stages=2", "batch_size=16"],
        ["sync=parameter_server", "sync.servers=2", "hardware.workers=2"],
    ],
    ids=lambda way: way[0] if len(way) < 4 else " ".join(way[:2]),
)
def test_workers_together_train_as_one_does(tmp_path, name, way):
    """Two servers have whole tensors each, and so does each stage of a pipeline."""
    common = [f"optimizer={name}", "hardware=virtual", "steps=4"]
    serial, _ = trained(tmp_path, *common, "strategy=single", "hardware.workers=1", "batch_size=16", name="serial")
    ours, summary = trained(tmp_path, *common, *way, name="ours")
    assert is_as_planned(summary) or summary["server_memory"]["optimizer"] > 0  # servers have it, and no worker
    for key, value in serial.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-6)


@slow
@pytest.mark.dist
@NAMES
def test_a_resumed_run_equals_the_uninterrupted_one(fork_server, tmp_path, name):
    on = [f"optimizer={name}", "hardware.device=cpu", "hardware.threads=1", "hardware.workers=2"]
    on += ["checkpoint.every_steps=3"]
    straight, _ = trained(tmp_path, *on, "steps=5", name="straight")
    half, _ = trained(tmp_path, *on, "steps=3", name="again")
    resumed, _ = trained(tmp_path, "steps=5", resume="again")
    assert identical(straight, resumed) and not identical(straight, half)


@pytest.mark.parametrize(
    "overrides",
    [
        ("optimizer=lars", "optimizer.exclude_vectors=false", "sync.shard=optimizer"),
        ("optimizer=lamb", "sync.shard=gradients"),
        ("optimizer=lars", "optimizer.lr=0", "strategy=tensor"),
        ("optimizer=lars", "strategy=torch_fsdp"),
        pytest.param(("optimizer=lars", "strategy=zero", "strategy.stage=1"), marks=slow),
        pytest.param(("optimizer=lamb", "strategy=zero", "strategy.stage=3"), marks=slow),
        pytest.param(("optimizer=lars", "strategy=zero", "strategy.stage=0", "precision=bf16"), marks=slow),
        pytest.param(("optimizer=lamb", "strategy=torch_tensor"), marks=slow),
    ],
    ids=" ".join,
)
def test_it_is_refused_where_tensors_are_cut_up(overrides):
    """At any rate: at small ones the steps of LARS are so small that trying it out tells nothing."""
    kind = overrides[0].partition("=")[2].upper()
    if "strategy=zero" in overrides:
        pytest.importorskip("deepspeed")
    with pytest.raises(ValueError, match=f"{overrides[-1]}: a worker steps on pieces of .*{kind} .*Choose") as refused:
        prepare([*DIGITS, "hardware.workers=2", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["optimizer=lars", "sync=easgd", "sync.nesterov=true"], "LARS has no momentum that could be Nesterov's"),
        (["optimizer=lamb", "compress=dgc"], "LAMB would add its own"),
        (["optimizer=lars", "optimizer.momentum=1"], "optimizer.momentum=1: must be less than 1"),
        (["optimizer=lars", "optimizer.trust_coefficient=0"], "optimizer.trust_coefficient=0: must be greater than 0"),
        (["optimizer=lamb", "optimizer.eps=0"], "optimizer.eps=0: must be greater than 0"),
    ],
)
def test_what_it_cannot_do_is_refused(overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*DIGITS, "hardware.workers=2", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2
