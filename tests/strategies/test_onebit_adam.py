"""1-bit Adam against Adam in its warm-up, and against the paper's recursion written in plain torch after it."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from oracles import ROUNDING, Case, identical, mlp
from replicas import Life, live, replica_batch, saved_after, stacked
from torch import Tensor, nn

from paceline import engine
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.strategies.core.cost import World
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.onebit_adam import OneBitAdam

pytestmark = pytest.mark.dist
SIZES = [[3, 3], [4, 2], [1, 0], [2, 2], [3, 3], [2, 1], [2, 3], [1, 1]]
LR, BETAS, EPS, DECAY = 0.01, (0.8, 0.95), 1e-8, 0.1
adam = partial(torch.optim.Adam, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
adamw = partial(torch.optim.AdamW, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
CASE = Case(SIZES, optimizer=adam)


def recursion(case: Case, warmup: int, clip: float, decoupled: bool) -> tuple[list[Tensor], list[Tensor]]:
    """[entries] after each step; and what each replica has left out in the end."""
    model = case.start()
    params, (beta1, beta2) = list(model.parameters()), BETAS
    m, v = [torch.zeros_like(x) for x in params], [torch.zeros_like(x) for x in params]
    left = [[torch.zeros_like(x) for x in params] for _ in case.sizes[0]]
    trajectory: list[Tensor] = []
    for t, sizes in enumerate(case.sizes, start=1):
        own = []
        for rank, size in enumerate(sizes):
            batch = replica_batch(case, t - 1, rank)
            model.zero_grad()
            if size:
                F.cross_entropy(model(batch.inputs), lone(batch.targets)).backward()
            share = size / sum(sizes)
            decay = 0.0 if decoupled else DECAY
            grads = [torch.zeros_like(x) if x.grad is None else x.grad.clone() for x in params]
            own.append((share, [g + decay * x.detach() for g, x in zip(grads, params, strict=True)]))
        for k, x in enumerate(params):
            if decoupled:
                x.data *= 1 - LR * DECAY
            if t <= warmup:
                g = sum(share * gradients[k] for share, gradients in own)
                m[k], v[k] = beta1 * m[k] + (1 - beta1) * g, beta2 * v[k] + (1 - beta2) * g * g
                x.data -= LR / (1 - beta1**t) * m[k] / ((v[k] / (1 - beta2**t)).sqrt() + EPS)
                continue
            total = torch.zeros_like(x)
            for rank, (share, gradients) in enumerate(own):
                p = left[rank][k] + share * (beta1 * m[k] + (1 - beta1) * gradients[k])
                sent = p.abs().mean() * torch.where(p >= 0, 1.0, -1.0).to(p)
                left[rank][k] = p - sent
                total += sent
            m[k] = total
            root = (v[k] / (1 - beta2**warmup)).sqrt()
            step = (m[k] / (1 - beta1**t)).clamp(-clip * root, clip * root)
            x.data -= LR * step / (root + EPS)
        trajectory.append(nn.utils.parameters_to_vector(params).detach().clone())
    return trajectory, [torch.cat([piece.flatten() for piece in own]) for own in left]


@pytest.mark.parametrize(("clip", "make"), [(1.0, adam), (1e6, adam), (0.3, adamw)], ids=["clipped", "free", "adamw"])
def test_all_workers_step_as_the_recursion_says(fabric, clip, make):
    case = Case(SIZES, optimizer=make)
    results = fabric(2, live, Life(OneBitAdam(3, clip), case, seeds=[0, 1]))
    for step, expected in enumerate(recursion(case, 3, clip, decoupled=make is adamw)[0]):
        rows = stacked(results, step)
        assert torch.equal(rows[0], rows[1])
        assert torch.allclose(rows[0], expected, rtol=0, atol=ROUNDING)


def test_other_knobs_train_something_else():
    ends = [recursion(CASE, *knobs, decoupled=False)[0][-1] for knobs in [(3, 1.0), (4, 1.0), (3, 0.3), (8, 1.0)]]
    assert not any(torch.allclose(a, b, atol=1e-6) for i, a in enumerate(ends) for b in ends[:i])


@pytest.mark.parametrize("workers", [2, 3])
def test_in_its_warm_up_it_is_bsp_with_adam_bit_for_bit(fabric, workers):
    case = Case([[2] * workers, [3] * workers, [1] * workers, [2] * workers], optimizer=adam)
    ours, bsp = (fabric(workers, live, Life(sync, case)) for sync in (OneBitAdam(warmup=4), BSP()))
    for one, other in zip(ours, bsp, strict=True):
        assert all(identical(a, b) for a, b in zip(one["trajectory"], other["trajectory"], strict=True))
        assert one["ledger"] == other["ledger"]
    longer = fabric(workers, live, Life(OneBitAdam(warmup=3), case))
    assert not identical(longer[0]["trajectory"][3], bsp[0]["trajectory"][3])


def test_one_replica_sends_nothing_and_is_adam(virtual_workers):
    case = Case([[3], [2], [4], [1]], optimizer=adam)
    [ours], [bsp] = (virtual_workers(1, live, Life(sync, case)) for sync in (OneBitAdam(warmup=1), BSP()))
    assert identical(ours["weights"], bsp["weights"]) and ours["ledger"] == {}


def test_the_variance_stays_what_it_was_after_the_warm_up(virtual_workers):
    for result in virtual_workers(2, live, Life(OneBitAdam(3), CASE)):
        states = [state["optimizer"]["state"] for state in result["states"]]
        variances = [torch.cat([each["exp_avg_sq"].flatten() for each in state.values()]) for state in states]
        assert not torch.equal(variances[1], variances[2])
        assert all(torch.equal(variances[2], later) for later in variances[3:])


def test_what_was_not_sent_is_kept_for_the_next_step(fabric):
    _, left = recursion(CASE, 3, 1.0, decoupled=False)
    for result, own in zip(fabric(2, live, Life(OneBitAdam(3), CASE)), left, strict=True):
        kept = result["states"][-1]["channel"]["momentum"]["memory"]["e"]
        assert own.abs().max() > 1e-3 and torch.allclose(kept, own, rtol=0, atol=ROUNDING)


class Idle(nn.Module):
    """The second of its inputs is never there, as the corner of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = mlp()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs * torch.tensor([1.0, 0.0] + [1.0] * (inputs.shape[1] - 2)))


