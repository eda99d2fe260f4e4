"""Pruning: masks are torch's, zeros stay zeros, a round begins with mask * theta_k, only what is kept is sent."""

import copy
import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from oracles import identical
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.optim import SGD, Adam, AdamW, Optimizer
from whole_runs import trained

from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.strategies.adapt import AdaptContext, Pruned
from paceline.strategies.adapt.pruned import Pruning
from paceline.strategies.adapt.smallest import smallest
from paceline.strategies.core.state import from_bytes, load_state, state_of, to_bytes
from paceline.strategies.optimizers.muon import Muon
from paceline.strategies.single import LocalUpdate

STEPS = 5  # of a training
SMALL = (
    *("tracking=none", "data.limit=200", "batch_size=16", "model.hidden=[16,12]", f"steps={STEPS}"),
    *("evaluate.every=1000", "checkpoint.every=0", "adapt=pruned", "adapt.rounds=2"),
)
VIRTUAL = (*SMALL, "hardware=virtual")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- the smallest


def test_the_smallest_are_those_that_sorting_gives_and_of_equal_ones_the_first() -> None:
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensors = [torch.randn(n).abs().mul(3).round().div(4).to(dtype) for n in (7, 0, 30, 12)]  # many are equal
        every = torch.cat(tensors)
        for k in (0, 1, 8, 25, 48, 49):
            found = torch.cat(smallest(tensors, k, [True] * 4))
            expected = torch.zeros(49, dtype=torch.bool)
            expected[every.argsort(stable=True)[:k]] = True
            assert torch.equal(found, expected), (dtype, k)


def test_on_several_workers_that_hold_some_tensors_in_common_the_same_entries_are_the_smallest() -> None:
    """One worker has the first tensor, another the last, both have those between them, which the first counts."""
    torch.manual_seed(1)
    whole = [torch.randn(n).abs().mul(2).round() for n in (9, 5, 8, 11)]
    held, counted = [{0, 1, 2}, {1, 2, 3}], [{0, 1, 2}, {3}]
    sums, meet = [torch.empty(0), torch.empty(0)], threading.Barrier(2, timeout=20)

    def work(rank: int) -> list[Tensor]:
        def total(counts: Tensor) -> Tensor:
            sums[rank] = counts
            meet.wait()
            found = sums[0] + sums[1]
            meet.wait()
            return found

        own = [each if i in held[rank] else torch.empty(0) for i, each in enumerate(whole)]
        return smallest(own, 15, [i in counted[rank] for i in range(4)], total)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, range(2)))
    alone = smallest(whole, 15, [True] * 4)
    for rank, its in enumerate(found):
        assert all(torch.equal(its[i], alone[i]) for i in held[rank])


# -- one worker's, step by step


def model_of(seed: int = 1) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Tanh(), nn.Linear(9, 4)).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=draws).double(), torch.randn(8, 4, generator=draws).double()


MakeOptimizer = Callable[[Any], Optimizer]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda each: SGD(each, 0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda each: Adam(each, 0.01, weight_decay=0.01),
    "adamw": lambda each: AdamW(each, 0.01, weight_decay=0.1),
    "muon": lambda each: Muon(each, 0.02),
}


Made = tuple[nn.Module, LocalUpdate, Pruning]


def pruning_of(pruned: Pruned, optimizer: MakeOptimizer, steps: int = STEPS) -> Made:
    module, sync = pruned.apply(model_of()), LocalUpdate()
    sync.prepare(
        dict(module.named_parameters()), optimizer(module.parameters()), cast(Any, SimpleNamespace(size=1, rank=0))
    )
    pruning = pruned.begin(AdaptContext(module, sync, steps, lambda number: state_of(model_of(100 + number)), None))
    assert isinstance(pruning, Pruning)
    return module, sync, pruning


