"""optimizer=muon against torch's own two optimizers, and where a piece of a matrix would be stepped by itself."""

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from oracles import identical
from torch import Tensor, nn

from paceline.engine import prepare, run
from paceline.strategies.core.state import from_bytes, to_bytes
from paceline.strategies.optimizers.muon import Muon

KNOBS: dict[str, Any] = {"lr": 0.03, "momentum": 0.9, "weight_decay": 0.1}
ADAMW = {"adamw_lr": 0.004, "adamw_betas": (0.8, 0.95), "adamw_eps": 1e-7, "adamw_weight_decay": 0.2}


def model() -> nn.Sequential:
    """With matrices that are high and wide, a convolution's four dimensions, and a norm's one."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Flatten(), nn.Linear(12, 20), nn.LayerNorm(20), nn.Linear(20, 5, bias=False)
    )


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 1, 4, 4, generator=generator), torch.randint(5, (6,), generator=generator))
        for _ in range(steps)
    ]


def backward(of: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    of.zero_grad()
    F.cross_entropy(of(inputs), targets).backward()


@pytest.mark.parametrize("knobs", [{}, {"nesterov": False, "ns_steps": 3, "adjust_lr_fn": "match_rms_adamw"}])
def test_matrices_step_as_torchs_muon_and_all_else_as_its_adamw_bit_for_bit(knobs):
    ours, theirs = model(), model()
    optimizer = Muon(ours.parameters(), **KNOBS, **ADAMW, **knobs, fused=True)
    both = [
        torch.optim.Muon([x for x in theirs.parameters() if x.dim() == 2], **KNOBS, **knobs),
        torch.optim.AdamW(
            [x for x in theirs.parameters() if x.dim() != 2],
            **{key.removeprefix("adamw_"): value for key, value in ADAMW.items()},
            fused=True,
        ),
    ]
    for step, batch in enumerate(batches(5)):
        backward(ours, *batch)
        backward(theirs, *batch)
        for each in [optimizer, *both]:
            for group in each.param_groups:
                group["lr"] *= 0.9 if step else 1.0  # as a schedule changes it
            each.step()
        assert identical(ours.state_dict(), theirs.state_dict())
    assert not torch.equal(ours.get_parameter("0.weight"), model().get_parameter("0.weight"))


def test_a_schedule_scales_the_rate_of_matrices_and_of_all_else():
    optimizer = Muon(model().parameters(), lr=0.4, adamw_lr=0.02)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    optimizer.step()
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.2, 0.01]


def test_a_new_one_goes_on_from_its_saved_state_bit_for_bit():
    straight = model()
    optimizer = Muon(straight.parameters(), **KNOBS)
    data = batches(6)
    for batch in data[:3]:
        backward(straight, *batch)
        optimizer.step()
    resumed, saved = copy.deepcopy(straight), from_bytes(to_bytes(optimizer.state_dict()))
    other = Muon(resumed.parameters(), lr=1.0)  # its knobs are saved too
    other.load_state_dict(saved)
    for batch in data[3:]:
        for each, its in ((straight, optimizer), (resumed, other)):
            backward(each, *batch)
            its.step()
    assert identical(straight.state_dict(), resumed.state_dict())
    assert len(other.state) == len(list(resumed.parameters()))


@pytest.mark.parametrize("shape", [(3, 4), (5,)], ids=["matrices alone", "no matrix"])
def test_a_model_of_one_kind_of_parameters_is_trained(shape):
    x = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    before = x.detach().clone()
    x.grad = torch.ones_like(x)
    Muon([x]).step()
    assert not torch.equal(x, before) and x.isfinite().all()


# -- whole runs

DIGITS = ["optimizer=muon", "model=mlp", "model.hidden=[16,12]", "data=digits", "data.limit=60", "batch_size=8"]
QUIET = ["tracking=none", "checkpoint.every=0"]
HARDWARE = {"process": ["hardware.device=cpu", "hardware.threads=1"], "virtual": ["hardware=virtual"]}


def trained(root: Path, *overrides: str, **how: Any) -> tuple[dict[str, Tensor], dict]:
    result = run([*([] if "resume" in how else [*DIGITS, *QUIET]), *overrides], root=root, quiet=True, **how)
    assert result is not None
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary


def is_as_planned(summary: dict) -> bool:
    measured = summary["memory"]["optimizer"], summary["wire"]["bytes_per_step"]
    planned = summary["predicted"]
    return measured == (planned["memory"]["optimizer"], planned["bytes_per_step"]) and min(measured) > 0


def test_its_state_and_what_is_sent_are_as_planned(tmp_path):
    _, summary = trained(tmp_path, *HARDWARE["virtual"], "hardware.workers=2", "data.limit=64", "steps=8")
    assert is_as_planned(summary)


@pytest.mark.dist
@pytest.mark.slow
def test_a_resumed_run_equals_the_uninterrupted_one(fork_server, tmp_path):
    on = [*HARDWARE["process"], "hardware.workers=2", "checkpoint.every_steps=5"]
    straight, summary = trained(tmp_path, *on, "steps=8", name="straight")
    assert is_as_planned(summary)
    half, _ = trained(tmp_path, *on, "steps=5", name="again")
    resumed, _ = trained(tmp_path, "steps=8", resume="again")
    assert identical(straight, resumed) and not identical(straight, half)


@pytest.mark.dist
@pytest.mark.slow
def test_offload_sees_whole_matrices_and_trains_as_without(fork_server, tmp_path):
    plain, _ = trained(tmp_path, *HARDWARE["process"], "hardware.workers=1", "steps=6", name="plain")
    offloaded, _ = trained(
        tmp_path, *HARDWARE["process"], "hardware.workers=1", "steps=6", "strategy=offload", name="offloaded"
    )
    assert identical(plain, offloaded)


def cut_up(*overrides: str, needs: str = "torch"):
    missing = importlib.util.find_spec(needs) is None
    return pytest.param(
        overrides, marks=pytest.mark.skipif(missing, reason=f"{needs} is not installed"), id=" ".join(overrides)
    )


@pytest.mark.parametrize(
    "overrides",
    [
        cut_up("sync.shard=optimizer"),
        cut_up("sync.shard=gradients"),
        cut_up("strategy=tensor"),
        cut_up("strategy=torch_fsdp"),
        cut_up("strategy=zero", "strategy.stage=1", needs="deepspeed"),
        cut_up("strategy=zero", "strategy.stage=3", needs="deepspeed"),
    ],
)
def test_it_is_refused_where_matrices_are_cut_up(overrides):
    with pytest.raises(ValueError, match=f"{overrides[-1]}: a worker steps on pieces of .*Muon .*optimizer=adam") as no:
        prepare([*DIGITS, "hardware.workers=2", *overrides]).plan()
    assert getattr(no.value, "exit_code", None) == 2


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["sync=easgd", "sync.rho=2"], "sync.rho=2: .*rate, and Muon has several"),
        (["sync=easgd", "sync.nesterov=true"], "sync.nesterov=true: Muon has no momentum that could be Nesterov's"),
        (["sync=easgd_async", "sync.rho=2"], "sync.rho=2: .*rate, and Muon has several"),
        (["sync=easgd_round_robin", "sync.rho=2"], "sync.rho=2: .*rate, and Muon has several"),
        (["compress=dgc"], "Muon would add its own"),
        (["optimizer.lr=-1"], "optimizer.lr=-1: must be greater than or equal to 0"),
        (["optimizer.momentum=1"], "optimizer.momentum=1: must be less than 1"),
        (["optimizer.ns_steps=0"], "optimizer.ns_steps=0: must be greater than or equal to 1"),
        (["optimizer.adjust_lr_fn=best"], "optimizer.adjust_lr_fn='best': must be 'original' or 'match_rms_adamw'"),
        (["optimizer.beta=0.9"], "optimizer.beta: "),
    ],
)
def test_what_it_cannot_do_is_refused(overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*DIGITS, "hardware.workers=2", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2
