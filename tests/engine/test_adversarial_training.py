"""adversarial_training: a plain loop in torch bit for bit; several workers as one; eps 0 as plain training."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from measured_machines import machine
from safetensors.torch import load_file
from short_runs import weights
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.cost.predicted import NotPredicted
from paceline.engine import prepare, run
from paceline.engine.config.compose import compose
from paceline.engine.planning.build import assemble
from paceline.engine.training.batches import seed_for
from paceline.strategies.core.state import state_of
from paceline.tasks.adversarial.threat import L2, LInf, Norm
from paceline.tasks.data.digits import Digits
from paceline.verify.check import verify

slow = pytest.mark.slow
SMALL = ("tracking=none", "data.limit=96", "batch_size=16", "model.hidden=[12]", "steps=8", "epochs=1000")
SMALL += ("evaluate.every=1000", "checkpoint.every=0", "optimizer.lr=0.1", "optimizer.momentum=0.9")
VIRTUAL = (*SMALL, "hardware=virtual")
ONE = ("strategy=single", "hardware.workers=1")
PGD = ("adversarial_training=pgd", "adversarial_training.steps=3")
FAST = ("adversarial_training=fast",)
SYNCHRONOUS = ("bsp_naive", "parameter_server", "local_sgd", "gossip", "easgd", "diloco", "dion", "sparta", "fedavg")
ASYNCHRONOUS = ("asp", "ssp", "hogwild", "easgd_async", "gossip_async")


def finished(folder: Path, *overrides: str, name: str = "run", **how: Any) -> Any:
    result = run([*overrides], root=folder, quiet=True, name=name, **how)
    assert result is not None
    return result


# -- what it is


def plainly(overrides: list[str], change: Any) -> dict[str, Tensor]:
    """A loop in plain torch over the samples that the run takes; `change(model, x, y, numbers, step)`."""
    experiment = compose(overrides)
    parts = assemble(experiment, ())
    torch.manual_seed(experiment.seed)
    model = parts.make_model()
    optimizer, partition, (train, _) = parts.make_optimizer(model.parameters()), parts.deal(), parts.load()
    for step in range(8):
        numbers = torch.cat([partition.indices(step, j) for j in range(partition.replicas)])
        taken = train.take(numbers)
        changed = change(model, taken.inputs, taken.targets, numbers, step)
        seed_for(experiment.seed, step, 0, torch.device("cpu"))
        optimizer.zero_grad()
        F.cross_entropy(model(changed), taken.targets).backward()
        optimizer.step()
    return state_of(model)


def attacked(norm: Norm, eps: float, a: float, steps: int) -> Any:
    """PGD from a random place, in plain torch but for that place."""
    bounds = Digits().spec.range
    assert bounds is not None
    low, high = bounds
    eps, a = eps * (high - low), a * (high - low)

    def change(model: nn.Module, x: Tensor, y: Tensor, numbers: Tensor, step: int) -> Tensor:
        model = deepcopy(model).eval()
        d = eps * norm.start(numbers, x.shape[1:], "adversarial training", 0, step)
        changed = (x + project(d)).clamp(low, high)
        for _ in range(steps):
            leaf = changed.clone().requires_grad_()
            (g,) = torch.autograd.grad(F.cross_entropy(model(leaf), y), [leaf])
            changed = (x + project(changed + a * ascend(g) - x)).clamp(low, high)
        return changed

    def project(d: Tensor) -> Tensor:
        if isinstance(norm, LInf):
            return d.clamp(-eps, eps)
        return d * (eps / d.flatten(1).norm(dim=1)).clamp(max=1).view(-1, 1, 1, 1)

    def ascend(g: Tensor) -> Tensor:
        return g.sign() if isinstance(norm, LInf) else g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1)

    return change


@pytest.mark.parametrize(
    ("chosen", "plain"),
    [
        (PGD, attacked(LInf(), 0.1, 2.5 * 0.1 / 3, 3)),
        pytest.param(FAST, attacked(LInf(), 0.1, 1.25 * 0.1, 1), marks=slow),
        pytest.param(
            (*PGD, "adversarial_training.eps=0.05", "adversarial_training.step_size=0.02"),
            attacked(LInf(), 0.05, 0.02, 3),
            marks=slow,
        ),
    ],
    ids=["pgd", "fast", "knobs"],
)
def test_one_worker_is_a_plain_loop_in_torch_bit_for_bit(tmp_path: Path, chosen: tuple[str, ...], plain: Any) -> None:
    overrides = [*VIRTUAL, *ONE, *chosen]
    result = finished(tmp_path, *overrides)
    wanted = plainly(overrides, plain)
    found = load_file(result.weights)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    untouched = plainly(overrides, lambda model, x, *_: x)
    assert not torch.equal(wanted["output.weight"], untouched["output.weight"])


@slow
def test_in_l2_it_is_a_plain_loop_up_to_rounding(tmp_path: Path) -> None:
    overrides = [*VIRTUAL, *ONE, *PGD, "adversarial_training.norm=l2", "adversarial_training.eps=0.8"]
    found = load_file(finished(tmp_path, *overrides).weights)
    for name, tensor in plainly(overrides, attacked(L2(), 0.8, 2.5 * 0.8 / 3, 3)).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)


@slow
@pytest.mark.parametrize("model", ["mlp", "resnet", "vit"])
@pytest.mark.parametrize("chosen", [PGD, FAST], ids=["pgd", "fast"])
def test_eps_0_is_plain_training_bit_for_bit(tmp_path: Path, chosen: tuple[str, ...], model: str) -> None:
    """Also with batch norms, whose running statistics an attack leaves, and with dropout, whose draws it leaves."""
    sizes = {"resnet": ["model.depth=8", "model.width=4"], "vit": ["model.dropout=0.1"]}
    small = [each for each in VIRTUAL if not each.startswith("model")] + ["hardware.workers=2", "steps=3"]
    small += [f"model={model}", *sizes.get(model, ["model.hidden=[12]"])]
    plain = finished(tmp_path, *small, name="plain")
    none = finished(tmp_path, *small, *chosen, "adversarial_training.eps=0", name="none")
    some = finished(tmp_path, *small, *chosen, name="some")
    assert weights(plain.path) == weights(none.path) != weights(some.path)


# -- several workers


def close(one: Path, other: Path, rtol: float = 1e-4) -> None:
    mine, its = (load_file(each / "model.safetensors") for each in (one, other))
    for name, tensor in mine.items():
        torch.testing.assert_close(its[name], tensor, rtol=rtol, atol=2e-5)


@pytest.mark.parametrize("chosen", [PGD, pytest.param(FAST, marks=slow)], ids=["pgd", "fast"])
def test_two_workers_train_as_one_with_their_batches_together(tmp_path: Path, chosen: tuple[str, ...]) -> None:
    serial = finished(tmp_path, *VIRTUAL, *ONE, *chosen, "batch_size=16", name="serial")
    two = finished(tmp_path, *VIRTUAL, "hardware.workers=2", *chosen, "batch_size=8", name="two")
    close(serial.path, two.path)
    assert two.summary["wire"]["bytes_per_step"] == two.summary["predicted"]["bytes_per_step"]


@slow
@pytest.mark.parametrize("sync", ["bsp_naive", "parameter_server", "local_sgd"])
def test_a_sync_mode_that_is_serial_training_alone_is_so_on_attacks(tmp_path: Path, sync: str) -> None:
    serial = finished(tmp_path, *VIRTUAL, *PGD, *ONE, name="serial")
    close(serial.path, finished(tmp_path, *VIRTUAL, *PGD, f"sync={sync}", "hardware.workers=1", name="other").path)


@slow
@pytest.mark.parametrize("sync", [*SYNCHRONOUS, *ASYNCHRONOUS])
def test_every_kind_of_sync_mode_trains_on_attacks_repeats_and_with_eps_0_is_as_without(
    tmp_path: Path, sync: str
) -> None:
    how = [*VIRTUAL, f"sync={sync}", "hardware.workers=3", *(["sync.rank=4"] if sync == "dion" else [])]
    one, again = (finished(tmp_path, *how, *PGD, name=name) for name in ("one", "again"))
    plain = finished(tmp_path, *how, name="plain")
    assert weights(one.path) == weights(again.path) != weights(plain.path)
    if sync in SYNCHRONOUS:  # on the modelled clock attacks take time, by which asynchronous workers meet others
        assert weights(finished(tmp_path, *how, *PGD, "adversarial_training.eps=0", name="none").path) == weights(
            plain.path
        )


@slow
@pytest.mark.parametrize("sync", ["bsp", "local_sgd", "gossip", "parameter_server", "fedavg", "independent"])
def test_real_workers_are_those_of_the_virtual_cluster_bit_for_bit(
    tmp_path: Path, fork_server: None, sync: str
) -> None:
    how = ("hardware.workers=2", *PGD, f"sync={sync}")
    real = finished(tmp_path, *SMALL, "hardware.threads=1", *how, name="real")
    virtual = finished(tmp_path, *VIRTUAL, *how, name="virtual")
    assert weights(real.path) == weights(virtual.path)


@slow
def test_batch_norms_over_all_replicas_are_attacked_too(tmp_path: Path) -> None:
    how = [each for each in VIRTUAL if not each.startswith("model")]
    how += ["model=resnet", "model.depth=8", "model.width=4", *PGD, "steps=3"]
    serial = finished(tmp_path, *how, *ONE, "batch_size=16", name="serial")
    two = ["hardware.workers=2", "strategy.batch_norm=all", "batch_size=8"]
    close(serial.path, finished(tmp_path, *how, *two, name="two").path, rtol=1e-3)


@slow
def test_micro_batches_are_attacked_as_the_batch_is(tmp_path: Path) -> None:
    whole = finished(tmp_path, *VIRTUAL, *ONE, *PGD, name="whole")
    pieces = finished(tmp_path, *VIRTUAL, *ONE, *PGD, "accumulate=4", name="pieces")
    close(whole.path, pieces.path)


@slow
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, fork_server: None) -> None:
    how = [*(each for each in SMALL if not each.startswith(("steps", "checkpoint"))), "checkpoint.every_steps=4"]
    how += ["hardware.workers=2", *PGD, "hardware.threads=1"]
    whole = finished(tmp_path, *how, "steps=8", name="whole")
    run([*how, "steps=4"], root=tmp_path, quiet=True, name="half")
    half = run(["steps=8"], root=tmp_path, quiet=True, resume="half")
    assert half is not None and weights(whole.path) == weights(half.path)


@slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_half_precision_attacks_are_in_float32(tmp_path: Path, precision: str) -> None:
    how = [*VIRTUAL, *ONE, f"precision={precision}"]
    none = finished(tmp_path, *how, *PGD, "adversarial_training.eps=0", name="none")
    plain = finished(tmp_path, *how, name="plain")
    some = finished(tmp_path, *how, *PGD, name="some")
    assert weights(none.path) == weights(plain.path) != weights(some.path)


# -- what it takes


@slow
def test_passes_take_their_time_on_the_modelled_clock_and_nothing_more_is_sent(tmp_path: Path) -> None:
    how = [*VIRTUAL, "hardware.workers=2", "measure.after=0"]
    plain, fast, pgd = (
        finished(tmp_path, *how, *chosen, name=name).summary
        for name, chosen in (("plain", ()), ("fast", FAST), ("pgd", PGD))
    )
    computed = [each["step_time"]["compute"] for each in (plain, fast, pgd)]
    assert computed[2] - computed[0] == pytest.approx(3 * (computed[1] - computed[0]), rel=1e-6)
    assert 0.5 < (computed[1] - computed[0]) / computed[0] < 1
    assert plain["wire"] == fast["wire"] == pgd["wire"]


@slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet"])
def test_memory_is_as_planned(tmp_path: Path, model: str) -> None:
    how = [*(each for each in VIRTUAL if not each.startswith("model")), f"model={model}", "steps=2", *PGD]
    result = finished(tmp_path, *how, "hardware.workers=2")
    planned = prepare([*how, "hardware.workers=2"]).plan().peak_memory()
    assert {kind: result.memory[kind] for kind in planned} == planned


@slow
def test_it_learns_to_withstand_what_it_learns_on(tmp_path: Path) -> None:
    how = ["tracking=none", "hardware=virtual", "hardware.workers=2", "model.hidden=[32]", "epochs=12", "batch_size=32"]
    how += ["evaluate.every=100", "checkpoint.every=0", "evaluate.attack=pgd", "evaluate.curve=[0.1]"]
    plain, taught = (
        finished(tmp_path, *how, f"adversarial_training={each}", name=each).summary["metrics"]["robust_accuracy"]
        for each in ("none", "pgd")
    )
    assert taught > plain + 0.1


# -- what is refused


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["adversarial_training=pgd", "strategy=pipeline", "hardware.workers=2", "strategy.stages=2"],
            "adversarial_training=pgd: takes gradients by the inputs of the whole model, and "
            "strategy=pipeline has the model in pieces",
        ),
        (
            ["adversarial_training=fast", "strategy=tensor", "hardware.workers=2"],
            "adversarial_training=fast: takes gradients by the inputs of the whole model, and "
            "strategy=tensor has the model in pieces",
        ),
        (
            ["adversarial_training=fast", "strategy=torch_ddp"],
            "adversarial_training=fast: takes gradients by the inputs",
        ),
        (
            ["adversarial_training=fast", "adversarial_training.eps=1.01"],
            "adversarial_training.eps=1.01: is a share of the data's range, and with adversarial_training.norm=linf "
            "any sample becomes any other by 1. Choose",
        ),
        (
            ["adversarial_training=pgd", "adversarial_training.eps=8.1", "adversarial_training.norm=l2"],
            "adversarial_training.eps=8.1: is a share of the data's range, and with adversarial_training.norm=l2 any "
            "sample becomes any other by 8, the square root of its 64 entries. Choose",
        ),
        (
            ["adversarial_training=pgd", "model=gpt", "data=text"],
            "adversarial_training=pgd: changes numbers a little, and the inputs of data=text are torch.int64",
        ),
        (
            ["adversarial_training=pgd", "model=unet", "data=disks"],
            "adversarial_training=pgd: counts by the range of inputs, and data=disks states none",
        ),
        (["adversarial_training=pgd", "adversarial_training.eps=-1"], "adversarial_training.eps=-1"),
        (
            ["adversarial_training=fast", "adversarial_training.eps=1.5"],
            "adversarial_training.eps=1.5: is a share of the data's range, and with adversarial_training.norm=linf any",
        ),
        (
            ["adversarial_training=pgd", "adversarial_training.eps=8.1", "adversarial_training.norm=l2"],
            "adversarial_training.eps=8.1: is a share of the data's range, and with adversarial_training.norm=l2 any "
            "sample becomes any other by 8, the square root of its 64 entries",
        ),
        (["adversarial_training=pgd", "adversarial_training.steps=0"], "adversarial_training.steps=0"),
        (["adversarial_training=fast", "adversarial_training.norm=l1"], "adversarial_training.norm='l1'"),
        (["adversarial_training=fast", "+adversarial_training.range=[0,1]"], "adversarial_training.range"),
        (["adversarial_training=trades"], "adversarial_training=trades: there is no such choice"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_is_refused_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        prepare(overrides).plan()
    assert str(refused.value).startswith(message)


def test_verify_has_no_reference_for_it() -> None:
    with pytest.raises(ConfigError, match="adversarial_training=pgd: the reference learns samples as they are"):
        verify(["adversarial_training=pgd"])


def test_a_step_with_attacks_is_not_predicted(tmp_path: Path) -> None:
    lab = machine(tmp_path)
    prepared = prepare(["hardware=lab", "adversarial_training=fast"], lab)
    with pytest.raises(NotPredicted, match="adversarial_training=fast makes passes before a step's own"):
        prepared.step_time(prepared.plan())