def test_an_entry_without_a_gradient_in_the_warm_up_is_left_alone(virtual_workers):
    case = Case(SIZES, model=Idle, optimizer=partial(torch.optim.Adam, lr=LR))
    started = dict(case.start().named_parameters())
    for result in virtual_workers(2, live, Life(OneBitAdam(3), case)):
        first = next(name for name in result["weights"] if name.endswith("weight"))
        before, after = started[first], result["weights"][first]
        assert torch.equal(after[:, 1], before[:, 1]) and not torch.equal(after[:, 0], before[:, 0])


def test_it_goes_on_where_it_was_saved_bit_for_bit(fabric):
    """After the switch: what a replica has left out, and the frozen variance, are saved."""
    whole = fabric(2, live, Life(OneBitAdam(3), CASE))
    again = fabric(2, live, Life(OneBitAdam(3), CASE, saved=saved_after(whole, 5), start=5))
    for a, b in zip(whole, again, strict=True):
        assert identical(a["weights"], b["weights"])


def test_bytes_in_the_warm_up_and_after_it_are_those_that_it_states(fabric):
    parameters, steps = list(CASE.model().parameters()), len(SIZES)
    stated = OneBitAdam(3).cost(parameters, World(2, steps=steps)).worker
    entries = sum(x.numel() for x in parameters)
    signs = -(-entries // 8) + 8 * len(parameters)  # float64 has scales of eight bytes
    for result in fabric(2, live, Life(OneBitAdam(3), CASE)):
        assert result["ledger"] == {"all_reduce": 3 * 8 * entries, "send": signs * (steps - 3)}
        assert {kind: sent * steps for kind, sent in stated.items()} == pytest.approx(result["ledger"])


def test_bytes_are_not_stated_before_the_steps_are_known():
    parameters = list(CASE.model().parameters())
    unknown, warm, known = (OneBitAdam(3).cost(parameters, World(2, steps=n)) for n in (None, 3, 4))
    assert str(unknown.varies).startswith("sync.warmup=3: ") and unknown.buffers == known.buffers
    assert warm.worker["send"] == 0 and 3 * warm.buffers == 2 * known.buffers, "nothing is left out in the warm-up"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ((), r"sync=onebit_adam: compresses Adam's momentum, and SGD is another optimizer or .*Choose optimizer=adam"),
        (("optimizer=adam", "+optimizer.amsgrad=true"), "has amsgrad or maximize"),
        (("optimizer=adam", "sync.warmup=0"), "sync.warmup=0: must be greater than or equal to 1"),
        (("optimizer=adam", "sync.most=0"), "sync.most=0.*: must be greater than 0"),
        (("optimizer=adam", "compress=topk"), "compress=topk: sync=onebit_adam takes no compress"),
    ],
)
def test_what_it_cannot_do_is_refused(overrides, says):
    with pytest.raises(ConfigError, match=says) as caught:
        engine.prepare(["sync=onebit_adam", "hardware.workers=2", *overrides]).plan()
    assert caught.value.exit_code == 2


def test_a_plan_says_what_is_sent_before_and_after_the_switch():
    plan = engine.prepare(["sync=onebit_adam", "optimizer=adam", "hardware.workers=2"]).plan()
    [note] = plan.notes
    assert note.startswith("sync.warmup=20: a worker sends 203,304 bytes a step in the first 20, and 6,378 after them")


@pytest.mark.slow
def test_a_run_on_processes_sends_what_it_said(fork_server, tmp_path: Path):
    overrides = ["sync=onebit_adam", "optimizer=adam", "hardware.workers=2", "steps=30", "tracking=none"]
    result = engine.run(overrides, root=tmp_path, quiet=True)
    assert result is not None
    assert result.summary["wire"]["bytes_per_step"] == (20 * 203_304 + 10 * 6_378) / 30