def steps_of(module: nn.Module, sync: LocalUpdate, pruning: Pruning, first: int, last: int) -> None:
    for step in range(first, last):
        if pruning.acts_before(step):
            pruning.before_step(step)
        sync.optimizer.zero_grad()
        inputs, targets = batch(step)
        nn.functional.mse_loss(module(inputs), targets).backward()
        sync.update()
        pruning.after_update()


def oracle(pruned: Pruned, optimizer: MakeOptimizer, steps: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """In plain torch, with torch's own pruning; a mask multiplies weights in the forward pass."""
    model, masks = model_of(), {}
    begun = {name: each.detach().clone() for name, each in model.named_parameters()}
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    where = [(layer, "weight") for layer in layers]
    for training in range(1 + pruned.rounds):
        if training:
            model(batch(0)[0])  # torch makes what it prunes as the model is called
            if pruned.scope == "global":
                prune.global_unstructured(where, prune.L1Unstructured, amount=pruned.share)
            else:
                for layer in layers:
                    prune.l1_unstructured(layer, "weight", pruned.share)
            masks = {name: each for name, each in model.named_buffers() if name.endswith("mask")}
            with torch.no_grad():
                for name, each in model.named_parameters():
                    each.copy_(begun[name.replace("_orig", "")])
        stepper = optimizer(model.parameters())
        for step in range(training * STEPS, min(steps, (training + 1) * STEPS)):
            stepper.zero_grad()
            inputs, targets = batch(step)
            nn.functional.mse_loss(model(inputs), targets).backward()
            stepper.step()
    return model, {name.removesuffix("_mask"): mask == 0 for name, mask in masks.items()}


@pytest.mark.parametrize("scope", ["global", "layer"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_masks_and_weights_are_those_of_a_plain_loop_with_torchs_pruning(scope: Any, optimizer: str) -> None:
    pruned = Pruned(rounds=3, share=0.3, scope=scope)
    made = pruning_of(pruned, OPTIMIZERS[optimizer])
    steps_of(*made, 0, 4 * STEPS)
    model, gone = oracle(pruned, OPTIMIZERS[optimizer], 4 * STEPS)
    assert made[2].gone.keys() == gone.keys()
    assert all(torch.equal(made[2].gone[name], gone[name]) for name in gone)
    model(batch(0)[0])
    for name, weight in made[0].named_parameters():
        layer, own = name.rsplit(".", 1)
        expected = getattr(model.get_submodule(layer), own)
        torch.testing.assert_close(weight, expected, rtol=1e-12, atol=1e-14, msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_zeros_stay_zeros_under_momentum_and_decay_and_a_mask_is_idempotent(optimizer: str) -> None:
    module, sync, pruning = made = pruning_of(Pruned(rounds=2, share=0.4), OPTIMIZERS[optimizer])
    steps_of(*made, 0, STEPS)
    for step in range(STEPS, 3 * STEPS):
        steps_of(*made, step, step + 1)
        named = dict(module.named_parameters())
        for name, gone in pruning.gone.items():
            assert gone.any() and not named[name][gone].any()
            gradient = named[name].grad
            assert gradient is not None and not gradient[gone].any()
            for kept in sync.optimizer.state[named[name]].values() if optimizer != "muon" else ():
                assert not isinstance(kept, Tensor) or kept.dim() == 0 or not kept[gone].any()
    before = copy.deepcopy(state_of(module))
    pruning.after_update()
    assert identical(before, state_of(module))


@pytest.mark.parametrize("k", [0, 3])
def test_a_rewound_round_begins_with_the_mask_times_theta_k_bit_for_bit(k: int) -> None:
    module, sync, pruning = made = pruning_of(Pruned(rounds=1, rewind_to=k), OPTIMIZERS["adam"])
    steps_of(*made, 0, k)
    theta = {name: each.clone() for name, each in state_of(module).items()}
    steps_of(*made, k, STEPS)
    pruning.before_step(STEPS)
    for name, weight in state_of(module).items():
        mask = ~pruning.gone[name] if name in pruning.gone else torch.ones_like(weight, dtype=torch.bool)
        assert torch.equal(weight, mask * theta[name])
    assert not sync.optimizer.state  # its momentum begins anew


def test_fine_tuning_goes_on_with_what_was_trained() -> None:
    module, _, pruning = made = pruning_of(Pruned(rounds=1, restart="none"), OPTIMIZERS["sgd"])
    steps_of(*made, 0, STEPS)
    theta = {name: each.clone() for name, each in state_of(module).items()}
    pruning.before_step(STEPS)
    for name, gone in pruning.gone.items():
        assert torch.equal(state_of(module)[name], theta[name] * ~gone)
    assert not pruning.tensors()[len(pruning.gone) :]  # nothing to rewind to


def test_the_control_has_the_tickets_masks_and_other_weights_in_its_last_round() -> None:
    ticket, control = (
        pruning_of(Pruned(rounds=2, restart=restart), OPTIMIZERS["sgd"]) for restart in ("rewind", "random")
    )
    for each in (ticket, control):
        steps_of(*each, 0, 2 * STEPS)
    assert identical(state_of(ticket[0]), state_of(control[0]))  # the first round is the same
    for *_, pruning in (ticket, control):
        pruning.before_step(2 * STEPS)
    assert identical(ticket[2].gone, control[2].gone)
    drawn, gone = state_of(model_of(102)), control[2].gone
    for name, weight in state_of(control[0]).items():
        assert torch.equal(weight, drawn[name] * ~gone[name] if name in gone else drawn[name])


@pytest.mark.parametrize("restart", ["rewind", "none"])
def test_its_state_goes_through_bytes_and_back_in_the_middle_of_a_round(restart: Any) -> None:
    pruned = Pruned(rounds=2, restart=restart, rewind_to=0 if restart == "none" else 2)
    whole = pruning_of(pruned, OPTIMIZERS["adam"])
    steps_of(*whole, 0, STEPS + 2)
    saved = to_bytes({"sync": whole[1].state_dict(), "adapt": whole[2].state_dict(), "module": state_of(whole[0])})
    again, state = pruning_of(pruned, OPTIMIZERS["adam"]), from_bytes(saved)
    load_state(again[0], state["module"])
    again[1].load_state_dict(state["sync"])
    again[2].load_state_dict(state["adapt"])
    for each in (whole, again):
        steps_of(*each, STEPS + 2, 3 * STEPS)
    assert identical(state_of(whole[0]), state_of(again[0]))
    with pytest.raises(ConfigError, match=r"steps, epochs: a training .* has 5 steps .* would now have 6"):
        pruning_of(pruned, OPTIMIZERS["adam"], 6)[2].load_state_dict(state["adapt"])


def test_n_rounds_keep_the_nth_power_of_what_one_keeps_but_for_rounding() -> None:
    pruned = Pruned(rounds=20, share=0.2)
    for entries in (1, 7, 64, 1_001, 266_610):
        for done, ones in enumerate(pruned.ones(entries)):
            assert abs(ones - 0.8**done * entries) <= 1 / (2 * 0.2)
    made = pruning_of(Pruned(rounds=3, scope="layer"), OPTIMIZERS["sgd"])
    steps_of(*made, 0, 3 * STEPS + 1)
    for name, gone in made[2].gone.items():
        assert int((~gone).sum()) == Pruned(rounds=3).ones(gone.numel())[3], name


def test_only_the_modules_that_are_named_are_pruned_and_never_biases_or_norms() -> None:
    pruned = Pruned()
    pruned.apply(model_of())
    assert list(pruned.sizes) == ["0.weight", "3.weight"]
    last = Pruned(modules=["3"])
    last.apply(model_of())
    assert last.sizes == {"3.weight": 36}


# -- whole runs


def test_only_what_is_kept_is_sent_and_nothing_else_changes() -> None:
    among = ("hardware.workers=4",)
    dense, summary = trained(*VIRTUAL, *among)
    masked, sent = trained(*VIRTUAL, *among, "compress=masked")
    assert identical(dense, masked)
    assert sent["wire"]["bytes_per_step"] == pytest.approx(sent["predicted"]["bytes_per_step"], rel=1e-12)
    # 64 x 16 + 16 x 12 + 12 x 10 weights, and 38 biases; all-reduced among four
    ones = [1336, 1336 - 267, 1336 - 267 - 214]
    by_hand = sum(3 / 2 * 4 * (each + 38) for each in ones) / 3
    assert sent["wire"]["bytes_per_step"] == pytest.approx(by_hand, rel=1e-12)
    assert summary["wire"]["bytes_per_step"] == pytest.approx(3 / 2 * 4 * (1336 + 38))
    for each in (summary, sent):
        assert each["weights_kept"] == ones[-1] == sum(int(t.count_nonzero()) for t in dense.values() if t.dim() > 1)
        assert each["memory"]["buffers"] == each["predicted"]["memory"]["buffers"]
        assert each["steps"] == 3 * STEPS


@pytest.mark.parametrize(
    "how",
    [
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                ("strategy=pipeline", "hardware.workers=2"),
                ("strategy=pipeline", "strategy.schedule=zb_h1", "hardware.workers=2"),
                ("sync=bsp_naive", "hardware.workers=1"),
                ("sync=bsp", "hardware.workers=1"),
                ("strategy=offload", "hardware.workers=1"),
            )
        ),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_however_the_model_is_laid_out_the_same_weights_go(how: tuple[str, ...], scope: str) -> None:
    chosen = (f"adapt.scope={scope}", "optimizer=adam")
    serial, _ = trained(*VIRTUAL, *chosen, "strategy=single", "hardware.workers=1")
    found, summary = trained(*VIRTUAL, *chosen, *how)
    for name, tensor in serial.items():
        assert torch.equal(tensor == 0, found[name] == 0), name
        torch.testing.assert_close(tensor, found[name], rtol=1e-4, atol=1e-6, msg=name)
    kind = "host_buffers" if "strategy=offload" in how else "buffers"
    assert summary["memory"][kind] == summary["predicted"]["memory"][kind]


@pytest.mark.slow
def test_workers_that_hold_all_weights_in_common_prune_alike() -> None:
    own = (*(each for each in VIRTUAL if not each.startswith("model")), "model=cnn", "batch_size=8")
    serial, _ = trained(*own, "strategy=single", "hardware.workers=1")
    found, summary = trained(*own, "strategy=domain", "hardware.workers=4", "batch_size=4", "compress=masked")
    for name, tensor in serial.items():
        assert torch.equal(tensor == 0, found[name] == 0), name
        torch.testing.assert_close(tensor, found[name], rtol=1e-3, atol=1e-5, msg=name)
    assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"])


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [("sync.shard=optimizer",), ("sync.shard=gradients",), ("strategy=torch_ddp",), ("compress=masked",)],
    ids=" ".join,
)
def test_on_processes_the_same_weights_go(fork_server: None, how: tuple[str, ...]) -> None:
    chosen = (*SMALL, "optimizer=adam", "hardware.workers=2", "hardware.threads=1")
    plain, _ = trained(*chosen)
    found, summary = trained(*chosen, *how)
    for name, tensor in plain.items():
        assert torch.equal(tensor == 0, found[name] == 0), name
        torch.testing.assert_close(tensor, found[name], rtol=1e-4, atol=1e-6, msg=name)
    assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"])


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("restart", ["rewind", "random", "none"])
def test_a_run_goes_on_in_the_middle_of_a_round_bit_for_bit(fork_server: None, restart: str) -> None:
    step = 0 if restart == "none" else 2
    chosen = (*SMALL, "optimizer=adam", f"adapt.restart={restart}", f"adapt.rewind_to={step}", "compress=masked")
    among = ("hardware.workers=2", "hardware.threads=1", "checkpoint.every_steps=7", "checkpoint.keep=10")
    run([*chosen, *among, "name=whole"], quiet=True)
    whole = safetensors.torch.load_file("runs/whole/model.safetensors")
    shutil.rmtree("runs/whole/checkpoints/step-00000014")  # as if it was killed before
    Path("runs/whole/summary.json").unlink()
    result = run([], resume="whole", quiet=True)
    assert result is not None and result.summary["resumed_at"] == 7
    with pytest.raises(ValueError, match=r"steps=6: is what each of 3 trainings takes, .* with steps=5; go on with"):
        run(["steps=6"], resume="whole", quiet=True)
    assert identical(whole, safetensors.torch.load_file(result.path / "model.safetensors"))


@pytest.mark.slow
def test_a_schedule_begins_anew_with_each_round() -> None:
    """Each step has all samples, and the round takes out a weight of a pixel that is 0 in each of them."""
    how = (*VIRTUAL, "data.limit=16", "adapt.share=8e-4", "schedule=linear", "hardware.workers=1", "seed=1")
    once, _ = trained(*how, "adapt.rounds=0")
    twice, _ = trained(*how, "adapt.rounds=1")
    assert sum(int((tensor == 0).sum()) for tensor in twice.values()) == 1
    for name, tensor in once.items():
        again = torch.where(twice[name] == 0, tensor, twice[name])
        torch.testing.assert_close(tensor, again, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
def test_evaluations_tell_how_many_weights_there_were() -> None:
    trained(*VIRTUAL, "evaluate.every=1", "steps=null", "epochs=1", "name=told")
    lines = [json.loads(line) for line in Path("runs/told/metrics.jsonl").read_text().splitlines()]
    assert [each["weights_kept"] for each in lines if each["kind"] == "evaluation"] == [1336, 1069, 855]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("sync=asp",), "adapt=pruned: .*, and sync=asp keeps more of training.*Choose adapt=none, or sync=bsp"),
        (("sync=local_sgd",), "adapt=pruned: changes weights between steps, and sets them back, and"),
        (("sync=parameter_server",), "adapt=pruned: changes weights between steps, and sets them back, and"),
        (("sync=dion",), "adapt=pruned: changes weights between steps, and sets them back, and"),
        (("strategy=tensor",), "strategy=tensor holds .*weight in pieces.*Choose strategy=data_parallel"),
        (
            ("strategy=torch_fsdp",),
            "adapt=pruned: changes weights between steps, .* strategy=torch_fsdp keeps more of training",
        ),
        (
            ("adapt.rewind_to=2", "adapt.restart=none"),
            "adapt.rewind_to=2: with adapt.restart=none .* nothing is set",
        ),
        (("adapt.rewind_to=5",), "adapt.rewind_to=5: a training has 5 steps. Choose adapt.rewind_to below that"),
        (
            ("adapt.rounds=30", "adapt.share=0.9"),
            "adapt.rounds=30: after 3 rounds of adapt.share=0.9 there are 1 of 1,336 weights left, and another one",
        ),
        (("adapt.share=1e-9",), "adapt.rounds=2: after 0 rounds .* take out none of them. Choose adapt.rounds=0"),
        (("adapt.share=1",), "adapt.share=1: must be less than 1"),
        (("adapt.scope=all",), "adapt.scope='all': must be 'global' or 'layer'"),
        (("adapt.modules=[wide]",), r"adapt.modules=\['wide'\]: no module with a weight .* is called wide; there are "),
        (
            ("adapt.rounds=0", "compress=masked"),
            "compress=masked: .*adapt=pruned with adapt.rounds=0 takes out nothing",
        ),
        (("adapt=none", "compress=masked"), "compress=masked: .*adapt=none takes out nothing. Choose adapt=pruned"),
        (("compress=masked", "aggregate=median"), "compress=masked: leaves out what adapt=pruned has taken out, and"),
        (("stop_at_target=true",), "stop_at_target=true: would end a run of adapt=pruned in its first training"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_pruned_is_refused_by_name(overrides: tuple[str, ...], says: str) -> None:
    own = [each for each in SMALL if not (each.startswith("adapt") and "adapt=none" in overrides)]
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*own, "hardware.workers=2", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2
